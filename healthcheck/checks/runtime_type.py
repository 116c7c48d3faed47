"""Check: NVIDIA's handlers and the default handler have a valid type, which starts their program."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import OLDEST_SHIM, SHIMS, found, of_nvidia
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, ContainerRuntime
from gpu_healthcheck.healthcheck.probes.container_runtime.nvidia_definitions import is_nvidias_program

_NOT_IN_2 = (OLDEST_SHIM, "io.containerd.runc.v1")
_FIX = 'set runtime_type = "io.containerd.runc.v2"'

MISSING = gpu_runtime.reason(
    "RuntimeTypeMissing",
    "A handler has no runtime_type: no sandbox starts with it.",
    "Set runtime_type to io.containerd.runc.v2.",
    source="containerd: `container.Runtime.Name must be set`",
)
REMOVED = gpu_runtime.reason(
    "RuntimeTypeRemoved",
    "A handler's runtime_type is no longer supported: this containerd starts no container with it.",
    "Set runtime_type to io.containerd.runc.v2.",
    source=f"containerd 2.0 dropped {' and '.join(_NOT_IN_2)}",
)
IGNORES_PROGRAM = gpu_runtime.reason(
    "RuntimeTypeIgnoresBinary",
    "A handler's pods get no GPU: it names NVIDIA's program, but has a runtime_type that does not start it.",
    "Set runtime_type to io.containerd.runc.v2.",
    source=f"containerd: only {SHIMS}* has the option BinaryName",
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    if runtime.kind != CONTAINERD:
        yield NotConfigured(f"{runtime.kind} has no runtime types")
        return
    yield from find_faults(runtime)
    types = dict.fromkeys(handler.runtime_type for handler in runtime.used.handlers if handler.runtime_type)
    yield Observation(", ".join(types) or "none named")


def find_faults(runtime: ContainerRuntime) -> Iterator[Finding]:
    """Return one finding for each reason; none for a runtime without runtime types."""
    return gpu_runtime.together(_unfit(runtime) if runtime.kind == CONTAINERD else ())


def _unfit(runtime: ContainerRuntime) -> Iterator[Finding]:
    used = runtime.used
    names = {used.default, *(handler.name for handler in of_nvidia(used.handlers))}
    for handler in (each for each in used.handlers if each.name in names):
        kind = handler.runtime_type
        fix = f"{_FIX}; {runtime_fixes.correct(runtime)}"
        if not kind:
            # A running runtime may not report the type.
            if runtime.on_disk is not None:
                yield found(MISSING, runtime, f"{runtime.path}: {handler.name} has no runtime_type; {fix}")
            continue
        message = f"{runtime.path}: {handler.name} has runtime_type {kind}"
        if kind in _NOT_IN_2 and runtime.is_containerd_2:
            yield found(REMOVED, runtime, f"{message}, which containerd 2 does not have; {fix}")
        elif is_nvidias_program(handler.binary) and kind != OLDEST_SHIM and not kind.startswith(SHIMS):
            yield found(IGNORES_PROGRAM, runtime, f"{message}, which does not start {handler.binary}; {fix}")


CHECK = gpu_runtime.check("runtime-type", judge, MISSING, REMOVED, IGNORES_PROGRAM)
