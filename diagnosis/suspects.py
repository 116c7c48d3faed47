"""GPU nodes that a problem touches and of which no agent has told: a look from within may tell why. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.diagnose import Diagnosis, Problem
from diagnosis.gpu_nodes import has_nvidia
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node


def suspects(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[Node, ...]:
    """In the order of their names."""
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
