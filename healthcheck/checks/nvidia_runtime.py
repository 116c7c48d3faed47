"""Check: the kubelet's container runtime can give pods a GPU, through an NVIDIA handler or CDI."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_fixes, runtime_restart
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, gives_gpus, of_nvidia, where
from healthcheck.model import Finding, Judgement, Observation
from healthcheck.probes.container_runtime import crio
from healthcheck.probes.container_runtime.distributions import GKE
from healthcheck.probes.container_runtime.facts import CRIO, ContainerRuntime, Handler, RuntimeConfiguration

MISSING = gpu_runtime.reason(
    "NvidiaRuntimeMissing",
    "The kubelet's container runtime has neither an NVIDIA handler nor a CDI specification: it can't give pods a GPU.",
    "Add the handler with the command in the detail, which is for this distribution.",
    source='containerd: `no runtime for "nvidia" is configured`',
)
ELSEWHERE = gpu_runtime.reason(
    "NvidiaRuntimeElsewhere",
    "NVIDIA's runtime is configured for another container runtime than the kubelet's.",
    "Configure the toolkit for the kubelet's container runtime with the command in the detail.",
    source='containerd: `no runtime for "nvidia" is configured`',
)


def judge(runtime: ContainerRuntime, used: RuntimeConfiguration, _: Expectation) -> Iterator[Judgement]:
    if runtime.distribution == GKE:
        yield Observation("no NVIDIA handler by design: the device plugin mounts the driver")
        return
    yield from _not_there(runtime, used)
    yield Observation(_summary(runtime), "an NVIDIA handler, or CDI")


def _not_there(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    """Yield the finding if the runtime has neither an NVIDIA handler nor CDI.

    Other checks report handlers that are in a wrong table, not loaded or unreadable.
    """
    misplaced = [one for spot in used.misplaced for one in spot.handlers]
    unread = any(spec.problem is not None for spec in gpu_runtime.cdi_specs(runtime))
    if gives_gpus(runtime) or of_nvidia([*used.handlers, *misplaced]) or unread:
        return
    give = runtime_restart.give_handler(runtime, used)
    replaced = next(iter(of_nvidia(used.replaced)), None)
    not_imported = next(iter(of_nvidia(used.unread_handlers)), None)
    other = next(_elsewhere(runtime), None)
    if replaced is not None:
        yield found(MISSING, used, f"{where(replaced)} has it, {_why_replaced(runtime, used)}")
    elif not_imported is not None:
        yield found(MISSING, used, f"{where(not_imported)} has it, {_why_unread(runtime, used)}")
    elif other is not None:
        kind, handler = other
        message = f"{where(handler)} has it, but {kind} reads that file; the kubelet's {used.kind} reads {used.path}"
        yield found(ELSEWHERE, used, f"{message}: {give}")
    else:
        yield found(MISSING, used, f"{used.path}: {give}")


def _why_replaced(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    file = used.replaced_by
    why = f"but {file}, read after it, replaces the CRI plugin's whole table in {gpu_runtime.reader(used)}"
    move = f"write the handlers into {file} too, or remove that table from it"
    return f"{why}: {move}; {runtime_fixes.correct(runtime, used, file)}"


def _why_unread(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    if used.kind == CRIO:
        return f"but CRI-O does not read that folder: move it to {crio.STANDARD_FOLDER}"
    name = f"name it in `imports` of {used.path}; {runtime_fixes.correct(runtime, used, used.path)}"
    return f"but no file imports that file: {name}"


def _elsewhere(runtime: ContainerRuntime) -> Iterator[tuple[str, Handler]]:
    for configuration in runtime.others:
        for handler in of_nvidia(configuration.handlers) if configuration.problem is None else ():
            same = runtime.used is not None and configuration.kind == runtime.used.kind
            yield (f"another {configuration.kind}" if same else configuration.kind), handler


def _summary(runtime: ContainerRuntime) -> str:
    running = runtime.running_handlers
    ours = [name for name, program in running.items() if gpu_runtime.is_nvidias(name, program)]
    kinds = dict.fromkeys(spec.kind or spec.path for spec in gpu_runtime.cdi_specs(runtime) if spec.problem is None)
    loaded = " as it runs" if runtime.live is not None and runtime.live.handlers is not None else ""
    ways = [*(f"handler {name}" for name in ours), *(f"CDI {kind}" for kind in kinds)]
    return f"{', '.join(ways) or 'none'}{loaded}"


CHECK = gpu_runtime.check("nvidia-runtime", judge, MISSING, ELSEWHERE)
