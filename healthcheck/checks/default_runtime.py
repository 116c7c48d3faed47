"""Check: the container runtime defines its default handler, which serves pods without a runtime class."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, ContainerRuntime

_MOST_NAMED = 8

UNDEFINED = gpu_runtime.reason(
    "DefaultRuntimeUndefined",
    "The container runtime's default handler is undefined: the CRI of the kubelet's runtime does not load.",
    "Define the handler, or set the default to a defined handler.",
    source="containerd: `no corresponding runtime configured in containerd.runtimes`",
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    yield from find_faults(runtime)
    yield Observation(runtime.used.default or "the runtime's own default", f"one of {_defined(runtime)}")


def find_faults(runtime: ContainerRuntime) -> Iterator[Finding]:
    """Yield the finding if containerd's files do not define the default handler. CRI-O's own loader refuses them."""
    files = runtime.on_disk
    if files is None or runtime.kind != CONTAINERD or not files.default or files.cri_disabled:
        return
    if files.default not in {handler.name for handler in files.handlers}:
        message = f"{runtime.path}: the default is {files.default!r}; defined are {_defined(runtime)}"
        yield found(UNDEFINED, runtime, f"{message}; {runtime_fixes.correct(runtime)}")


def _defined(runtime: ContainerRuntime) -> str:
    return ", ".join([handler.name for handler in runtime.used.handlers][:_MOST_NAMED]) or "none"


CHECK = gpu_runtime.check("default-runtime", judge, UNDEFINED)
