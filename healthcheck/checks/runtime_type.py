"""Check: NVIDIA's handlers and the default handler have a valid type, which starts their program."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_fixes
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, of_nvidia, where
from healthcheck.model import Finding, Judgement, NotConfigured, Observation
from healthcheck.probes.container_runtime.facts import CONTAINERD, ContainerRuntime, Handler, RuntimeConfiguration

_NOT_IN_2 = (gpu_runtime.OLDEST_SHIM, "io.containerd.runc.v1")

REMOVED = gpu_runtime.reason(
    "RuntimeTypeRemoved",
    "A handler has a runtime_type that this containerd no longer supports: no container starts with it.",
    "Set runtime_type to io.containerd.runc.v2.",
    source=f"containerd 2.0 dropped {' and '.join(_NOT_IN_2)}",
)
IGNORES_PROGRAM = gpu_runtime.reason(
    "RuntimeTypeIgnoresBinary",
    "A handler names NVIDIA's program, but has a runtime_type that does not start it: its pods get no GPU.",
    "Set runtime_type to io.containerd.runc.v2.",
    source=f"containerd: only {gpu_runtime.SHIMS}* has the option BinaryName",
)


def judge(runtime: ContainerRuntime, used: RuntimeConfiguration, _: Expectation) -> Iterator[Judgement]:
    if used.kind != CONTAINERD:
        yield NotConfigured(f"{used.kind} has no runtime types")
        return
    yield from find_faults(runtime, used)
    types = dict.fromkeys(handler.runtime_type for handler in used.handlers if handler.runtime_type)
    yield Observation(", ".join(f"{text}{_without(text)}" for text in types) or "none named")


def _without(kind: str) -> str:
    """Return a note on the containerd release that removes this runtime type, or an empty string."""
    return " (not in containerd 2)" if kind in _NOT_IN_2 else ""


def find_faults(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    """Return one finding for each reason; none for a runtime without runtime types."""
    return gpu_runtime.together(_unfit(runtime, used) if used.kind == CONTAINERD else ())


def _unfit(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    ours = {one.name for one in of_nvidia(used.handlers)}
    for handler in used.handlers:
        if handler.name not in ours and handler.name != used.default:
            continue
        message = f"{where(handler)}: {handler.name} has runtime_type {handler.runtime_type}"
        fix = runtime_fixes.correct(runtime, used, handler.file)
        if handler.runtime_type in _NOT_IN_2 and used.is_containerd_2:
            yield found(REMOVED, used, f"{message}, which containerd 2 does not have; {fix}")
        elif gpu_runtime.is_nvidias_program(ignored := _ignored(handler)):
            yield found(IGNORES_PROGRAM, used, f"{message}, which does not start {ignored}; {fix}")


def _ignored(handler: Handler) -> str:
    """Return the program in BinaryName that this runtime type does not start.

    It is empty if the type starts NVIDIA's program through another option.
    """
    if handler.runtime_type == gpu_runtime.OLDEST_SHIM:
        return "" if gpu_runtime.is_nvidias_program(handler.binary) else handler.ignored_binary
    starts_it = not handler.runtime_type or handler.runtime_type.startswith(gpu_runtime.SHIMS)
    return "" if starts_it else handler.binary


CHECK = gpu_runtime.check("runtime-type", judge, REMOVED, IGNORES_PROGRAM)
