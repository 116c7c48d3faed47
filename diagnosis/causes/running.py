"""Find GPU pods that run without a GPU: it was not requested, is hidden, or was not injected.

No field shows that a GPU is in a container. Its absence is shown by the log, or by settings in the pod's own spec.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.pod_startup_table import AT_ITS_START, DOES_WITHOUT, NOT_INJECTED
from gpu_healthcheck.diagnosis.causes.runtime_handlers import MISSING
from gpu_healthcheck.diagnosis.causes.verdicts import KEPT_FROM_WORK
from gpu_healthcheck.diagnosis.facts.commands import command, logs
from gpu_healthcheck.diagnosis.facts.components import Role, components, is_ready, role_of
from gpu_healthcheck.diagnosis.facts.crio_advice import hook_evidence
from gpu_healthcheck.diagnosis.facts.gpu_nodes import is_device
from gpu_healthcheck.diagnosis.facts.gpu_requests import asks_for_gpus, claims_gpus, gpu_claims, gpus_of
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.quantity import amount
from gpu_healthcheck.diagnosis.facts.runtime_advice import fix_steps, handlers_of, toolkits
from gpu_healthcheck.diagnosis.facts.safe_steps import recreate
from gpu_healthcheck.diagnosis.facts.symptoms import Recognised, of_log, recognised, texts_in
from gpu_healthcheck.diagnosis.model import (
    Cause,
    CauseSeverity,
    Certainty,
    Family,
    FoundCause,
    Link,
    Search,
    TextSource,
    failing,
    origins,
    starting,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Container, Pod
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, timestamp

_running = Family(Link.RUNNING, severity=CauseSeverity.MEDIUM)
_fault = Family(None)
HIDDEN = _running(
    "GpusHiddenByVariable",
    "NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES is set by hand and does not match the GPUs allocated to the "
    "container.",
    "Remove the variable from the pod template: the device plugin and CUDA set it.",
    source="CUDA Programming Guide, CUDA_VISIBLE_DEVICES: devices from the first invalid one on are not seen",
)
NOT_REQUESTED = _running(
    "GpuNotRequested",
    "A container needs a GPU and requests none: its own resources lack it.",
    "Set the limit `nvidia.com/gpu: 1` on the container itself; another container's GPU is not available to it.",
)
CLASS_NOT_NAMED = _running(
    "RuntimeClassNotNamed",
    "The pod has a GPU allocated, but starts with a runtime that does not inject GPUs.",
    "Set `runtimeClassName: nvidia` in the pod template, with a RuntimeClass of this name and `handler: nvidia`; or "
    "make its handler the nodes' default, or enable CDI.",
    severity=CauseSeverity.HIGH,
    source="GPU operator: since 25.10, NVIDIA's runtime is not the default one; without CDI, only if configured",
)
CGROUP_LOST = _running(
    "GpuAccessLostAtRuntime",
    "A container lost the access to its GPU: the node's systemd rewrote its device rules.",
    "Create the pods again. To prevent it, use CDI, or `nvidia-ctk system create-dev-char-symlinks --create-all` on "
    "the node; with the kubelet's static CPU manager, PASS_DEVICE_SPECS=true of the device plugin. If a new pod fails "
    "at once, check `nvidia-smi` on the node, `no-cgroups = false` in /etc/nvidia-container-runtime/config.toml, and "
    "that the pod names NVIDIA's RuntimeClass if that is not the default one.",
    failing(
        r"initiali[sz]e NVML: (?:Unknown Error|ERROR_UNKNOWN)|\bNVMLError_Unknown\b"
        r"|nvmlInit\w{0,20}[^\n]{0,60}Unknown Error"
        r"|could not open the device file /dev/nvidia\S{1,20} \(Operation not permitted",
        "nvidia-smi, NVML, pynvml",
    ),
    severity=CauseSeverity.HIGH,
    source="NVIDIA container toolkit, issue 48: `Failed to initialize NVML: Unknown Error`",
    of_node=True,
)
DEVICE_FILES = _fault(
    "DriverDeviceFilesMissing",
    "The node lacks device files of its driver, or they have wrong numbers, so containers get no GPU.",
    "On the node: `nvidia-modprobe -c0 -u`, or restart the driver's container; then create the pods again.",
    starting(r"adding custom device \\?\"(/dev/nvidia[^\s\"\\]{0,80})\\?\": no such file", "runc, Docker"),
    source="The agent's findings DeviceFileMissing and DeviceFileWrong",
    of_node=True,
    follows=("DriverNotReady",),
)

_NO_GPU = [row for row in texts_in(TextSource.LOG, (NOT_INJECTED,)) if row[1] is not DOES_WITHOUT]
DEVICE_FILE_REASONS = ("DeviceFileMissing", "DeviceFileWrong")
"""Reasons of the agent's findings."""
_WITHOUT_GPU = (MISSING, NOT_READY[Role.TOOLKIT], NOT_READY[Role.DRIVER], KEPT_FROM_WORK)
"""Causes that explain why the containers of a node have no GPU."""
_LAST_LINES = 10
"""Log lines read of a running container: it may have recovered from earlier errors."""
_AS_DEFAULT = ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT")
_NEVER_DEFAULT = ("k3s", "rke2")
"""Distributions that add NVIDIA's runtime as a handler, never as the default."""
_GKE = "cloud.google.com/gke-accelerator"
"""GKE's device plugin mounts the driver itself."""
_FORCES = re.compile(r"none|void|(?:\d|GPU-|MIG-)\S{0,400}", re.ASCII)
_HIDES_ALL = ("none", "void", "no", "-1")
_CDI = "cdi"
_MOST_SHOWN = 3
_GPU_IMAGE = re.compile(r"cuda|nvcr\.io/nvidia|nvidia/", re.ASCII)


