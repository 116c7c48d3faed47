"""Check: the kubelet's container runtime can give pods a GPU, through an NVIDIA handler or CDI."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes, runtime_restart
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found, gives_gpus, of_nvidia
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import CRIO_FOLDER, GKE
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CRIO, ContainerRuntime
from gpu_healthcheck.healthcheck.probes.container_runtime.nvidia_definitions import is_nvidias

MISSING = gpu_runtime.reason(
    "NvidiaRuntimeMissing",
    "The container runtime can't give pods a GPU: the kubelet's runtime has no NVIDIA handler, no CDI "
    "specification, and no OCI hook of NVIDIA's.",
    "Add the handler with the command in the detail, which is for this distribution.",
    source='containerd: `no runtime for "nvidia" is configured`',
)
ELSEWHERE = gpu_runtime.reason(
    "NvidiaRuntimeElsewhere",
    "NVIDIA's runtime is configured for the wrong runtime: the kubelet uses another container runtime.",
    "Configure the toolkit for the kubelet's container runtime with the command in the detail.",
    source='containerd: `no runtime for "nvidia" is configured`',
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    if runtime.distribution == GKE:
        yield Observation("no NVIDIA handler by design: the device plugin mounts the driver")
        return
    yield from _not_there(runtime)
    yield Observation(_summary(runtime), "an NVIDIA handler, CDI, or an OCI hook of CRI-O")


def _not_there(runtime: ContainerRuntime) -> Iterator[Finding]:
    """Yield the finding if the runtime has neither an NVIDIA handler nor CDI.

    Other checks report handlers that are not loaded, unreadable, or in a file from which the runtime does not take
    them.
    """
    unread = any(spec.problem is not None for spec in gpu_runtime.cdi_specs(runtime))
    by_config = {one.config: one for one in reversed(runtime.definitions)}
    misplaced = runtime.on_disk is not None and runtime.path in by_config
    if gives_gpus(runtime) or of_nvidia(runtime.used.handlers) or unread or misplaced:
        return
    give = runtime_restart.give_handler(runtime)
    not_imported = by_config.get("")
    other = next((one for one in runtime.definitions if one.config not in ("", runtime.path)), None)
    if not_imported is not None:
        yield found(MISSING, runtime, f"{not_imported.file} has it, {_why_unread(runtime)}")
    elif other is not None:
        reader = f"another {other.kind}" if other.kind == runtime.kind else other.kind
        message = (
            f"{other.file} has it, but {reader} reads that file; the kubelet's {runtime.kind} reads {runtime.path}"
        )
        yield found(ELSEWHERE, runtime, f"{message}: {give}")
    else:
        yield found(MISSING, runtime, f"{runtime.path}: {give}")


def _why_unread(runtime: ContainerRuntime) -> str:
    if runtime.kind == CRIO:
        return f"but CRI-O does not read that folder: move it to {CRIO_FOLDER}"
    name = f"name it in `imports` of {runtime.path}; {runtime_fixes.correct(runtime)}"
    return f"but no file imports that file: {name}"


def _summary(runtime: ContainerRuntime) -> str:
    running = runtime.running_handlers
    ours = [name for name, program in running.items() if is_nvidias(name, program)]
    kinds = dict.fromkeys(spec.kind or spec.path for spec in gpu_runtime.cdi_specs(runtime) if spec.problem is None)
    loaded = " as it runs" if runtime.in_force is not None else ""
    hook = [f"OCI hook {runtime.hook}"] if runtime.hook else []
    ways = [*(f"handler {name}" for name in ours), *(f"CDI {kind}" for kind in kinds), *hook]
    return f"{', '.join(ways) or 'none'}{loaded}"


CHECK = gpu_runtime.check("nvidia-runtime", judge, MISSING, ELSEWHERE)
