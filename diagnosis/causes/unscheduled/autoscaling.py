"""Find waiting pods for which an autoscaler wants a node, and the cloud provides none.

Karpenter and the Cluster Autoscaler report an attempt on the pod. Karpenter reports a failure on the NodeClaim, which
it then deletes, and the Cluster Autoscaler on its ConfigMap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia
from gpu_healthcheck.diagnosis.facts.placement import selects
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.facts.symptoms import shortened
from gpu_healthcheck.diagnosis.model import Cause, Certainty, Family, FoundCause, Link
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.moments import EARLIEST
from gpu_healthcheck.healthcheck.text.naming import named

if TYPE_CHECKING:
    from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting

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
_ATTEMPT = frozenset(("TriggeredScaleUp", "Nominated"))
"""Event reasons of the Cluster Autoscaler and Karpenter for a pod whose node they create."""
_REFUSAL = frozenset(("NotTriggerScaleUp", "FailedScaleUp"))
_ARRIVES = timedelta(minutes=15)
"""Time in which a new node joins. Karpenter and the Cluster Autoscaler give up after as long."""
_ELSEWHERE = timedelta(minutes=5)
"""Time in which Karpenter tries other instance types after the cloud had no capacity of one."""
_CLAIM = re.compile(r"\b(?:nodeclaim|machine)/([a-z0-9][a-z0-9.-]{0,252})")
_GROUP = re.compile(r"\{(\S{1,200}) \d{1,6}->\d{1,6}")
_CLAIMS = ("nodeclaim/", "machine/")
_MOST_NODES, _MOST_FAILURES = 1000, 200
_STATUS = "/cluster-autoscaler-status"
_QUOTA = re.compile(
    r"VcpuLimitExceeded|InstanceLimitExceeded|MaxSpotInstanceCountExceeded|quota[ _]?exceeded"
    r"|exceed\w{0,6} [^\n]{0,80}quota",
    re.IGNORECASE,
)
"""Errors of AWS, Google and Azure about the account's limits."""
_CAPACITY = re.compile(
    r"Insufficient\s?\w{0,20}\s?Capacity|UnfulfillableCapacity|not have sufficient [^\n]{0,60}capacity"
    r"|RESOURCE_POOL_EXHAUSTED|stockout|out of resources?\b|AllocationFailed|Overconstrained\w{0,20}Allocation"
    r"|SkuNotAvailable|UnavailableOffering",
    re.IGNORECASE,
)
"""Errors of AWS, Google and Azure about free machines."""
_REFUSALS = (
    (
        r"did not tolerate (?:taint \(taint=)?([^\s,;:=)]{1,317})(?:=([^\s,;:)]{0,63}))?(?::(\w{1,20}))?",
        "add its taint to the pod's tolerations: key: {0}, value: {1}, effect: {2}.",
    ),
    (
        r"label \W{0,2}([\w./-]{1,317})\W{1,12}(?:does not have known values|is restricted)",
        "remove {0} from the pod's selector, or give the pool that label: {edit}",
    ),
    (
        r"incompatible requirements, (?:key|label) \W{0,2}([\w./-]{1,317})",
        "let {0} in the pod's selector and in the pool's requirements have a value in common: {edit}",
    ),
    (
        r"no instance type",
        (
            "allow instance types that have the pod's GPUs, CPU and memory, in zones and capacity types that offer "
            "them: {edit}"
        ),
    ),
)
"""What ends Karpenter's refusals of one NodePool, by its words."""
_OF_GROUPS = (
    (r"max node group size reached", "If the group with such GPUs is at its maximum size, raise that."),
    (r"max (?:cluster|total)?.{0,40}limit reached", "Raise the autoscaler's limits of nodes, cores, memory or GPUs."),
    (
        r"in backoff after failed scale-up",
        (
            "The last try to add a node failed. Read why: "
            "`kubectl -n kube-system describe configmap cluster-autoscaler-status`"
        ),
    ),
    (r"taint", "If a taint that it names is that of the GPU group, add the toleration to the pod."),
    (r"affinity|selector", "If the pod selects a node by labels, the GPU group's new nodes must have them."),
    (
        r"Insufficient (?:cpu|memory|ephemeral-storage)\b",
        "A new node of a group is too small for the pod. If that is the GPU group, request less or use larger nodes.",
    ),
    (
        r"Insufficient (\S{0,60}(?:gpu|mig-)[\w.-]{0,40})",
        (
            "Without a node group with {0}, create one. If there is one, and no other reason is about it, the "
            "autoscaler does not know that its new nodes offer it. On AWS, tag the Auto Scaling group "
            "k8s.io/cluster-autoscaler/node-template/resources/{0} with the number; then restart the autoscaler, "
            "which remembers earlier nodes."
        ),
    ),
)
"""The same of the Cluster Autoscaler, which does not name the groups."""
_POOL = re.compile(r"incompatible with (?:nodepool|provisioner) (?:\W{0,2}([\w.-]{1,253}))", re.IGNORECASE)
_LIMITED = re.compile(r"exceed limits for (?:nodepool|provisioner)\W{1,4}(?:NodePool=)?([\w.-]{1,253})", re.ASCII)
_OF_POD = re.compile(r"(?:satisfied resources|daemonset overhead=) ?\{[^}]{0,2000}\}")
_MOST = 3


