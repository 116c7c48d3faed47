"""Ranks of a job that NCCL itself reports as missing or behind, with their pods, nodes and GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from gpu_healthcheck.diagnosis.answers.target import Target, pods_of
from gpu_healthcheck.diagnosis.causes.faulty_gpus import affected_on
from gpu_healthcheck.diagnosis.facts.commands import command, in_namespace
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods, gpus_of
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.facts.symptoms import since_and_detail
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.diagnosis.sources.nccl_ras import (
    Communicator,
    Execute,
    NcclRasError,
    RasAnswer,
    RasRank,
    ask,
    gpu_container,
)
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, timestamp
from gpu_healthcheck.healthcheck.text.naming import named

_PAUSE_SECONDS = 10.0
_MOST_ASKED, _MOST_SUSPECTS, _MOST_FINDINGS, _MOST_NODES = 3, 16, 2, 8
_SCRIPT = "exec 3<>/dev/tcp/localhost/28028; echo verbose status >&3; cat <&3"


class RankReport(Struct, frozen=True):
    """Answer of a job's NCCL. `suspects`: ranks for which others wait. `could_not`: the reason without an answer."""

    summary: str = ""
    suspects: tuple[str, ...] = ()
    could_not: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        return (f"Could not check: {self.could_not}",) if self.could_not else (self.summary, *self.suspects)


class _Lag(Struct, frozen=True):
    """Rank that differs from the others of its communicator: it is missing, or `number` collectives apart."""

    communicator: Communicator
    rank: RasRank
    why: str
    number: int = 0


def ask_ranks(snapshot: Snapshot, target: Target, execute: Execute, wait: Callable[[float], object]) -> RankReport:
    """Ask the NCCL of the target's job twice, through one of its pods. `wait` gets the seconds in between."""
    pods: Sequence[Pod] = pods_of(snapshot, target)
    if target.kind == "Pod" and pods:
        pods = snapshot.pods_under.get(snapshot.line(pods[0].meta)[-1], pods)
    asking = {pod.subject for pod in gpu_pods(snapshot)}
    running = [pod for pod in pods if pod.phase == "Running" and not pod.meta.deleted and pod.subject in asking]
    reasons = []
    for pod in [some[0] for some in grouped((pod.spec.node, pod) for pod in running).values()][:_MOST_ASKED]:
        try:
            first = ask(execute, pod)
            if not (why := _foreign(snapshot, pods, pod, first)):
                wait(_PAUSE_SECONDS)
                return judged(snapshot, pods, first, ask(execute, pod))
        except Forbidden:
            denied = f"you lack get and create of pods/exec in namespace {pod.meta.namespace}"
            owned, container = in_namespace(pod.meta.namespace), gpu_container(pod)
            report = command("kubectl", *owned, "exec", pod.meta.name, "-c", container, "--", "bash", "-c", _SCRIPT)
            return RankReport(could_not=f"{denied}. Its owner prints NCCL's report with {report}")
        except (NcclRasError, ClusterError) as error:
            why = str(error)
        reasons.append(f"{pod.subject}: {why}")
    return RankReport(could_not="; ".join(reasons) or "none of its pods with GPUs runs")


def _foreign(snapshot: Snapshot, pods: Sequence[Pod], asked: Pod, answer: RasAnswer) -> str:
    """Return why the answer may be that of another job: all NCCLs on a host's network have the same port."""
    if not asked.spec.host_network:
        return ""
    own, names = {pod.address for pod in pods if pod.address}, {pod.subject for pod in pods}
    hosts = {rank.host for each in answer.communicators.values() for rank in each.ranks if rank.host}
    if not hosts or hosts - own:
        where = named(sorted(hosts - own), _MOST_FINDINGS) or "unknown"
        return f"on the network of its host, an NCCL answered whose ranks are not in this job's pods: {where}"
    if not snapshot.sees_all_pods:
        return "on the network of its host, a pod of another namespace may have answered; you may not list these"
    there = (pod for pod in snapshot.pods_on.get(asked.spec.node, ()) if pod.spec.host_network and not pod.over)
    others = {pod.subject for pod in there} & {pod.subject for pod in gpu_pods(snapshot)} - names
    return f"on the network of its host, {named(sorted(others), 1)} may have answered" if others else ""


def judged(snapshot: Snapshot, pods: Sequence[Pod], first: RasAnswer, second: RasAnswer) -> RankReport:
    """Compare two answers of the NCCL of these pods' job. Only a rank that did not advance is a suspect."""
    old, new = first.communicators, second.communicators
    moved = {name for name in {**old, **new} if _moved(old.get(name), new.get(name))}
    still = [each for name, each in new.items() if name not in moved]
    lags = [_Lag(each, rank, state) for each in still for rank, state in each.missing]
    lags += [] if moved else _behind(still)
    lags.sort(key=lambda lag: (lag.number > 0, -lag.communicator.size, -lag.number, lag.rank.rank))
    found = list({lag.rank.process: lag for lag in reversed(lags)}.values())[::-1]
    suspects = tuple(_shown(snapshot, pods, lag) for lag in found[:_MOST_SUSPECTS])
    return RankReport(_summary(pods, second, len(found), bool(moved)), suspects)


