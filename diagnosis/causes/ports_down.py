"""Find multi-node jobs on a node with several RDMA ports down, by the record of the node's agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.causes.faulty_gpus import is_gang
from diagnosis.causes.unused_efa import jobs
from diagnosis.facts.commands import command, explain
from diagnosis.facts.efa import PORT_DOWN, is_rank
from diagnosis.facts.moving_pods import steps_to_move
from diagnosis.facts.symptoms import shortened
from diagnosis.model import CauseSeverity, Family, FoundCause, Link, Search
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.agent_record import RecordFinding
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod
from healthcheck.text.moments import timestamp
from healthcheck.text.naming import named

_running = Family(Link.RUNNING, severity=CauseSeverity.MEDIUM)
UNDER_JOB = _running(
    "RdmaPortsDownUnderJob",
    "A multi-node job runs on a node with several RDMA ports down: NCCL hangs, fails, or sends all data through the "
    "ports that are left.",
    "Move the job to other nodes, then repair the ports: cables, optics, switch.",
    source="A finding RdmaPortDown of the agent, of each port that was active before",
)
_SEVERAL = 2
_MOST, _LONGEST = 8, 160


def find_under_jobs(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes with several ports down and pods of multi-node jobs."""
    found: list[tuple[str, tuple[str, Pod]]] = []
    for (job, _), pods in jobs(snapshot).items():
        gang = is_gang(job) or any(map(is_rank, pods))
        if gang and len({pod.spec.node for pod in pods}) > 1:
            found += ((pod.spec.node, (job, pod)) for pod in pods)
    for name, some in grouped(found).items():
        node = snapshot.by_node[name]
        down = [finding for finding in node.findings if finding.reason == PORT_DOWN]
        if len(down) >= _SEVERAL:
            yield _found(snapshot, node, down, some)


def _found(
    snapshot: Snapshot, node: Node, down: Sequence[RecordFinding], some: Sequence[tuple[str, Pod]]
) -> FoundCause:
    names = tuple(dict.fromkeys(job for job, _ in some))
    evidence = [f"{node.subject}: {len(down)} RDMA ports are down", *map(_shown, down[:_MOST])]
    evidence += [
        f"{job} runs there: {named((pod.subject for of, pod in some if of == job), _MOST)}" for job in names[:_MOST]
    ]
    remedy = [f"See the action for {PORT_DOWN}: {explain(PORT_DOWN)}"]
    if not node.cordoned:
        remedy.append(f"Keep new pods off the node: {command('kubectl', 'cordon', node.name)}")
    remedy += steps_to_move(snapshot, [pod for _, pod in some], "other nodes")
    affected = (*(pod.subject for _, pod in some), *names)
    return FoundCause(UNDER_JOB, node.subject, tuple(evidence), tuple(remedy), affected)


def _shown(finding: RecordFinding) -> str:
    since = f" since {timestamp(finding.first_seen)}" if finding.first_seen is not None else ""
    detail = f": {shortened(finding.detail, _LONGEST)}" if finding.detail else ""
    return f"{finding.subject}{since}{detail}"


SEARCHES = (Search((UNDER_JOB,), ("Node", "Pod"), find_under_jobs),)