class Attempts(Struct, frozen=True):
    """Attempts of an autoscaler to add a node for a pod, since a suitable node joined last."""

    by: str
    since: datetime
    count: int
    nodes: tuple[str, ...]
    """Karpenter's NodeClaims; otherwise node groups."""
    pools: tuple[str, ...]
    """Karpenter's NodePools, by the names of the NodeClaims."""
    failures: tuple[Event, ...]
    """Warnings about these nodes, the newest last."""


def attempts(snapshot: Snapshot, pod: Pod) -> Attempts | None:
    """Return the attempts for the pod; None if there are none."""
    newest = islice(_gpu_nodes_by_age(snapshot), _MOST_NODES)
    joined = next((node.meta.created for node in newest if selects(pod.spec, node)), None) or EARLIEST
    tried = (event for event in snapshot.events_of(pod) if event.reason in _ATTEMPT)
    events = [event for event in tried if event.last is not None and event.last > joined]
    if not events:
        return None
    claims = _names(_CLAIM, events)
    pools = tuple(dict.fromkeys(name.rpartition("-")[0] for name in claims))
    nodes = claims or _names(_GROUP, events)
    failures = tuple(event for event in _failures(snapshot)[-_MOST_FAILURES:] if _is_about(event, nodes, pools))
    since = max(joined, min(event.first or event.last or snapshot.now for event in events))
    return Attempts(events[-1].by, since, sum(event.count for event in events), nodes, pools, failures)


def is_coming(snapshot: Snapshot, pod: Pod) -> bool | None:
    """Whether a node is being created for the pod; None if no autoscaler reports anything."""
    events = [event for event in snapshot.events_of(pod) if event.reason in _ATTEMPT | _REFUSAL]
    if not events or events[-1].reason in _REFUSAL:
        return None
    tries = attempts(snapshot, pod)
    if tries is None:
        return events[-1].last is not None and snapshot.now - events[-1].last < _ARRIVES
    refused = any(_CAPACITY.search(f"{one.reason} {one.message}") for one in tries.failures)
    return snapshot.now - tries.since < (_ELSEWHERE if refused else _ARRIVES)


