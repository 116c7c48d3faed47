"""What a look saw of a node's GPUs and its container runtime: what a diagnosis elsewhere needs of it. Pure.

It stands in the record beside the findings, 1 KiB at most, and decides nothing. The runtime's name and version are left
out: the kubelet tells them, and a runtime that answers only at the second look must not be a second write of the Node.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec.structs import replace

from healthcheck.text.json_rows import Row, as_json, row, row_in, whole, yes
from healthcheck.text.printable import printable

LONGEST = 1024
_MOST_HANDLERS, _MOST_FILES, _MOST_DEVICES = 8, 2, 8
_LONGEST_NAME, _LONGEST_PATH = 40, 120


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


class RuntimeRow(Row, frozen=True):
    """The kubelet's own container runtime. None is what nobody could tell."""

    config: Annotated[str | None, _path] = None
    """The file that it reads."""
    default: Annotated[str | None, _name] = None
    cdi: Annotated[bool | None, yes] = None
    handlers: Annotated[tuple[str, ...] | None, _names] = None
    others: Annotated[tuple[str, ...] | None, _paths] = None
    """Files that other runtimes on the node read."""
    nvidia_in: Annotated[tuple[str, ...] | None, _paths] = None
    """Those of all these files that have a handler of NVIDIA's."""


class ToolkitRow(Row, frozen=True):
    """NVIDIA's container toolkit, as its own file says."""

    config: Annotated[str | None, _path] = None
    mode: Annotated[str | None, _name] = None


class DeviceFilesRow(Row, frozen=True):
    """The driver's device files, in the host's /dev and the driver container's."""

    gpus: Annotated[int | None, whole] = None
    """Of GPUs."""
    others: Annotated[tuple[str, ...] | None, _devices] = None


class DcgmRow(Row, frozen=True):
    """The node's DCGM engine, where it has one that no setting overrides."""

    host: Annotated[str | None, _name] = None
    """Address at which the agent asks it."""
    cause: Annotated[str | None, _name] = None
    """Name of the cause that keeps deep tests from it."""


class Inventory(Row, frozen=True):
    """None is what could not be looked at."""

    pci: Annotated[int | None, whole] = None
    """GPUs on PCI."""
    nvml: Annotated[int | None, whole] = None
    """GPUs that answered NVML."""
    driver: Annotated[str | None, _name] = None
    device_files: Annotated[DeviceFilesRow | None, row(DeviceFilesRow)] = None
    runtime: Annotated[RuntimeRow | None, row(RuntimeRow)] = None
    toolkit: Annotated[ToolkitRow | None, row(ToolkitRow)] = None
    dcgm: Annotated[DcgmRow | None, row(DcgmRow)] = None


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
