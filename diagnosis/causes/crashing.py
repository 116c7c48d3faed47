"""Find GPU pods whose containers start and then fail.

Each is judged by its last messages, its exit, and the facts known about its node. Our record of the node separates
hardware faults from faults of the program. Messages of a container that has since recovered are ignored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.causes.components import NOT_READY
from diagnosis.causes.faulty_gpus import FAULTY, affected_pods
from diagnosis.causes.hami.allocating import LIBRARY as HAMI_LIBRARY
from diagnosis.causes.hami.allocating import LIBRARY_REASONS, agent_findings
from diagnosis.causes.other_monitors import REPORTED
from diagnosis.causes.pod_startup import START_REASONS, TOOL
from diagnosis.causes.pod_startup_table import DRIVER_MISMATCH, FABRIC, HARDWARE, INIT_FAILS, NOT_INJECTED
from diagnosis.causes.running import (
    CGROUP_LOST,
    CLASS_NOT_NAMED,
    NOT_REQUESTED,
    MissingGpu,
    is_plain_by_default,
    lack_of_device_files,
    of_lack,
    why_without_gpu,
)
from diagnosis.causes.verdicts import KEPT_FROM_WORK
from diagnosis.facts.commands import command, explain, logs
from diagnosis.facts.components import Role, role_of
from diagnosis.facts.gpu_requests import asks_for_gpus, claims_gpus, gpu_claims
from diagnosis.facts.moving_pods import steps_to_move
from diagnosis.facts.symptoms import (
    GATE_REFUSAL,
    GATE_WORDS,
    Recognised,
    Symptom,
    ended_of,
    of_end,
    of_log,
    older,
    recognised,
    replaced,
    shortened,
    subject_of,
    texts_in,
)
from diagnosis.model import (
    Cause,
    CauseSeverity,
    Certainty,
    Family,
    FoundCause,
    Link,
    Origin,
    Search,
    TextSource,
    failing,
    origins,
)
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.nodes import all_respond_since, recorded_gpus
from diagnosis.snapshot.pods import ContainerEnd, ContainerState, Pod
from healthcheck.node.state import CONDITION

_CUDA = "CUDA driver API, CUresult"
_MEMORY_SHARE = "nvidia.com/gpumem"


_running = Family(Link.RUNNING, severity=CauseSeverity.MEDIUM)
DRIVER_TOO_OLD = _running(
    "CudaNewerThanDriver",
    "The image's CUDA is newer than the node's driver supports.",
    "Use an image with an older CUDA, upgrade the driver, or choose nodes by nvidia.com/cuda.driver-version.major.",
    failing(
        r"driver version is insufficient for CUDA runtime|INSUFFICIENT_DRIVER|NVIDIA driver on your system is too old"
        r"|forward compatibility was attempted on non supported|COMPAT_NOT_SUPPORTED_ON_DEVICE|SYSTEM_DRIVER_MISMATCH"
        r"|unsupported display driver / cuda driver combination|unsupported (?:PTX|toolchain)|UNSUPPORTED_PTX",
        _CUDA,
    ),
    severity=CauseSeverity.HIGH,
    source="CUDA errors 35, 222, 803, 804",
)
WRONG_ARCHITECTURE = _running(
    "ImageLacksGpuArchitecture",
    "The program in the image was not built for this model of GPU.",
    "Use an image built for this model, or choose another model by the node label nvidia.com/gpu.product.",
    failing(
        r"no kernel image is available|NO_BINARY_FOR_GPU|is not compatible with the current PyTorch installation", _CUDA
    ),
    severity=CauseSeverity.HIGH,
    source="CUDA error 209, `no kernel image is available for execution`",
)
GPU_MEMORY = _running(
    "GpuMemoryExhausted",
    "The program needs more memory than its GPU, or its share of a GPU, has free.",
    "Make the batch or the model smaller, use a GPU with more memory, or check which pods share this one.",
    failing(
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
        r"|cuda error:? out of memory|cudaMalloc\w{0,20} failed: out of memory|Error Code 2: OutOfMemory"
        r"|Device \d{1,3} OOM|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
        r"|RESOURCE_EXHAUSTED: Out of memory|OOM when allocating tensor[^\n]{0,300}\bGPU"
        r"|No available memory for the cache blocks|less than desired GPU memory utilization|failed to allocate GPU",
        "PyTorch, JAX, TensorFlow, TensorRT, vLLM, llama.cpp, CUDA, cuBLAS, HAMi",
    ),
    source="`CUDA out of memory`; the kernel's OOM killer is not involved",
)
HOST_MEMORY = _running(
    "ContainerMemoryLimitExceeded",
    "The kernel killed the container at its memory limit. The limit concerns the node's memory, not the GPU's.",
    "Raise the container's memory limit, or load less data at once.",
    source="reason OOMKilled, exit code 137",
)
SHARED_MEMORY = _running(
    "SharedMemoryTooSmall",
    "The container's /dev/shm is too small for its workers: it has 64 MiB unless the pod mounts more.",
    "Mount an emptyDir with `medium: Memory` at /dev/shm.",
    failing(
        r"insufficient shared memory|unable to (?:open|allocate) shared memory|\bBus error\b"
        r"|error while creating shared memory segment|No space left on device[^\n]{0,40}/dev/shm",
        "PyTorch's DataLoader, NCCL",
    ),
    source="PyTorch's DataLoader and NCCL exchange data there",
)
PROGRAM = _running(
    "ProgramFaultOnGpu",
    "The program made an invalid access on the GPU; no finding on its node blames the GPU.",
    "Run it with CUDA_LAUNCH_BLOCKING=1 to locate the access. The program causes its Xid 13, 31 and 43 itself.",
    failing(
        r"illegal memory access|device-side assert|unspecified launch failure|misaligned address|ILLEGAL_ADDRESS"
        r"|LAUNCH_FAILED|illegal instruction was encountered|cudaErrorLaunchFailure"
        r"|invalid device ordinal|CUDA_ERROR_INVALID_DEVICE\b|cudaErrorInvalidDevice\b",
        _CUDA,
    ),
    source="CUDA errors 101, 700, 710, 716, 719",
)
POD_IDENTITY = _running(
    "NcclUsesPodIdentityAddress",
    "NCCL uses the address of the node's EKS Pod Identity agent as that of a rank: every node has the same "
    "address, so the ranks do not reach each other.",
    "Exclude the agent's interface: NCCL_SOCKET_IFNAME=^lo,docker,veth,pod-id-link, or name the node's interface.",
    failing(r"SocketPollConnect: connect(?:ing)? to \[?(?:169\.254\.170\.23|fd00:ec2::23)\b", "NCCL"),
    source="https://docs.aws.amazon.com/eks/latest/userguide/pod-id-agent-setup.html: 169.254.170.23 on each node",
)
NCCL = _running(
    "CollectiveFails",
    "The processes of a job lost contact: one of them ended, or the network between them fails.",
    "Check the process that ended first: its message is the cause, the other messages are consequences. "
    "NCCL_DEBUG=INFO shows more.",
    failing(
        r"NCCL WARN|nccl(?:System|Remote|Internal|UnhandledCuda)Error|NCCL error|DistBackendError"
        r"|Watchdog caught collective operation timeout|Connection closed by peer[^\n]{0,80}(?:gloo|rank)",
        "NCCL, PyTorch",
    ),
    source="NCCL; PyTorch's watchdog of collective operations",
    follows=("NcclUsesPodIdentityAddress", "RestartsOnFaultyNode"),
)
CUDA_UNKNOWN = _running(
    "CudaCannotInitialize",
    "CUDA cannot initialize on the node and reports no reason: most often nvidia_uvm is missing, or a leftover process "
    "uses the GPU.",
    "On the node: `modprobe nvidia_uvm`, then check that /dev/nvidia-uvm exists.",
    failing(
        r"CUDA unknown error|CUDA_ERROR_UNKNOWN|cudaErrorUnknown|CUDA error:? (?:999|unknown error)"
        r"|devices?(?:\(s\) is/| )are busy or unavailable|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        _CUDA,
    ),
    severity=CauseSeverity.HIGH,
    source="CUDA errors 46, 999",
    of_node=True,
)
PROBE = _running(
    "LivenessProbeKills",
    "The kubelet kills the container because its liveness probe fails, for example while a model still loads.",
    "Add a startupProbe that waits long enough, or delay the liveness probe.",
)
SIGNAL = _running(
    "ContainerKilledBySignal",
    "The container ended by a signal of its own: a crash in native code, or an abort.",
    "Read its log; a core dump shows the place.",
    source="exit code 128 + signal: 132, 134, 135, 136, 139",
    follows=("RestartsOnFaultyNode",),
)
CRASHES = _running(
    "ContainerCrashes",
    "A container of a GPU pod fails repeatedly; none of its messages is a known GPU error.",
    "Read its log.",
    follows=("RestartsOnFaultyNode",),
)
ENDS = _running(
    "ContainerEndsAtOnce",
    "A container of a GPU pod exits at once without an error, and the pod's restartPolicy restarts it again and again.",
    "Make it a Job, or give it a command that keeps running.",
    severity=CauseSeverity.LOW,
)

GATE_RESTARTS = _running(
    "GateRestartsOnFaultyNode",
    "The gate refuses the pod because its node is faulty, but the pod's restartPolicy starts it there again and again.",
    "In the job's template, set `restartPolicy: Never` and a podFailurePolicy that ignores exit code 75: docs/gate.md.",
    failing(GATE_WORDS, "the gate"),
    severity=CauseSeverity.HIGH,
    source="init container gpu-gate, exit code 75",
)
RECOGNISED = (
    GATE_RESTARTS,
    *(HARDWARE, FABRIC, DRIVER_MISMATCH, DRIVER_TOO_OLD, WRONG_ARCHITECTURE, CGROUP_LOST, NOT_INJECTED, GPU_MEMORY),
    *(SHARED_MEMORY, PROGRAM, CUDA_UNKNOWN, HAMI_LIBRARY, POD_IDENTITY, NCCL),
)
"""Causes by the exit message and log of a failed container.

