"""Check: the runtime's own loader accepts its files, with its CRI enabled and NVIDIA's handlers taken from them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found, in_words, of_nvidia, subject
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation, TooEarly, Unobserved
from gpu_healthcheck.healthcheck.probes.container_runtime import cri
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    DOCKER,
    UNREADABLE,
    ContainerRuntime,
    RuntimeConfiguration,
)

MALFORMED = gpu_runtime.reason(
    "RuntimeConfigMalformed",
    "The container runtime's own loader refuses its configuration: the runtime can't restart with it.",
    "Correct what the detail quotes before the runtime or the node restarts.",
    source="containerd: `drop-in config version N higher than root config version M`, `expected containerd config "
    "version equal to or less than`; other files that the runtime's own loader refuses",
)
MISPLACED = gpu_runtime.reason(
    "RuntimeConfigMisplaced",
    "The container runtime does not read NVIDIA's handler: its file defines it in another place.",
    "Move it to the table in the detail, or write the file again with `nvidia-ctk runtime configure`.",
    source="the output of the runtime's own loader, which lacks the handler",
)
CRI_DISABLED = gpu_runtime.reason(
    "RuntimeCriDisabled",
    "The kubelet's containerd is configured without its CRI plugin: after a restart the kubelet can't use it.",
    "Remove the CRI plugin from disabled_plugins (Docker's package of containerd adds it); "
    "`nvidia-ctk runtime configure` does not remove it.",
    source="kubelet: `unknown service runtime.v1.RuntimeService`",
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    yield from _not_checked(runtime)
    yield from find_faults(runtime)
    unsaid = (
        "; without /sys the GPUs are unknown, and the node is judged as one with GPUs"
        if runtime.for_gpus is None
        else ""
    )
    yield Observation(f"{_summary(runtime)}{unsaid}", "", runtime.known_from)


def _not_checked(runtime: ContainerRuntime) -> Iterator[Judgement]:
    """Yield the reason why the files could not be judged."""
    if runtime.on_disk is not None or runtime.refusal is not None or runtime.kind == DOCKER:
        return
    if cri.NOT_YET in (runtime.why_not_live, runtime.why_not_loaded):
        yield TooEarly(cri.NOT_YET, subject(runtime))
    else:
        yield Unobserved(UNREADABLE, runtime.why_not_loaded, subject(runtime))


def find_faults(runtime: ContainerRuntime) -> Iterator[Finding]:
    """Yield the findings about the files as a whole, worst first."""
    refusal, files = runtime.refusal, runtime.on_disk
    if refusal is not None:
        fix = runtime_fixes.correct(runtime, refusal.file)
        yield found(MALFORMED, runtime, f"{in_words(refusal)}; {_version_advice(runtime, refusal.message)}{fix}")
    elif files is not None and files.cri_disabled:
        message = f"{runtime.path}: disabled_plugins contains the CRI plugin"
        yield found(CRI_DISABLED, runtime, f"{message}; {runtime_fixes.correct(runtime)}")
    elif files is not None:
        yield from _misplaced(runtime, files)


def _version_advice(runtime: ContainerRuntime, message: str) -> str:
    """Return how files of different schemas become readable together."""
    if "config version" not in message:
        return ""
    return (
        f"all files need a version that {gpu_runtime.release(runtime)} reads, none above that of {runtime.path}: "
        "containerd config migrate prints that file with the newest one, and with RUNTIME_CONFIG_SOURCE=file NVIDIA's "
        "toolkit keeps to the file's version; "
    )


def _misplaced(runtime: ContainerRuntime, files: RuntimeConfiguration) -> Iterator[Finding]:
    """Yield the finding if none of NVIDIA's handlers in the files arrives in the runtime's configuration."""
    own = [one for one in runtime.definitions if one.config == runtime.path]
    if not own or of_nvidia(files.handlers):
        return
    file = own[0].file
    names = ", ".join(dict.fromkeys(one.handler for one in own if one.file == file))
    right = f'version {files.schema} with plugins."{files.section}"' if files.section else "another table"
    yield found(
        MISPLACED,
        runtime,
        f"{file} defines {names}, but {gpu_runtime.release(runtime)} does not take it from there: it needs {right}, in "
        f"a file that no later one replaces; {runtime_fixes.correct(runtime, file)}",
    )


def _summary(runtime: ContainerRuntime) -> str:
    """Return the runtime with its version, socket, files and handlers, and the default handler marked."""
    where = f" of {runtime.distribution}" if runtime.distribution else ""
    made = f" (made from {runtime.template})" if runtime.template else ""
    files = ", ".join(file.path for file in runtime.files) or f"no {runtime.path}, so its defaults apply"
    files = "whose files are not judged" if runtime.kind == DOCKER else files
    return f"{gpu_runtime.release(runtime)}{where} at {runtime.socket}, {files}{made}: {_handlers(runtime)}"


def _handlers(runtime: ContainerRuntime) -> str:
    names = [handler.name for handler in runtime.running.handlers if handler.name]
    marked = [f"{name} (default)" if name == runtime.running.default else name for name in names]
    kinds = dict.fromkeys(spec.kind or spec.path for spec in gpu_runtime.cdi_specs(runtime) if spec.problem is None)
    cdi = [f"CDI with {', '.join(kinds)}"] if kinds else []
    return "; ".join([", ".join(marked) or "no handler", *cdi])


CHECK = gpu_runtime.check("container-runtime", judge, MALFORMED, CRI_DISABLED, MISPLACED, also_refused=True)
