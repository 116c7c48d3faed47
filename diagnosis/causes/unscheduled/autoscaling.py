"""Find waiting pods for which an autoscaler wants a node, and the cloud provides none."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.causes.unscheduled.waiting import Waiting
from diagnosis.facts.autoscaler import CAPACITY, QUOTA, Attempts, attempts
from diagnosis.facts.commands import command
from diagnosis.facts.quantity import counted
from diagnosis.facts.symptoms import shortened
from diagnosis.model import Certainty, Family, FoundCause, Link
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
    """Yield why no node arrives for the pods."""
    tries = next((each for pod in waiting.pods if (each := attempts(snapshot, pod)) is not None), None)
    if tries is None or (tries.by == "karpenter" and not tries.nodes):
        return  # Karpenter expects the pods on an existing node
    failures = [f"{event.about}: {event.reason}: {shortened(event.message)}" for event in tries.failures]
    known = [text for text in failures if QUOTA.search(text) or CAPACITY.search(text)]
    # Karpenter puts `insufficient capacity` before each error of the cloud, also before that of a quota.
    cause = NO_QUOTA if known and QUOTA.search(known[-1]) else NO_CAPACITY
    names = f": {named(tries.nodes, _MOST)}" if tries.nodes else ""
    times, by = counted(tries.count, "time"), tries.by or "the autoscaler"
    chosen = f"{by} chose a new node for {waiting.pods[0].subject} {times} since {tries.since:%H:%M}Z"
    evidence = (f"{chosen}, and none joined{names}", *(known or failures)[-1:])
    certainty = Certainty.PROVEN if known else Certainty.LIKELY
    pool = tries.pools[-1] if tries.pools else ""
    yield waiting.found(
        cause,
        *evidence,
        subject=f"nodepool/{pool}" if pool else "",
        remedy=tuple(_remedy(cause, tries, pool, is_known=bool(known))),
        certainty=certainty,
    )


def _remedy(cause: object, tries: Attempts, pool: str, *, is_known: bool) -> Iterator[str]:
    if not is_known and pool:
        reason = "--field-selector=reason=InsufficientCapacityError"
        yield f"Look for InsufficientCapacity first: {command('kubectl', 'get', 'events', '-A', reason)}"
        look = command("kubectl", "describe", "nodeclaims.karpenter.sh", tries.nodes[-1])
        yield f"If there is none, find the step at which the node stops (Launched, Registered, Initialized): {look}"
    elif not is_known:
        look = command("kubectl", "-n", "kube-system", "describe", "configmap", "cluster-autoscaler-status")
        yield f"Look for InsufficientCapacity and errors of node group {named(tries.nodes, _MOST) or '(all)'}: {look}"
    if cause is NO_QUOTA:
        yield NO_QUOTA.remedy
    elif pool:
        edit = command("kubectl", "edit", "nodepool", pool)
        yield f"Allow more instance types, zones or capacity types in its requirements: {edit}"
        yield "Or reserve capacity, and name it in the EC2NodeClass's `capacityReservationSelectorTerms`."
    else:
        yield "Add a node group of another instance type or zone, or reserve capacity for this one."
