"""Inventory of a node's GPUs and container runtime, for a diagnosis outside the node.

Pure functions, no I/O. The inventory is stored in the record with the findings, is at most 1 KiB long, and affects no
decision. The runtime's name and version are omitted, because the kubelet reports them. A runtime that answers only in
the second cycle must not cause a second write of the Node.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec.structs import replace

from healthcheck.text.json_rows import JsonObject, as_json, row, row_in, whole, yes
from healthcheck.text.printable import printable

LONGEST = 1024
_MOST_HANDLERS, _MOST_FILES, _MOST_DEVICES = 8, 2, 8
_LONGEST_NAME, _LONGEST_PATH = 40, 120


def _bounded(longest: int) -> Callable[[object], str | None]:
    return lambda value: printable(value, longest) if isinstance(value, str) else None


def _several(longest: int, most: int) -> Callable[[object], tuple[str, ...] | None]:
    return lambda value: (
        tuple(printable(text, longest) for text in value[:most] if isinstance(text, str))
        if isinstance(value, list)
        else None
    )


_name, _path = _bounded(_LONGEST_NAME), _bounded(_LONGEST_PATH)
_devices = _several(_LONGEST_NAME, _MOST_DEVICES)
_names, _paths = _several(_LONGEST_NAME, _MOST_HANDLERS), _several(_LONGEST_PATH, _MOST_FILES)


class RuntimeRow(JsonObject, frozen=True):
    """The kubelet's container runtime. None means that the value is unknown."""

    config: Annotated[str | None, _path] = None
    """Path of the runtime's configuration file."""
    socket: Annotated[str | None, _path] = None
    """Path of the socket at which the kubelet reaches the runtime."""
    default: Annotated[str | None, _name] = None
    cdi: Annotated[bool | None, yes] = None
    handlers: Annotated[tuple[str, ...] | None, _names] = None
    others: Annotated[tuple[str, ...] | None, _paths] = None
    """Configuration files of other runtimes on the node."""
    nvidia_in: Annotated[tuple[str, ...] | None, _paths] = None
    """Files above that define an NVIDIA handler."""


class ToolkitRow(JsonObject, frozen=True):
    """NVIDIA's container toolkit, from its configuration file."""

    config: Annotated[str | None, _path] = None
    mode: Annotated[str | None, _name] = None


class DeviceFilesRow(JsonObject, frozen=True):
    """The driver's device files, in the host's /dev and the driver container's."""

    gpus: Annotated[int | None, whole] = None
    """Number of GPU device files."""
    others: Annotated[tuple[str, ...] | None, _devices] = None


class DcgmRow(JsonObject, frozen=True):
    """The node's DCGM engine, unless a setting overrides it."""

    host: Annotated[str | None, _name] = None
    """Address at which the agent queries the engine."""
    cause: Annotated[str | None, _name] = None
    """Name of the cause for which deep tests cannot use the engine."""


class Inventory(JsonObject, frozen=True):
    """Inventory of a node. None means that the value could not be read."""

    pci: Annotated[int | None, whole] = None
    """Number of GPUs on PCI."""
    nvml: Annotated[int | None, whole] = None
    """Number of GPUs that answered NVML."""
    driver: Annotated[str | None, _name] = None
    device_files: Annotated[DeviceFilesRow | None, row(DeviceFilesRow)] = None
    runtime: Annotated[RuntimeRow | None, row(RuntimeRow)] = None
    toolkit: Annotated[ToolkitRow | None, row(ToolkitRow)] = None
    dcgm: Annotated[DcgmRow | None, row(DcgmRow)] = None


def within_limit(inventory: Inventory) -> Inventory:
    """Return the inventory within its limits.

    If it is still too long, the least informative parts are left out first.
    """
    inventory = read(as_json(inventory))
    if _is_long(inventory):
        inventory = replace(inventory, toolkit=None)
    return replace(inventory, runtime=None) if _is_long(inventory) else inventory


def _is_long(inventory: Inventory) -> bool:
    return len(json.dumps(as_json(inventory)).encode()) > LONGEST


def read(raw: Mapping[str, Any]) -> Inventory:
    """Return the inventory of a record that any client may have written."""
    return row_in(Inventory, raw)
