"""Find GPU nodes with a problem and without an agent's record. Pure.

A probe on the node itself may find the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.diagnose import Diagnosis, Problem
from diagnosis.gpu_nodes import has_nvidia
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node


def suspects(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[Node, ...]:
    """Return the nodes in the order of their names."""
    subjects = {one for problem in diagnosis.problems for one in _subjects(problem)}
    names = {pod.spec.node for pod in snapshot.pods if pod.subject in subjects}
    beneath = (one for one in snapshot.nodes if one.subject in subjects or one.name in names)
    untold = (one for one in beneath if one.record is None and has_nvidia(one) and answers(one))
    return tuple(sorted(untold, key=lambda one: one.name))


def answers(node: Node) -> bool:
    """Whether its kubelet is heard of: on another node a pod would only be waited for."""
    return any(one.type == "Ready" and one.status != "Unknown" for one in node.conditions)


def _subjects(problem: Problem) -> Iterator[str]:
    yield problem.found.subject
    yield from problem.all_affected()
    for one in problem.consequences:
        yield from _subjects(one)
