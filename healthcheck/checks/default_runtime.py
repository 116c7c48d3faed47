"""Check: the container runtime defines its default handler, which serves pods without a runtime class."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_fixes
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found
from healthcheck.model import Finding, Judgement, Observation
from healthcheck.probes.container_runtime.facts import CONTAINERD, ContainerRuntime, RuntimeConfiguration

_MOST_NAMED = 8

UNDEFINED = gpu_runtime.reason(
    "DefaultRuntimeUndefined",
    "The container runtime's default handler is undefined: the CRI of the kubelet's runtime does not load.",
    "Define the handler, or set the default to a defined handler.",
    source="containerd: `no corresponding runtime configured in containerd.runtimes`",
)


def judge(runtime: ContainerRuntime, used: RuntimeConfiguration, _: Expectation) -> Iterator[Judgement]:
    yield from find_faults(runtime)
    yield Observation(used.default or "the runtime's own default", f"one of {_defined(used)}")


def find_faults(runtime: ContainerRuntime) -> Iterator[Finding]:
    """Yield the finding if containerd's files do not define the default handler. CRI-O's own loader refuses them."""
    files = runtime.on_disk
    if files is None or files.kind != CONTAINERD or not files.default or files.cri_disabled:
        return
    if files.default not in {handler.name for handler in files.handlers}:
        message = f"{runtime.path}: the default is {files.default!r}; defined are {_defined(files)}"
        yield found(UNDEFINED, runtime, f"{message}; {runtime_fixes.correct(runtime)}")


def _defined(used: RuntimeConfiguration) -> str:
    return ", ".join([handler.name for handler in used.handlers][:_MOST_NAMED]) or "none"


CHECK = gpu_runtime.check("default-runtime", judge, UNDEFINED)
