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

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.crashing_table import (
    CRASHES,
    CUDA_UNKNOWN,
    DRIVER_TOO_OLD,
    ENDS,
    GATE_RESTARTS,
    GPU_MEMORY,
    HOST_MEMORY,
    KERNEL_TIME,
    LIBRARY,
    MPS,
    NCCL,
    PROBE,
    PROGRAM,
    RECOGNISED,
    SIGNAL,
    STUB_LIBRARY,
    UNLICENSED,
    WRONG_ARCHITECTURE,
)
from gpu_healthcheck.diagnosis.causes.faulty_gpus import FAULTY, affected_pods
from gpu_healthcheck.diagnosis.causes.hami.allocating import LIBRARY as HAMI_LIBRARY
from gpu_healthcheck.diagnosis.causes.hami.allocating import LIBRARY_REASONS, agent_findings
from gpu_healthcheck.diagnosis.causes.other_monitors import REPORTED
from gpu_healthcheck.diagnosis.causes.pod_startup import START_REASONS, TOOL
from gpu_healthcheck.diagnosis.causes.pod_startup_table import (
    ACCESS_DENIED,
    DRIVER_MISMATCH,
    DRIVER_NOT_LOADED,
    FABRIC,
    HARDWARE,
    INIT_FAILS,
    NO_GPU_FOUND,
    NOT_INJECTED,
)
from gpu_healthcheck.diagnosis.causes.running import (
    CGROUP_LOST,
    CLASS_NOT_NAMED,
    NOT_REQUESTED,
    MissingGpu,
    is_plain_by_default,
    lack_of_device_files,
    lack_of_request,
    of_lack,
    started_before_driver,
    why_without_gpu,
)
from gpu_healthcheck.diagnosis.causes.verdicts import KEPT_FROM_WORK
from gpu_healthcheck.diagnosis.facts.commands import command, explain, logs
from gpu_healthcheck.diagnosis.facts.components import Role, components, role_of
from gpu_healthcheck.diagnosis.facts.driver_steps import fabric_steps
from gpu_healthcheck.diagnosis.facts.gpu_requests import asks_for_gpus, claims_gpus, gpu_claims
from gpu_healthcheck.diagnosis.facts.library_errors import any_cuda_error
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.safe_steps import keep_off, let_in
from gpu_healthcheck.diagnosis.facts.symptoms import (
    GATE_REFUSAL,
    Recognised,
    Symptom,
    ended_of,
    of_end,
    of_events,
    of_log,
    older,
    recognised,
    replaced,
    shortened,
    subject_of,
    texts_in,
)
from gpu_healthcheck.diagnosis.model import (
    Cause,
    Certainty,
    FoundCause,
    Origin,
    Search,
    TextSource,
    origins,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, all_respond_since, recorded_gpus
from gpu_healthcheck.diagnosis.snapshot.pods import ContainerEnd, ContainerState, Pod
from gpu_healthcheck.healthcheck.catalog.cuda_errors import fix_of
from gpu_healthcheck.healthcheck.node.state import CONDITION

_MEMORY_SHARE = "nvidia.com/gpumem"
ANY_ERROR = (PROGRAM, any_cuda_error())
"""Text of an error of CUDA that no other row knows."""
_TEXTS = (*texts_in(TextSource.LOG, RECOGNISED), ANY_ERROR)
_OF_NODES = (HARDWARE, FABRIC, DRIVER_MISMATCH, DRIVER_NOT_LOADED, ACCESS_DENIED, NO_GPU_FOUND)
_BY_PROBES = frozenset((TextSource.ENDED, TextSource.LOG, TextSource.EVENT))
COMPONENT_TEXTS = tuple(
    (cause, replace(text, sources=_BY_PROBES)) for cause, text in texts_in(TextSource.LOG, _OF_NODES)
)
"""Texts in the logs of components, or in events about their probes: errors of the node on which they run."""
_MISMATCH = re.compile(r"driver combination|DRIVER_?MISMATCH|DSO version", re.IGNORECASE)
"""Text of CUDA error 803."""
_PROBE_EVENT = re.compile(
    r"(?P<failed>startup|liveness) probe (?:failed|errored)"
    r"|container (?:(?P<container>\S{1,253}) )?failed (?P<kills>startup|liveness) probe",
    re.IGNORECASE,
)
"""Messages of the events Unhealthy and Killing."""
_REFUSED = re.compile(r"probe failed: HTTP probe failed with statuscode: (40[0-6])\b", re.IGNORECASE)
"""Answer of a program that serves, and does not know the probe's request."""
_LATE = re.compile(r"liveness probe (?:failed|errored)[^\n]{0,300}(?:Timeout|deadline|timed out)", re.IGNORECASE)
_TERMINATED_WORDS = re.compile(r"KeyboardInterrupt: terminated|\bSIGTERM\b|\bsignal 15\b")
"""Words of a program that ends on SIGTERM with an exit code of its own, as vLLM does."""
_STALE = (CUDA_UNKNOWN, DRIVER_NOT_LOADED, DRIVER_MISMATCH, ACCESS_DENIED)
"""Errors of a container that has the devices of an earlier driver."""
_NO_DRIVER = re.compile(r"insufficient", re.IGNORECASE)
"""CUDA reports the same error if the container has no driver at all."""
_JOINED = (PROGRAM, NCCL, CUDA_UNKNOWN, NO_GPU_FOUND, KERNEL_TIME)
"""Causes that a faulty GPU may also lead to: the node's record decides."""
_MISSING_OTHERS = (NCCL, CRASHES, SIGNAL)
"""Errors of the other processes of a job after one of them has ended."""
_MISSING_NAMES = frozenset(cause.name for cause in _MISSING_OTHERS)
_OF_THE_GPU = (HARDWARE, FABRIC, DRIVER_MISMATCH, DRIVER_NOT_LOADED, NO_GPU_FOUND, CUDA_UNKNOWN, PROGRAM, NCCL)
"""Consequences of a faulty GPU."""
_SIGNALS = (132, 134, 135, 136, 139)
_TERMINATED = 143
"""Ended by SIGTERM: a requested end, unless it repeats."""
_KILLED = (137, _TERMINATED)
_NODE_WENT = ("ContainerStatusUnknown", "Unknown")
"""The end was not observed: the node was restarted or lost."""
_LOADING = 180.0
"""Minutes in which a container that a probe ended may still load again."""
_OFTEN, _LATELY, _STARTED = 3, 10.0, 5.0
"""With this many restarts, the last one minutes ago, a container only runs between two crashes."""
_CERTAIN = (
    *(HARDWARE, FABRIC, DRIVER_MISMATCH, DRIVER_NOT_LOADED, DRIVER_TOO_OLD, WRONG_ARCHITECTURE),
    *(GPU_MEMORY, HOST_MEMORY, PROBE, STUB_LIBRARY, UNLICENSED, LIBRARY),
)
_UNCERTAIN = re.compile(r"device handle|SIGKILL|killed|signal 9|code = -9", re.IGNORECASE)
"""Words of programs about a cause that they presume."""


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
            ended = _failure(snapshot, pod, state)
            crash = _crash(snapshot, pod, state, ended) if ended is not None else None
            if crash is not None and (has_gpu or crash.lack is not None):
                yield crash
                break


def _of_component(snapshot: Snapshot, pod: Pod) -> Iterator[_Crash]:
    """Yield a crash of a component only for its messages about the node.

    The crash itself is reported with the components.
    """
    node = snapshot.by_node.get(pod.spec.node)
    if snapshot.sees("Node") and (node is None or not node.ready):
        return
    if not older(snapshot, node.meta.created if node is not None else pod.meta.created, _LATELY):
        return
    for state in pod.states:
        ended = _failure(snapshot, pod, state)
        probes = of_events(reversed(snapshot.events_of(pod)), "Unhealthy")
        texts = (of_end(state, ended), *of_log(snapshot, pod, state.name), *probes) if ended is not None else ()
        known = recognised(COMPONENT_TEXTS, texts)
        if known is not None:
            yield _Crash(pod, state, known, f"node/{pod.spec.node}")
            return


def _is_excused(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod succeeded, is being terminated, or has failed and been replaced."""
    if pod.phase == "Succeeded" or pod.meta.deleted is not None or pod.reason:
        return True
    condition = pod.condition("DisruptionTarget")
    if condition is not None and condition.status == "True":
        return True
    return pod.phase == "Failed" and replaced(snapshot, pod)


def _failure(snapshot: Snapshot, pod: Pod, state: ContainerState) -> ContainerEnd | None:
    """Return how the container ended; None if it works now or did not fail."""
    ended = ended_of(state)
    # The status may show only the failure itself, or the start failed because NVIDIA's tool was not mounted.
    bare = state.waiting == "CrashLoopBackOff" and ended is None
    if bare or (state.waiting in START_REASONS and TOOL.search(state.message)):
        return ContainerEnd(state.waiting, None, state.message, None)
    if ended is None or ended.exit_code is None or ended.reason in _NODE_WENT:
        return None
    is_start = ended.reason in START_REASONS and not TOOL.search(ended.message)
    return ended if not is_start and _fails(snapshot, pod, state, ended) else None


def _fails(snapshot: Snapshot, pod: Pod, state: ContainerState, ended: ContainerEnd) -> bool:
    """Whether this end of the container is more than a past one."""
    loads = state.running and not state.ready and not older(snapshot, ended.at, _LOADING)
    if loads and any(_probe_events(snapshot, pod, state, ended)):
        return True
    if ended.exit_code == 0:
        return state.waiting == "CrashLoopBackOff" and not state.init
    if state.running:
        is_recent = not older(snapshot, ended.at, _LATELY) and not older(snapshot, state.started, _STARTED)
        return is_recent and state.restarts >= (2 * _OFTEN if state.ready else _OFTEN)
    return state.waiting in ("CrashLoopBackOff", "")


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
    """Return why the container has no GPU, or not that of the driver, if its message shows that."""
    lack = None
    if known.cause is NOT_INJECTED:
        lack = why_without_gpu(snapshot, pod, state.name)
    elif known.cause is CGROUP_LOST:
        lack = MissingGpu(known.cause, f"node/{pod.spec.node}", (), Certainty.LIKELY)
    elif known.cause is NO_GPU_FOUND:
        lack = lack_of_request(snapshot, pod, state.name) or started_before_driver(snapshot, pod, Role.DRIVER)
    elif known.cause in _STALE or _MISMATCH.search(known.quote):
        of_files = lack_of_device_files(snapshot, pod) if known.cause is CUDA_UNKNOWN else None
        lack = of_files or started_before_driver(snapshot, pod, Role.DRIVER)
    elif known.cause is DRIVER_TOO_OLD and _NO_DRIVER.search(known.quote):
        why = why_without_gpu(snapshot, pod, state.name)
        by_class = why.cause is CLASS_NOT_NAMED and is_plain_by_default(snapshot, pod)
        lack = why if by_class or why.cause is NOT_REQUESTED else None
    return lack


def _recognise(snapshot: Snapshot, pod: Pod, state: ContainerState, ended: ContainerEnd) -> Recognised | None:
    end = of_end(state, ended)
    if ended.reason == "OOMKilled":
        return Recognised(HOST_MEMORY, end, "")
    known = recognised(_TEXTS, (end, *of_log(snapshot, pod, state.name)))
    if known is None or known.cause is NCCL:
        for message in _probe_events(snapshot, pod, state, ended):
            return Recognised(PROBE, Symptom(TextSource.EVENT, "", ""), shortened(message))
    if known is not None:
        # Once a refused pod has failed, its job replaces it elsewhere, and the cause is that of the node.
        return None if known.cause is GATE_RESTARTS and pod.over else known
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


def _probe_events(snapshot: Snapshot, pod: Pod, state: ContainerState, ended: ContainerEnd) -> Iterator[str]:
    """Yield the kubelet's messages about probes that ended the container, the newest first; readiness ends none.

    A program may end itself while its probe fails: a failed probe alone does not show that the kubelet ended it.
    """
    for event in reversed(snapshot.events_of(pod)):
        found = _PROBE_EVENT.search(event.message)
        if found is None or found["container"] not in (state.name, None):
            continue
        if found["kills"] or _ended_by_signal(snapshot, pod, state, ended):
            yield event.message


def _ended_by_signal(snapshot: Snapshot, pod: Pod, state: ContainerState, ended: ContainerEnd) -> bool:
    texts = (of_end(state, ended), *of_log(snapshot, pod, state.name))
    return ended.exit_code in (*_KILLED, None) or any(_TERMINATED_WORDS.search(each.text) for each in texts)


def _found(snapshot: Snapshot, some: list[_Crash], causes: Mapping[str, list[Origin]]) -> FoundCause:
    first = some[0]
    evidence = tuple(_evidence(snapshot, some))
    if first.lack is not None:
        return of_lack(first.lack, [crash.pod for crash in some], *evidence)
    is_sure = first.known.cause in _CERTAIN and not _UNCERTAIN.search(first.known.quote)
    is_certain = is_sure and not _is_healthy_since(snapshot, first)
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
    node, cause = snapshot.by_node.get(crash.pod.spec.node), crash.known.cause
    if cause is GATE_RESTARTS:
        yield from steps_to_move(snapshot, [crash.pod], "healthy nodes", works=False)
    is_faulty = cause is DRIVER_NOT_LOADED or (cause is HARDWARE and not _is_healthy_since(snapshot, crash))
    keeps_off = is_faulty and (node is not None or not snapshot.sees("Node"))
    if keeps_off:
        yield from keep_off(snapshot, crash.pod.spec.node)
    if cause is HARDWARE:
        yield from _of_hardware(snapshot, crash, node)
    elif cause is PROBE:
        yield _probe_remedy(snapshot, crash)
    elif cause is FABRIC and node is not None:
        yield from fabric_steps(snapshot, node)
    elif cause is GPU_MEMORY and (crash.pod.shares or "HAMI" in crash.known.quote.upper()):
        yield _more_memory(crash.pod)
    else:
        system = node.kernel if node is not None else ""
        yield fix_in(crash.known, system) or _by_component(snapshot, crash) or cause.remedy
    if keeps_off:
        yield from let_in(snapshot, crash.pod.spec.node)
    previous = ("--previous",) if crash.state.ended is None else ()
    yield f"Read its last log lines: {logs(crash.pod.meta, '-c', crash.state.name, '--tail=100', *previous)}"


def fix_in(known: Recognised, system: str = "") -> str:
    """Return the fix of the error in the text, of its quoted line or of another line about the same cause."""
    lines = (line for line in known.symptom.text.splitlines() if any(text.search(line) for text in known.cause.texts))
    fixes = (fix_of(known.cause.name, f"{system}: {line}") for line in (known.quote, *lines))
    return next(filter(None, fixes), "")


def _of_hardware(snapshot: Snapshot, crash: _Crash, node: Node | None) -> Iterator[str]:
    if node is not None and _is_healthy_since(snapshot, crash):
        test = command("gpu-healthcheck", "quarantine", node.name)
        yield f"Test the node under load before more work runs there: {test}"
        return
    if node is not None and node.faults:
        yield f"See the action for {node.faults[0].reason} on {node.subject}: {explain(node.faults[0].reason)}"
    if "device handle" in crash.known.quote:
        yield (
            "Run `nvidia-smi -L` on the node: if it lists that GPU, only the container has lost it, and creating the "
            "pod again suffices."
        )
    yield (
        "Then end the pods that use the GPU and reset it (`nvidia-smi --gpu-reset -i GPU`), or reboot the node; if the "
        "error recurs, replace the GPU. The Xid in the node's kernel log names the fault: `dmesg | grep -i xid`."
    )


def _probe_remedy(snapshot: Snapshot, crash: _Crash) -> str:
    found = _PROBE_EVENT.search(crash.known.quote)
    kind = ((found["failed"] or found["kills"]) if found is not None else "liveness").lower()
    container = next((each for each in crash.pod.spec.containers if each.name == crash.state.name), None)
    probe = container and (container.startup if kind == "startup" else container.liveness)
    now = f" It has now {probe}." if probe else ""
    answers = " ".join(event.message for event in snapshot.events_of(crash.pod))
    if refused := _REFUSED.search(answers):
        return (
            f"The program answers the {kind} probe with {refused[1]}: correct the probe's path, port or headers of "
            f"container {crash.state.name} in the template of {crash.subject}."
        )
    if kind == "startup":
        return (
            f"Raise failureThreshold of the startupProbe of container {crash.state.name} in the template of "
            f"{crash.subject}, until failureThreshold x periodSeconds is longer than the program loads.{now}"
        )
    late = " It answered too late: if it had loaded, raise the probe's timeoutSeconds." if _LATE.search(answers) else ""
    return f"{PROBE.remedy}{now}{late}"


def _by_component(snapshot: Snapshot, crash: _Crash) -> str:
    """Return the fix that begins with the pod on the node which provides what is missing; '' without such a pod."""
    role = {DRIVER_NOT_LOADED: Role.DRIVER, MPS: Role.MPS}.get(crash.known.cause)
    pods = (each.pod_on(crash.pod.spec.node) for each in components(snapshot) if each.role is role)
    part = next(filter(None, pods), None)
    if part is None:
        return ""
    read = logs(part.meta, "--all-containers", "--tail=100")
    if crash.known.cause is MPS:
        return f"Read what the MPS control daemon on the node reports: {read}. {MPS.remedy}"
    return (
        f"Read why the driver's container has not loaded its module on the node: {read}. When `nvidia-smi` works in "
        "it, the pod works from its next restart on; if it does not, create it again."
    )


def _more_memory(pod: Pod) -> str:
    """Return how HAMi gives the pod more memory of its cards."""
    limits = {share.memory for share in pod.shares if share.memory}
    now = f" (now {', '.join(f'{limit}' for limit in sorted(limits))} MiB per card)" if limits else " (in MiB)"
    return (
        f"Raise {_MEMORY_SHARE} in the container's limits{now}, which is HAMi's limit, or its percentage "
        f"{_MEMORY_SHARE}-percentage; or make the batch or the model smaller."
    )


SEARCHES = (Search((*RECOGNISED, PROBE, SIGNAL, CRASHES, ENDS), ("Pod",), find_crashing),)