Hardware errors are first, consequences of a failed peer are last.
"""
_TEXTS = texts_in(TextSource.LOG, RECOGNISED)
COMPONENT_TEXTS = (
    *texts_in(TextSource.LOG, (HARDWARE, FABRIC, DRIVER_MISMATCH)),
    (
        NOT_INJECTED,
        failing(
            r"ERROR_LIBRARY_NOT_FOUND|Incompatible (?:platform|strategy) detected|could not load NVML library",
            "NVIDIA's device plugin and GPU feature discovery",
        ),
    ),
)
"""Texts in the logs of components: errors of the node on which they run."""
_INSTEAD = (
    ("ordinal", "Ask for as many GPUs as the program addresses, or have it address fewer: they count from 0."),
    (
        "unavailable",
        "On the node, check the compute mode of the GPU and its processes: `nvidia-smi -q -d COMPUTE,PIDS`",
    ),
)
"""Special fixes for some errors of a cause, by a word of the error."""
_NO_DRIVER = re.compile(r"insufficient", re.IGNORECASE)
"""CUDA reports the same error if the container has no driver at all."""
_JOINED = (PROGRAM, NCCL, CUDA_UNKNOWN)
"""Causes that a faulty GPU may also lead to: the node's record decides."""
_MISSING_OTHERS = (NCCL, CRASHES, SIGNAL)
"""Errors of the other processes of a job after one of them has ended."""
_MISSING_NAMES = frozenset(cause.name for cause in _MISSING_OTHERS)
_OF_THE_GPU = (HARDWARE, FABRIC, DRIVER_MISMATCH, CUDA_UNKNOWN, PROGRAM, NCCL)
"""Consequences of a faulty GPU."""
_SIGNALS = (132, 134, 135, 136, 139)
_TERMINATED = 143
"""Ended by SIGTERM: a requested end, unless it repeats."""
_KILLED = (137, _TERMINATED)
_NODE_WENT = ("ContainerStatusUnknown", "Unknown")
"""The end was not observed: the node was restarted or lost."""
_OFTEN, _LATELY, _STARTED = 3, 10.0, 5.0
"""With this many restarts, the last one minutes ago, a container only runs between two crashes."""
_CERTAIN = (HARDWARE, FABRIC, DRIVER_MISMATCH, DRIVER_TOO_OLD, WRONG_ARCHITECTURE, GPU_MEMORY, HOST_MEMORY, PROBE)


