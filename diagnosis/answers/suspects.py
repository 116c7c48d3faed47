"""Choose nodes to probe, such as GPU nodes with a problem and without an agent's record. Pure.

A probe on the node itself may find the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_healthcheck.diagnosis.answers.target import TargetError
from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, Problem, diagnose
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node

ALL_SUSPECTS = "all-suspects"


def chosen_nodes(snapshot: Snapshot, names: Sequence[str]) -> tuple[Node, ...]:
    """Return the nodes of these names; ALL_SUSPECTS adds the suspects. Raises TargetError."""
    if not snapshot.sees("Node"):
        raise TargetError(f"--probe-nodes: nodes can't be read: {snapshot.missing['Node']}")
    named = [name for name in names if name != ALL_SUSPECTS]
    if unknown := [name for name in named if name not in snapshot.by_node]:
        raise TargetError(f"--probe-nodes: there is no node/{unknown[0]}")
    chosen = {name: snapshot.by_node[name] for name in named}
    if ALL_SUSPECTS in names:
        chosen |= {suspect.name: suspect for suspect in suspects(snapshot, diagnose(snapshot))}
    return tuple(chosen.values())


def suspects(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[Node, ...]:
    """Return the nodes in the order of their names."""
    subjects = {subject for problem in diagnosis.problems for subject in _subjects(problem)}
    names = {pod.spec.node for pod in snapshot.pods if pod.subject in subjects}
    nodes = (node for node in snapshot.nodes if node.subject in subjects or node.name in names)
    unrecorded = (node for node in nodes if node.record is None and has_nvidia(node) and answers(node))
    return tuple(sorted(unrecorded, key=lambda node: node.name))


def answers(node: Node) -> bool:
    """Whether the node's kubelet reports; on other nodes a probe pod would never start."""
    return any(condition.type == "Ready" and condition.status != "Unknown" for condition in node.conditions)


def _subjects(problem: Problem) -> Iterator[str]:
    yield problem.found.subject
    yield from problem.all_affected()
    for consequence in problem.consequences:
        yield from _subjects(consequence)
