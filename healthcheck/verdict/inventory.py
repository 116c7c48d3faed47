"""Inventory of a node's GPUs and container runtime, for a diagnosis outside the node.

Pure functions, no I/O. The inventory is stored in the record with the findings, is at most 1 KiB long, and affects no
decision. The runtime's name and version are omitted, because the kubelet reports them. A runtime that answers only in
the second cycle must not cause a second write of the Node.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.text.boundary import JsonObject, as_json, listed, read_row, text, valid

LONGEST = 1024
_MOST_HANDLERS, _MOST_FILES, _MOST_DEVICES = 8, 2, 8
_LONGEST_NAME, _LONGEST_PATH = 40, 120


def _several(longest: int, most: int) -> Callable[[object], tuple[str, ...]]:
    return lambda value: valid(partial(text, longest=longest), listed(value)[:most])


_name, _path = partial(text, longest=_LONGEST_NAME), partial(text, longest=_LONGEST_PATH)
_devices = _several(_LONGEST_NAME, _MOST_DEVICES)
_names, _paths = _several(_LONGEST_NAME, _MOST_HANDLERS), _several(_LONGEST_PATH, _MOST_FILES)


class RuntimeRow(JsonObject, frozen=True):
    """The kubelet's container runtime. None means that the value is unknown."""

    config: Annotated[str | None, _path] = None
    """Path of the runtime's configuration file."""
    socket: Annotated[str | None, _path] = None
    """Path of the socket at which the kubelet reaches the runtime."""
    default: Annotated[str | None, _name] = None
    cdi: bool | None = None
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

    gpus: int | None = None
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

    pci: int | None = None
    """Number of GPUs on PCI."""
    nvml: int | None = None
    """Number of GPUs that answered NVML."""
    driver: Annotated[str | None, _name] = None
    device_files: DeviceFilesRow | None = None
    runtime: RuntimeRow | None = None
    toolkit: ToolkitRow | None = None
    dcgm: DcgmRow | None = None


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
    return read_row(Inventory, raw)