class _Crash(Struct, frozen=True):
    """Failed container of a pod, and the object to change.

    `lack` is the reason why it has no GPU, if it reports that.
    """

    pod: Pod
    state: ContainerState
    known: Recognised
    subject: str
    lack: MissingGpu | None = None


def find_crashing(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each cause and object to change, however many containers fail that way."""
    crashes = list(_crashes(snapshot))
    causes: defaultdict[str, list[Origin]] = defaultdict(list)
    for crash in crashes:
        causes[snapshot.line(crash.pod.meta)[-1]].append((crash.known.cause.name, crash.subject))
    for node, struck in affected_pods(snapshot).items():
        for other in struck:
            causes[snapshot.line(other.pod.meta)[-1]].append((FAULTY.name, f"node/{node}"))
    for some in grouped(((crash.known.cause.name, crash.subject), crash) for crash in crashes).values():
        yield _found(snapshot, some, causes)


def _crashes(snapshot: Snapshot) -> Iterator[_Crash]:
    claims = gpu_claims(snapshot)
    for pod in snapshot.pods:
        if _is_excused(snapshot, pod):
            continue
        if role_of(pod.meta, {}, pod.spec) is not None:
            yield from _of_component(snapshot, pod)
            continue
        has_gpu = asks_for_gpus(pod.spec) or claims_gpus(pod, claims)
        for state in pod.states:
            ended = _failure(snapshot, state)
            crash = _crash(snapshot, pod, state, ended) if ended is not None else None
            if crash is not None and (has_gpu or crash.lack is not None):
                yield crash
                break


def _of_component(snapshot: Snapshot, pod: Pod) -> Iterator[_Crash]:
    """Yield a crash of a component only for its messages about the node.

    The crash itself is reported with the components.
    """
    node = snapshot.by_node.get(pod.spec.node)
    if node is None or not node.ready or not older(snapshot, node.meta.created, _LATELY):
        return
    for state in pod.states:
        ended = _failure(snapshot, state)
        texts = (of_end(state, ended), *of_log(snapshot, pod, state.name)) if ended is not None else ()
        known = recognised(COMPONENT_TEXTS, texts)
        if known is not None:
            yield _Crash(pod, state, known, node.subject)
            return


def _is_excused(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod succeeded, is being terminated, or has failed and been replaced."""
    if pod.phase == "Succeeded" or pod.meta.deleted is not None or pod.reason:
        return True
    condition = pod.condition("DisruptionTarget")
    if condition is not None and condition.status == "True":
        return True
    return pod.phase == "Failed" and replaced(snapshot, pod)


def _failure(snapshot: Snapshot, state: ContainerState) -> ContainerEnd | None:
    """Return how the container ended; None if it works now or did not fail."""
    ended = ended_of(state)
    # The status may show only the failure itself, or the start failed because NVIDIA's tool was not mounted.
    bare = state.waiting == "CrashLoopBackOff" and ended is None
    if bare or (state.waiting in START_REASONS and TOOL.search(state.message)):
        return ContainerEnd(state.waiting, None, state.message, None)
    if ended is None or ended.exit_code is None or ended.reason in _NODE_WENT:
        return None
    if ended.reason in START_REASONS and not TOOL.search(ended.message):
        return None
    if ended.exit_code == 0:
        return ended if state.waiting == "CrashLoopBackOff" and not state.init else None
    if state.running:
        is_recent = not older(snapshot, ended.at, _LATELY) and not older(snapshot, state.started, _STARTED)
        return ended if is_recent and state.restarts >= (2 * _OFTEN if state.ready else _OFTEN) else None
    return ended if state.waiting in ("CrashLoopBackOff", "") else None


def _crash(snapshot: Snapshot, pod: Pod, state: ContainerState, ended: ContainerEnd) -> _Crash | None:
    known = _recognise(snapshot, pod, state, ended)
    if known is None:
        return None
    lack = _lack(snapshot, pod, state, known)
    if lack is not None:
        return _Crash(pod, state, replace(known, cause=lack.cause), lack.subject, lack)
    node = snapshot.by_node.get(pod.spec.node)
    if known.cause in _JOINED and node is not None and node.faults:
        known = replace(known, cause=HARDWARE)
    return _Crash(pod, state, known, subject_of(snapshot, pod, known.cause))


def _lack(snapshot: Snapshot, pod: Pod, state: ContainerState, known: Recognised) -> MissingGpu | None:
    """Return why the container has no GPU, if its message shows that it has none."""
    if known.cause is NOT_INJECTED:
        return why_without_gpu(snapshot, pod, state.name)
    if known.cause is CGROUP_LOST:
        return MissingGpu(known.cause, f"node/{pod.spec.node}", (), Certainty.LIKELY)
    if known.cause is CUDA_UNKNOWN:
        return lack_of_device_files(snapshot, pod)
    if known.cause is DRIVER_TOO_OLD and _NO_DRIVER.search(known.quote):
        lack = why_without_gpu(snapshot, pod, state.name)
        if lack.cause is NOT_REQUESTED or (lack.cause is CLASS_NOT_NAMED and is_plain_by_default(snapshot, pod)):
            return lack
    return None


def _recognise(snapshot: Snapshot, pod: Pod, state: ContainerState, ended: ContainerEnd) -> Recognised | None:
    end = of_end(state, ended)
    if ended.reason == "OOMKilled":
        return Recognised(HOST_MEMORY, end, "")
    known = recognised(_TEXTS, (end, *of_log(snapshot, pod, state.name)))
    if known is not None:
        # Once a refused pod has failed, its job replaces it elsewhere, and the cause is that of the node.
        return None if known.cause is GATE_RESTARTS and pod.over else known
    if ended.exit_code in _KILLED and _probes(snapshot, pod):
        return Recognised(PROBE, Symptom(TextSource.EVENT, "", ""), shortened(_probes(snapshot, pod)[-1]))
    asked = ended.exit_code == _TERMINATED and state.waiting != "CrashLoopBackOff"
    # A finished pod without a message about GPUs failed for its own reasons, and no other pod waits for it.
    if asked or (pod.over and not state.init):
        return None
    last = end if end.text else next(of_log(snapshot, pod, state.name, lines=1), end)
    return Recognised(_by_exit(state, ended), last, shortened(last.text))


def _by_exit(state: ContainerState, ended: ContainerEnd) -> Cause:
    if state.init:
        return GATE_RESTARTS if (state.name, ended.exit_code) == GATE_REFUSAL else INIT_FAILS
    if ended.exit_code == 0:
        return ENDS
    return SIGNAL if ended.exit_code in _SIGNALS else CRASHES


def _probes(snapshot: Snapshot, pod: Pod) -> tuple[str, ...]:
    """Return the kubelet's messages about failed liveness probes of the pod."""
    messages = (event.message for event in snapshot.events_of(pod))
    return tuple(text for text in messages if "iveness probe failed" in text or "failed liveness probe" in text)


def _found(snapshot: Snapshot, some: list[_Crash], causes: Mapping[str, list[Origin]]) -> FoundCause:
    first = some[0]
    evidence = tuple(_evidence(snapshot, some))
    if first.lack is not None:
        return of_lack(first.lack, [crash.pod for crash in some], *evidence)
    is_certain = first.known.cause in _CERTAIN and not _is_healthy_since(snapshot, first)
    return FoundCause(
        first.known.cause,
        first.subject,
        evidence,
        tuple(_remedy(snapshot, first)),
        tuple(dict.fromkeys(crash.pod.subject for crash in some)),
        Certainty.PROVEN if is_certain else Certainty.LIKELY,
        _because(some, causes, snapshot),
    )


def _is_healthy_since(snapshot: Snapshot, crash: _Crash) -> bool:
    """Whether the agent's record of the node is newer than the crash and has no fault of a GPU."""
    node, ended = snapshot.by_node.get(crash.pod.spec.node), ended_of(crash.state)
    if crash.known.cause is not HARDWARE or node is None or ended is None:
        return False
    return all_respond_since(node, ended.at)


def _because(some: Iterable[_Crash], causes: Mapping[str, list[Origin]], snapshot: Snapshot) -> tuple[Origin, ...]:
    """Return the causes of which these crashes are consequences.

    For a problem of the node, this is the node's verdict. For processes that lost contact with each other, it is the
    cause of another process's failure.
    """
    above: list[Origin] = []
    workloads: dict[str, None] = {}
    for crash in some:
        node = f"node/{crash.pod.spec.node}"
        if crash.known.cause in _OF_THE_GPU:
            above += origins((KEPT_FROM_WORK, REPORTED, FAULTY), node)
        if crash.known.cause is DRIVER_MISMATCH:
            above += origins((NOT_READY[Role.DRIVER],), node)
        if crash.known.cause in _MISSING_OTHERS:
            workloads[snapshot.line(crash.pod.meta)[-1]] = None
    above += (pair for workload in workloads for pair in causes[workload] if pair[0] not in _MISSING_NAMES)
    return tuple(dict.fromkeys(above))


def _evidence(snapshot: Snapshot, some: list[_Crash]) -> Iterator[str]:
    in_time = sorted(some, key=_ended_at)
    for crash in in_time[:3] if some[0] in in_time[:3] else (*in_time[:2], some[0]):
        yield f"{crash.pod.subject}: {_last_end(crash)}"
    if len(some) > 1:
        yield f"{len(some)} containers ended this way; the first: {in_time[0].pod.subject}"
    yield from _of_node(snapshot, some[0])


def _ended_at(crash: _Crash) -> str:
    ended = ended_of(crash.state)
    return str(ended.at if ended is not None else None)


def _last_end(crash: _Crash) -> str:
    ended = ended_of(crash.state)
    how = f"container {crash.state.name} ended repeatedly"
    if ended is not None:
        how = f"container {crash.state.name} ended with {ended.reason}, exit code {ended.exit_code}"
    times = f", {crash.state.restarts} restarts" if crash.state.restarts else ""
    words = f": {crash.known.symptom.place.value}: {crash.known.quote}" if crash.known.quote else ""
    return f"{how}{times}{words}"


def _of_node(snapshot: Snapshot, crash: _Crash) -> Iterator[str]:
    node = snapshot.by_node.get(crash.pod.spec.node)
    container = next((each for each in crash.pod.spec.containers if each.name == crash.state.name), None)
    if container is not None and crash.known.cause is HOST_MEMORY:
        yield f"its memory limit: {container.limits.get('memory', 'none, so the node itself ran out of memory')}"
    if container is not None and crash.known.cause in (DRIVER_TOO_OLD, WRONG_ARCHITECTURE):
        yield f"image {container.image}"
    if crash.known.cause is GPU_MEMORY:
        yield from (f"HAMi's limit: {share.memory} MiB of card {share.uuid}" for share in crash.pod.shares[:4])
    if crash.known.cause is HAMI_LIBRARY:
        yield from agent_findings(node, *LIBRARY_REASONS)
    if node is None:
        return
    keys = ("nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/cuda.driver-version.full")
    named = ", ".join(f"{key} {node.meta.labels[key]}" for key in keys if key in node.meta.labels)
    replicas = node.meta.labels.get("nvidia.com/gpu.replicas", "")
    shared = f"; each GPU is shared by {replicas}" if replicas not in ("", "0", "1") else ""
    if named or shared:
        yield f"{node.subject}: {named}{shared}"
    if _is_healthy_since(snapshot, crash):
        yield f"{recorded_gpus(node)}, after that end, and it has no fault"
    for finding in node.faults[:3]:
        yield f"agent on the node: {finding.reason} on {finding.subject}: {shortened(finding.detail, 160)}"
    condition = node.condition(CONDITION, "False")
    if condition is not None:
        yield f"{node.subject}: condition {CONDITION}=False, {condition.reason}"


def _remedy(snapshot: Snapshot, crash: _Crash) -> Iterator[str]:
    node = snapshot.by_node.get(crash.pod.spec.node)
    if crash.known.cause is HARDWARE and node is not None:
        for finding in node.faults[:1]:
            yield f"See the action for {finding.reason} on {node.subject}: {explain(finding.reason)}"
    if crash.known.cause is GATE_RESTARTS:
        yield from steps_to_move(snapshot, [crash.pod], "healthy nodes", works=False)
    if crash.known.cause is HARDWARE and node is not None and _is_healthy_since(snapshot, crash):
        test = command("gpu-healthcheck", "quarantine", node.name)
        yield f"Test the node under load before more work runs there: {test}"
    elif crash.known.cause is GPU_MEMORY and (crash.pod.shares or "HAMI" in crash.known.quote.upper()):
        yield _more_memory(crash.pod)
    else:
        message = crash.known.quote.lower() if crash.known.cause in (PROGRAM, CUDA_UNKNOWN) else ""
        yield next((words for word, words in _INSTEAD if word in message), crash.known.cause.remedy)
    previous = ("--previous",) if crash.state.ended is None else ()
    yield f"Read its last log lines: {logs(crash.pod.meta, '-c', crash.state.name, '--tail=100', *previous)}"


def _more_memory(pod: Pod) -> str:
    """Return how HAMi gives the pod more memory of its cards."""
    limits = {share.memory for share in pod.shares if share.memory}
    now = f" (now {', '.join(f'{limit}' for limit in sorted(limits))} MiB per card)" if limits else " (in MiB)"
    return (
        f"Raise {_MEMORY_SHARE} in the container's limits{now}, which is HAMi's limit, or its percentage "
        f"{_MEMORY_SHARE}-percentage; or make the batch or the model smaller."
    )


SEARCHES = (Search((*RECOGNISED, HOST_MEMORY, PROBE, SIGNAL, CRASHES, ENDS), ("Pod",), find_crashing),)
