"""Find pods that no scheduler tries to place: it is missing, it fails, or it waits for a whole group of pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache, partial
from itertools import islice

from gpu_healthcheck.diagnosis.causes.admission import refused_workloads
from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.unscheduled import autoscaling
from gpu_healthcheck.diagnosis.causes.unscheduled.device_claims import lacks_claims
from gpu_healthcheck.diagnosis.causes.unscheduled.quotas import MISSING, find_silent
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import (
    Waiting,
    group_of,
    group_subject,
    unplaced,
    waits_for_group,
)
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import is_ready
from gpu_healthcheck.diagnosis.facts.gangs import Gang, gang_of, group_message, is_held_back
from gpu_healthcheck.diagnosis.facts.placement import ZERO, asked_by
from gpu_healthcheck.diagnosis.facts.quantity import counted, shown
from gpu_healthcheck.diagnosis.hami.installation import installations
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Origin, Search
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import Meta, subject
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.diagnosis.snapshot.queues import kind_of
from gpu_healthcheck.healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
NO_SCHEDULER = _scheduled(
    "SchedulerNotThere",
    "A pod names a scheduler that does not respond: no scheduler has processed the pod.",
    "Name a running scheduler, or install the named one.",
    severity=CauseSeverity.HIGH,
)
GANG = _scheduled(
    "GangIncomplete",
    "A group of pods that must start together cannot start: some pods have no room, or do not exist.",
    "Make room for the whole group, or use fewer or smaller pods.",
)
ERROR = _scheduled(
    "SchedulerFailed",
    "The scheduler failed with an error when it tried to schedule a pod.",
    "Fix the step that the error names; the scheduler then retries. Its messages: "
    "`kubectl get events -A --field-selector=reason=FailedScheduling`.",
)
NO_GROUP = _scheduled(
    "PodGroupMissing",
    "Pods name a PodGroup, or a group of a Workload, that does not exist: the scheduler does not try to place them, "
    "and writes neither a condition nor an event.",
    "Create the PodGroup, or name an existing one: `schedulingGroup` can't be changed, so the pods are created again.",
    source="https://kubernetes.io/docs/concepts/scheduling-eviction/gang-scheduling/; KEP-4671",
)
UNEXPLAINED = _scheduled(
    "NoNodeFits",
    "The scheduler finds no node for a pod, for a reason that only its message contains.",
    "Change what the scheduler's message names for each group of nodes. Its messages: "
    "`kubectl get events -A --field-selector=reason=FailedScheduling`.",
)
PATIENCE = timedelta(minutes=2)
"""Time until a gate, or a pod without a scheduler's message, counts as a problem."""
_DEFAULT = "default-scheduler"
_ALSO_CALLED = {_DEFAULT: "kube-scheduler", "volcano": "vc-scheduler"}
_REPORTS = frozenset(("FailedScheduling", "Scheduled", "FilteringFailed", "FilteringSucceed", "Unschedulable"))
_RESOURCES = {"PodGroup": "podgroups.scheduling.k8s.io", "Workload": "workloads.scheduling.k8s.io"}
_STEPS = {
    r"no enough gpu cards|not enough gpu fitted|deviceSharing error": (
        "Request per container at most as many vGPUs as the node has cards, and per vGPU at most the memory and cores "
        "that one card has left: they come from different cards, and cards do not add up. The cards with their MiB: "
        r"`kubectl get nodes -o 'custom-columns=NAME:.metadata.name,CARDS:.metadata.annotations.volcano\.sh/"
        "node-vgpu-register'`"
    ),
    r"not initialized with device": (
        "The node lacks the annotation in which Volcano's vGPU device plugin registers its cards: read the log of its "
        "pod there (volcano-device-plugin, kube-system), and use the plugin's release for this release of Volcano."
    ),
    r"(?:Insufficient|enough) (?:GPU )?Memory in (?:one|single) device": (
        "No single card has as much memory left as requested, and cards do not add up: request less aliyun.com/gpu-mem "
        "per pod, or stop pods of the fullest cards, which kubectl's plugin `inspect gpushare` shows."
    ),
    r"GPUQuota": (
        "Raise the namespace's quota in the ConfigMap of gpu-admission, or stop pods of the namespace: "
        "`kubectl -n kube-system get configmap gpuquota -o yaml`"
    ),
    r"MigStrategy=|DRA-only nodes|non-MIG node|fractional GPU scheduling": (
        "KAI shares GPUs only on nodes whose device plugin offers whole GPUs: select such nodes, or request what these "
        "nodes offer instead, a MIG profile as a resource or a claim."
    ),
    r"slurm-?bridge.*(?:expression cannot be empty|missing GRES index)": (
        "Slurm allocates these GPUs without an index, because its gres.conf only counts them (Count=): declare them "
        "there by File=/dev/nvidia0 and so on, or by AutoDetect=nvml, and restart slurmd."
    ),
    r"slurm-?bridge": (
        "Slurm places this pod. Where Slurm's commands work, ask why its job waits: "
        "`squeue --states=PENDING '--format=%i %j %P %T %r'`"
    ),
}
"""Fixes for the refusals of other schedulers, by their words."""
_MOST_SCHEDULERS, _MOST_NAMED, _MOST = 20, 5, 8