class MissingGpu(Struct, frozen=True):
    """Reason why a container has no GPU, with the object to change."""

    cause: Cause
    subject: str
    evidence: tuple[str, ...]
    certainty: Certainty = Certainty.PROVEN
    steps: Callable[[Sequence[Pod]], Iterator[str]] | None = None
    """Returns the steps for these pods, instead of the general fix of the cause."""


def find_running(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Check running containers by the last lines of their logs."""
    together: defaultdict[tuple[str, str], list[tuple[Pod, MissingGpu, str]]] = defaultdict(list)
    for pod, known in _recognised_in_logs(snapshot):
        if known.cause is CGROUP_LOST:
            lack = MissingGpu(CGROUP_LOST, f"node/{pod.spec.node}", (), Certainty.LIKELY)
        else:
            lack = why_without_gpu(snapshot, pod, known.symptom.container)
        message = f"{pod.subject}: {known.symptom.place.value} of {known.symptom.container}: {known.quote}"
        together[lack.cause.name, lack.subject].append((pod, lack, message))
    for some in together.values():
        messages = (message for _, _, message in some[:_MOST_SHOWN])
        pods = [pod for pod, _, _ in some]
        found = of_lack(some[0][1], pods, *messages)
        again = steps_to_move(snapshot, pods, "any node") if found.cause is CGROUP_LOST else ()
        yield replace(found, remedy=(*again, *found.remedy))


def find_hidden(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Check the spec alone: a variable that contradicts the container's request for GPUs."""
    found = []
    for pod in snapshot.pods:
        if not pod.over and pod.meta.deleted is None and asks_for_gpus(pod.spec):
            messages = filter(None, (hidden(snapshot, pod, container) for container in pod.spec.containers))
            found += [(snapshot.line(pod.meta)[-1], (pod, message)) for message in (*messages,)[:1]]
    for subject, some in grouped(found).items():
        evidence = tuple(f"{pod.subject}: {message}" for pod, message in some[:_MOST_SHOWN])
        yield of_lack(MissingGpu(HIDDEN, subject, evidence, Certainty.LIKELY), [pod for pod, _ in some])


def find_plain(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that started with a runtime without GPU support, as our agent observed on the node."""
    classes = any("nvidia" in runtime_class.handler for runtime_class in snapshot.runtime_classes)
    by_choice = _plain_by_choice(snapshot) if classes else ""
    together: defaultdict[str, list[tuple[Pod, str]]] = defaultdict(list)
    for pod in snapshot.pods:
        node = snapshot.by_node.get(pod.spec.node)
        if pod.phase != "Running" or pod.meta.deleted is not None or node is None or pod.spec.runtime_class:
            continue
        if hook_evidence(node, toolkits(snapshot)):
            continue
        if asks_for_gpus(pod.spec) and (message := _plain(node) or by_choice):
            together[snapshot.line(pod.meta)[-1] if classes else node.subject].append((pod, message))
    for subject, some in together.items():
        named = tuple(f"{pod.subject} names no runtimeClassName" for pod, _ in some[:_MOST_SHOWN])
        evidence = tuple(dict.fromkeys((*named, *(message for _, message in some[:_MOST_SHOWN]))))
        yield of_lack(MissingGpu(CLASS_NOT_NAMED, subject, evidence), [pod for pod, _ in some])


def _plain(node: Node) -> str:
    """Return the evidence that a pod without a RuntimeClass gets no GPU on the node; '' if there is none.

    This is the case if the default runtime has no GPU support, and CDI is off.
    """
    recorded = node.inventory.runtime
    if (
        recorded is None
        or recorded.default not in ("runc", "crun")
        or recorded.cdi is not False
        or _GKE in node.meta.labels
    ):
        return ""
    return f"{node.subject}: the default runtime of {node.runtime} is {recorded.default}, and CDI is off"


def _plain_by_choice(snapshot: Snapshot) -> str:
    """Return the same evidence from the settings of the toolkit and the device plugin, if both agree."""
    strategies, plain = _strategies(snapshot), _default_settings(snapshot).get("false")
    if plain is None or _with_cdi(snapshot) or set(strategies) != {"envvar"}:
        return ""
    return f"{plain}, and the device plugin gives devices by variables alone"


def _default_settings(snapshot: Snapshot) -> dict[str, str]:
    """Return the toolkit's settings of the default runtime as text, by value."""
    boxes = ((each, box) for each in toolkits(snapshot) if each.spec is not None for box in each.spec.containers)
    named = ((each, name, box.env.get(name)) for each, box in boxes for name in _AS_DEFAULT)
    return {value: f"{each.subject}: {name}={value}" for each, name, value in named if value is not None}


def _strategies(snapshot: Snapshot) -> list[str]:
    """Return how the device plugins pass devices to the runtime, as far as it is set."""
    plugins = (component for component in components(snapshot) if component.role is Role.DEVICE_PLUGIN)
    boxes = (box for plugin in plugins for box in plugin.spec.containers)
    return [box.env["DEVICE_LIST_STRATEGY"] for box in boxes if "DEVICE_LIST_STRATEGY" in box.env]


def of_lack(lack: MissingGpu, pods: Sequence[Pod], *evidence: str) -> FoundCause:
    """Convert a lack of these pods into a result, as a consequence of a fault of the node if that is found."""
    pod, affected = pods[0], tuple(dict.fromkeys(pod.subject for pod in pods))
    because = origins(_WITHOUT_GPU, f"node/{pod.spec.node}") if lack.cause.of_node else ()
    remedy = tuple(lack.steps(pods)) if lack.steps is not None else (lack.cause.remedy,)
    if lack.cause is NOT_INJECTED and any(state.running for state in pod.states):
        look = command("kubectl", "-n", pod.meta.namespace, "exec", pod.meta.name, "--", "ls", "-l", "/dev")
        remedy = (*remedy, f"Check the container's devices: {look}")
    whole = (*evidence, *lack.evidence)
    return FoundCause(lack.cause, lack.subject, whole, remedy, affected, lack.certainty, because)


def lack_of_request(snapshot: Snapshot, pod: Pod, name: str) -> MissingGpu | None:
    """Return the lack of a container that requests no GPU, or hides its GPUs by a variable of its own."""
    written = snapshot.line(pod.meta)[-1]
    container = next((one for one in pod.spec.containers if one.name == name), None)
    by_claim = container is not None and container.claims and claims_gpus(pod, gpu_claims(snapshot))
    if container is None or not (gpus_of(container) or by_claim):
        others = [one.name for one in pod.spec.containers if gpus_of(one)]
        asks = f"only {', '.join(others)} requests one" if others else "none of its containers does"
        return MissingGpu(NOT_REQUESTED, written, (f"{pod.subject}: container {name} requests no GPU; {asks}",))
    message = hidden(snapshot, pod, container)
    return MissingGpu(HIDDEN, written, (message,)) if message else None


def why_without_gpu(snapshot: Snapshot, pod: Pod, name: str) -> MissingGpu:
    """Return why the container has no GPU, as its spec or its node shows."""
    if lack := lack_of_request(snapshot, pod, name) or lack_of_device_files(snapshot, pod):
        return lack
    written = snapshot.line(pod.meta)[-1]
    classes = [runtime_class for runtime_class in snapshot.runtime_classes if "nvidia" in runtime_class.handler]
    # Without CDI, a pod that names no class gets a GPU only if NVIDIA's runtime is the default one.
    hook = hook_evidence(snapshot.by_node.get(pod.spec.node), toolkits(snapshot))
    needs_class = not _with_cdi(snapshot) and "true" not in _default_settings(snapshot) and not hook
    if not pod.spec.runtime_class and classes and needs_class:
        there = f"{classes[0].meta.subject}: handler {classes[0].handler}"
        return MissingGpu(
            CLASS_NOT_NAMED, written, (f"{pod.subject} names no runtimeClassName", there), Certainty.LIKELY
        )
    if stale := started_before_driver(snapshot, pod, Role.DRIVER, Role.TOOLKIT):
        return stale
    runtime = pod.spec.runtime_class or "none"
    own = next(gpus_of(one) for one in pod.spec.containers if one.name == name)
    asked = ", ".join(f"{value} {key}" for key, value in own.items()) or "a claim"
    message = f"{pod.subject}: container {name} requests {asked}; runtimeClassName {runtime}"
    is_classless = own and needs_class and not pod.spec.runtime_class  # the device of a claim comes by CDI
    steps = partial(_injection_steps, snapshot, written if is_classless else "")
    return MissingGpu(NOT_INJECTED, f"node/{pod.spec.node}", (message,), Certainty.LIKELY, steps)


def _injection_steps(snapshot: Snapshot, classless: str, pods: Sequence[Pod]) -> Iterator[str]:
    """Yield the steps after which the runtime injects GPUs. `classless`: object that may need a runtimeClassName."""
    node = snapshot.by_node.get(pods[0].spec.node)
    by_cdi = _with_cdi(snapshot) or not asks_for_gpus(pods[0].spec)
    handlers = handlers_of(node) if node is not None and not by_cdi and _GKE not in node.meta.labels else None
    if handlers and not any("nvidia" in handler for handler in handlers):
        yield from fix_steps(snapshot, node, None)
        return
    if classless:
        listed, name = command("kubectl", "get", "runtimeclass"), "`runtimeClassName: nvidia`"
        yield f"The pod may lack its runtimeClassName: if {listed} lists nvidia, set {name} in {classless}."
        yield "If it lists none, and NVIDIA's runtime is not the default one of the node, create it: `handler: nvidia`."
    for part in components(snapshot):
        toolkit = part.pod_on(pods[0].spec.node) if part.role is Role.TOOLKIT else None
        if toolkit is not None:
            read = logs(toolkit.meta, "--tail=100")
            yield f"Check in the toolkit's log whether it configured the node's runtime: {read}"
    yield (
        "On the node, or in its driver pod, `nvidia-smi -L` must list the GPU: if it does not, fix the driver first. "
        "Then create the pod again."
    )


def started_before_driver(snapshot: Snapshot, pod: Pod, *roles: Role) -> MissingGpu | None:
    """Return the lack of a pod that is older than the driver, or the toolkit, which now works on its node.

    The libraries and devices in the pod are those of its start, and a restart of its container does not replace them.
    """
    began = _sandbox_at(pod)
    parts = (each.pod_on(pod.spec.node) for each in components(snapshot) if each.role in roles)
    for part in filter(None, parts):
        if began is not None and is_ready(part) and (since := _works_since(part)) > began:
            message = f"{pod.subject} started at {timestamp(began)}, {part.subject} on its node at {timestamp(since)}"
            steps = partial(_renew, snapshot, part)
            return MissingGpu(NOT_INJECTED, f"node/{pod.spec.node}", (message,), Certainty.LIKELY, steps)
    return None


def _renew(snapshot: Snapshot, part: Pod, pods: Sequence[Pod]) -> Iterator[str]:
    older = "The pod is" if len(pods) == 1 else "The pods are"
    yield f"{older} older than {part.subject}. A restart of a container keeps what was injected before."
    yield from recreate(snapshot, pods)


def _sandbox_at(pod: Pod) -> datetime | None:
    """Return when the pod's sandbox was created; a reboot of the node replaces it."""
    ready = pod.condition("PodReadyToStartContainers")
    return max(filter(None, (pod.started, ready.since if ready is not None else None)), default=pod.meta.created)


def _works_since(part: Pod) -> datetime:
    """Return when a driver pod, or its container, was started last."""
    starts = [state.started for state in part.states if state.running and not state.init]
    return max(filter(None, (part.started, part.meta.created, *starts)), default=EARLIEST)


def lack_of_device_files(snapshot: Snapshot, pod: Pod) -> MissingGpu | None:
    """Return the device files that our agent misses on the node.

    None if it misses none, or has not checked.
    """
    node = snapshot.by_node.get(pod.spec.node)
    found = node.finding(*DEVICE_FILE_REASONS) if node is not None else None
    if node is None or found is None:
        return None
    return MissingGpu(
        DEVICE_FILES, node.subject, (f"{node.subject}: {found.reason}: {found.detail}",), Certainty.LIKELY
    )


def is_plain_by_default(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether something shows that the runtime of a pod that names no class is not NVIDIA's."""
    node = snapshot.by_node.get(pod.spec.node)
    if node is not None and (_plain(node) or any(text in f"{node.runtime} {node.kubelet}" for text in _NEVER_DEFAULT)):
        return True
    plugins = [component for component in components(snapshot) if component.role is Role.DEVICE_PLUGIN]
    owners = {plugin.meta.owner.kind for plugin in plugins if plugin.meta.owner is not None}
    # The operator's plugin names the class regardless of the default runtime. A plugin installed alone names it only if
    # needed.
    needed = any("nvidia" in plugin.spec.runtime_class for plugin in plugins) and "ClusterPolicy" not in owners
    return needed or "false" in _default_settings(snapshot)


def hidden(snapshot: Snapshot, pod: Pod, container: Container) -> str:
    """Return how the container's own variables hide its requested GPUs; '' if they do not."""
    asked = gpus_of(container)
    count = int(sum(amount(value) or 0 for name, value in asked.items() if is_device(name)))
    if not count:
        return ""
    devices = container.env.get("NVIDIA_VISIBLE_DEVICES", "")
    owner = f"container {container.name}"
    if _FORCES.fullmatch(devices) and not _with_cdi(snapshot):
        return f"{owner}: NVIDIA_VISIBLE_DEVICES={devices} with {count} requested GPUs, regardless of the allocation"
    value = container.env.get("CUDA_VISIBLE_DEVICES", "")
    counted = set(asked) == {"nvidia.com/gpu"} and not _is_shared(snapshot, pod)
    if value in _HIDES_ALL or (counted and _differs(value, count)):
        return f"{owner}: CUDA_VISIBLE_DEVICES={value} with {count} requested GPUs"
    return ""


def _differs(value: str, count: int) -> bool:
    """Whether the value names other devices than the first `count`, or UUIDs, which the scheduler does not know."""
    named = [word for word in value.split(",") if word]
    if any(text.startswith(("GPU-", "MIG-")) for text in named):
        return True
    numbers = [int(text) for text in named if text.isdecimal()]
    is_first = len(numbers) == count and sorted(numbers) == list(range(len(numbers)))
    return bool(named) and len(numbers) == len(named) and not is_first


def _recognised_in_logs(snapshot: Snapshot) -> Iterator[tuple[Pod, Recognised]]:
    for pod in snapshot.pods:
        has_logs = any((pod.subject, state.name) in snapshot.logs for state in pod.states)
        if pod.over or pod.meta.deleted is not None or not has_logs or role_of(pod.meta, {}, pod.spec) is not None:
            continue
        for state in pod.states:
            if not state.running or state.init:
                continue
            is_for_gpus = _is_for_gpus(snapshot, pod)
            rows = (*texts_in(TextSource.LOG, (CGROUP_LOST,)), *(_NO_GPU if is_for_gpus else ()))
            known = recognised(rows, of_log(snapshot, pod, state.name, _LAST_LINES))
            if known is None and is_for_gpus:
                known = recognised(((NOT_INJECTED, AT_ITS_START),), of_log(snapshot, pod, state.name))
            if known is not None:
                yield pod, known


def _is_for_gpus(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod refers to GPUs.

    Many programs try a GPU and run without one, which is not a fault in other pods.
    """
    if asks_for_gpus(pod.spec) or "nvidia" in pod.spec.runtime_class or claims_gpus(pod, gpu_claims(snapshot)):
        return True
    return any(_GPU_IMAGE.search(container.image) for container in pod.spec.containers)


def _is_shared(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod's cards are shared.

    Replicas are not cards: the request then does not show how many cards the container has.
    """
    node = snapshot.by_node.get(pod.spec.node)
    labels = node.meta.labels if node is not None else {}
    strategy, replicas = labels.get("nvidia.com/gpu.sharing-strategy", "none"), labels.get("nvidia.com/gpu.replicas")
    return strategy not in ("", "none") or replicas not in (None, "", "0", "1") or "hami" in pod.spec.scheduler


def _with_cdi(snapshot: Snapshot) -> bool:
    """Whether devices are injected by CDI.

    If so, the variable has no effect, and its value `void` states that.
    """
    by_policy = any(policy.cdi for policy in snapshot.cluster_policies)
    return by_policy or any(_CDI in strategy for strategy in _strategies(snapshot))


SEARCHES = (
    Search((NOT_REQUESTED, CLASS_NOT_NAMED, DEVICE_FILES, NOT_INJECTED, CGROUP_LOST), ("Pod",), find_running),
    Search((HIDDEN,), ("Pod",), find_hidden),
    Search((CLASS_NOT_NAMED,), ("Pod", "Node"), find_plain),
)
