"""Find waiting pods for which an autoscaler wants a node, and the cloud provides none."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.causes.unscheduled.waiting import Waiting
from diagnosis.facts.autoscaler import CAPACITY, QUOTA, Attempts, attempts
from diagnosis.facts.commands import command
from diagnosis.facts.quantity import counted
from diagnosis.facts.symptoms import shortened
from diagnosis.model import Cause, Certainty, Family, FoundCause, Link
from diagnosis.snapshot import Snapshot
from healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED)
NO_CAPACITY = _scheduled(
    "InsufficientCapacity",
    "An autoscaler wants a node for waiting pods, and none arrives: the cloud has no capacity of the allowed types.",
    "Allow the autoscaler more instance types, zones or capacity types, or reserve capacity.",
    source="Karpenter: NodeClaim Event InsufficientCapacityError; Cluster Autoscaler: Event FailedScaleUp",
)
NO_QUOTA = _scheduled(
    "CloudQuotaExceeded",
    "An autoscaler wants a node for waiting pods, and the cloud refuses it: a quota of the account is used up.",
    "Request a higher quota for this instance family in the cloud's console, or allow types with another quota.",
    source="Karpenter and Cluster Autoscaler: errors VcpuLimitExceeded, QUOTA_EXCEEDED",
)
CAUSES = (NO_CAPACITY, NO_QUOTA)
_MOST = 3


def find_no_node(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield why no node arrives for the pods, by the autoscaler's events."""
    tries = next((each for pod in waiting.pods if (each := attempts(snapshot, pod)) is not None), None)
    if tries is None or (tries.by == "karpenter" and not tries.nodes):
        return  # Karpenter expects the pods on an existing node
    failures = [f"{event.about}: {event.reason}: {shortened(event.message)}" for event in tries.failures]
    known = [failure for failure in failures if QUOTA.search(failure) or CAPACITY.search(failure)]
    # Karpenter puts `insufficient capacity` before each error of the cloud, also before that of a quota.
    cause = NO_QUOTA if known and QUOTA.search(known[-1]) else NO_CAPACITY
    names = f": {named(tries.nodes, _MOST)}" if tries.nodes else ""
    chosen = f"chose a new node for {waiting.pods[0].subject} {counted(tries.count, 'time')}"
    pool = tries.pools[-1] if tries.pools else ""
    yield waiting.found(
        cause,
        f"{tries.by or 'the autoscaler'} {chosen} since {tries.since:%H:%M}Z, and none joined{names}",
        *(known or failures)[-1:],
        subject=f"nodepool/{pool}" if pool else "",
        remedy=(*(() if known else _check(tries)), *_provide(cause, pool)),
        certainty=Certainty.PROVEN if known else Certainty.LIKELY,
    )


def _check(tries: Attempts) -> Iterator[str]:
    """Yield how to find out why a node does not join, if no event shows it."""
    if tries.pools:
        reason = "--field-selector=reason=InsufficientCapacityError"
        yield f"Look for InsufficientCapacity first: {command('kubectl', 'get', 'events', '-A', reason)}"
        look = command("kubectl", "describe", "nodeclaims.karpenter.sh", tries.nodes[-1])
        yield f"If there is none, find the step at which the node stops (Launched, Registered, Initialized): {look}"
    else:
        look = command("kubectl", "-n", "kube-system", "describe", "configmap", "cluster-autoscaler-status")
        yield f"Look for InsufficientCapacity and errors of node group {named(tries.nodes, _MOST) or '(all)'}: {look}"


def _provide(cause: Cause, pool: str) -> tuple[str, ...]:
    if cause is NO_QUOTA:
        return (NO_QUOTA.remedy,)
    if not pool:
        return ("Add a node group of another instance type or zone, or reserve capacity for this one.",)
    edit = command("kubectl", "edit", "nodepool", pool)
    return (
        f"Allow more instance types, zones or capacity types in its requirements: {edit}",
        "Or reserve capacity, and name it in the EC2NodeClass's `capacityReservationSelectorTerms`.",
    )