def is_error(waiting: Waiting) -> bool:
    """Whether the scheduler failed before it judged nodes."""
    condition = waiting.pods[-1].condition("PodScheduled")
    return waiting.fit is None and condition is not None and condition.reason == "SchedulerError"


def find_error(waiting: Waiting) -> Iterator[FoundCause]:
    """Yield a scheduler error that no other search recognises. HAMi's errors belong to another family."""
    if is_error(waiting) and not waiting.hami and "has been locked within" not in waiting.message:
        steps = _by_words(waiting.message)
        yield waiting.found(ERROR, f"the scheduler: {waiting.message}", remedy=steps, certainty=Certainty.LIKELY)


def _by_words(message: str) -> tuple[str, ...]:
    return tuple(step for words, step in _STEPS.items() if re.search(words, message, re.IGNORECASE))[:1]


def unexplained(snapshot: Snapshot, waiting: Waiting, above: tuple[Origin, ...]) -> FoundCause:
    """Return a result with the scheduler's words, and the fix for them where it is known."""
    evidence = [f"the scheduler: {waiting.message}"]
    if waiting.share is not None:
        evidence.append(f"{waiting.names[0]} requests {waiting.share.text} by annotation")
    elif not waiting.is_judged:
        unknown = "a request for GPUs that is not judged here: no resource, claim or known annotation"
        pods = counted(len(waiting.pods), "pod")
        evidence.append(f"{pods} with {unknown}; schedulerName {waiting.spec.scheduler}")
    refusal = autoscaling.refusal_of(snapshot, waiting.pods)
    steps = _by_words(waiting.message) or autoscaling.after_refusal(refusal) or tuple(_to_read(snapshot, waiting))
    return waiting.found(UNEXPLAINED, *evidence, remedy=steps, certainty=Certainty.LIKELY, because_of=above)


def _to_read(snapshot: Snapshot, waiting: Waiting) -> Iterator[str]:
    """Yield where the reason is found, for words without a known fix."""
    see, scheduler = kubectl("describe", waiting.pods[0].meta), waiting.spec.scheduler
    yield f"Change what the scheduler's message names for each group of nodes. All messages about the pod: {see}"
    for pod in _pods_of_scheduler(snapshot, scheduler)[:1] if scheduler not in ("", _DEFAULT) else ():
        yield f"Read the scheduler's log about the pod: {logs(pod.meta, '--tail=200')}"
    if waiting.share is not None or not waiting.is_judged:
        yield "See which pods own the GPUs, and stop some if none is left: `gpu-healthcheck status --allocation`"


