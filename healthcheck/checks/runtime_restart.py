"""Advice to restart a container runtime: no printed command loads a file in which a check found a fault."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec.structs import replace

from healthcheck.checks import (
    cgroup_driver,
    container_runtime,
    default_runtime,
    gpu_runtime,
    runtime_binary,
    runtime_fixes,
    runtime_type,
)
from healthcheck.model import Finding
from healthcheck.probes.container_runtime.facts import ContainerRuntime, RuntimeConfiguration

_OF_FILES = (container_runtime, default_runtime, runtime_type, runtime_binary, cgroup_driver)
REASONS = tuple(reason.name for one in _OF_FILES for reason in one.CHECK.reasons)
"""Reasons of faults in files that a restart would load. Those that stop the runtime or its CRI from starting are first.

The advice of each is an edit, without a command.
"""


def restart(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    """Return the advice to restart: the command, or the correction that must come first."""
    lost = ", ".join(lost_handlers(runtime, used)) or ("CDI" if _loses_gpus(runtime) else "")
    hold = f"first define {lost} in its files again: after a restart pods would not get it" if lost else ""
    return _hold(runtime, used) or hold or f"`{runtime_fixes.restart(runtime, used)}`"


def give_handler(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    """Return the advice that adds NVIDIA's handler to the runtime; its commands restart the runtime."""
    return _hold(runtime, used) or runtime_fixes.give_handler(runtime, used)


def make_pod_anew(runtime: ContainerRuntime, used: RuntimeConfiguration, remedy: str) -> str:
    """Return the advice to delete a pod, if the runtime can start its replacement."""
    not_ready = runtime.live is not None and runtime.live.not_ready
    return _hold(runtime, used) or (
        "first follow the advice of RuntimeNotReady: no pod can start now" if not_ready else remedy
    )


def lost_handlers(runtime: ContainerRuntime, used: RuntimeConfiguration) -> list[str]:
    """Return NVIDIA's handlers that the running runtime has but its files do not define."""
    running = runtime.running_handlers
    defined = {handler.name for handler in used.handlers}
    return [name for name in running if name not in defined and gpu_runtime.is_nvidias(name, running[name])]


def _loses_gpus(runtime: ContainerRuntime) -> bool:
    """Whether pods get a GPU now, but would get none with the configuration in the files."""
    return gpu_runtime.gives_gpus(runtime) and not gpu_runtime.gives_gpus(replace(runtime, live=None))


def _hold(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    """Return the reason why a restart must wait, or an empty string if the files may be loaded."""
    if used.problem is not None and used.problem.only_ours:
        return f"first check {used.problem.file}, which could not be read here: a restart would load it"
    names = ", ".join(dict.fromkeys(fault.reason for fault in _faults(runtime, used)))
    return f"first correct the faults {names} in its files: a restart would load them" if names else ""


def _faults(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    """Yield the findings with these reasons. If a file can't be read, only `container_runtime` can judge."""
    of_files = _OF_FILES if used.problem is None else (container_runtime,)
    return chain.from_iterable(file.find_faults(runtime, used) for file in of_files)
