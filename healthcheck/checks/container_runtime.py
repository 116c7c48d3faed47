"""Check: the kubelet's container runtime can read its configuration, and its CRI is enabled.

NVIDIA's handlers must be in a table that the runtime reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_mending
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, in_words, of_nvidia, subject
from healthcheck.model import Check, Evidence, Finding, Judgement, Observation, Reason, Severity, Unobserved
from healthcheck.probes.container_runtime import configuration as container_runtime
from healthcheck.probes.container_runtime.facts import (
    CONTAINERD,
    UNREADABLE,
    ContainerRuntime,
    Misplaced,
    RuntimeConfiguration,
)

MALFORMED = Reason(
    "RuntimeConfigMalformed",
    Severity.MONITOR,
    "The configuration of the kubelet's container runtime can't be read: it will not start again with it.",
    "Correct the file at the place named, before the runtime or the node is restarted.",
    flickers=True,
    source="the runtime's own loader, which refuses such a file",
)
MISPLACED = Reason(
    "RuntimeConfigMisplaced",
    Severity.MONITOR,
    "NVIDIA's handler stands in a table that containerd does not read in a file of that version or beside the others.",
    "Move it to the table named, or write the file again with `nvidia-ctk runtime configure`.",
    flickers=True,
    source="containerd's configuration schemas 1 to 4",
)
CRI_DISABLED = Reason(
    "RuntimeCriDisabled",
    Severity.MONITOR,
    "The kubelet's containerd is configured without its CRI plugin: once restarted, the kubelet can't use it.",
    "Take the CRI plugin out of disabled_plugins in the file named (Docker's package of containerd puts it there); "
    "`nvidia-ctk runtime configure` leaves it there.",
    flickers=True,
    source="kubelet: `unknown service runtime.v1.RuntimeService`",
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    around = yield from gpu_runtime.used_with_gpus(seen)
    if around is None or around.used is None:
        return
    problem = around.used.problem
    if problem is not None and problem.only_ours:
        yield Unobserved(UNREADABLE, in_words(problem), subject(around.used))
    yield from find_faults(around, around.used)
    unsaid = "; without /sys nothing tells of GPUs, so it is judged as with some" if around.for_gpus is None else ""
    yield Observation(f"{_summary(around, around.used)}{unsaid}", "", _known(around))


def find_faults(around: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    """Findings about the files as a whole, the worst first."""
    problem = used.problem
    if problem is None:
        yield from _disabled(around, used)
        yield from gpu_runtime.together(_misplaced(around, used))
    elif not problem.only_ours:
        yield found(MALFORMED, used, f"{in_words(problem)}; {runtime_mending.correct(around, used, problem.file)}")


def _misplaced(around: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    defined = {handler.name for handler in used.handlers}
    for spot in used.misplaced:
        ours = [one for one in of_nvidia(spot.handlers) if one.name not in defined]
        if ours:
            names = ", ".join(dict.fromkeys(one.name for one in ours))
            place = gpu_runtime.place(spot.file, next((one.line for one in ours if one.line), 0))
            yield found(
                MISPLACED,
                used,
                f'{place}: {names} under plugins."{spot.section}"{_why_unread(used, spot)};'
                f' version {spot.right_schema} has it in plugins."{spot.right_section}";'
                f" {runtime_mending.correct(around, used, spot.file)}",
            )


def _why_unread(used: RuntimeConfiguration, spot: Misplaced) -> str:
    """Return why the merged files do not use a table that is valid for the version of its own file."""
    if spot.right_schema == spot.schema:
        return ""
    beside = f'beside plugins."{spot.right_section}" of {spot.beside}' if spot.beside else "with these files"
    later = f" ({spot.read_from} and later do)" if spot.read_from else ""
    return f", which {gpu_runtime.reader(used)} does not read {beside}{later}"


def _disabled(around: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    if used.disabled_in:
        told = f"{used.disabled_in}: disabled_plugins names the CRI plugin"
        yield found(CRI_DISABLED, used, f"{told}; {runtime_mending.correct(around, used, used.disabled_in)}")


def _known(around: ContainerRuntime) -> str:
    """Return the evidence that the kubelet uses this runtime, marked as assumed if it is not certain."""
    unsaid = around.assumed and not around.known_from.startswith("assumed")
    return f"assumed: {around.known_from}" if unsaid else around.known_from


def _summary(around: ContainerRuntime, used: RuntimeConfiguration) -> str:
    """Return the runtime with its version, socket, files and handlers, and the default handler marked."""
    version = (around.live.version if around.live else "") or used.version
    who = f"{used.kind} {version}".rstrip()
    where = f" of {around.distribution}" if around.distribution else ""
    at = f" at {around.socket}" if around.socket else ""
    return f"{who}{where}{at}, {_files(used)}{_reader(used)}: {_handlers(around, used)}"


def _files(used: RuntimeConfiguration) -> str:
    named = ", ".join(file.path for file in used.files)
    made = f" (made from {used.template})" if used.template else ""
    return f"{named}{made}" if named else f"no {used.path}, so its defaults"


def _reader(used: RuntimeConfiguration) -> str:
    """Return the containerd version that merges several files, if it is only assumed.

    containerd 1 and containerd 2 merge the files differently.
    """
    if used.kind != CONTAINERD or used.version or len(used.files) < 2:
        return ""
    reader = "containerd 2" if used.is_containerd_2 else "containerd 1"
    return f" (put together as {reader} does, assumed from version {used.schema})"


def _handlers(around: ContainerRuntime, used: RuntimeConfiguration) -> str:
    live = around.live
    names = [name for name in live.handlers if name] if live and live.handlers is not None else []
    if not names and used.problem is None:
        names = [one.name for one in used.handlers]
    marked = [f"{name} (default)" if name == around.running_default else name for name in names]
    bare = sorted(one.name for one in used.handlers if one.privileged_without_host_devices)
    kinds = dict.fromkeys(one.kind or one.path for one in gpu_runtime.cdi_specs(around) if one.problem is None)
    told = [
        ", ".join(marked) or "no handler",
        *([f"CDI with {', '.join(kinds)}"] if kinds else []),
        *([f"privileged containers see only their own devices under {', '.join(bare)}"] if bare else []),
    ]
    return "; ".join(told)


CHECK = Check(
    "container-runtime",
    "7-container-runtime",
    (container_runtime.CONTAINER_RUNTIME,),
    judge,
    (MALFORMED, CRI_DISABLED, MISPLACED),
)
