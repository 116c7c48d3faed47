"""What a look saw of a node's GPUs and its container runtime: what a diagnosis elsewhere needs of it. Pure.

It stands in the record beside the findings, 1 KiB at most, and decides nothing. The runtime's name and version are left
out: the kubelet tells them, and a runtime that answers only at the second look must not be a second write of the Node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from healthcheck.model import Evidence
from healthcheck.probes import pci
from healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from healthcheck.probes.container_runtime.facts import ContainerRuntime, Handler
from healthcheck.probes.device_files import DEVICE_FILES, DeviceFiles
from healthcheck.probes.nvml.gpus import NVML, SUCCESS, Gpus
from healthcheck.text.json_rows import Row, as_json, key, row, row_in, whole, yes
from healthcheck.text.printable import printable

LONGEST = 1024
_MOST_HANDLERS, _MOST_FILES, _MOST_DEVICES = 8, 2, 8
_LONGEST_NAME, _LONGEST_PATH = 40, 120
_GPU_FILE = re.compile(r"nvidia\d{1,5}\Z", re.ASCII)


def _bounded(longest: int) -> Callable[[object], str | None]:
    return lambda value: printable(value, longest) if isinstance(value, str) else None


def _several(longest: int, most: int) -> Callable[[object], tuple[str, ...] | None]:
    return lambda value: (
        tuple(printable(one, longest) for one in value[:most] if isinstance(one, str))
        if isinstance(value, list)
        else None
    )


_name, _path = _bounded(_LONGEST_NAME), _bounded(_LONGEST_PATH)
_devices = _several(_LONGEST_NAME, _MOST_DEVICES)
_names, _paths = _several(_LONGEST_NAME, _MOST_HANDLERS), _several(_LONGEST_PATH, _MOST_FILES)


@dataclass(frozen=True, slots=True)
class RuntimeRow(Row):
    """The kubelet's own container runtime. None is what nobody could tell."""

    config: str | None = key(_path)
    """The file that it reads."""
    default: str | None = key(_name)
    cdi: bool | None = key(yes)
    handlers: tuple[str, ...] | None = key(_names)
    others: tuple[str, ...] | None = key(_paths)
    """Files that other runtimes on the node read."""
    nvidia_in: tuple[str, ...] | None = key(_paths)
    """Those of all these files that have a handler of NVIDIA's."""


@dataclass(frozen=True, slots=True)
class ToolkitRow(Row):
    """NVIDIA's container toolkit, as its own file says."""

    config: str | None = key(_path)
    mode: str | None = key(_name)


@dataclass(frozen=True, slots=True)
class DeviceFilesRow(Row):
    """The driver's device files, in the host's /dev and the driver container's."""

    gpus: int | None = key(whole)
    """Of GPUs."""
    others: tuple[str, ...] | None = key(_devices)


@dataclass(frozen=True, slots=True)
class Inventory(Row):
    """None is what could not be looked at."""

    pci: int | None = key(whole)
    """GPUs on PCI."""
    nvml: int | None = key(whole)
    """GPUs that answered NVML."""
    driver: str | None = key(_name)
    device_files: DeviceFilesRow | None = key(row(DeviceFilesRow))
    runtime: RuntimeRow | None = key(row(RuntimeRow))
    toolkit: ToolkitRow | None = key(row(ToolkitRow))


def seen_in(seen: Evidence) -> Inventory:
    """Of one look, whatever part of it could be looked at; no longer than LONGEST as JSON."""
    functions = None if seen.unread(pci.FUNCTIONS) else seen[pci.FUNCTIONS]
    answer = None if seen.unread(NVML) else seen[NVML].answer
    files = None if seen.unread(DEVICE_FILES) else seen[DEVICE_FILES]
    around = None if seen.unread(CONTAINER_RUNTIME) else seen[CONTAINER_RUNTIME]
    return within_limit(
        Inventory(
            pci=None if functions is None else sum(one.is_gpu for one in functions),
            nvml=sum(one.error == SUCCESS for one in answer.gpus) if isinstance(answer, Gpus) else None,
            driver=answer.driver_version if isinstance(answer, Gpus) else None,
            device_files=_device_files(files) if files is not None else None,
            runtime=_runtime(around) if around is not None else None,
            toolkit=_toolkit(around) if around is not None else None,
        )
    )


def within_limit(inventory: Inventory) -> Inventory:
    """Bounded as it is when it is read; what is still too long is left out, the least telling first."""
    inventory = read(as_json(inventory))
    if _is_long(inventory):
        inventory = replace(inventory, toolkit=None)
    return replace(inventory, runtime=None) if _is_long(inventory) else inventory


def _is_long(inventory: Inventory) -> bool:
    return len(json.dumps(as_json(inventory)).encode()) > LONGEST


def read(raw: Mapping[str, Any]) -> Inventory:
    """Of a record that anybody may have written."""
    return row_in(Inventory, raw)


def _device_files(files: DeviceFiles) -> DeviceFilesRow | None:
    """Those of MIG's capabilities are left out: there are hundreds. None of a tree that holds no devices."""
    names = {one.name for one in files.files if one.character and "/" not in one.name}
    of_gpus = {name for name in names if _GPU_FILE.match(name)}
    return DeviceFilesRow(gpus=len(of_gpus), others=tuple(sorted(names - of_gpus))) if files.folders else None


def _runtime(around: ContainerRuntime) -> RuntimeRow:
    used = around.used
    configurations = (*([used] if used is not None else []), *around.others)
    return RuntimeRow(
        config=used.path if used is not None else None,
        default=around.running_default or None,
        cdi=around.cdi_is_on if used is not None or around.live is not None else None,
        handlers=tuple(sorted(around.running_handlers)) or None,
        others=tuple(one.path for one in around.others) or None,
        nvidia_in=tuple(one.path for one in configurations if any(map(_is_nvidias, one.handlers))),
    )


def _toolkit(around: ContainerRuntime) -> ToolkitRow | None:
    toolkit = around.toolkit
    return ToolkitRow(config=toolkit.path, mode=toolkit.mode or None) if toolkit is not None else None


def _is_nvidias(handler: Handler) -> bool:
    return "nvidia" in handler.binary.lower() or "nvidia" in handler.runtime_type.lower()
