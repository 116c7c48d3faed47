"""Find GPU pods whose handler the container runtime lacks, or whose RuntimeClass does not exist.

Three names must match. The pod's runtimeClassName must be a RuntimeClass, and the kubelet's own container runtime must
have loaded the handler of that class. NVIDIA's toolkit installs the handler, if it writes to the path that the runtime
reads.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_healthcheck.diagnosis.causes.first_fixes import FILES_FIRST
from gpu_healthcheck.diagnosis.facts.commands import kubectl
from gpu_healthcheck.diagnosis.facts.components import role_of
from gpu_healthcheck.diagnosis.facts.crio_advice import hook_evidence, is_hook_certain
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia
from gpu_healthcheck.diagnosis.facts.gpu_requests import asks_for_gpus
from gpu_healthcheck.diagnosis.facts.node_services import runtime_is_down, runtime_kind
from gpu_healthcheck.diagnosis.facts.runtime_advice import (
    by_agent,
    fix_steps,
    handlers_of,
    target_of,
    toolkits,
    where_it_should_write,
    written_elsewhere,
)
from gpu_healthcheck.diagnosis.facts.symptoms import (
    Recognised,
    Symptom,
    is_stuck,
    of_events,
    of_log,
    of_state,
    older,
    recognised,
    scheduled_at,
    standing_events,
    texts_in,
)
from gpu_healthcheck.diagnosis.model import (
    Cause,
    CauseSeverity,
    Certainty,
    Family,
    FoundCause,
    Link,
    Origin,
    Search,
    Signature,
    TextSource,
    failing,
    origins,
    starting,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import RuntimeClass
from gpu_healthcheck.diagnosis.snapshot.meta import Meta
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload
from gpu_healthcheck.healthcheck.checks import container_runtime, default_runtime
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD

_WRITERS = "containerd, internal/cri; CRI-O; cri-dockerd"
_runtime = Family(Link.RUNTIME)
_admitted = Family(Link.ADMITTED)
MISSING = _runtime(
    "RuntimeHandlerMissing",
    "The container runtime that the node's kubelet uses lacks the handler that the pods' RuntimeClass names.",
    "Configure NVIDIA's toolkit for that container runtime and restart it: `nvidia-ctk runtime configure`, or the GPU "
    "operator's values `toolkit.env`.",
    starting(r'no runtime for \\?"([^"\\]{1,64})\\?" is configured', _WRITERS),
    starting(r'failed to find runtime handler "?([^\s"]{1,64})"? from runtime list', _WRITERS),
    starting(r'RuntimeHandler \\?"([^"\\]{1,64})\\?" not supported', _WRITERS),
    starting(r'(?:unknown or )?invalid runtime name:? "?([\w.-]{1,64})', _WRITERS),
    source='containerd: `no runtime for "…" is configured`; '
    "CRI-O: `failed to find runtime handler … from runtime list`",
)
ELSEWHERE = _runtime(
    "ToolkitConfiguresAnotherRuntime",
    "NVIDIA's toolkit writes its handler into the configuration of a container runtime that the kubelet does not use.",
    "Set the toolkit to the file and socket of the kubelet's runtime: CONTAINERD_CONFIG and CONTAINERD_SOCKET.",
    Signature(
        r"dial unix (\S{1,200}(?:containerd|crio)\S{0,60}\.sock): connect: (?:no such file|connection refused)",
        "nvidia-container-toolkit's nvidia-ctk-installer, nvidia-toolkit",
        frozenset((TextSource.WAITING, TextSource.ENDED, TextSource.LOG)),
    ),
    source="GPU operator, `toolkit.env`; the host paths of its toolkit's DaemonSet",
)
CLASS_MISSING = _admitted(
    "RuntimeClassMissing",
    "Pods name a RuntimeClass that does not exist: the API server refuses to create them.",
    "Create the RuntimeClass, or remove its name from the pod template.",
    Signature(r'RuntimeClass \\?"([^"\\]{1,253})\\?" not found', "kube-apiserver", frozenset((TextSource.EVENT,))),
    Signature(r'runtimeclass\S{0,20} \\?"([^"\\]{1,253})\\?" not found', "kubelet", frozenset((TextSource.EVENT,))),
    source='`RuntimeClass "…" not found`, an event FailedCreate of the pods\' controller',
)
_REFUSED_VERSION = failing(
    r"drop-in config version \d{1,3} higher than root config version"
    r"|expected containerd config version equal to or less",
    "containerd",
)
UNLOADABLE = tuple(
    Cause(
        *(one.name, CauseSeverity.HIGH, Link.RUNTIME, one.meaning, one.action, one.source),
        texts=(_REFUSED_VERSION,) if one is container_runtime.MALFORMED else (),
    )
    for one in (container_runtime.MALFORMED, container_runtime.CRI_DISABLED, default_runtime.UNDEFINED)
)
"""Reasons of the agent's findings: with these files the container runtime does not serve the kubelet."""
WRONG_HANDLER = _runtime(
    "RuntimeClassHandlerWrong",
    "A RuntimeClass names a handler that no container runtime has, but they have one with a similar name.",
    "Create the RuntimeClass again with the correct handler: the handler can't be changed in place.",
    source="containerd and CRI-O distinguish letter case",
)
NOT_FOR_NODE = _runtime(
    "RuntimeClassOnNodeWithoutGpu",
    "A pod with NVIDIA's RuntimeClass was scheduled to a node without a GPU, where the handler is not needed.",
    "Request a GPU in the pod, or set scheduling.nodeSelector in the RuntimeClass.",
    severity=CauseSeverity.MEDIUM,
)

