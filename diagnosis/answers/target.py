"""Target of a diagnosis: the whole cluster, a node, a pod, or an owner of pods."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, Problem
from gpu_healthcheck.diagnosis.hami import installation
from gpu_healthcheck.diagnosis.model import Cause
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.diagnosis.snapshot.workloads import KINDS

_KINDS = {kind.lower(): kind for kind in ("Pod", "Node", *KINDS)}
_SHORT = {
    "po": "Pod",
    "no": "Node",
    "deploy": "Deployment",
    "rs": "ReplicaSet",
    "sts": "StatefulSet",
    "ds": "DaemonSet",
}


HAMI = "HAMi"
"""Pseudo-kind: all parts and causes of HAMi in the cluster."""
_SHOW_HAMI = ("Pod", "DaemonSet", "Deployment")


class TargetError(ValueError):
    """Target is invalid. The message describes the expected form."""


class Target(Struct, frozen=True):
    """One object. `namespace` is '' for a Node, and `name` is '' for HAMi."""

    kind: str
    namespace: str
    name: str

    @property
    def subject(self) -> str:
        return self.kind if self.kind == HAMI else subject(self.kind, self.namespace, self.name)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds in which the target is found."""
        return _SHOW_HAMI if self.kind == HAMI else (self.kind,)


def parse_target(words: Sequence[str], namespace: str) -> Target | None:
    """Parse `pod NS/NAME`, `pod/NAME`, `node NAME`, `hami` …; None without words. Raises TargetError."""
    if not words:
        return None
    if [word.lower() for word in words] == [HAMI.lower()]:
        return Target(HAMI, "", "")
    kind, _, name = words[0].partition("/") if len(words) == 1 else (words[0], "", "/".join(words[1:]))
    kind = kind.lower()
    known = _KINDS.get(kind) or _SHORT.get(kind) or _KINDS.get(kind.removesuffix("s"))
    if known is None or not name or len(words) > 2:
        raise TargetError(
            f"{' '.join(words)!r}: expected pod NAMESPACE/NAME, node NAME, a workload such as job/NAME, or hami"
        )
    if known == "Node":
        return Target(known, "", name)
    own, slash, rest = name.partition("/")
    return Target(known, own, rest) if slash else Target(known, namespace, name)


def pods_of(snapshot: Snapshot, target: Target) -> tuple[Pod, ...]:
    """Return the pod itself, or all pods with the target among their owners; for a Node, its pods."""
    if target.kind == "Node":
        return tuple(pod for pod in snapshot.pods if pod.spec.node == target.name)
    return tuple(pod for pod in snapshot.pods if target.subject in snapshot.line(pod.meta))


def is_there(snapshot: Snapshot, target: Target) -> bool:
    """Whether the snapshot contains the object itself."""
    if target.kind == HAMI:
        return installation.is_there(snapshot)
    if target.kind == "Node":
        return target.name in snapshot.by_node
    if target.kind == "Pod":
        return any(pod.subject == target.subject for pod in snapshot.pods)
    return target.subject in snapshot.owners


def concerned(snapshot: Snapshot, target: Target) -> frozenset[str]:
    """Return the subjects that make a problem relevant to the target."""
    pods = pods_of(snapshot, target)
    above = {text for pod in pods for text in snapshot.line(pod.meta)}
    beneath = {workload.subject for workload in snapshot.workloads if target.subject in snapshot.line(workload.meta)}
    return frozenset((target.subject, *above, *beneath))


def narrowed(diagnosis: Diagnosis, subjects: Iterable[str]) -> Diagnosis:
    """Return the diagnosis with only the problems that concern one of these subjects."""
    wanted = frozenset(subjects)
    return replace(diagnosis, problems=tuple(problem for problem in diagnosis.problems if touches(problem, wanted)))


def of_pods(diagnosis: Diagnosis, own: frozenset[str], names: Collection[str]) -> Diagnosis:
    """Return the diagnosis as about these pods alone. `own`: the pods and their owners.

    Consequences for other objects only count as affected, and evidence about other pods is left out if there is some
    about these.
    """
    return replace(diagnosis, problems=tuple(_of_pods(problem, own, names) for problem in diagnosis.problems))


def _of_pods(problem: Problem, own: frozenset[str], names: Collection[str]) -> Problem:
    found = problem.found
    kept = tuple(_of_pods(child, own, names) for child in problem.consequences if touches(child, own))
    others = (child for child in problem.consequences if not touches(child, own))
    affected = dict.fromkeys(
        (*found.affected, *(text for child in others for text in (child.found.subject, *child.all_affected())))
    )
    evidence = found.evidence
    if any(_pod_of(line) in names for line in evidence):
        evidence = tuple(line for line in evidence if _pod_of(line) in ("", *names))
    return replace(problem, found=replace(found, affected=tuple(affected), evidence=evidence), consequences=kept)


def _pod_of(line: str) -> str:
    """Return the pod with which a piece of evidence begins; '' if it begins otherwise."""
    return re.split(r"[:\s]", line, maxsplit=1)[0] if line.startswith("pod/") else ""


def of_causes(diagnosis: Diagnosis, causes: Collection[Cause]) -> Diagnosis:
    """Return the diagnosis with only problems of these causes, and problems that have such a consequence."""
    kept = (_of_causes(problem, causes) for problem in diagnosis.problems)
    return replace(diagnosis, problems=tuple(problem for problem in kept if problem is not None))


def _of_causes(problem: Problem, causes: Collection[Cause]) -> Problem | None:
    if problem.found.cause in causes:
        return problem
    kept = tuple(child for each in problem.consequences if (child := _of_causes(each, causes)) is not None)
    return replace(problem, consequences=kept) if kept else None


def in_namespace(diagnosis: Diagnosis, namespace: str) -> Diagnosis:
    """Return the diagnosis with only the problems of a namespace, or that affect an object in it."""
    subjects = {text for problem in diagnosis.problems for text in (problem.found.subject, *problem.all_affected())}
    return narrowed(diagnosis, (subject for subject in subjects if subject.split("/")[1:-1] == [namespace]))


def touches(problem: Problem, subjects: frozenset[str]) -> bool:
    """Whether the problem, or one of its consequences, concerns or affects one of the subjects."""
    if problem.found.subject in subjects or not subjects.isdisjoint(problem.found.affected):
        return True
    return any(touches(consequence, subjects) for consequence in problem.consequences)
