"""The program that each of NVIDIA's handlers starts is there, can be run, and is made for this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from healthcheck.checks import gpu_runtime, runtime_fixes
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, of_nvidia, where
from healthcheck.model import Check, Evidence, Finding, Judgement, Observation, Reason, Severity
from healthcheck.probes.container_runtime import configuration as container_runtime
from healthcheck.probes.container_runtime.facts import CONTAINERD, ContainerRuntime, Handler, RuntimeConfiguration

MISSING = Reason(
    "RuntimeBinaryMissing",
    Severity.MONITOR,
    "A handler of NVIDIA's names no program, or one that is not on the node.",
    "Install the NVIDIA container toolkit, or correct BinaryName in the file named.",
    flickers=True,
    source="containerd's runc shim, which starts what BinaryName says",
)
NOT_EXECUTABLE = Reason(
    "RuntimeBinaryNotExecutable",
    Severity.MONITOR,
    "The program of a handler of NVIDIA's is there, and nobody may run it.",
    "`chmod 0755` it, or install the NVIDIA container toolkit again.",
    flickers=True,
    source="execve(2): EACCES",
)
FOREIGN = Reason(
    "RuntimeBinaryOfAnotherArchitecture",
    Severity.MONITOR,
    "The program of a handler of NVIDIA's is made for another kind of processor than this machine's.",
    "Install the NVIDIA container toolkit of this machine's architecture.",
    flickers=True,
    source="execve(2): ENOEXEC, `exec format error`",
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    readable = yield from gpu_runtime.readable(seen)
    if readable is None:
        return
    runtime, used = readable
    yield from find_faults(runtime, used)
    paths = dict.fromkeys(program.path or f"no {program.named}" for program in runtime.programs)
    named = any(handler.binary for handler in used.handlers)
    yield Observation(
        ", ".join(paths) or ("a tree without the programs that it names" if named else "no program named")
    )


def find_faults(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    """Return the findings on NVIDIA's handlers, one for each reason."""
    ours = [handler for handler in of_nvidia(used.handlers) if _starts_a_program(handler, used)]
    return gpu_runtime.together(_findings(runtime, used, ours))


def _findings(runtime: ContainerRuntime, used: RuntimeConfiguration, ours: Sequence[Handler]) -> Iterator[Finding]:
    can_run = any(_fault(runtime, one) is None for one in ours if one.binary)
    for handler in ours:
        if not handler.binary:
            yield from _without(runtime, used, handler)
        elif not (can_run and _is_offered(handler, used)):
            yield from _unfit(runtime, used, handler)


def _starts_a_program(handler: Handler, used: RuntimeConfiguration) -> bool:
    return used.kind != CONTAINERD or not handler.runtime_type or handler.runtime_type.startswith(gpu_runtime.SHIMS)


def _without(runtime: ContainerRuntime, used: RuntimeConfiguration, handler: Handler) -> Iterator[Finding]:
    """Yield the finding for a handler without BinaryName.

    It starts runc, which gives a pod its GPUs only through CDI.
    """
    if used.kind == CONTAINERD and not gpu_runtime.cdi_specs(runtime):
        message = f"{where(handler)}: {handler.name} has no BinaryName, so it starts runc"
        name = "name NVIDIA's program there, /usr/bin/nvidia-container-runtime"
        yield found(MISSING, used, f"{message}; {name}: {runtime_fixes.correct(runtime, used, handler.file)}")


def _unfit(runtime: ContainerRuntime, used: RuntimeConfiguration, handler: Handler) -> Iterator[Finding]:
    fault = _fault(runtime, handler)
    if fault is not None:
        reason, message = fault
        starts = f"{where(handler)}: {handler.name} starts {handler.binary}"
        yield found(reason, used, f"{starts}, {message}")


def _fault(runtime: ContainerRuntime, handler: Handler) -> tuple[Reason, str] | None:
    """Return the reason why the handler's program cannot be run, and its fix; None if it can be run."""
    program = next((binary for binary in runtime.programs if binary.named == handler.binary), None)
    if program is None:
        return None  # could not be checked
    if not program.path:
        nowhere = "" if "/" in handler.binary else ", in no folder where programs usually lie"
        install = "install the NVIDIA container toolkit again"
        return MISSING, f"which is not there{nowhere}; {install}"
    if not program.executable:
        return NOT_EXECUTABLE, f"which nobody may run; {runtime_fixes.make_executable(program.path)}"
    if program.architecture and runtime.architecture and program.architecture != runtime.architecture:
        made = f"made for {program.architecture} on a machine of {runtime.architecture}"
        return FOREIGN, f"{made}; install the NVIDIA container toolkit for {runtime.architecture}"
    return None


def _is_offered(handler: Handler, used: RuntimeConfiguration) -> bool:
    """Whether a distribution defines this handler before its program is installed.

    Such a handler exists in addition to the default handler.
    """
    return "/" not in handler.binary and handler.name != used.default


CHECK = Check(
    "runtime-binary",
    "7-container-runtime",
    (container_runtime.CONTAINER_RUNTIME,),
    judge,
    (MISSING, NOT_EXECUTABLE, FOREIGN),
)
