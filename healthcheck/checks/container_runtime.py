"""Check: the kubelet's container runtime can read its configuration, and its CRI is enabled.

NVIDIA's handlers must be in a table that the runtime reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_fixes
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, in_words, of_nvidia, subject
from healthcheck.model import Finding, Judgement, Observation, Unobserved
from healthcheck.probes.container_runtime.facts import (
    CONTAINERD,
    UNREADABLE,
    ContainerRuntime,
    Misplaced,
    RuntimeConfiguration,
)

MALFORMED = gpu_runtime.reason(
    "RuntimeConfigMalformed",
    "The configuration of the kubelet's container runtime can't be read: the runtime can't restart with it.",
    "Correct the file at the position in the detail before the runtime or the node restarts.",
    source="the runtime's own loader, which refuses such a file",
)
MISPLACED = gpu_runtime.reason(
    "RuntimeConfigMisplaced",
    "NVIDIA's handler is in a table that containerd does not read in a file of this version, or with the other files.",
    "Move it to the table in the detail, or write the file again with `nvidia-ctk runtime configure`.",
    source="containerd's configuration schemas 1 to 4",
)
CRI_DISABLED = gpu_runtime.reason(
    "RuntimeCriDisabled",
    "The kubelet's containerd is configured without its CRI plugin: after a restart the kubelet can't use it.",
    "Remove the CRI plugin from disabled_plugins in the file in the detail (Docker's package of containerd adds it); "
    "`nvidia-ctk runtime configure` does not remove it.",
    source="kubelet: `unknown service runtime.v1.RuntimeService`",
)


def judge(runtime: ContainerRuntime, used: RuntimeConfiguration, _: Expectation) -> Iterator[Judgement]:
    problem = used.problem
    if problem is not None and problem.only_ours:
        yield Unobserved(UNREADABLE, in_words(problem), subject(used))
    yield from find_faults(runtime, used)
    unsaid = (
        "; without /sys the GPUs are unknown, and the node is judged as one with GPUs"
        if runtime.for_gpus is None
        else ""
    )
    yield Observation(f"{_summary(runtime, used)}{unsaid}", "", _known(runtime))


def find_faults(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    """Yield the findings about the files as a whole, worst first."""
    problem = used.problem
    if problem is None:
        yield from _disabled(runtime, used)
        yield from gpu_runtime.together(_misplaced(runtime, used))
    elif not problem.only_ours:
        yield found(MALFORMED, used, f"{in_words(problem)}; {runtime_fixes.correct(runtime, used, problem.file)}")


def _misplaced(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
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
                f' version {spot.right_schema} needs plugins."{spot.right_section}";'
                f" {runtime_fixes.correct(runtime, used, spot.file)}",
            )


def _why_unread(used: RuntimeConfiguration, spot: Misplaced) -> str:
    """Return why the merge ignores a table that is valid for the version of its file."""
    if spot.right_schema == spot.schema:
        return ""
    text = f'with plugins."{spot.right_section}" of {spot.handler_file}' if spot.handler_file else "with these files"
    later = f" ({spot.read_from} and later read it)" if spot.read_from else ""
    return f", which {gpu_runtime.reader(used)} does not read {text}{later}"


def _disabled(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    if used.disabled_in:
        message = f"{used.disabled_in}: disabled_plugins contains the CRI plugin"
        yield found(CRI_DISABLED, used, f"{message}; {runtime_fixes.correct(runtime, used, used.disabled_in)}")


def _known(runtime: ContainerRuntime) -> str:
    """Return the evidence that the kubelet uses this runtime, marked as assumed if uncertain."""
    unsaid = runtime.assumed and not runtime.known_from.startswith("assumed")
    return f"assumed: {runtime.known_from}" if unsaid else runtime.known_from


def _summary(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    """Return the runtime with its version, socket, files and handlers, and the default handler marked."""
    version = (runtime.live.version if runtime.live else "") or used.version
    owner = f"{used.kind} {version}".rstrip()
    where = f" of {runtime.distribution}" if runtime.distribution else ""
    at = f" at {runtime.socket}" if runtime.socket else ""
    return f"{owner}{where}{at}, {_files(used)}{_reader(used)}: {_handlers(runtime, used)}"


def _files(used: RuntimeConfiguration) -> str:
    named = ", ".join(file.path for file in used.files)
    made = f" (made from {used.template})" if used.template else ""
    return f"{named}{made}" if named else f"no {used.path}, so its defaults apply"


def _reader(used: RuntimeConfiguration) -> str:
    """Return the containerd version by whose rules several files are merged, if the version is only assumed.

    containerd 1 and containerd 2 merge the files differently.
    """
    if used.kind != CONTAINERD or used.version or len(used.files) < 2:
        return ""
    reader = "containerd 2" if used.is_containerd_2 else "containerd 1"
    return f" (merged like {reader}, assumed from version {used.schema})"


def _handlers(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    live = runtime.live
    names = [name for name in live.handlers if name] if live and live.handlers is not None else []
    if not names and used.problem is None:
        names = [handler.name for handler in used.handlers]
    marked = [f"{name} (default)" if name == runtime.running_default else name for name in names]
    bare = sorted(handler.name for handler in used.handlers if handler.privileged_without_host_devices)
    kinds = dict.fromkeys(spec.kind or spec.path for spec in gpu_runtime.cdi_specs(runtime) if spec.problem is None)
    messages = [
        ", ".join(marked) or "no handler",
        *([f"CDI with {', '.join(kinds)}"] if kinds else []),
        *([f"privileged containers see only their own devices under {', '.join(bare)}"] if bare else []),
    ]
    return "; ".join(messages)


CHECK = gpu_runtime.check("container-runtime", judge, MALFORMED, CRI_DISABLED, MISPLACED, also_unreadable=True)
