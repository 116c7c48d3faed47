"""Check: the container runtime defines its default handler, which serves pods without a runtime class."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_fixes
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found
from healthcheck.model import Finding, Judgement, Observation
from healthcheck.probes.container_runtime.facts import CONTAINERD, RUNC, ContainerRuntime, RuntimeConfiguration

_MOST_NAMED = 8

UNDEFINED = gpu_runtime.reason(
    "DefaultRuntimeUndefined",
    "The default handler of the kubelet's container runtime is not defined: its CRI does not load.",
    "Define the handler, or set the default to a defined handler.",
    source="containerd: `no corresponding runtime configured in containerd.runtimes`",
)


def judge(runtime: ContainerRuntime, used: RuntimeConfiguration, _: Expectation) -> Iterator[Judgement]:
    yield from find_faults(runtime, used)
    yield Observation(used.default, f"one of {', '.join(_defined(used)[:_MOST_NAMED])}")


def find_faults(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    """Yield the finding if no file defines the default handler."""
    defined = _defined(used)
    if used.default not in defined:
        file = used.default_in or used.path
        message = f"{file}: the default is {used.default!r}; defined are {', '.join(defined)}"
        yield found(UNDEFINED, used, f"{message}; {runtime_fixes.correct(runtime, used, file)}")


def _defined(used: RuntimeConfiguration) -> list[str]:
    return list(dict.fromkeys([*(handler.name for handler in used.handlers), *_built_in(used)]))


def _built_in(used: RuntimeConfiguration) -> tuple[str, ...]:
    """Return the handlers that are built into the container runtime.

    Docker and CRI-O have `runc` or `crun`; those of containerd depend on its release. An unknown release is assumed to
    have `runc`, because it may be containerd 2.
    """
    if used.kind != CONTAINERD:
        return RUNC, "crun"
    return used.built_in if used.version else (RUNC,)


CHECK = gpu_runtime.check("default-runtime", judge, UNDEFINED)
