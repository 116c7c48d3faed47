"""CDI specifications of NVIDIA's devices for pods: devices, and required paths missing on the host.

The rules follow the library that containerd and CRI-O use to read them (tags.cncf.io/container-device-interface,
pkg/cdi). It reads files named *.json and *.yaml directly in a folder. A device node must exist unless its type and
major number are given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.probes.container_runtime import host_paths
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CdiSpec, ConfigurationProblem
from gpu_healthcheck.healthcheck.text import documents
from gpu_healthcheck.healthcheck.text.documents import MalformedError

_SUFFIXES = (".json", ".yaml")
_MOST_SPECS = 64
_MOST_DEVICES = 256
_MOST_MISSING = 16
_OPERATORS_OWN = "management.nvidia.com"
"""Vendor of devices that only the GPU operator's pods request."""


class _Content(Struct, frozen=True):
    """Content of one file, independent of the host's state."""

    kind: str
    devices: tuple[str, ...]
    needed: tuple[str, ...]
    """Host paths that must exist for a container with one of the file's devices to start."""


def read_specs(root: Path, folders: Sequence[str]) -> tuple[CdiSpec, ...]:
    """Return NVIDIA's specifications for pods, in the order of the folders.

    If a file can't be read, its name decides whether it is one of NVIDIA's.
    """
    return tuple(_specs(root, folders))


def _specs(root: Path, folders: Sequence[str]) -> Iterator[CdiSpec]:
    here = [text if host_files.exists(root, text) else host_files.in_run(text) for text in folders]
    named = [path for folder in here for path in host_files.matches(root, f"{folder.rstrip('/')}/*")]
    for path in [path for path in dict.fromkeys(named) if path.endswith(_SUFFIXES)][:_MOST_SPECS]:
        content = _read(root, path)
        if isinstance(content, _Content):
            if _is_for_pods(content.kind):
                missing = host_paths.missing(root, content.needed)[:_MOST_MISSING]
                yield CdiSpec(path, content.kind, content.devices, missing)
        elif content is not None and "nvidia" in path.rpartition("/")[2] and f"/{_OPERATORS_OWN}" not in path:
            yield CdiSpec(path, problem=ConfigurationProblem.of(content, path))


def _read(root: Path, path: str) -> _Content | MalformedError | None:
    try:
        raw, _ = host_files.read(root, path)
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        return MalformedError(f"can't be read: {error.strerror}", only_ours=True)
    return _parsed(raw, is_json=path.endswith(".json"))


@functools.lru_cache(maxsize=8)
def _parsed(raw: bytes, *, is_json: bool) -> _Content | MalformedError:
    """Return the parsed content, cached by its bytes.

    A specification is read in each check cycle and changes only with the driver.
    """
    if not is_json and b"<<" in raw:
        # YAML's merge keys can expand without bound, and no author of specifications uses them.
        return MalformedError("YAML merge keys are not supported here", only_ours=True)
    try:
        # JSON is also YAML, but the JSON parser is much faster.
        return _content(documents.json_object(raw) if is_json else documents.yaml_object(raw))
    except MalformedError as error:
        return error.with_traceback(None)  # a traceback would keep the file content in memory


def _content(spec: Mapping[str, Any]) -> _Content | MalformedError:
    kind, devices = spec.get("kind"), spec.get("devices")
    if not isinstance(kind, str) or "/" not in kind:
        return MalformedError("kind is not vendor/class")
    if not isinstance(devices, list) or not devices:
        return MalformedError("it has no devices")
    if not all(isinstance(device, dict) and isinstance(device.get("name"), str | int) for device in devices):
        return MalformedError("a device has no name")
    edits = [spec.get("containerEdits"), *(device.get("containerEdits") for device in devices)]
    # By identity: in YAML, a thousand devices can refer to the same list by an alias.
    lists = {
        id(value): (needed, value)
        for edit in edits
        if isinstance(edit, dict)
        for key, needed in _NEEDED.items()
        if isinstance(value := edit.get(key), list)
    }
    paths = (
        path for needed, value in lists.values() for entry in value if isinstance(entry, dict) for path in needed(entry)
    )
    return _Content(kind, tuple(str(device["name"]) for device in devices[:_MOST_DEVICES]), tuple(dict.fromkeys(paths)))


def _node(node: dict[str, Any]) -> list[str]:
    """Return the host paths that a device node needs: none if it states its type and number."""
    kind = node.get("type")
    return [] if kind and (kind == "p" or node.get("major")) else _text(node, "hostPath", "path")


def _mount(mount: dict[str, Any]) -> list[str]:
    return _text(mount, "hostPath") if mount.get("type") in (None, "", "bind") else []


def _hook(hook: dict[str, Any]) -> list[str]:
    """Return the host path of a hook's program; none for startContainer, whose program is in the container."""
    return _text(hook, "path") if hook.get("hookName") != "startContainer" else []


def _text(table: dict[str, Any], *keys: str) -> list[str]:
    """Return the text of the first key that has a non-empty text."""
    return [value for key in keys if isinstance(value := table.get(key), str) and value][:1]


_NEEDED: dict[str, Callable[[dict[str, Any]], list[str]]] = {"deviceNodes": _node, "mounts": _mount, "hooks": _hook}


def _is_for_pods(kind: str) -> bool:
    vendor = kind.partition("/")[0]
    return (vendor == "nvidia.com" or vendor.endswith(".nvidia.com")) and vendor != _OPERATORS_OWN
