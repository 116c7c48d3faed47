"""Find gangs of Kubernetes itself that the scheduler holds back: their group, or some of their pods, do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice

from diagnosis.causes.admission import refused_workloads
from diagnosis.causes.faulty_gpus import RANK_KEYS
from diagnosis.causes.unscheduled.queues import GANG, PATIENCE
from diagnosis.causes.unscheduled.waiting import group_subject, unplaced
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.gangs import Gang, gang_of, is_held_back
from diagnosis.facts.quantity import counted
from diagnosis.model import CauseSeverity, Family, FoundCause, Link, Search
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.native_gangs import kind_of
from diagnosis.snapshot.pods import Pod
from healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
NO_GROUP = _scheduled(
    "PodGroupMissing",
    "Pods name a PodGroup, or a group of a Workload, that does not exist: the scheduler does not try to place them, "
    "and writes neither a condition nor an event.",
    "Create the PodGroup, or name an existing one: `schedulingGroup` can't be changed, so the pods are created again.",
    source="https://kubernetes.io/docs/concepts/scheduling-eviction/gang-scheduling/; KEP-4671",
)
_RESOURCES = {"PodGroup": "podgroups.scheduling.k8s.io", "Workload": "workloads.scheduling.k8s.io"}
_MOST = 8


def find_held(kind: str, snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the gangs of one kind whose pods have waited for a while for the group or for other members."""
    held = (pod for pod in unplaced(snapshot) if not pod.spec.gates and is_held_back(snapshot, pod))
    for pods in grouped(((pod.meta.namespace, pod.spec.group), pod) for pod in held).values():
        gang = gang_of(snapshot, pods[0])
        if gang is None or gang.group.kind != kind or all(snapshot.is_new(pod.meta, PATIENCE) for pod in pods):
            continue
        yield _incomplete(snapshot, gang, pods) if gang.defined else _without_group(snapshot, gang, pods)


def _without_group(snapshot: Snapshot, gang: Gang, pods: list[Pod]) -> FoundCause:
    group = group_subject(pods[0])
    names = sorted(gang.entry.least) if gang.entry is not None else []
    what = f"{group} has no group {gang.group.within}" if gang.entry is not None else f"{group} does not exist"
    kind, namespace = gang.group.kind, pods[0].meta.namespace
    there = _groups(snapshot).get((kind, namespace), ())
    known = f"it has: {named(names, _MOST)}" if names else f"in the namespace: {named(there, _MOST) or 'none'}"
    see = command("kubectl", "-n", namespace, "get", _RESOURCES[kind])
    create = f"Add the group {gang.group.within} to {group}" if gang.entry is not None else f"Create {group}"
    remedy = (f"{create}, or let the pods name an existing group. See those of the namespace: {see}",)
    names_group = f"{counted(len(pods), 'pod')} name it: {named((pod.subject for pod in pods), _MOST)}"
    affected = tuple(pod.subject for pod in pods)
    return FoundCause(NO_GROUP, _written(snapshot, pods[0]), (what, names_group, known), remedy, affected)


@lru_cache(maxsize=1)
def _groups(snapshot: Snapshot) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the names of the groups by kind and namespace, in order."""
    return grouped(sorted(((one.meta.kind, one.meta.namespace), one.meta.name) for one in snapshot.gangs))


def _incomplete(snapshot: Snapshot, gang: Gang, pods: list[Pod]) -> FoundCause:
    group, members = group_subject(pods[0]), sorted(pod.subject for pod in gang.members)
    evidence = [
        f"{group}: minCount {gang.least}; {counted(len(members), 'pod')} so far: {named(members, _MOST)}",
        _missing(gang),
    ]
    if gang.ended:
        evidence.append(f"ended: {named((pod.subject for pod in gang.ended), _MOST)}")
    line = snapshot.line(pods[0].meta)
    refused = refused_workloads(snapshot)
    because = tuple(origin for subject in line[1:] for origin in refused.get(subject, ()))
    edit = command("kubectl", "-n", pods[0].meta.namespace, "edit", _RESOURCES[gang.group.kind], gang.group.name)
    owner = snapshot.owners.get(line[-1])
    see = f": {kubectl('describe', owner)}" if owner is not None else ""
    remedy = (
        f"Find out why its owner creates no further pods{see}" if len(line) > 1 else "Create the missing pods.",
        f"Or let fewer pods suffice, by a lower minCount: {edit}",
    )
    affected = tuple(pod.subject for pod in pods)
    return FoundCause(GANG, _written(snapshot, pods[0]), tuple(evidence), remedy, affected, because_of=because)


def _missing(gang: Gang) -> str:
    """Return the members that do not exist, by rank if all members have one."""
    ranks = {_rank(pod) for pod in gang.members}
    if None not in ranks:
        absent = islice((rank for rank in range(gang.least) if rank not in ranks), _MOST)
        more = gang.lacking - _MOST
        return f"missing: {', '.join(f'rank {rank}' for rank in absent)}" + (f" and {more} more" if more > 0 else "")
    return f"{counted(gang.lacking, 'pod')} missing"


def _rank(pod: Pod) -> int | None:
    fields = {**pod.meta.annotations, **pod.meta.labels}
    text = next((fields[key] for key in RANK_KEYS if key in fields), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _written(snapshot: Snapshot, pod: Pod) -> str:
    return snapshot.line(pod.meta)[-1] if pod.meta.owner is not None else group_subject(pod)


def _names(kind: str, snapshot: Snapshot) -> bool:
    return any(pod.spec.group is not None and pod.spec.group.kind == kind for pod in snapshot.pods)


SEARCHES = tuple(
    Search((NO_GROUP, GANG), ("Pod", kind_of(kind)), partial(find_held, kind), partial(_names, kind))
    for kind in _RESOURCES
)
