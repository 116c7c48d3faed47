"""The rule for printed commands: each names what it changes, changes that alone, and changes something.

`tests/diagnosis/conftest.py` applies it to each result of each diagnosis of these tests.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

COMMAND = re.compile(r"`([^`]+)`")
READS = ("get", "describe", "logs", "exec", "auth", "edit", "wait")
"""Verbs of kubectl that change nothing, or open an editor in which a person decides."""
CHANGES = ("annotate", "apply", "cordon", "create", "delete", "drain", "label", "patch", "rollout", "uncordon")
_PARTS = re.compile(r" (?:&&|\|) (?=kubectl )")
_ON_NODES = ("cordon", "drain", "uncordon")
_WITH_VALUE = ("-n", "-p", "-o", "-f", "-l")
_SELECTORS = ("-l", "--selector", "--field-selector", "--pod-selector")
_ALL = ("--all", "-A", "--all-namespaces")
_LOST = re.compile(r"GPU is lost|GPU_IS_LOST|fallen off the bus", re.IGNORECASE)
_WELL = re.compile(r"has no fault now")
_OWN_UNITS = re.compile(r"\+(?:k3s|rke2|k0s)")
"""Versions of kubelets that are part of a distribution's own unit, with its containerd."""
_PLAIN_UNIT = re.compile(r"systemctl (?:re)?start (?:kubelet|containerd)\b")
_OF_RUNTIMES = {
    "containerd": re.compile(r"CONTAINERD_|--runtime=containerd|restart containerd|pgrep -a containerd"),
    "cri-o": re.compile(r"--runtime=crio|restart crio"),
}