HANDLERS = texts_in(TextSource.EVENT, (MISSING,))
_CLASSES = texts_in(TextSource.EVENT, (CLASS_MISSING,))
RECORD_REASONS = (
    *("NvidiaRuntimeElsewhere", "NvidiaRuntimeMissing", "RuntimeConfigMisplaced", "RuntimeConfigNotLoaded"),
    *("RuntimeConfigMalformed", "RuntimeCriDisabled", "DefaultRuntimeUndefined", "RuntimeClassHandlerUndefined"),
)
"""Reasons of the agent's findings that explain a missing handler, the most specific first."""
_NO_WAY = ("NvidiaRuntimeElsewhere", "NvidiaRuntimeMissing")
"""With one of these findings, no pod gets a GPU on the node."""
_TOOLKIT = "ContainerToolkitNotReady"
"""Cause of the family of components, which follows from this one too."""
_NVIDIAS = ("nvidia", "nvidia-container-runtime")
"""Names of NVIDIA's handler: in its toolkit, in AKS and in MicroK8s."""
_YOUNG_NODE, _YOUNG_POD, _ENOUGH_TIMES, _STALE = 10.0, 1.0, 3, 10.0
"""Minutes: the toolkit may still be installed on a node this young; a pod this young may wait for it."""
_OLD_RECORD = 180.0
"""Minutes: the agent rewrites its record at least hourly."""
_EACH = 3
"""Nodes: if more lack the same handler, they have a common cause."""
_LIKE = 0.8
_WRITTEN_BY = (
    ("from runtime list", "cri-o://"),
    ("invalid runtime name", "docker://"),
    ("not supported", "docker://"),
)
"""Parts of messages of one container runtime, and how a node reports that runtime."""
_MOST_NAMED = 8


@dataclass
class _MissingHandler:
    """Handler that a node lacks, with the pods that wait for it."""

    node: str
    handler: str
    known: Recognised | None = None
    pods: list[Pod] = field(default_factory=list)

    @property
    def affected(self) -> tuple[str, ...]:
        return tuple(pod.subject for pod in self.pods)

    def there(self, snapshot: Snapshot) -> Node | None:
        """Return the node; if nodes are not visible, one of which only the runtime is known, by its message."""
        text = self.known.symptom.text if self.known is not None else ""
        runtime = next((name for part, name in _WRITTEN_BY if part in text), "")
        told = Node(Meta("Node", "", self.node), runtime=runtime) if runtime and not snapshot.sees("Node") else None
        return snapshot.by_node.get(self.node, told)

    def quotes(self) -> Iterator[str]:
        """Yield the message of the first pod, or its RuntimeClass if it has none, as evidence."""
        for pod in self.pods[:1]:
            yield f"{pod.subject}: {self.known or f'runtimeClassName {pod.spec.runtime_class}, waiting'}"


