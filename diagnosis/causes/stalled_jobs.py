"""Find jobs whose GPUs wait for a rank that does not come, and the rank to look at first.

The agents record which GPUs wait or idle under a pod. A record counts only while its agent is alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from statistics import median_low

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.efa_jobs import job_of
from gpu_healthcheck.diagnosis.causes.faulty_gpus import FAULTY, affected_on, concerns, given_gpus
from gpu_healthcheck.diagnosis.facts.commands import command, explain, kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import role_of
from gpu_healthcheck.diagnosis.facts.efa import PORT_DOWN
from gpu_healthcheck.diagnosis.facts.gpu_nodes import GPU
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods, gpu_pods_on, gpus_of, is_deep_test
from gpu_healthcheck.diagnosis.facts.placement import asked_by
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.facts.ranks import pod_numbers
from gpu_healthcheck.diagnosis.facts.symptoms import since_and_detail
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import ContainerState, Pod
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.probes.kubelet_pods import EXPECTED, WAITING
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, timestamp
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.verdict.work import POD_DIGITS, Work, WorkRow

STALLED = Family(Link.RUNNING, severity=CauseSeverity.MEDIUM, urgent=1)(
    "JobStalled",
    "GPUs of a job wait, as in a collective whose peer does not come: always busy, without use of memory or power. The "
    "severity is high if a rank is gone, or its node is faulty, not ready, or has its network down.",
    "Look at the rank that does not wait, or whose pod or node changed before the others began to wait.",
    source="`work` in the agents' records; its limits were measured on one H200",
)
_HIGH = replace(STALLED, severity=CauseSeverity.HIGH)
_INDEPENDENT, _SLURM_NODE = ("ReplicaSet", "DaemonSet", "ReplicationController"), "slurmd"
"""Controllers, and part of a label of Slurm nodes, whose pods do not wait for each other. Each is a job by itself."""
_ALIKE = "no rank differs: none is gone or new, idles, works, or has a finding from that time"
_PROCESSES = ("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv")
_GONE, _FAULT, _NETWORK, _NEW, _IDLE, _WORKS, _SLOW = range(7)
"""Signs that others wait for a pod, the strongest first. Up to _NETWORK, the severity is high."""
_SLOWER = "GpuSlowerThanSiblings"
_PARTS = {"gpu": _NEW, "nvswitch": _NEW, "driver": _NEW, "efa": _NETWORK, "rdma": _NETWORK}
"""Sign of a new finding by the kind of its subject. A port that is down counts however old it is."""
_BEFORE, _LATER = timedelta(minutes=15), timedelta(minutes=2)
"""Time from a fault until its peers are observed to wait, a few check cycles, and time in which a job's pods start."""
_MOST_SUSPECTS, _MOST_NAMES, _MOST_REASONS, _MOST_INDEXES = 4, 8, 3, 100_000
_Reason = tuple[int, str, str]
"""Sign, its description, and the reason of the agent's finding, if it is one."""


class _Suspect(Struct, frozen=True):
    """Pods of one node with the same reasons, the strongest first, and their ranks. No pods: ranks that have none."""

    reasons: Sequence[_Reason]
    pods: Sequence[Pod]
    ranks: Sequence[int]


class _Member(Struct, frozen=True):
    """Pod of a job, since when its GPUs wait or idle, why it does not run, and why it is unknown what its GPUs do."""

    pod: Pod
    gpus: int
    waiting: Mapping[str, datetime]
    idle: Mapping[str, datetime]
    stopped: str
    unknown: str
    working: int