def refusal_of(snapshot: Snapshot, pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return why the autoscaler adds no node for one of the pods."""
    for pod in pods:
        for event in reversed(snapshot.events_of(pod)):
            if event.reason in _REFUSAL or (event.by == "karpenter" and event.reason == "FailedScheduling"):
                return (f"{event.by or 'the autoscaler'} adds no node for {pod.subject}: {event.message}",)
    return ()


def after_refusal(refusal: Iterable[str]) -> tuple[str, ...]:
    """Return what lets the autoscaler add a node, by the words of its refusal."""
    text = " ".join(refusal)
    limited, pools = dict.fromkeys(_LIMITED.findall(text)), _POOL.split(text)[1:]
    if limited:
        return tuple(f"Raise `spec.limits` of it: {command('kubectl', 'edit', 'nodepool', pool)}" for pool in limited)
    if not pools:
        found = ((re.search(words, text, re.IGNORECASE), step) for words, step in _OF_GROUPS)
        return tuple(step.format(*match.groups()) for match, step in found if match is not None)[:_MOST]
    by_pool = dict(zip(pools[::2], (_OF_POD.sub("", part) for part in pools[1::2]), strict=True))
    of_gpus = {pool: part for pool, part in by_pool.items() if re.search(r"gpu|nvidia", f"{pool} {part}")} or by_pool
    return tuple(_let_in(pool, part) for pool, part in islice(of_gpus.items(), _MOST))


def _let_in(pool: str, words: str) -> str:
    """Return what lets Karpenter create a node of the pool."""
    edit = command("kubectl", "edit", "nodepool", pool)
    found = ((re.search(pattern, words, re.IGNORECASE), step) for pattern, step in _REFUSALS)
    match, step = next(((match, step) for match, step in found if match is not None), (None, "see {edit}"))
    return f"NodePool {pool}: {step.format(*(match.groups('') if match is not None else ()), edit=edit)}"


@lru_cache(maxsize=1)
def _gpu_nodes_by_age(snapshot: Snapshot) -> tuple[Node, ...]:
    """Return the GPU nodes whose age is known, the newest first."""
    nodes = (node for node in snapshot.nodes if node.meta.created is not None and has_nvidia(node))
    return tuple(sorted(nodes, key=lambda node: node.meta.created or EARLIEST, reverse=True))


@lru_cache(maxsize=1)
def _failures(snapshot: Snapshot) -> tuple[Event, ...]:
    """Return the warnings about Karpenter's claims and the Cluster Autoscaler, the newest last."""
    about = (subject for subject in snapshot.events_about if subject.startswith(_CLAIMS) or subject.endswith(_STATUS))
    found = (event for subject in about for event in snapshot.events_about[subject] if event.warning)
    return tuple(sorted(found, key=lambda event: str(event.last)))


def _names(pattern: re.Pattern[str], events: Iterable[Event]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for event in events for name in pattern.findall(event.message)))


def _is_about(event: Event, nodes: tuple[str, ...], pools: tuple[str, ...]) -> bool:
    if event.about.endswith(_STATUS):
        return any(group in event.message for group in nodes)
    return event.about.rpartition("/")[2].rpartition("-")[0] in pools


def find_no_node(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield why no node arrives for the pods, by the autoscaler's events."""
    if refused := list(_refused(snapshot, waiting)):
        yield from refused
        return
    tries = next((each for pod in waiting.pods if (each := attempts(snapshot, pod)) is not None), None)
    if tries is None or (tries.by == "karpenter" and not tries.nodes):
        return  # Karpenter expects the pods on an existing node
    failures = [f"{event.about}: {event.reason}: {shortened(event.message)}" for event in tries.failures]
    known = [failure for failure in failures if _QUOTA.search(failure) or _CAPACITY.search(failure)]
    # Karpenter puts `insufficient capacity` before each error of the cloud, also before that of a quota.
    cause = NO_QUOTA if known and _QUOTA.search(known[-1]) else NO_CAPACITY
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


def _refused(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield the cloud's refusal that the autoscaler reports about the pods themselves, as GKE's does."""
    events = [event for pod in waiting.pods for event in snapshot.events_of(pod) if event.reason in _ATTEMPT | _REFUSAL]
    for event in (event for event in events[-1:] if event.reason == "FailedScaleUp"):
        text = f"{event.by or 'the autoscaler'}: {event.reason}: {shortened(event.message)}"
        cause = NO_QUOTA if _QUOTA.search(text) else NO_CAPACITY if _CAPACITY.search(text) else None
        if cause is not None:
            yield waiting.found(cause, text, remedy=_provide(cause, ""))


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