class Kubectl(Struct, frozen=True):
    """Parts of one command of kubectl."""

    verb: str
    namespace: str
    operands: tuple[str, ...]
    options: Mapping[str, str]

    @property
    def kind(self) -> str:
        """Return the kind in the singular, as in a subject."""
        if self.verb in _ON_NODES:
            return "node"
        return {"pods": "pod", "nodes": "node"}.get(self.operands[0], self.operands[0]) if self.operands else ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the objects."""
        names = self.operands[self.verb not in _ON_NODES :]
        return names[:1] if self.verb in ("label", "annotate") else names


def parse(words: Sequence[str]) -> Kubectl:
    """Parse the words of a command after `kubectl`."""
    rest, options, plain = iter(words), {}, []
    for word in rest:
        key, _, value = word.partition("=")
        if word in _WITH_VALUE:
            options[word] = next(rest, "")
        elif word.startswith("-"):
            options[key] = value
        else:
            plain.append(word)
    verb, *operands = plain or [""]
    if verb == "rollout":  # its own verb precedes the object
        operands = operands[1:]
    return Kubectl(verb, options.get("-n", ""), tuple(operands), options)


def commands_of(found: FoundCause) -> list[str]:
    """Return the commands of a result in the order of its steps."""
    return [command for line in found.remedy for command in COMMAND.findall(line)]


def violations(snapshot: Snapshot, found: FoundCause) -> list[str]:
    """Return the commands of a result that break the rule, each with the reason."""
    steps = _Steps(snapshot, found)
    broken = [f"{command}: {why}" for command in commands_of(found) for why in steps.check(command)]
    return broken + [f"{found.cause.name} on {found.subject}: {why}" for why in steps.check_whole()]


class _Steps(Struct):
    """State of the cluster while the commands of one remedy run in their order."""

    snapshot: Snapshot
    found: FoundCause
    cordoned: dict[str, bool] = field(default_factory=dict)
    marks: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    saved: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    """Bare pods that were deleted and not yet created again."""
    changes: list[Kubectl] = field(default_factory=list)

    def check(self, command: str) -> Iterator[str]:
        """Yield why the command must not be printed as this step."""
        yield from self._of_runtime(command)
        if command.startswith("helm upgrade"):
            yield from self._of_helm(command)
        for part in _PARTS.split(command) if command.startswith("kubectl ") else ():
            given = parse(shlex.split(part)[1:])
            if ">" in given.operands:
                self.saved |= {subject(given.kind, given.namespace, name) for name in given.names}
            elif given.verb not in READS and "--local" not in given.options:
                yield from self._of_change(given)
                self.changes.append(given)

    def check_whole(self) -> Iterator[str]:
        """Yield what the remedy as a whole lacks."""
        yield from (f"{pod} is bare, and is not created again" for pod in sorted(self.missing))
        if self.changes and self._is_open_with_a_lost_gpu():
            first, node = self.changes[0], self.found.subject.removeprefix("node/")
            if (first.verb, first.names) != ("cordon", (node,)):
                yield "a GPU is lost, and the first change is not to cordon the node"

    def _is_open_with_a_lost_gpu(self) -> bool:
        """Whether new pods start on the node that the result is about, and one of its GPUs is lost now."""
        node = self.snapshot.by_node.get(self.found.subject.removeprefix("node/"))
        is_lost = any(map(_LOST.search, self.found.evidence)) and not any(map(_WELL.search, self.found.remedy))
        return is_lost and node is not None and not node.cordoned and not node.withheld

    def _of_change(self, given: Kubectl) -> Iterator[str]:
        if given.verb not in CHANGES:
            yield "the rule does not know the verb"
        if given.verb in ("apply", "create"):
            self.missing.clear()
            return
        yield from self._of_names(given)
        if given.verb == "delete" and given.kind == "pod":
            yield from self._of_deletion(given)
        elif given.verb == "delete":
            yield from self._of_maker(given)
        elif given.verb in _ON_NODES:
            yield from self._of_cordon(given)
        elif given.verb in ("label", "annotate"):
            yield from self._of_marks(given)

    def _of_names(self, given: Kubectl) -> Iterator[str]:
        selectors = [key for key in _SELECTORS if key in given.options]
        if any(key in given.options for key in _ALL) or not (given.names or selectors):
            yield "it names no object"
        if given.verb == "delete" and selectors and "spec.nodeName=" not in given.options.get("--field-selector", ""):
            yield "it selects in a whole namespace"
        concerned = {self.found.subject, *self.found.affected}
        for pod in self.snapshot.pods if selectors else ():
            if _is_selected(given, pod) and not concerned & {*self.snapshot.line(pod.meta)}:
                yield f"it takes {pod.subject}, which the finding is not about"
        if given.kind == "node" and self.snapshot.sees("Node"):
            known = {f"node/{name}" for name in self.snapshot.by_node} | concerned
            yield from (f"there is no node {name}" for name in given.names if f"node/{name}" not in known)

    def _of_deletion(self, given: Kubectl) -> Iterator[str]:
        for name in given.names:
            named = subject("Pod", given.namespace, name)
            pod = self.snapshot.pod.get(named)
            if pod is None:
                yield f"there is no {named}"
            elif (pod.meta.deleted is not None) != ("--force" in given.options):
                yield f"{named} is being deleted already, or is deleted by force at once"
            elif pod.meta.owner is None and pod.meta.deleted is None:
                self.missing.add(named)
                if named not in self.saved:
                    yield f"{named} is bare, and its manifest is not saved first"

    def _of_maker(self, given: Kubectl) -> Iterator[str]:
        for name in given.names:
            workload = self.snapshot.workload.get(subject(given.kind, given.namespace, name))
            if workload is not None and workload.meta.owner is not None:
                yield f"its {workload.meta.owner.kind} creates {name} again"
            if workload is not None and "meta.helm.sh/release-name" in workload.meta.annotations:
                yield f"{name} belongs to a release of Helm"

    def _of_cordon(self, given: Kubectl) -> Iterator[str]:
        if given.verb == "drain" and not {"--pod-selector", "--ignore-daemonsets"} & {*given.options}:
            yield "it fails at the pods of DaemonSets"
        for name in given.names:
            node = self.snapshot.by_node.get(name)
            is_cordoned = self.cordoned.get(name, node is not None and node.cordoned)
            if given.verb != "drain" and is_cordoned == (given.verb == "cordon"):
                yield f"{name} {'is' if is_cordoned else 'is not'} cordoned at this step"
            self.cordoned[name] = given.verb != "uncordon"

    def _of_marks(self, given: Kubectl) -> Iterator[str]:
        owner = f"{given.kind}/{given.names[0]}"
        marks = self.marks.setdefault((given.verb, owner), dict(self._marks_of(given.verb, owner)))
        for word in given.operands[2:]:
            key, is_set, value = word.partition("=")
            if not is_set and marks.pop(key.removesuffix("-"), None) is None:
                yield f"{owner} has no {key.removesuffix('-')}"
            elif is_set and marks.get(key) == value:
                yield f"{owner} has {word} already"
            elif is_set and key in marks and "--overwrite" not in given.options:
                yield f"{owner} has another {key}, so kubectl refuses it"
            marks |= {key: value} if is_set else {}

    def _marks_of(self, verb: str, owner: str) -> Mapping[str, str]:
        metas = (*(node.meta for node in self.snapshot.nodes), *self.snapshot.namespaces)
        meta = next((one for one in metas if one.subject == owner), None)
        return {} if meta is None else meta.labels if verb == "label" else meta.annotations

    def _of_runtime(self, command: str) -> Iterator[str]:
        runtimes = {node.runtime.partition("://")[0] for node in self._nodes()} - {""}
        for runtime, pattern in _OF_RUNTIMES.items():
            if runtimes and runtime not in runtimes and pattern.search(command):
                yield f"it is for {runtime}, and the nodes have {', '.join(sorted(runtimes))}"

        units = {node.subject for node in self._nodes() if _OWN_UNITS.search(node.kubelet)}
        if units and _PLAIN_UNIT.search(command):
            yield f"{', '.join(sorted(units))} has no such unit"

    def _of_helm(self, command: str) -> Iterator[str]:
        if not re.search(" --version[ =]", command):
            yield "without a version, it upgrades the programs of the chart, too"
        operators = [one.meta for one in self.snapshot.workloads if one.meta.name.startswith("gpu-operator")]
        releases = [meta.annotations.get("meta.helm.sh/release-name", "") for meta in operators]
        if (
            " nvidia/gpu-operator " in command
            and operators
            and not any(name and f"helm upgrade {name} " in command for name in releases)
        ):
            yield f"the operator's release is one of {releases}"

    def _nodes(self) -> Iterator[Node]:
        """Yield the nodes that the result is about, and those of its pods."""
        for concerned in (self.found.subject, *self.found.affected):
            pod = self.snapshot.pod.get(concerned)
            name = pod.spec.node if pod is not None else concerned.removeprefix("node/")
            if name in self.snapshot.by_node:
                yield self.snapshot.by_node[name]


def _is_selected(given: Kubectl, pod: Pod) -> bool:
    """Whether the selectors of the command select the pod."""
    if given.kind != "pod" and given.verb != "drain":
        return False
    terms = [term.partition("=") for key in _SELECTORS for term in given.options.get(key, "").split(",") if term]
    facts = {**pod.meta.labels, "status.phase": pod.phase, "spec.nodeName": pod.spec.node}
    is_there = pod.spec.node in given.names if given.verb == "drain" else pod.meta.namespace == given.namespace
    return is_there and bool(terms) and all(facts.get(key) == value for key, _, value in terms)