def find_stalled(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the jobs of several GPUs of which some wait, and at most as many work."""
    rows = _rows(snapshot)
    for (job, _), pods in gangs(snapshot).items() if rows else ():
        if any(pod.subject in rows for pod in pods):
            members = [_member(snapshot, pod, rows.get(pod.subject, {})) for pod in pods]
            waits, works = sum(len(one.waiting) for one in members), sum(one.working for one in members)
            if waits >= max(works, 1) and max(sum(one.gpus for one in members), _wanted(snapshot, pods)) > 1:
                yield _found(snapshot, job, members, {name: len(own) for name, own in rows.items()})


@lru_cache(maxsize=1)
def gangs(snapshot: Snapshot) -> Mapping[tuple[str, str], Sequence[Pod]]:
    """Return the GPU pods that wait for each other and have not ended, by their job and its replica."""
    return grouped((gang_of(snapshot, pod), pod) for pod in gpu_pods(snapshot) if _is_work(snapshot, pod))


def gang_of(snapshot: Snapshot, pod: Pod) -> tuple[str, str]:
    """Return the pod's job and its replica, the key of `gangs`; the pod itself if it waits for no other pod."""
    is_alone = pod.meta.owner is not None and pod.meta.owner.kind in _INDEPENDENT
    if is_alone or any(_SLURM_NODE in label for label in pod.meta.labels.values()):
        return pod.subject, ""
    job, replica = job_of(snapshot, pod)
    # The Jobs of a CronJob do not wait for each other.
    return (snapshot.line(pod.meta)[-2] if job.startswith("cronjob/") else job), replica


def _is_work(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod has not ended, and its GPUs do not wait by design."""
    metas = (pod.meta, snapshot.namespace.get(pod.meta.namespace))
    is_expected = any(meta is not None and meta.annotations.get(WAITING) == EXPECTED for meta in metas)
    return not (pod.over or is_expected or is_deep_test(pod)) and role_of(pod.meta, {}, pod.spec) is None


def _rows(snapshot: Snapshot) -> Mapping[str, Mapping[str, WorkRow]]:
    """Return the GPUs that wait or idle by the subject of their pod, or of their node if the pod is not known."""
    found: dict[str, dict[str, WorkRow]] = {}
    on_node = gpu_pods_on(snapshot)
    for node in snapshot.nodes:
        for uuid, row in (node.record.work or {}).items() if node.record is not None else ():
            pods = [one for one in on_node.get(node.name, ()) if row.pod in (None, "", one.meta.uid[:POD_DIGITS])]
            # A row of a pod that is gone belongs to no other pod.
            is_known = len(pods) == 1 and bool(row.pod or snapshot.sees_all_pods)
            holder = pods[0].subject if is_known else "" if row.pod else node.subject
            found.setdefault(holder, {})[uuid] = row
    return found


def _member(snapshot: Snapshot, pod: Pod, rows: Mapping[str, WorkRow]) -> _Member:
    stopped = _stopped(snapshot, pod)
    unknown = "" if stopped else _unknown(snapshot, pod)
    gpus = max(int(asked_by(pod.spec).get(GPU, 0)) or len(given_gpus(snapshot, pod) or ()), len(rows))
    if stopped or unknown:
        return _Member(pod, gpus, {}, {}, stopped, unknown, 0)
    waiting, idle = (
        {uuid: row.since for uuid, row in rows.items() if row.state is state and row.since is not None}
        for state in (Work.WAITING, Work.IDLE)
    )
    return _Member(pod, gpus, waiting, idle, "", "", gpus - len(waiting) - len(idle))


def _stopped(snapshot: Snapshot, pod: Pod) -> str:
    """Return why the pod does not run; '' if it does."""
    if pod.meta.deleted is not None:
        return f"it is being deleted since {_clock(snapshot, pod.meta.deleted)}"
    if pod.spec.node not in snapshot.by_node:
        return "its node is gone" if pod.spec.node else "it waits for a node"
    is_up = pod.phase == "Running" and not any(state.waiting or state.ended for state in _states(pod))
    return "" if is_up else "it does not run"


def _unknown(snapshot: Snapshot, pod: Pod) -> str:
    """Return why no record shows what the GPUs of a running pod do now; '' if one does."""
    node = snapshot.by_node[pod.spec.node]
    if not node.ready:
        return "the node is not ready"
    if node.record is None:
        return "no agent has written a record there"
    return "its agent is silent" if node.name in _silent(snapshot) else ""


@lru_cache(maxsize=1)
def _silent(snapshot: Snapshot) -> frozenset[str]:
    """Return the nodes whose agent's heartbeat has expired."""
    beats = ((one, one.renewed) for one in snapshot.leases if one.meta.namespace == NAMESPACE)
    return frozenset(one.meta.name for one, at in beats if at and (snapshot.now - at).total_seconds() > one.seconds)


def _wanted(snapshot: Snapshot, pods: Sequence[Pod]) -> int:
    """Return how many pods the Jobs of the pods should have; 0 if other controllers make them."""
    makers = [snapshot.workload.get(maker) for maker in {name for pod in pods for name in snapshot.line(pod.meta)[1:2]}]
    return sum(one.wanted or 0 for one in makers if one) if all(one and one.meta.kind == "Job" for one in makers) else 0


def _states(pod: Pod) -> list[ContainerState]:
    own = {container.name for container in pod.spec.containers if gpus_of(container) or container.claims}
    return [state for state in pod.states if state.name in own]


def _changed(pod: Pod) -> datetime:
    """Return when the pod was created, or a container with GPUs restarted."""
    ends = (state.last_ended.at for state in _states(pod) if state.last_ended)
    return max((pod.meta.created or EARLIEST, *filter(None, ends)))


def _suspects(snapshot: Snapshot, job: str, members: Sequence[_Member]) -> list[_Suspect]:
    """Return the pods and missing ranks for which the others may wait, the strongest reason first."""
    began = min(at for one in members for at in one.waiting.values()) - _BEFORE
    late = max(began, median_low([_changed(one.pod) for one in members if not one.stopped]) + _LATER)
    pods, sizes = [one.pod for one in members], {one.gpus for one in members}
    # A pod that is being deleted may have a successor with its number.
    pods = pods if pod_numbers(pods) else [pod for pod in pods if pod.meta.deleted is None]
    numbers, size = pod_numbers(pods), sizes.pop() if len(sizes) == 1 else 0
    reasons = ((tuple(sorted(_reasons(snapshot, one, began, late))[:_MOST_REASONS]), one.pod) for one in members)
    found = [
        _Suspect(own, some, [numbers[pod.subject] for pod in some if pod.subject in numbers])
        for (own, _), some in grouped(((own, pod.spec.node), pod) for own, pod in reasons if own).items()
    ]
    if len(pods) < (wanted := _wanted(snapshot, pods)):
        is_numbered = max(numbers.values(), default=wanted) < wanted <= _MOST_INDEXES
        lacking = sorted({*range(wanted)} - {*numbers.values()}) if is_numbered else ()
        found.append(_Suspect([(_GONE, f"{job} runs {len(pods)} of its {wanted} pods", "")], (), lacking))
    ranked = (replace(one, ranks=[at * size + gpu for at in one.ranks for gpu in range(size)]) for one in found)
    return sorted(ranked, key=lambda one: (one.reasons[0][0], -len(one.reasons), one.ranks))


def _reasons(snapshot: Snapshot, member: _Member, began: datetime, late: datetime) -> Iterator[_Reason]:
    """Yield what sets the pod, its node or its GPUs apart. `began`, `late`: from when on findings and pods are new."""
    if member.stopped:
        yield _GONE, member.stopped, ""
        return
    pod, changed, gpus = member.pod, _changed(member.pod), counted(member.gpus, "GPU")
    if changed > late:
        how = "was created" if changed == pod.meta.created else "restarted"
        yield _GONE, f"it {how} at {_clock(snapshot, changed)}, later than the others", ""
    node = snapshot.by_node[pod.spec.node]
    if not node.ready:
        yield _FAULT, "its node is not ready", ""
    struck, own = affected_on(snapshot, pod, node), given_gpus(snapshot, pod) if node.findings else None
    faults = struck.findings if struck is not None else ()
    for finding in (*faults, *(one for one in node.findings if one not in node.faults and concerns(one, own))):
        is_new = finding.first_seen is not None and finding.first_seen > began
        sign = _PARTS.get(finding.subject.partition("/")[0]) if is_new else None
        sign = _FAULT if finding in faults else {_SLOWER: _SLOW, PORT_DOWN: _NETWORK}.get(finding.reason, sign)
        if sign is not None:
            text = f"{finding.reason} {finding.severity} on {finding.subject}{since_and_detail(finding)}"
            yield sign, text, finding.reason
    if member.idle:
        which = f": {named(member.idle, _MOST_NAMES)}" if len(member.idle) < member.gpus else ""
        since = _clock(snapshot, min(member.idle.values()))
        yield _IDLE, f"{len(member.idle)} of {gpus} idle since {since}{which}", ""
    if member.working:
        yield _WORKS, f"{member.working} of {gpus} at work: slow, or at another step", ""


def _clock(snapshot: Snapshot, at: datetime) -> str:
    """Format the time, with its date if that is not today's."""
    return f"{at:%H:%M}Z" if at.date() == snapshot.now.date() else timestamp(at)


def _found(snapshot: Snapshot, job: str, members: Sequence[_Member], unheld: Mapping[str, int]) -> FoundCause:
    """Return the result. The time in it is the latest of its GPUs that wait: from then on, all of these wait."""
    times = [at for one in members for at in one.waiting.values()]
    since, suspects = _clock(snapshot, max(times)), _suspects(snapshot, job, members)
    nodes = dict.fromkeys(f"node/{one.pod.spec.node}" for one in members)
    evidence = [f"{len(times)} of {counted(sum(one.gpus for one in members), 'GPU')} wait since {since}"]
    evidence += (f"{'then' if at else 'start with'} {_shown(one)}" for at, one in enumerate(suspects[:_MOST_SUSPECTS]))
    evidence += [f"and {len(suspects) - _MOST_SUSPECTS} more"] if len(suspects) > _MOST_SUSPECTS else []
    evidence += [] if suspects else [_ALIKE]
    away = grouped((one.unknown, f"node/{one.pod.spec.node}") for one in members if one.unknown)
    evidence += (f"could not check {named(dict.fromkeys(some), _MOST_NAMES)}: {why}" for why, some in away.items())
    shown = ((counted(unheld[node], "GPU"), node) for node in nodes if node in unheld)
    evidence += (f"{number} of {node} wait or idle, and it is unknown under which pod" for number, node in shown)
    cause = _HIGH if any(sign <= _NETWORK for one in suspects for sign, *_ in one.reasons) else STALLED
    waits, where = next(one.pod for one in members if one.waiting), f"since {since}: {named(nodes, _MOST_NAMES)}"
    steps = tuple(_steps(snapshot, job, suspects[:1], waits, where))
    affected = tuple(one.pod.subject for one in members if one.pod.subject != job)
    faulty = [f"node/{one.pods[0].spec.node}" for one in suspects[:1] if one.reasons[0][0] == _FAULT]
    because = origins((FAULTY, "NodeNotReady"), *faulty)
    return FoundCause(cause, job, tuple(evidence), steps, affected, Certainty.LIKELY, because)


def _shown(suspect: _Suspect) -> str:
    ranks, pods = suspect.ranks, named((pod.subject for pod in suspect.pods), _MOST_NAMES)
    is_range = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    shown = f"{ranks[0]}-{ranks[-1]}" if is_range else named(ranks, _MOST_NAMES)
    who = ", ".join(filter(None, (f"rank{'s' * (len(ranks) > 1)} {shown}" if ranks else "", pods)))
    node = next((f" on node/{pod.spec.node}" for pod in suspect.pods if pod.spec.node), "")
    return f"{who or 'the pods that are missing'}{node}: {'; '.join(text for _, text, _ in suspect.reasons)}"


def _steps(snapshot: Snapshot, job: str, first: Sequence[_Suspect], waits: Pod, where: str) -> Iterator[str]:
    """Yield the steps that look into the first suspect and change nothing. `where`: the time and the nodes."""
    workload, space = snapshot.workload.get(job), waits.meta.namespace
    for reason in dict.fromkeys(finding for one in first for *_, finding in one.reasons if finding.isalnum()):
        yield f"See the action for {reason}: {explain(reason)}"
    for pod in (pod for one in first for pod in one.pods[:1]):
        name, own = pod.meta.name, next((one.name for one in pod.spec.containers if gpus_of(one) or one.claims), "")
        if not _stopped(snapshot, pod) and snapshot.by_node[pod.spec.node].ready:
            dump = command("kubectl", "-n", space, "exec", name, "-c", own, "--", "py-spy", "dump", "--pid", "1")
            yield f"See where it is, if its image has py-spy: {dump}"
            listed = command("kubectl", "-n", space, "exec", name, "-c", own, "--", "nvidia-smi", *_PROCESSES)
            yield f"See the processes on its GPUs: {listed}"
        if pod.states:
            yield f"Read its last lines with their times: {logs(pod.meta, '-c', own, '--timestamps', '--tail=20')}"
    if workload is not None and any(not one.pods for one in first):
        yield f"See why it has fewer pods: {kubectl('describe', workload.meta)}"
    if not first:
        yield f"Compare the network counters of these nodes {where}."
        yield f"If its GPUs wait by design, annotate its pods or their namespace with `{WAITING}: {EXPECTED}`."
    kind, name = (workload.meta.kind.lower(), workload.meta.name) if workload is not None else ("pod", waits.meta.name)
    ask = command("gpu-healthcheck", "diagnose", kind, f"{space}/{name}", "--ranks")
    yield f"If it hangs, ask NCCL which rank is behind (before 2.29.2, it may crash): {ask}"


SEARCHES = (Search((STALLED,), ("Node", "Pod"), find_stalled),)
