"""Inventory of a node, from the data of one check cycle. Pure functions, no I/O."""

from __future__ import annotations

import re

from gpu_healthcheck.healthcheck.model import Evidence
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ContainerRuntime, Handler
from gpu_healthcheck.healthcheck.probes.dcgm.engine import NO_ENGINE, Engine
from gpu_healthcheck.healthcheck.probes.driver_files import DEVICE_FILES, DeviceFiles
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, SUCCESS, Gpus
from gpu_healthcheck.healthcheck.verdict.inventory import (
    DcgmRow,
    DeviceFilesRow,
    Inventory,
    RuntimeRow,
    ToolkitRow,
    within_limit,
)

_GPU_FILE = re.compile(r"nvidia\d{1,5}\Z", re.ASCII)


def seen_in(evidence: Evidence, engine: Engine = NO_ENGINE) -> Inventory:
    """Return the inventory of one check cycle, from the parts that could be read.

    It has at most LONGEST characters as JSON. `engine` is the node's DCGM engine as deep tests must treat it.
    """
    functions = None if evidence.unread(pci.FUNCTIONS) else evidence[pci.FUNCTIONS]
    answer = None if evidence.unread(NVML) else evidence[NVML].answer
    files = None if evidence.unread(DEVICE_FILES) else evidence[DEVICE_FILES]
    runtime = None if evidence.unread(CONTAINER_RUNTIME) else evidence[CONTAINER_RUNTIME]
    return within_limit(
        Inventory(
            pci=None if functions is None else sum(function.is_gpu for function in functions),
            nvml=sum(gpu.error == SUCCESS for gpu in answer.gpus) if isinstance(answer, Gpus) else None,
            driver=answer.driver_version if isinstance(answer, Gpus) else None,
            device_files=_device_files(files) if files is not None else None,
            runtime=_runtime(runtime) if runtime is not None else None,
            toolkit=_toolkit(runtime) if runtime is not None else None,
            dcgm=_dcgm(engine),
        )
    )


def _device_files(files: DeviceFiles) -> DeviceFilesRow | None:
    """Return the device files, except the hundreds for MIG capabilities.

    None for a tree without devices.
    """
    names = {file.name for file in files.files if file.character and "/" not in file.name}
    of_gpus = {name for name in names if _GPU_FILE.match(name)}
    return DeviceFilesRow(gpus=len(of_gpus), others=tuple(sorted(names - of_gpus))) if files.folders else None


def _runtime(runtime: ContainerRuntime) -> RuntimeRow:
    defining = {definition.config for definition in runtime.definitions} - {runtime.path}
    own = [runtime.path] if any(map(_is_nvidias, runtime.used.handlers)) else []
    return RuntimeRow(
        config=runtime.path or None,
        socket=runtime.socket or None,
        default=runtime.running.default or None,
        cdi=runtime.cdi_is_on if runtime.is_known or runtime.live is not None else None,
        handlers=tuple(sorted(runtime.running_handlers)) if runtime.is_known else None,
        others=runtime.others or None,
        nvidia_in=(*own, *(path for path in runtime.others if path in defining)),
    )


def _toolkit(runtime: ContainerRuntime) -> ToolkitRow | None:
    toolkit = runtime.toolkit
    return ToolkitRow(config=toolkit.path, mode=toolkit.mode or None) if toolkit is not None else None


def _dcgm(engine: Engine) -> DcgmRow | None:
    """Return the DCGM engine; None if the node has none."""
    if engine.blocked is not None:
        return DcgmRow(cause=engine.blocked.cause.name)
    return DcgmRow(host=engine.host) if engine.host else None


def _is_nvidias(handler: Handler) -> bool:
    return "nvidia" in handler.binary.lower() or "nvidia" in handler.runtime_type.lower()
