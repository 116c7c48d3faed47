"""Advice to restart a container runtime: no printed command loads files that the runtime or a check refuses."""

from __future__ import annotations

from itertools import chain

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import (
    cgroup_driver,
    container_runtime,
    default_runtime,
    gpu_runtime,
    runtime_binary,
    runtime_fixes,
    runtime_type,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ContainerRuntime
from gpu_healthcheck.healthcheck.probes.container_runtime.nvidia_definitions import is_nvidias

_OF_FILES = (container_runtime, default_runtime, runtime_type, runtime_binary, cgroup_driver)
REASONS = tuple(reason.name for one in _OF_FILES for reason in one.CHECK.reasons)
"""Reasons of faults in files that a restart would load. Those that stop the runtime or its CRI from starting are first.

The advice of each is an edit, without a command.
"""


def restart(runtime: ContainerRuntime) -> str:
    """Return the advice to restart: the command, or the correction that must come first."""
    lost = ", ".join(lost_handlers(runtime)) or ("CDI" if _loses_gpus(runtime) else "")
    hold = f"first define {lost} in its files again: after a restart pods would not get it" if lost else ""
    return _hold(runtime) or hold or f"`{runtime_fixes.restart(runtime)}`"


def give_handler(runtime: ContainerRuntime) -> str:
    """Return the advice that adds NVIDIA's handler to the runtime; its commands restart the runtime."""
    return _hold(runtime) or runtime_fixes.give_handler(runtime)


def make_pod_anew(runtime: ContainerRuntime, remedy: str) -> str:
    """Return the advice to delete a pod, if the runtime can start its replacement."""
    not_ready = runtime.live is not None and runtime.live.not_ready
    return _hold(runtime) or (
        "first follow the advice of RuntimeNotReady: no pod can start now" if not_ready else remedy
    )


def lost_handlers(runtime: ContainerRuntime) -> list[str]:
    """Return NVIDIA's handlers that the running runtime has but its files do not define."""
    if runtime.on_disk is None:
        return []
    running = runtime.running_handlers
    defined = {handler.name for handler in runtime.on_disk.handlers}
    return [name for name in running if name not in defined and is_nvidias(name, running[name])]


def _loses_gpus(runtime: ContainerRuntime) -> bool:
    """Whether pods get a GPU now, but would get none with the configuration in the files."""
    return runtime.on_disk is not None and (
        gpu_runtime.gives_gpus(runtime) and not gpu_runtime.gives_gpus(replace(runtime, live=None))
    )


def _hold(runtime: ContainerRuntime) -> str:
    """Return the reason why a restart must wait, or an empty string if the files may be loaded."""
    if runtime.on_disk is None and runtime.refusal is None:
        return f"first check {runtime.path}, which its own loader could not judge here: a restart would load it"
    of_files = (container_runtime,) if runtime.refusal is not None else _OF_FILES
    faults = chain.from_iterable(one.find_faults(runtime) for one in of_files)
    names = ", ".join(dict.fromkeys(fault.reason for fault in faults))
    return f"first correct the faults {names} in its files: a restart would load them" if names else ""
