"""Check: NVIDIA's runtime program can read its own configuration, and the files that it names exist."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes, runtime_restart
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found, in_words, of_nvidia, subject
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Unobserved
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import UNREADABLE, ContainerRuntime, Toolkit

MODES = ("auto", "cdi", "csv", "jit-cdi", "legacy")
"""Modes of nvidia-container-runtime up to 1.20; `csv` is for Tegra."""
_MOST_NAMED = 8

MALFORMED = gpu_runtime.reason(
    "ToolkitConfigMalformed",
    "NVIDIA's runtime program can't read its configuration: no GPU container starts.",
    "Correct the file at the position in the detail; it is read at the start of each container.",
    source="nvidia-container-runtime: `failed to load config`",
)
MODE_UNKNOWN = gpu_runtime.reason(
    "ToolkitModeUnknown",
    "NVIDIA's runtime program has an unknown mode: its configuration sets it, and no GPU container starts.",
    "Set the mode to `auto`.",
    source="nvidia-container-runtime: `invalid runtime mode`",
)
PATH_MISSING = gpu_runtime.reason(
    "ToolkitPathMissing",
    "NVIDIA's runtime program uses a path that is missing: its configuration names a driver root or an ldconfig that "
    "does not exist on the node.",
    "Correct the path, or install the driver there: the GPU operator's driver container mounts it while it runs.",
    source="nvidia-container-cli: `load library failed`, `ldcache error`",
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    toolkit = runtime.toolkit
    if toolkit is None:
        yield NotConfigured("no configuration of NVIDIA's runtime program: its defaults apply")
    elif not of_nvidia(runtime.used.handlers):
        yield NotConfigured(f"no handler starts the program that reads {toolkit.path}")
    elif toolkit.problem is not None and toolkit.problem.only_ours:
        yield Unobserved(UNREADABLE, in_words(toolkit.problem), subject(runtime))
    else:
        yield from _findings(runtime, toolkit)
        yield Observation(_summary(toolkit))


def _findings(runtime: ContainerRuntime, toolkit: Toolkit) -> Iterator[Finding]:
    if toolkit.problem is not None:
        yield found(MALFORMED, runtime, f"{in_words(toolkit.problem)}; correct it, no restart is needed")
        return
    if toolkit.mode and toolkit.mode not in MODES:
        what = f"{toolkit.path}: mode is {toolkit.mode!r}; valid modes are {', '.join(MODES)}"
        yield found(MODE_UNKNOWN, runtime, f"{what}; {_set_mode(runtime, toolkit.path)}")
    if toolkit.missing:
        named = ", ".join(toolkit.missing[:_MOST_NAMED])
        yield found(
            PATH_MISSING, runtime, f"{toolkit.path} names {named}, not found; correct it, or install the driver there"
        )


def _set_mode(runtime: ContainerRuntime, path: str) -> str:
    remedy = runtime_fixes.set_mode(path)
    # The GPU operator's toolkit pod restarts the container runtime when the pod starts.
    return remedy if "`" in remedy else runtime_restart.make_pod_anew(runtime, remedy)


def _summary(toolkit: Toolkit) -> str:
    if toolkit.problem is not None:
        return f"{toolkit.path}: unreadable"
    root = f", driver root {toolkit.driver_root}" if toolkit.driver_root else ""
    return f"{toolkit.path}: mode {toolkit.mode or 'auto'}{root}"


CHECK = gpu_runtime.check("nvidia-toolkit", judge, MALFORMED, MODE_UNKNOWN, PATH_MISSING)