def find_handlers(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each node that lacks a handler, or one for the object at fault for all nodes.

    That object is the RuntimeClass, or the toolkit's DaemonSet.
    """
    lacks = _lacks(snapshot)
    rights = {name: _right_name(snapshot, name) for name in {each.handler for each in lacks.values()}}
    missing: defaultdict[str, list[_MissingHandler]] = defaultdict(list)
    for lack in lacks.values():
        for result in _judge(snapshot, lack, rights[lack.handler]):
            yield result
            if result.cause is MISSING:
                missing[lack.handler].append(lack)
    for handler, some in missing.items():
        yield from _everywhere(snapshot, handler, some)
    reported = {lack.node for lack in lacks.values()}
    for node in snapshot.nodes:
        if node.name in reported or _no_way(snapshot, node) is None or _is_being_brought(snapshot, node):
            continue
        if not _gives_gpus(snapshot, node):
            yield from _missing(snapshot, _MissingHandler(node.name, _NVIDIAS[0]), node)


def find_unloadable(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes whose runtime files, as our agent found, keep the runtime from serving the kubelet.

    Nodes on which nothing waits for the runtime are left out.
    """
    for node in snapshot.nodes:
        if node.record is None or older(snapshot, node.record.timestamp, _OLD_RECORD):
            continue
        waiting = tuple(pod.subject for pod in snapshot.pods_on.get(node.name, ()) if is_stuck(pod))
        if node.ready and not waiting and (_no_way(snapshot, node) is None or _gives_gpus(snapshot, node)):
            continue
        above: tuple[Origin, ...] = ()
        for cause in UNLOADABLE:
            finding = node.finding(cause.name)
            if finding is not None:
                evidence, remedy = tuple(by_agent(finding)), (cause.remedy, FILES_FIRST)
                yield FoundCause(cause, node.subject, evidence, remedy, waiting, because_of=above)
                above = (*above, (cause.name, node.subject))


def find_toolkits(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield the toolkit's DaemonSets whose pods find no runtime at the socket that they were given."""
    for toolkit in toolkits(snapshot):
        for pod in snapshot.pods:
            owner, node = pod.meta.owner, snapshot.by_node.get(pod.spec.node)
            if owner is None or owner.name != toolkit.meta.name or node is None or not node.ready or not is_stuck(pod):
                continue
            known = recognised(texts_in(TextSource.LOG, (ELSEWHERE,)), _of_toolkit(snapshot, pod))
            if known is not None:
                evidence = (
                    f"{pod.subject}: {known.symptom.place.value}: {known.quote}",
                    f"{node.subject} is ready: its kubelet reaches {node.runtime} at another socket",
                    *([f"{toolkit.subject} writes {writes}"] if (writes := target_of(toolkit)) else []),
                )
                remedy = tuple(fix_steps(snapshot, node, None))
                affected = (node.subject, pod.subject)
                yield FoundCause(ELSEWHERE, toolkit.subject, evidence, remedy, affected, Certainty.LIKELY)


def _of_toolkit(snapshot: Snapshot, pod: Pod) -> Iterator[Symptom]:
    for state in pod.states:
        if state.waiting == "CrashLoopBackOff" or state.restarts >= _ENOUGH_TIMES:
            yield from of_state(state)
            yield from of_log(snapshot, pod, state.name)


def find_classes(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield missing RuntimeClasses that pods on a node name.

    Workloads whose pods are refused for the same reason are found with the other refusals.
    """
    for pod in snapshot.pods:
        name = pod.spec.runtime_class
        is_missing = name and all(each.meta.name != name for each in snapshot.runtime_classes)
        if is_missing and is_stuck(pod) and (asks_for_gpus(pod.spec) or "nvidia" in name):
            known = recognised(_CLASSES, of_events(standing_events(snapshot, pod)))
            if known is not None:
                yield missing_class(snapshot, name, f"{pod.subject}: {known.symptom}", pod.subject)


def missing_class(snapshot: Snapshot, name: str, evidence: str, affected: str) -> FoundCause:
    """Return the result for a RuntimeClass that does not exist and that the affected object names."""
    there = sorted(each.meta.name for each in snapshot.runtime_classes)[:_MOST_NAMED]
    existing = (f"existing RuntimeClasses: {', '.join(there) or 'none'}",) if snapshot.sees("RuntimeClass") else ()
    manifest = f"apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata.name: {name}, handler: {name}"
    remedy = (
        f"If the nodes' container runtime has such a handler, create it: {manifest}; the GPU operator creates nvidia",
        "Or remove runtimeClassName from the template: with CDI, the operator's default since 25.10, no pod needs it",
    )
    return FoundCause(CLASS_MISSING, f"runtimeclass/{name}", (evidence, *existing), remedy, (affected,))


def _lacks(snapshot: Snapshot) -> dict[tuple[str, str], _MissingHandler]:
    classes = {runtime_class.meta.name: runtime_class for runtime_class in snapshot.runtime_classes}
    lacks: dict[tuple[str, str], _MissingHandler] = {}
    for pod in snapshot.pods:
        node = snapshot.by_node.get(pod.spec.node)
        if not is_stuck(pod) or _is_on_its_way(snapshot, pod, node):
            continue
        known = _recognised(snapshot, pod)
        if node is not None and _is_before_outage(node, known):
            continue
        handler = _handler_of(known, classes.get(pod.spec.runtime_class), node)
        is_for_gpus = "nvidia" in f"{handler} {pod.spec.runtime_class}".lower() or asks_for_gpus(pod.spec)
        if handler and is_for_gpus and not _has_it_by_now(snapshot, node, handler, known):
            lack = lacks.setdefault((pod.spec.node, handler), _MissingHandler(pod.spec.node, handler))
            lack.pods.append(pod)
            lack.known = lack.known or known
    return lacks


def _is_before_outage(node: Node, known: Recognised | None) -> bool:
    """Whether all that is known about the node's handlers is older than the time since which it is not ready."""
    since = next((condition.since for condition in node.conditions if condition.type == "Ready"), None)
    if node.ready or since is None:
        return False
    return runtime_is_down(node) or (known is not None and known.symptom.at is not None and known.symptom.at < since)


def _recognised(snapshot: Snapshot, pod: Pod) -> Recognised | None:
    symptoms: list[Symptom] = list(of_events(standing_events(snapshot, pod)))
    for state in pod.states:
        symptoms += (each for each in of_state(state) if each.place is not TextSource.ENDED or state.ended is not None)
    return recognised(HANDLERS, symptoms)


def _handler_of(known: Recognised | None, named: RuntimeClass | None, node: Node | None) -> str:
    """Return the missing handler by the message, else by the kubelet's list of handlers: events expire after an hour.

    The program that copied the name into the message may have changed its case; then the RuntimeClass has it.
    """
    own = named.handler if named is not None else ""
    if known is not None:
        return own if own.lower() == known.groups[0].lower() else known.groups[0]
    has = handlers_of(node) if node is not None else None
    return own if has is not None and own not in has else ""


def _is_on_its_way(snapshot: Snapshot, pod: Pod, node: Node | None) -> bool:
    if node is not None and _is_being_brought(snapshot, node):
        return True
    if not snapshot.sees("Node"):
        return not older(snapshot, pod.meta.created, _YOUNG_NODE)  # its node may be as new as the pod
    repeated = any(event.count >= _ENOUGH_TIMES for event in standing_events(snapshot, pod))
    return not repeated and not older(snapshot, scheduled_at(pod), _YOUNG_POD)


def _is_being_brought(snapshot: Snapshot, node: Node) -> bool:
    """Whether a toolkit may still be at work on a young node.

    If no toolkit's DaemonSet is found, this is assumed. The exception: DaemonSets were listed, and our agent reports
    that no pod gets a GPU there.
    """
    if older(snapshot, node.meta.created, _YOUNG_NODE):
        return False
    owners = {toolkit.meta.name for toolkit in toolkits(snapshot)}
    if not owners:
        return not (snapshot.sees("DaemonSet") and _no_way(snapshot, node))
    for pod in snapshot.pods_on.get(node.name, ()):
        ready = pod.condition("Ready")
        # Once the toolkit has been ready for a while, the container runtime has restarted.
        is_done = ready is not None and ready.status == "True" and older(snapshot, ready.since, _YOUNG_POD)
        if is_done and pod.meta.owner is not None and pod.meta.owner.name in owners:
            return False
    return True


def _no_way(snapshot: Snapshot, node: Node) -> RecordFinding | None:
    """Return the agent's recent finding that no pod gets a GPU on the node."""
    if node.record is None or older(snapshot, node.record.timestamp, _OLD_RECORD):
        return None
    return node.finding(*_NO_WAY)


def _has_it_by_now(snapshot: Snapshot, node: Node | None, handler: str, known: Recognised | None) -> bool:
    """Whether the node has the handler now and the event is older: the kubelet retries on its own."""
    has = handlers_of(node) if node is not None else None
    if has is None or handler not in has:
        return False
    return known is None or older(snapshot, known.symptom.at, _STALE)


def _everywhere(snapshot: Snapshot, handler: str, lacks: list[_MissingHandler]) -> Iterator[FoundCause]:
    """Yield one common cause if many nodes lack the handler, as the origin of each node's result."""
    named = next((each for each in snapshot.runtime_classes if each.handler == handler), None)
    if named is None or len(lacks) <= _EACH:
        return
    nodes = ", ".join(f"node/{missing_handler.node}" for missing_handler in lacks[:_MOST_NAMED])
    evidence = (
        f"{named.meta.subject}: handler {handler}, which {len(lacks)} nodes do not have: {nodes}",
        *lacks[0].quotes(),
    )
    because = origins((ELSEWHERE, _TOOLKIT), *(toolkit.subject for toolkit in toolkits(snapshot)))
    there = [node for lack in lacks if (node := lack.there(snapshot)) is not None]
    waiting = [pod for lack in lacks for pod in lack.pods]
    remedy = tuple(fix_steps(snapshot, None, None, there, waiting))
    affected = tuple(pod.subject for pod in waiting)
    yield FoundCause(MISSING, named.meta.subject, evidence, remedy, affected, because_of=because)


def _judge(snapshot: Snapshot, lack: _MissingHandler, right: str) -> Iterator[FoundCause]:
    node = snapshot.by_node.get(lack.node)
    classes = [runtime_class for runtime_class in snapshot.runtime_classes if runtime_class.handler == lack.handler]
    if right and len(classes) == 1:
        yield _wrong(snapshot, lack, classes[0], right)
    elif node is not None and classes and _is_without(snapshot, node, lack):
        yield _not_for(lack, classes[0], node)
    else:
        yield from _missing(snapshot, lack, node)


def _is_without(snapshot: Snapshot, node: Node, lack: _MissingHandler) -> bool:
    """Whether the node has no GPUs while other nodes are known to have them.

    If no node reports any, a plugin that can't start may be the reason.
    """
    if has_nvidia(node) or any(asks_for_gpus(pod.spec) for pod in lack.pods):
        return False
    is_component = any(role_of(pod.meta, {}, pod.spec) is not None for pod in lack.pods)
    return not is_component or any(map(has_nvidia, snapshot.nodes))


def _right_name(snapshot: Snapshot, handler: str) -> str:
    """Return the nodes' own name for the handler.

    '' if a node has it under this name, or if no node has a similar one.
    """
    with_gpus = (handlers_of(node) for node in snapshot.nodes if has_nvidia(node))
    known = frozenset(name for names in with_gpus for name in names or () if name)
    if handler in known:
        return ""
    for name in sorted(known):
        if name.lower() == handler.lower() or {name, handler} == {*_NVIDIAS}:
            return name
    like = difflib.get_close_matches(handler, sorted(known), 1, _LIKE)
    return like[0] if like and handler not in ("nvidia-cdi", "nvidia-legacy") else ""


def _wrong(snapshot: Snapshot, lack: _MissingHandler, named: RuntimeClass, right: str) -> FoundCause:
    nodes = (_handlers_of(node) for node in snapshot.nodes if right in (handlers_of(node) or ()))
    evidence = (f"{named.meta.subject}: handler {lack.handler}", *nodes, *lack.quotes())
    save = f"Save {kubectl('get', named.meta, '-o', 'yaml')}, set {right} as its handler"
    remedy = [f"{save}, delete the RuntimeClass and create it again: it is immutable"]
    for policy in snapshot.cluster_policies:
        if policy.runtime_class == named.meta.name:
            undone = "set its value operator.runtimeClass, or the change is undone"
            remedy.append(f"{policy.meta.subject} creates it: {undone}")
    return FoundCause(WRONG_HANDLER, named.meta.subject, evidence, tuple(remedy), lack.affected)


def _not_for(lack: _MissingHandler, named: RuntimeClass, node: Node) -> FoundCause:
    chosen = ",".join(f"{key}={value}" for key, value in named.node_selector.items()) or "none"
    evidence = (
        f"{node.subject} has no NVIDIA GPU by its resources and labels",
        f"{named.meta.subject}: handler {named.handler}, nodeSelector {chosen}",
        *lack.quotes(),
    )
    return FoundCause(NOT_FOR_NODE, named.meta.subject, evidence, (NOT_FOR_NODE.remedy,), lack.affected)


def _missing(snapshot: Snapshot, lack: _MissingHandler, node: Node | None) -> Iterator[FoundCause]:
    subject = f"node/{lack.node}"
    finding = node.finding(*RECORD_REASONS) if node is not None else None
    because = [*origins(UNLOADABLE, subject)]
    for workload in toolkits(snapshot):
        elsewhere = _elsewhere(snapshot, workload, node, finding, lack)
        if elsewhere is not None:
            because.append((ELSEWHERE.name, elsewhere.subject))
            yield elsewhere
        because += (*origins((ELSEWHERE,), workload.subject), *origins((_TOOLKIT,), subject, workload.subject))
    named = (each.meta.subject for each in snapshot.runtime_classes if each.handler == lack.handler)
    because += origins((MISSING,), *named)
    if finding is not None and finding.reason == _NO_WAY[0] and not toolkits(snapshot):
        because.append((ELSEWHERE.name, subject))
        remedy = tuple(fix_steps(snapshot, node, finding))
        evidence = tuple(by_agent(finding))
        yield FoundCause(ELSEWHERE, subject, evidence, remedy, lack.affected, because_of=origins(UNLOADABLE, subject))
    there = lack.there(snapshot)
    hook = hook_evidence(there, toolkits(snapshot))
    is_other = runtime_kind(there) != CONTAINERD
    targets = [(each, target) for each in toolkits(snapshot) if not is_other and (target := target_of(each))]
    written = (f"{each.subject} writes {target}" for each, target in targets)
    evidence = (*lack.quotes(), *_known_of(snapshot, node, lack), *hook, *written, *by_agent(finding))
    proven = finding is not None or lack.known is not None or (node is not None and handlers_of(node) is not None)
    certainty = Certainty.PROVEN if proven and (not hook or is_hook_certain(toolkits(snapshot))) else Certainty.LIKELY
    remedy = tuple(fix_steps(snapshot, there, finding, pods=lack.pods))
    yield FoundCause(MISSING, subject, evidence, remedy, lack.affected, certainty, tuple(because))


def _elsewhere(
    snapshot: Snapshot, toolkit: Workload, node: Node | None, finding: RecordFinding | None, lack: _MissingHandler
) -> FoundCause | None:
    """Return a result if the toolkit's host paths differ from the known paths of the kubelet's runtime."""
    writes = target_of(toolkit)
    should = where_it_should_write(node, finding)
    if node is None:
        return None
    files = written_elsewhere(node)
    is_observed = bool(files) or (finding is not None and finding.reason == _NO_WAY[0])
    if not is_observed and (writes is None or should is None or should.same(writes)):
        return None
    evidence = [f"{toolkit.subject} writes {writes}"] if writes is not None else []
    evidence += [
        f"{node.subject}: {text} has NVIDIA's handler, but the kubelet's runtime does not read it" for text in files
    ]
    if should is not None:
        evidence.append(f"{node.subject}: its kubelet uses {node.runtime} with {should} ({should.known_from})")
    remedy = tuple(fix_steps(snapshot, node, finding, pods=lack.pods))
    return FoundCause(
        ELSEWHERE, toolkit.subject, (*evidence, *by_agent(finding)), remedy, (node.subject, *lack.affected)
    )


def _known_of(snapshot: Snapshot, node: Node | None, lack: _MissingHandler) -> Iterator[str]:
    named = [each.meta.subject for each in snapshot.runtime_classes if each.handler == lack.handler]
    if named:
        yield f"{', '.join(named[:_MOST_NAMED])}: handler {lack.handler}"
    if node is not None:
        yield _handlers_of(node)


def _handlers_of(node: Node) -> str:
    has = handlers_of(node)
    if has is None:
        return f"{node.subject}: {node.runtime or 'its container runtime'} does not report its handlers"
    names = [name for name in sorted(has) if name]
    return f"{node.subject}: {node.runtime} has the handlers {', '.join(names[:_MOST_NAMED]) or 'none'}"


def _gives_gpus(snapshot: Snapshot, node: Node) -> bool:
    """Whether GPU pods run on the node; the agent's record is then outdated."""
    running = (pod for pod in snapshot.pods if pod.spec.node == node.name and pod.phase == "Running")
    return any(asks_for_gpus(pod.spec) and all(state.ready for state in pod.states) for pod in running)


SEARCHES = (
    Search((MISSING, ELSEWHERE, WRONG_HANDLER, NOT_FOR_NODE), ("Pod",), find_handlers),
    Search((ELSEWHERE,), ("Pod", "Node"), find_toolkits),
    Search(UNLOADABLE, ("Node",), find_unloadable),
    Search((CLASS_MISSING,), ("RuntimeClass",), find_classes),
)