def _moved(before: Communicator | None, after: Communicator | None) -> bool:
    """Whether ranks launched collectives between two answers. The second time, fewer ranks may answer."""
    old, new = (each.counts if each is not None else {} for each in (before, after))
    lost, lost_now = (len(each.missing) if each is not None else 0 for each in (before, after))
    return any(max(old[name]) != max(new[name]) for name in old.keys() & new) or (lost == lost_now and old != new)


def _behind(communicators: Sequence[Communicator]) -> list[_Lag]:
    """Return the ranks that are behind the others, or ahead of them if these are fewer.

    A rank that waits for another one is ahead of it in their communicator, and behind in its other ones: no suspect.
    """
    lags = []
    leads: defaultdict[tuple[str | int, int, int], set[str]] = defaultdict(set)
    for each in communicators:
        apart: defaultdict[RasRank, dict[str, int]] = defaultdict(dict)
        for operation, groups in each.counts.items():
            *late, most = sorted(groups)
            for rank in groups[most].ranks if late else ():
                leads[rank.process].add(each.name)
            few = sum(groups[count].number for count in late) <= groups[most].number
            for count, others in ((count, most) for count in late) if few else ((most, late[-1]),):
                number, word = abs(others - count), "behind" if few else "ahead of"
                words = f"{counted(number, 'collective')} {word} the others ({operation} {count:,} of {others:,})"
                for rank in groups[count].ranks:
                    apart[rank][words] = number
        lags += [
            _Lag(each, rank, f"is {named(rows, _MOST_FINDINGS)}", sum(rows.values())) for rank, rows in apart.items()
        ]
    alone = [lag for lag in lags if not leads[lag.rank.process] - {lag.communicator.name}]
    return alone or lags


def _shown(snapshot: Snapshot, pods: Sequence[Pod], lag: _Lag) -> str:
    rank, size = lag.rank, lag.communicator.size
    there = [pod for pod in pods if pod.address and pod.address == rank.host]
    place = f"process {rank.pid} on {rank.host}, the address of none of its pods" if rank.host else "process unknown"
    if there:
        device = f"process {rank.pid} with GPU {rank.device} of {'one of ' if there[1:] else ''}"
        place = f"{device}{named((pod.subject for pod in there), _MOST_FINDINGS)} on node/{there[0].spec.node}"
    evidence = "; ".join(_evidence(snapshot, there[0], rank.device)) if len(there) == 1 else ""
    number = f"{rank.rank} of {size}" if size else str(rank.rank)
    words = f"rank {number} (communicator {lag.communicator.name}, {place}) {lag.why}"
    return f"{words}: {evidence}" if evidence else words


def _evidence(snapshot: Snapshot, pod: Pod, device: int) -> Iterator[str]:
    """Yield the agent's record of the pod's GPUs; of findings, those of one GPU if the pod has all of its node."""
    node = snapshot.by_node.get(pod.spec.node)
    if node is None:
        return
    work = node.record.work if node.record is not None else {}
    own = ((row.state, (uuid, row.since)) for uuid, row in work.items() if row.pod and pod.meta.uid.startswith(row.pod))
    for state, some in grouped(own).items():
        which = some[0][0] if len(some) == 1 else f"{len(some)} of its GPUs"
        since = min(since or EARLIEST for _, since in some)
        yield f"{which} {state.value if state else ''} since {timestamp(since)}"
    amounts = (amount for container in pod.spec.containers for amount in gpus_of(container).items())
    has_all = any(node.allocatable.get(name) == amount for name, amount in amounts)
    affected = affected_on(snapshot, pod, node)
    findings = affected.findings if affected is not None else ()
    exact = [finding for finding in findings if has_all and finding.about.get("index") == str(device)]
    for finding in (exact or findings)[:_MOST_FINDINGS]:
        yield f"{finding.reason} on {finding.subject}{since_and_detail(finding)}"


def _summary(pods: Sequence[Pod], answer: RasAnswer, found: int, moved: bool) -> str:
    counts = [groups for each in answer.communicators.values() for groups in each.counts.values()]
    stopped = "NCCL before 2.28.7 does not report whether equal ranks advance. "
    if counts or answer.is_whole:
        stopped = f"No rank launched a collective within {_PAUSE_SECONDS:g} s. "
    if found:
        more = f" (the first {_MOST_SUSPECTS})" if found > _MOST_SUSPECTS else ""
        return f"{'' if moved else stopped}NCCL names {counted(found, 'rank')}{more}:"
    if moved:
        return f"The job makes progress: its ranks launched collectives within {_PAUSE_SECONDS:g} s."
    if not answer.communicators and answer.is_whole:
        return "NCCL has no communicator: its ranks have not connected yet, or have ended."
    if any(len(groups) > 1 for groups in counts):
        return f"{stopped}Half of them are behind, and NCCL's text does not name them."
    nodes = named(dict.fromkeys(pod.spec.node for pod in pods if pod.spec.node), _MOST_NODES)
    return (
        f"No rank lags: all launched the same collectives. {stopped}They compute for longer, or wait within one: "
        f"compare the EFA or RDMA counters and the logs of these nodes: {nodes}."
    )
