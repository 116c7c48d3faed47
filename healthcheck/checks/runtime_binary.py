"""Check: the program of each NVIDIA handler exists, is executable, and is built for this machine."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found, of_nvidia, starts_runc
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation, Reason
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, ContainerRuntime, Handler

MISSING = gpu_runtime.reason(
    "RuntimeBinaryMissing",
    "An NVIDIA handler's program is missing: it names none, or one that does not exist on the node.",
    "Install the NVIDIA container toolkit, or correct BinaryName in the file in the detail.",
    source="containerd's runc shim, which starts the program in BinaryName",
)
NOT_EXECUTABLE = gpu_runtime.reason(
    "RuntimeBinaryNotExecutable",
    "An NVIDIA handler's program is not executable: no container starts with it.",
    "Run `chmod 0755` on it, or reinstall the NVIDIA container toolkit.",
    source="execve(2): EACCES",
)
FOREIGN = gpu_runtime.reason(
    "RuntimeBinaryOfAnotherArchitecture",
    "An NVIDIA handler's program is for another processor: it is built for another architecture than this machine's.",
    "Install the NVIDIA container toolkit for this machine's architecture.",
    source="execve(2): ENOEXEC, `exec format error`",
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    yield from find_faults(runtime)
    paths = dict.fromkeys(program.path or f"no {program.named}" for program in runtime.programs)
    yield Observation(", ".join(paths) or "no program named")


def find_faults(runtime: ContainerRuntime) -> Iterator[Finding]:
    """Return the findings on NVIDIA's handlers, one for each reason."""
    return gpu_runtime.together(_findings(runtime))


def _findings(runtime: ContainerRuntime) -> Iterator[Finding]:
    handlers = [each for each in of_nvidia(runtime.used.handlers) if runtime.kind != CONTAINERD or starts_runc(each)]
    can_run = any(_fault(runtime, handler) is None for handler in handlers if handler.binary)
    for handler in handlers:
        fault = _fault(runtime, handler) if handler.binary else None
        if not handler.binary:
            yield from _without(runtime, handler)
        elif fault is not None and not (can_run and _is_offered(runtime, handler)):
            reason, message = fault
            yield found(reason, runtime, f"{runtime.path}: {handler.name} starts {handler.binary}, {message}")


def _without(runtime: ContainerRuntime, handler: Handler) -> Iterator[Finding]:
    """Yield the finding for a handler without BinaryName.

    It starts runc, which gives a pod its GPUs only through CDI.
    """
    if runtime.kind == CONTAINERD and runtime.on_disk is not None and not gpu_runtime.cdi_specs(runtime):
        message = f"{runtime.path}: {handler.name} has no BinaryName, so it starts runc"
        name = "set BinaryName to NVIDIA's program, /usr/bin/nvidia-container-runtime"
        yield found(MISSING, runtime, f"{message}; {name}: {runtime_fixes.correct(runtime)}")


def _fault(runtime: ContainerRuntime, handler: Handler) -> tuple[Reason, str] | None:
    """Return the reason why the handler's program cannot be run, and its fix; None if it can be run."""
    program = next((binary for binary in runtime.programs if binary.named == handler.binary), None)
    if program is None:
        return None  # could not be checked
    if not program.path:
        nowhere = "" if "/" in handler.binary else " in any usual folder of programs"
        return MISSING, f"which does not exist{nowhere}; reinstall the NVIDIA container toolkit"
    if not program.executable:
        return NOT_EXECUTABLE, f"which is not executable; run {runtime_fixes.make_executable(program.path)}"
    if program.architecture and runtime.architecture and program.architecture != runtime.architecture:
        made = f"built for {program.architecture} on a machine with {runtime.architecture}"
        return FOREIGN, f"{made}; install the NVIDIA container toolkit for {runtime.architecture}"
    return None


def _is_offered(runtime: ContainerRuntime, handler: Handler) -> bool:
    """Whether a distribution defines this handler before its program is installed.

    Such a handler exists in addition to the default handler.
    """
    return "/" not in handler.binary and handler.name != runtime.used.default


CHECK = gpu_runtime.check("runtime-binary", judge, MISSING, NOT_EXECUTABLE, FOREIGN)
