"""Shared code of the container runtime checks: the runtime, its NVIDIA parts, file positions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Reason,
    Severity,
    TooEarly,
    Unobserved,
)
from gpu_healthcheck.healthcheck.probes.container_runtime import cri
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    DOCKER,
    NOT_FOUND,
    UNREADABLE,
    CdiSpec,
    ConfigurationProblem,
    ContainerRuntime,
    Handler,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.nvidia_definitions import is_nvidias

SHIMS = "io.containerd.runc."
"""Prefix of containerd's runtime types that start runc or the program in BinaryName."""
OLDEST_SHIM = "io.containerd.runtime.v1.linux"
"""Runtime type that also starts a program, named by another option."""
_MOST_SHOWN = 4
"""Most positions of one fault that a detail shows."""


Judge = Callable[[ContainerRuntime, Expectation], Iterator[Judgement]]


def reason(name: str, meaning: str, action: str, source: str, threshold: str = "") -> Reason:
    """Return a reason of this group: all only warn, and can be observed briefly while a runtime restarts."""
    return Reason(name, Severity.MONITOR, meaning, action, flickers=True, threshold=threshold, source=source)


def check(name: str, judge: Judge, *reasons: Reason, also_refused: bool = False) -> Check:
    """Return the check whose `judge` gets the kubelet's container runtime on a node with GPUs for containers.

    Files that the runtime's loader refuses leave their content unknown: unless `also_refused`, active findings stay.
    `container-runtime` reports the refusal.
    """

    @functools.wraps(judge)
    def judge_evidence(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
        runtime = evidence[CONTAINER_RUNTIME]
        if runtime.for_gpus is False:
            yield NotConfigured("no NVIDIA GPU that containers can use")
        elif not runtime.path:
            is_hidden = runtime.not_found and runtime.for_gpus
            yield Unobserved(NOT_FOUND, runtime.why_none) if is_hidden else NotConfigured(runtime.why_none)
        elif runtime.why_not_live == cri.NOT_HERE:
            yield NotConfigured(f"could not check: {cri.NOT_HERE}")
        elif also_refused or (runtime.is_known and runtime.refusal is None):
            yield from judge(runtime, expected)
        elif runtime.refusal is not None:
            yield TooEarly(f"{runtime.kind}'s own loader refuses {runtime.refusal.file}", subject(runtime))
        else:
            yield from unknown(runtime)

    return Check(name, "7-container-runtime", (CONTAINER_RUNTIME,), judge_evidence, reasons)


def unknown(runtime: ContainerRuntime) -> Iterator[Judgement]:
    """Yield the reason why neither the running runtime nor its loader reported a configuration."""
    if runtime.why_not_live == cri.NOT_YET:
        yield TooEarly(cri.NOT_YET, subject(runtime))
    elif runtime.live is not None and runtime.kind == DOCKER:
        yield NotConfigured("Docker does not report its handlers over the CRI")
    else:
        yield Unobserved(UNREADABLE, "; ".join(filter(None, (runtime.why_not_live, runtime.why_not_loaded))))


def subject(runtime: ContainerRuntime) -> str:
    """Return the subject of findings: `runtime/containerd`, `runtime/cri-o` or `runtime/docker`."""
    return f"runtime/{runtime.kind.lower()}"


def release(runtime: ContainerRuntime) -> str:
    """Return the runtime with its version, if it is known."""
    return f"{runtime.kind} {runtime.live.version if runtime.live else ''}".rstrip()


def found(reason: Reason, runtime: ContainerRuntime, detail: str) -> Finding:
    """Return a finding with this reason on this runtime."""
    return Finding(reason.name, reason.severity, subject(runtime), detail, flickers=reason.flickers)


def together(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Merge findings with the same reason and subject into one.

    Active findings are recorded by reason and subject, so the last one would otherwise replace the others.
    """
    by_reason: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_reason.setdefault((finding.reason, finding.subject), []).append(finding)
    for first, *others in by_reason.values():
        messages = [finding.detail for finding in (first, *others)][:_MOST_SHOWN]
        more = [f"and {len(others) + 1 - len(messages)} more"] if len(others) + 1 > len(messages) else []
        yield replace(first, detail="; ".join([*messages, *more]))


def of_nvidia(handlers: Iterable[Handler]) -> list[Handler]:
    """Return the handlers that start NVIDIA's runtime. A name that is only similar does not count."""
    return [handler for handler in handlers if is_nvidias(handler.name, handler.binary)]


def starts_runc(handler: Handler) -> bool:
    """Whether a handler of containerd starts runc or its BinaryName. Other shims do not have these options."""
    return not handler.runtime_type or handler.runtime_type.startswith(SHIMS)


def cdi_specs(runtime: ContainerRuntime) -> tuple[CdiSpec, ...]:
    """Return the specifications of NVIDIA's devices that the runtime reads; none while CDI is off."""
    return runtime.cdi_specs if runtime.cdi_is_on else ()


def gives_gpus(runtime: ContainerRuntime) -> bool:
    """Whether the runtime can give a GPU to a pod in any way."""
    if runtime.hook or any(is_nvidias(name, program) for name, program in runtime.running_handlers.items()):
        return True
    return any(spec.problem is None for spec in cdi_specs(runtime))


def place(file: str, line: int = 0, column: int = 0) -> str:
    """Return the known position, such as `/etc/containerd/config.toml, line 3, column 7`."""
    named = [file, *([f"line {line}"] if line else []), *([f"column {column}"] if line and column else [])]
    return ", ".join(named)


def in_words(problem: ConfigurationProblem) -> str:
    """Return the position of the problem and the message of the runtime."""
    return f"{place(problem.file, problem.line, problem.column)}: {problem.message}"