def find_untried(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that no scheduler has processed, of a limited number of schedulers."""
    pods_of_scheduler: dict[str, list[Pod]] = {}
    for pod in unplaced(snapshot):
        if pod.spec.gates or snapshot.is_new(pod.meta, PATIENCE) or _is_tried(snapshot, pod):
            continue
        # Other searches report gangs, and claims that the scheduler waits for.
        if is_held_back(snapshot, pod) or lacks_claims(snapshot, pod):
            continue
        refused_group = _refused_group(snapshot, pod)
        if refused_group is not None:
            yield refused_group
        else:
            pods_of_scheduler.setdefault(pod.spec.scheduler or _DEFAULT, []).append(pod)
    # Those of most namespaces come first: the names that one tenant makes up do not displace those of others.
    order = sorted(pods_of_scheduler.items(), key=lambda item: (-len({pod.meta.namespace for pod in item[1]}), item[0]))
    for name, pods in islice(order, _MOST_SCHEDULERS):
        yield from _not_there(snapshot, name, pods) if _absence(snapshot, name) else find_silent(snapshot, name, pods)


def _is_tried(snapshot: Snapshot, pod: Pod) -> bool:
    events = snapshot.events_of(pod)
    reported = any(event.reason in _REPORTS or event.by == pod.spec.scheduler for event in events)
    judged = any(pod.condition(kind) is not None for kind in ("PodScheduled", "PodBound"))
    return reported or judged or bool(group_message(snapshot, pod))


def _refused_group(snapshot: Snapshot, pod: Pod) -> FoundCause | None:
    """Return the warning of Volcano, or a similar scheduler, about the pod's group while all of it waits."""
    name = group_of(pod)
    group = subject("PodGroup", pod.meta.namespace, name)
    warnings = [event for event in snapshot.events_about.get(group, ()) if event.warning] if name else []
    if not warnings or group in _pending_groups(snapshot):
        return None
    look = command("kubectl", "-n", pod.meta.namespace, "describe", "podgroups", name)
    remedy = f"Check its queue's free quota, and the number of pods that the group needs: {look}"
    evidence = f"{group}: {warnings[-1].message}"
    return FoundCause(GANG, snapshot.line(pod.meta)[-1], (evidence,), (remedy,), (pod.subject,))


@lru_cache(maxsize=1)
def _pending_groups(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(each.meta.subject for each in snapshot.pod_groups if each.phase == "Pending")


def _not_there(snapshot: Snapshot, name: str, pods: Sequence[Pod]) -> Iterator[FoundCause]:
    absence = _absence(snapshot, name)
    others = sorted({pod.spec.scheduler for pod in snapshot.pods if pod.spec.node and pod.spec.scheduler} - {name})
    running = ", ".join(others[:_MOST_NAMED])
    evidence = (
        f"{counted(len(pods), 'pod')} of schedulerName {name}: no condition and no event of any scheduler",
        absence,
        *((f"schedulers of this cluster: {running}",) if running else ()),
    )
    remedy = tuple(_start_scheduler(snapshot, name, running))
    hami = (each.scheduler for each in installations(snapshot) if each.scheduler_name == name)
    because = tuple((NOT_READY[each.role].name, each.subject) for each in hami if each is not None)
    sure = Certainty.PROVEN if name != _DEFAULT and snapshot.sees("Lease") else Certainty.LIKELY
    for workload, names in sorted(grouped((snapshot.line(pod.meta)[-1], pod.subject) for pod in pods).items()):
        where = f"scheduler/{name}" if name == _DEFAULT else workload
        yield FoundCause(NO_SCHEDULER, where, evidence, remedy, tuple(names), sure, because)


def _absence(snapshot: Snapshot, name: str) -> str:
    """Return the evidence that this scheduler is missing; '' if it works."""
    if name in _working(snapshot):
        return ""
    leases = (each.renewed for each in snapshot.leases if each.renewed is not None and _is_named(each.meta, name))
    renewed = max(leases, default=None)
    if renewed is not None:
        minutes = int((snapshot.now - renewed).total_seconds() // 60)
        return f"its Lease was last renewed {minutes} minutes ago" if minutes > 1 else ""
    own = _pods_of_scheduler(snapshot, name)
    if own:
        more = f", and {len(own) - 1} more" if len(own) > 1 else ""
        return "" if any(map(is_ready, own)) else f"{own[0].subject} is not ready{more}"
    if snapshot.sees("Lease"):
        return "no Lease and no running pod has its name"
    return "no running pod has its name" if snapshot.spans_namespaces else ""


@lru_cache(maxsize=1)
def _working(snapshot: Snapshot) -> frozenset[str]:
    """Return the schedulers that report about pods, or have placed one lately."""
    reports = (event.by for event in snapshot.events if event.reason in ("Scheduled", "FailedScheduling"))
    placed = (pod for pod in snapshot.pods if pod.spec.node and not pod.over and snapshot.is_new(pod.meta, PATIENCE))
    return frozenset((*reports, *(pod.spec.scheduler for pod in placed)))


def _pods_of_scheduler(snapshot: Snapshot, name: str) -> list[Pod]:
    """Return the scheduler's pods: HAMi's by its installation, those of other schedulers by name.

    Controllers of the same installation are left out, because they do not schedule pods.
    """
    hami = (each.scheduler for each in installations(snapshot) if each.scheduler_name == name)
    of_hami = [pod for scheduler in hami if scheduler is not None for pod in scheduler.pods]
    own = of_hami or [pod for pod in snapshot.pods if pod.phase == "Running" and _is_named(pod.meta, name)]
    return [pod for pod in own if "sched" in pod.meta.name] or own


def _is_named(meta: Meta, scheduler: str) -> bool:
    """Whether the object belongs to the scheduler, by a part of its name between dashes or by its namespace."""
    if meta.namespace == scheduler and "scheduler" in meta.name:  # KAI's pods in its own namespace
        return True
    return any(f"-{name}-" in f"-{meta.name}-" for name in (scheduler, _ALSO_CALLED.get(scheduler, scheduler)))


def _start_scheduler(snapshot: Snapshot, name: str, running: str) -> Iterator[str]:
    """Yield the steps to get a working scheduler.

    Another scheduler is suggested only if the named scheduler has no pods, and never as a replacement of the cluster's
    default.
    """
    own = _pods_of_scheduler(snapshot, name)
    look = command("kubectl", "get", "pods", "-A", "-o", "wide")
    if own:
        yield f"Find the reason: {kubectl('describe', own[0].meta)}"
    elif name == _DEFAULT:
        yield f"Start kube-scheduler, a part of the control plane: {look}"
    else:
        yield f"Name a running scheduler ({running or _DEFAULT}) in the workload's schedulerName."
        yield f"Or start the named scheduler: {look}"


def find_gang(snapshot: Snapshot, waiting: Waiting, free: Decimal) -> Iterator[FoundCause]:
    """Yield a group whose pods each fit alone. `free`: of the requested devices on all eligible nodes.

    Either the scheduler waits for all of them, or there is not enough room for all.
    """
    pod, name = waiting.pods[0], next(iter(waiting.devices), "")
    group, gang = group_of(pod), gang_of(snapshot, pod)
    own = (len(waiting.pods), waiting.asked.get(name, ZERO) * len(waiting.pods))
    pods, total = _group_requests(snapshot).get((pod.meta.namespace, group, name), own) if group else own
    short = bool(group and name) and pods > 1 and total > free
    if not short and not waits_for_group(waiting.message, waiting.fit):
        return
    evidence = [f"the scheduler: {waiting.message}"]
    if name:
        numbers = f"{shown(name, total)} {name} wait; {shown(name, free)} free on eligible nodes"
        evidence.append(f"{pods} pods that request {numbers}")
    if gang is not None:
        evidence.append(f"{group_subject(pod)}: minCount {gang.least}, {gang.placed} of its pods have a node")
    look = command("kubectl", "-n", pod.meta.namespace, "describe", "podgroups", group)
    owners = "See which pods own the GPUs that it lacks: `gpu-healthcheck status --allocation`"
    remedy = (
        GANG.remedy,
        owners,
        *((f"See how many pods the group needs, and what keeps it: {look}",) if group else ()),
    )
    yield waiting.found(GANG, *evidence, subject=group_subject(pod) if pod.meta.owner is None else "", remedy=remedy)


@lru_cache(maxsize=1)
def _group_requests(snapshot: Snapshot) -> Mapping[tuple[str, str, str], tuple[int, Decimal]]:
    """Return the unscheduled pods of each group and their total, by namespace, group and resource.

    Of a gang of Kubernetes, only as many pods count as still need a node.
    """
    amounts = grouped(
        ((pod.meta.namespace, group, name), (value, gang_of(snapshot, pod)))
        for pod in unplaced(snapshot)
        if (group := group_of(pod))
        for name, value in asked_by(pod.spec).items()
    )
    totals = {}
    for key, some in amounts.items():
        gang = some[0][1]
        needed = sorted(value for value, _ in some)[: gang.unplaced if gang is not None else None]
        totals[key] = (len(needed), sum(needed, ZERO))
    return totals


def find_held(kind: str, snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the gangs of one kind whose pods have waited for a while for the group or for other members."""
    held = (pod for pod in unplaced(snapshot) if not pod.spec.gates and is_held_back(snapshot, pod))
    for pods in grouped(((pod.meta.namespace, pod.spec.group), pod) for pod in held).values():
        gang = gang_of(snapshot, pods[0])
        if (
            gang is not None
            and gang.group.kind == kind
            and not all(snapshot.is_new(pod.meta, PATIENCE) for pod in pods)
        ):
            yield _incomplete(snapshot, gang, pods) if gang.defined else _without_group(snapshot, gang, pods)


def _without_group(snapshot: Snapshot, gang: Gang, pods: Sequence[Pod]) -> FoundCause:
    group, namespace = group_subject(pods[0]), pods[0].meta.namespace
    if gang.entry is None:
        missing, create = f"{group} does not exist", f"Create {group}"
        groups = _groups_in(snapshot).get((gang.group.kind, namespace), ())
        known = f"in the namespace: {named(groups, _MOST) or 'none'}"
    else:
        missing = f"{group} has no group {gang.group.within}"
        create = f"Add the group {gang.group.within} to {group}"
        known = f"it has: {named(sorted(gang.entry.least), _MOST) or 'none'}"
    see = command("kubectl", "-n", namespace, "get", _RESOURCES[gang.group.kind])
    remedy = f"{create}, or let the pods name an existing group. See those of the namespace: {see}"
    names = tuple(pod.subject for pod in pods)
    evidence = (missing, f"{counted(len(pods), 'pod')} name it: {named(names, _MOST)}", known)
    return FoundCause(NO_GROUP, _author(snapshot, pods[0]), evidence, (remedy,), names)


@lru_cache(maxsize=1)
def _groups_in(snapshot: Snapshot) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the names of the groups by kind and namespace, in order."""
    return grouped(sorted(((one.meta.kind, one.meta.namespace), one.meta.name) for one in snapshot.gangs))


def _incomplete(snapshot: Snapshot, gang: Gang, pods: Sequence[Pod]) -> FoundCause:
    group, members = group_subject(pods[0]), sorted(pod.subject for pod in gang.members)
    evidence = [
        f"{group}: minCount {gang.least}; {counted(len(members), 'pod')} so far: {named(members, _MOST)}",
        f"{counted(gang.lacking, 'pod')} missing",
    ]
    if gang.ended:
        evidence.append(f"ended: {named((pod.subject for pod in gang.ended), _MOST)}")
    line = snapshot.line(pods[0].meta)
    refused = refused_workloads(snapshot)
    because = tuple(origin for owner in line[1:] for origin in refused.get(owner, ()))
    edit = command("kubectl", "-n", pods[0].meta.namespace, "edit", _RESOURCES[gang.group.kind], gang.group.name)
    owner = snapshot.owners.get(line[-1])
    see = f": {kubectl('describe', owner)}" if owner is not None else ""
    remedy = (
        f"Find out why its owner creates no further pods{see}" if len(line) > 1 else "Create the missing pods.",
        f"Or let fewer pods suffice, by a lower minCount: {edit}",
    )
    affected = tuple(pod.subject for pod in pods)
    return FoundCause(GANG, _author(snapshot, pods[0]), tuple(evidence), remedy, affected, because_of=because)


def _author(snapshot: Snapshot, pod: Pod) -> str:
    """Return the object that a person wrote: the last owner, or the group of bare pods."""
    return snapshot.line(pod.meta)[-1] if pod.meta.owner is not None else group_subject(pod)


def _names_group(kind: str, snapshot: Snapshot) -> bool:
    return any(pod.spec.group is not None and pod.spec.group.kind == kind for pod in snapshot.pods)


SEARCHES = (
    *(
        Search((NO_GROUP, GANG), ("Pod", kind_of(kind)), partial(find_held, kind), partial(_names_group, kind))
        for kind in _RESOURCES
    ),
    Search((NO_SCHEDULER, GANG, MISSING), ("Pod",), find_untried),
)
