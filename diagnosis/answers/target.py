"""Target of a diagnosis: the whole cluster, a node, a pod, or an owner of pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.causes.diagnose import Diagnosis, Problem
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.meta import subject
from diagnosis.snapshot.pods import Pod
from diagnosis.snapshot.workloads import KINDS

_KINDS = {kind.lower(): kind for kind in ("Pod", "Node", *KINDS)}
_SHORT = {
    "po": "Pod",
    "no": "Node",
    "deploy": "Deployment",
    "rs": "ReplicaSet",
    "sts": "StatefulSet",
    "ds": "DaemonSet",
}


class TargetError(ValueError):
    """Target is invalid. The message describes the expected form."""


class Target(Struct, frozen=True):
    """One object. `namespace` is '' for a Node."""

    kind: str
    namespace: str
    name: str

    @property
    def subject(self) -> str:
        return subject(self.kind, self.namespace, self.name)


def parse_target(words: Sequence[str], namespace: str) -> Target | None:
    """Parse `pod NS/NAME`, `pod/NAME`, `node NAME` …; None without words. Raises TargetError."""
    if not words:
        return None
    kind, _, name = words[0].partition("/") if len(words) == 1 else (words[0], "", "/".join(words[1:]))
    known = _known(kind)
    if known is None or not name or len(words) > 2:
        raise TargetError(
            f"{' '.join(words)!r}: expected pod NAMESPACE/NAME, node NAME, or a workload such as job/NAME"
        )
    if known == "Node":
        return Target(known, "", name)
    own, slash, rest = name.partition("/")
    return Target(known, own, rest) if slash else Target(known, namespace or "default", name)


def pods_of(snapshot: Snapshot, target: Target) -> tuple[Pod, ...]:
    """Return the pod itself, or all pods with the target among their owners; for a Node, its pods."""
    if target.kind == "Node":
        return tuple(pod for pod in snapshot.pods if pod.spec.node == target.name)
    return tuple(pod for pod in snapshot.pods if target.subject in snapshot.line(pod.meta))


def is_there(snapshot: Snapshot, target: Target) -> bool:
    """Whether the snapshot contains the object itself."""
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


def in_namespace(diagnosis: Diagnosis, namespace: str) -> Diagnosis:
    """Return the diagnosis with only the problems of a namespace, or that affect an object in it."""
    subjects = {text for problem in diagnosis.problems for text in (problem.found.subject, *problem.all_affected())}
    return narrowed(diagnosis, (subject for subject in subjects if subject.split("/")[1:-1] == [namespace]))


def touches(problem: Problem, subjects: frozenset[str]) -> bool:
    """Whether the problem, or one of its consequences, concerns or affects one of the subjects."""
    if problem.found.subject in subjects or not subjects.isdisjoint(problem.found.affected):
        return True
    return any(touches(consequence, subjects) for consequence in problem.consequences)


def _known(kind: str) -> str | None:
    word = kind.lower()
    return _KINDS.get(word) or _SHORT.get(word) or _KINDS.get(word.removesuffix("s"))
