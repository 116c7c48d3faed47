"""The containerd that the kubelet uses can start a container with a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from healthcheck.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, NotConfigured, Reason, Seen, Severity, Unobserved
from healthcheck.per_gpu import NVIDIA_DRIVER
from healthcheck.probes import pci
from healthcheck.probes.runtime import container_runtime, containerd
from healthcheck.probes.runtime.facts import Configuration, ContainerRuntime, Handler, Problem

_SUBJECT = "runtime/containerd"
_NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""What the toolkit and the RuntimeClasses of the GPU operator call it."""
_PROGRAM = "nvidia-container-runtime"
"""Also the beginning of its variants. AKS and MicroK8s call their handlers so."""
_SHIM_OF_PROGRAMS = "io.containerd.runc."
"""Runtime types that start the program named by BinaryName."""
_SETTLED_SECONDS = 10.0
"""A file written this soon after its reader was started is taken for one that it read."""
_REGENERATED = {
    container_runtime.K3S: "install nvidia-container-runtime, then restart k3s: it writes this file at its start",
    container_runtime.RKE2: "install nvidia-container-runtime, then restart RKE2: it writes this file at its start",
    container_runtime.MICROK8S: "run `microk8s enable nvidia`: this file is made from containerd-template.toml",
}

MISSING = Reason(
    "NvidiaRuntimeMissing",
    Severity.MONITOR,
    "The kubelet's containerd has no handler for NVIDIA's runtime, and no CDI specification to give a pod a GPU.",
    "Run `nvidia-ctk runtime configure --runtime=containerd --config=FILE` for the file named; restart containerd.",
    flickers=True,
    source='containerd: `no runtime for "nvidia" is configured`',
)
ELSEWHERE = Reason(
    "NvidiaRuntimeInOtherContainerd",
    Severity.MONITOR,
    "NVIDIA's runtime was configured for another containerd than the one that the kubelet uses.",
    "Configure the toolkit for the kubelet's own; the GPU operator's by CONTAINERD_CONFIG and CONTAINERD_SOCKET.",
    flickers=True,
    source='containerd: `no runtime for "nvidia" is configured`',
)
BINARY_MISSING = Reason(
    "RuntimeBinaryMissing",
    Severity.MONITOR,
    "A handler of NVIDIA's names no program, or one that is not on the node or can't be run.",
    "Install the NVIDIA container toolkit, or correct BinaryName in the file named.",
    flickers=True,
    source="containerd's runc shim, which starts what BinaryName says",
)
MALFORMED = Reason(
    "RuntimeConfigMalformed",
    Severity.MONITOR,
    "The configuration of the kubelet's containerd can't be read: it will not start again with it.",
    "Correct the file at the place named, before containerd or the node is restarted.",
    flickers=True,
    source="containerd's loader, which refuses such a file",
)
MISPLACED = Reason(
    "RuntimeConfigMisplaced",
    Severity.MONITOR,
    "NVIDIA's handler stands in a table that containerd does not read in a file of that version.",
    "Move it to the table named, or write the file again with `nvidia-ctk runtime configure`.",
    flickers=True,
    source="containerd's configuration schemas 1 to 4",
)
DEFAULT_UNDEFINED = Reason(
    "DefaultRuntimeUndefined",
    Severity.MONITOR,
    "The default runtime of the kubelet's containerd is one that it does not define: its CRI does not load with that.",
    "Define the handler, or set default_runtime_name to one that is defined.",
    flickers=True,
    source="containerd: `no corresponding runtime configured in containerd.runtimes`",
)
NOT_LOADED = Reason(
    "RuntimeConfigNotLoaded",
    Severity.MONITOR,
    "The configuration of the kubelet's containerd was changed after it was started: it runs with the old one.",
    "Restart the containerd that the kubelet uses.",
    flickers=True,
    threshold=f"{_SETTLED_SECONDS:g} s after its start",
    source="containerd reads its configuration once, at its start",
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    around = seen[container_runtime.CONTAINER_RUNTIME]
    if not any(one.is_gpu and one.driver in (NVIDIA_DRIVER, "") for one in seen[pci.FUNCTIONS]):
        yield NotConfigured("no NVIDIA GPU for a container")
    elif around.used is None:
        yield NotConfigured(around.why_none)
    else:
        yield from _findings(around, around.used)
        yield Seen(_said(around, around.used), _expected(around), around.known_from)


def _findings(around: ContainerRuntime, used: Configuration) -> Iterator[Judgement]:
    if used.problem is not None and used.problem.only_ours:
        yield Unobserved("RuntimeConfigUnreadable", _told(used.problem), _SUBJECT)
    elif used.problem is not None:
        yield _found(MALFORMED, _told(used.problem))
    else:
        yield from _misplaced(used)
        yield from _undefined(used)
        yield from _not_there(around, used)
        yield from _cannot_run(around, used)
    yield from _not_loaded(around, used)


def _misplaced(used: Configuration) -> Iterator[Finding]:
    defined = {handler.name for handler in used.handlers}
    for place in used.misplaced:
        names = [one.name for one in _of_nvidia(place.handlers) if one.name not in defined]
        if names:
            where = f'plugins."{place.section}"'
            right = f'version {place.schema} has it in plugins."{place.right_section}"'
            yield _found(MISPLACED, f"{place.file}: {', '.join(names)} under {where}; {right}")


def _undefined(used: Configuration) -> Iterator[Finding]:
    # containerd brings runc itself.
    defined = [handler.name for handler in used.handlers if handler.name != containerd.RUNC] + [containerd.RUNC]
    if used.default not in defined:
        told = f"{used.path}: default_runtime_name is {used.default!r}; defined are {', '.join(defined)}"
        yield _found(DEFAULT_UNDEFINED, told)


def _not_there(around: ContainerRuntime, used: Configuration) -> Iterator[Finding]:
    """No way for a GPU into a pod. One that stands in a wrong table is told as that."""
    misplaced = (one for place in used.misplaced for one in place.handlers)
    if _of_nvidia([*used.handlers, *misplaced]) or _has_cdi(around, used):
        return
    other = next((one for one in around.others if one.problem is None and _of_nvidia(one.handlers)), None)
    if other is not None:
        file = _of_nvidia(other.handlers)[0].file
        told = f"{file} has it; the kubelet's containerd reads {used.path}: {_mending(around, used)}"
        yield _found(ELSEWHERE, told)
    elif around.distribution != container_runtime.GKE:  # its device plugin mounts the driver itself
        yield _found(MISSING, f"{used.path}: {_mending(around, used)}")


def _mending(around: ContainerRuntime, used: Configuration) -> str:
    """How it is done on this distribution, in one sentence."""
    return _REGENERATED.get(
        around.distribution,
        f"set the toolkit's CONTAINERD_CONFIG={used.path} and CONTAINERD_SOCKET={around.socket}",
    )


def _cannot_run(around: ContainerRuntime, used: Configuration) -> Iterator[Finding]:
    ours = [one for one in _of_nvidia(used.handlers) if _starts_a_program(one)]
    can_run = any(_can_be_run(around, one) for one in ours)
    for handler in ours:
        if not handler.binary:
            if not _has_cdi(around, used):
                yield _found(BINARY_MISSING, f"{handler.file}: {handler.name} has no BinaryName, so it starts runc")
        elif not _can_be_run(around, handler) and not (can_run and _is_offered(handler, used)):
            where = "" if "/" in handler.binary else ", in no folder where programs usually lie"
            yield _found(
                BINARY_MISSING,
                f"{handler.file}: {handler.name} starts {handler.binary}, which is not there to be run{where}",
            )


def _can_be_run(around: ContainerRuntime, handler: Handler) -> bool:
    return any(one.named == handler.binary and one.executable for one in around.programs)


def _is_offered(handler: Handler, used: Configuration) -> bool:
    """A handler that a distribution defines before there is a program for it, beside the one that is used."""
    return "/" not in handler.binary and handler.name != used.default


def _not_loaded(around: ContainerRuntime, used: Configuration) -> Iterator[Finding]:
    started = around.started
    if started is not None:
        newer = [file.path for file in used.files if file.written > started + _SETTLED_SECONDS]
        if newer:
            yield _found(NOT_LOADED, f"{', '.join(newer)}: changed after containerd was started")


def _has_cdi(around: ContainerRuntime, used: Configuration) -> bool:
    return used.cdi and bool(around.cdi_specs)


def _of_nvidia(handlers: Iterable[Handler]) -> list[Handler]:
    return [one for one in handlers if one.name in _NAMES or _program(one.binary).startswith(_PROGRAM)]


def _program(path: str) -> str:
    return path.rpartition("/")[2]


def _starts_a_program(handler: Handler) -> bool:
    return handler.runtime_type.startswith(_SHIM_OF_PROGRAMS) or not handler.runtime_type


def _told(problem: Problem) -> str:
    column = f", column {problem.column}" if problem.column else ""
    place = f", line {problem.line}{column}" if problem.line else ""
    return f"{problem.file}{place}: {problem.message}"


def _found(reason: Reason, detail: str) -> Finding:
    return Finding(reason.name, reason.severity, _SUBJECT, detail, flickers=reason.flickers)


def _expected(around: ContainerRuntime) -> str:
    if around.distribution == container_runtime.GKE:
        return "no handler of NVIDIA's: the device plugin mounts the driver"
    return "a handler of NVIDIA's that can run, or CDI"


def _said(around: ContainerRuntime, used: Configuration) -> str:
    """The socket, the files, and the handlers with the default one marked."""
    files = ", ".join(file.path for file in used.files) or f"no {used.path}, so its defaults"
    names = [f"{one.name} (default)" if one.name == used.default else one.name for one in used.handlers]
    cdi = ["CDI"] if _has_cdi(around, used) else []
    reader = "containerd 1" if used.schema < containerd.SCHEMA_OF_2 else "containerd 2"
    how = f" (put together as {reader} does, assumed from version {used.schema})" if len(used.files) > 1 else ""
    return f"containerd at {around.socket}, {files}{how}: {', '.join([*names, *cdi]) or 'no handler'}"


CHECK = Check(
    "container-runtime",
    "7-container-runtime",
    (container_runtime.CONTAINER_RUNTIME, pci.FUNCTIONS),
    judge,
    (MISSING, ELSEWHERE, BINARY_MISSING, MALFORMED, MISPLACED, DEFAULT_UNDEFINED, NOT_LOADED),
)
