"""Shared code of the container runtime checks: the runtime, its NVIDIA parts, file positions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from healthcheck.checks.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, NotConfigured, Reason, Severity, TooEarly, Unobserved
from healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from healthcheck.probes.container_runtime.facts import (
    NOT_FOUND,
    UNREADABLE,
    CdiSpec,
    ConfigurationProblem,
    ContainerRuntime,
    Handler,
    RuntimeConfiguration,
)

NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""Names of NVIDIA's handlers in the toolkit and in the RuntimeClasses of the GPU operator."""
PROGRAM = "nvidia-container-runtime"
"""Name of the program, a prefix of its variants' names, and the handler's name on AKS and MicroK8s."""
SHIMS = "io.containerd.runc."
"""Prefix of containerd's runtime types that start runc or the program in BinaryName."""
OLDEST_SHIM = "io.containerd.runtime.v1.linux"
"""Runtime type that also starts a program, named by another option."""
_MOST_SHOWN = 4
"""Most positions of one fault that a detail shows."""


Judge = Callable[[ContainerRuntime, RuntimeConfiguration, Expectation], Iterator[Judgement]]


def reason(name: str, meaning: str, action: str, source: str, threshold: str = "") -> Reason:
    """Return a reason of this group: all only warn, and can be observed briefly while a runtime restarts."""
    return Reason(name, Severity.MONITOR, meaning, action, flickers=True, threshold=threshold, source=source)


def check(name: str, judge: Judge, *reasons: Reason, also_unreadable: bool = False) -> Check:
    """Return the check whose `judge` gets the kubelet's container runtime on a node with GPUs for containers.

    A malformed file leaves its content unknown: unless `also_unreadable`, the active findings then stay.
    `container-runtime` reports the file itself.
    """

    @functools.wraps(judge)
    def judge_evidence(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
        runtime = seen[CONTAINER_RUNTIME]
        used = runtime.used
        if runtime.for_gpus is False:
            yield NotConfigured("no NVIDIA GPU that containers can use")
        elif used is None:
            blind = runtime.not_found and runtime.for_gpus
            yield Unobserved(NOT_FOUND, runtime.why_none) if blind else NotConfigured(runtime.why_none)
        elif used.problem is None or also_unreadable:
            yield from judge(runtime, used, expected)
        elif used.problem.only_ours:
            yield Unobserved(UNREADABLE, in_words(used.problem), subject(used))
        else:
            yield TooEarly(f"{used.kind} can't read {used.problem.file}", subject(used))

    return Check(name, "7-container-runtime", (CONTAINER_RUNTIME,), judge_evidence, reasons)


def subject(used: RuntimeConfiguration) -> str:
    """Return the subject of findings: `runtime/containerd`, `runtime/cri-o` or `runtime/docker`."""
    return f"runtime/{used.kind.lower()}"


def reader(used: RuntimeConfiguration) -> str:
    """Return the containerd release whose rules apply to the merge of its files."""
    assumed = "" if used.version else f" (assumed from version {used.schema})"
    return f"containerd {used.generation}{assumed}"


def found(reason: Reason, used: RuntimeConfiguration, detail: str) -> Finding:
    """Return a finding with this reason on this runtime."""
    return Finding(reason.name, reason.severity, subject(used), detail, flickers=reason.flickers)


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
    """Return the handlers that start NVIDIA's runtime, by their exact name or by their program.

    A name that is only similar does not count.
    """
    return [handler for handler in handlers if is_nvidias(handler.name, handler.binary)]


def is_nvidias(handler: str, program: str) -> bool:
    return handler in NAMES or is_nvidias_program(program)


def is_nvidias_program(path: str) -> bool:
    return path.rpartition("/")[2].startswith(PROGRAM)


def cdi_specs(runtime: ContainerRuntime) -> tuple[CdiSpec, ...]:
    """Return the specifications of NVIDIA's devices that the runtime reads; none while CDI is off."""
    return runtime.cdi_specs if runtime.cdi_is_on else ()


def gives_gpus(runtime: ContainerRuntime) -> bool:
    """Whether the runtime can give a GPU to a pod in any way."""
    if any(is_nvidias(name, program) for name, program in runtime.running_handlers.items()):
        return True
    return any(spec.problem is None for spec in cdi_specs(runtime))


def place(file: str, line: int = 0, column: int = 0) -> str:
    """Return the known position, such as `/etc/containerd/config.toml, line 3, column 7`."""
    named = [file, *([f"line {line}"] if line else []), *([f"column {column}"] if line and column else [])]
    return ", ".join(named)


def in_words(problem: ConfigurationProblem) -> str:
    """Return the position of the problem and the message of the runtime."""
    return f"{place(problem.file, problem.line, problem.column)}: {problem.message}"


def where(handler: Handler) -> str:
    """Return the file and line that define a handler."""
    return place(handler.file, handler.line)
