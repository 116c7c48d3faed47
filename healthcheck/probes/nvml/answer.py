"""Parser of the child's answer.

An invalid value in one reading of a GPU does not affect its other readings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from msgspec import Struct, convert
from msgspec.structs import fields, replace

from healthcheck.host.opening import is_shortage
from healthcheck.model import PROBE_FAILED, Unobserved
from healthcheck.probes.nvml import error_causes
from healthcheck.probes.nvml.gpus import NONSENSE, SUCCESS, Fabric, Gpu, Gpus, NvLink, P2p
from healthcheck.probes.nvml.readings import NAMES, OPTIONAL, READINGS
from healthcheck.probes.pci import normalise_address

_MOST_NVLINKS = 36
"""Value of NVML_NVLINK_MAX_LINKS in the newest nvml.h."""
_TRAFFIC_DISABLED = 3
"""Value of NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED (nvml.h of R615)."""


class DriverAnswer(Struct, frozen=True):
    """Answer of the child process that reads NVML."""

    gpus: Gpus | Unobserved
    answered_by_driver: bool = False
    """Whether the driver's call returned, with any result: the driver does not hang then."""
    replaced: bool = False


def read_answer(line: bytes) -> DriverAnswer:
    """Parse the child's line.

    The result of a malformed line is Unobserved, because the rest of the line is untrusted.
    """
    try:
        answer = json.loads(line)
        if "changed" in answer:
            gone = Unobserved(error_causes.DRIVER_BEING_CHANGED, f"{answer['changed']} was replaced")
            return DriverAnswer(gone, replaced=True)
        if "gpus" not in answer:
            return DriverAnswer(_refused(answer), answered_by_driver=answer["library"] is not None)
        gpus = tuple(_gpu(gpu) for gpu in answer["gpus"])
        p2p = tuple(_p2p(answer.get("p2p", []), gpus))
        return DriverAnswer(
            Gpus(str(answer["driver_version"]), str(answer["library"]), gpus, p2p), answered_by_driver=True
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return DriverAnswer(
            Unobserved(error_causes.NONSENSE, f"NVML's answer is implausible: {error}"), answered_by_driver=True
        )


def _gpu(raw: dict[str, Any]) -> Gpu:
    index, code = raw["index"], raw["error"]
    if not isinstance(index, int) or not isinstance(code, int):
        raise TypeError(f"GPU {index!r}: error {code!r}")
    errors = {str(name): _signed(error) for name, error in raw.get("errors", {}).items()}
    names, unnamed = _read(NAMES, raw)
    readings, unread = _read([name for name in READINGS if name not in NAMES], raw)
    errors |= dict.fromkeys(unread, NONSENSE)
    readings |= _read(OPTIONAL, raw)[0]  # an invalid one is omitted
    counters = readings.pop("nvlink_counters", {})
    if "nvlinks" in readings:
        link_states = enumerate(readings["nvlinks"])
        readings["nvlinks"] = tuple(
            NvLink(link, state != 0, version, counters.get(link, {}), state == _TRAFFIC_DISABLED)
            for link, (state, version) in link_states
        )
    return Gpu(
        index,
        code or (NONSENSE if unnamed else SUCCESS),
        **names,
        recovery_error=errors.pop("recovery_action", SUCCESS),
        errors=errors,
        **readings,
    )


def _read(names: Collection[str], raw: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return these readings of a GPU, and the names of those with invalid values."""
    readings = {}
    nonsense = [name for name in _listed(raw.get("nonsense", [])) if name in names]
    for name in names:
        if raw.get(name) is None:
            continue
        try:
            readings[name] = _PARSERS[name](raw[name]) if name in _PARSERS else parse_reading(_TYPES[name], raw[name])
        except (ValueError, TypeError, AttributeError):
            nonsense.append(name)
    return readings, nonsense


def parse_reading(kind: Any, raw: Any) -> Any:
    """Return a reading of this type. Raises ValueError or TypeError for an invalid value.

    The child sends the fields of a Struct as a list, and flags as numbers.
    """
    return convert(_with_names(kind, raw), kind)


def _with_names(kind: Any, raw: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        return None if raw is None else _with_names(get_args(kind)[0], raw)
    if kind is bool:
        return _unsigned(raw) != 0
    if kind is int:
        return _count(raw)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {
            name: _with_names(part, raw_part) for (name, part), raw_part in zip(_parts(kind), _listed(raw), strict=True)
        }
    return raw


@cache
def _parts(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Return name and type of each field. Reading the annotations costs more than all else that is done with a GPU."""
    return tuple((part.name, part.type) for part in fields(kind))


def _integer(least: int, most: int) -> Callable[[Any], int]:
    def read(raw: Any) -> int:
        if type(raw) is not int or not least <= raw <= most:
            raise ValueError(f"{raw!r} is not a number from {least} to {most}")
        return raw

    return read


_unsigned = _integer(0, 2**32 - 1)
_signed = _integer(-(2**31), 2**31 - 1)
_count = _integer(0, 2**64 - 1)


def _listed(raw: Any, most: int = 64) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise TypeError(f"{str(raw)[:40]} is not a list of at most {most}")
    return raw


def _nvlinks(raw: Any) -> list[tuple[int, int | None]]:
    """Return state and version of each link."""
    return [
        (_unsigned(state), None if version is None else _unsigned(version))
        for state, version in _listed(raw, _MOST_NVLINKS)
    ]


def _mig_devices(raw: Any) -> dict[str, int]:
    return {_text(uuid): _unsigned(instance) for uuid, instance in map(_listed, _listed(raw))}


def _nvlink_counters(raw: Any) -> dict[int, dict[str, int]]:
    return {int(link): {name: _count(count) for name, count in counts.items()} for link, counts in raw.items()}


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{raw!r} is not a string")
    return raw


def _address(raw: Any) -> str:
    address = normalise_address(_text(raw))
    if not address:
        raise ValueError(f"{raw!r} is not a PCI address")
    return address


def _fabric(raw: Any) -> Fabric:
    """Return the fabric, with a UUID in its usual form; '' for zeros: the GPU is in no cluster of several nodes."""
    fabric: Fabric = parse_reading(Fabric, raw)
    return replace(fabric, cluster_uuid=str(UUID(fabric.cluster_uuid)) if fabric.cluster_uuid.strip("0") else "")


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "address": _address,
    "fabric": _fabric,
    "mig_devices": _mig_devices,
    "nvlinks": _nvlinks,
    "nvlink_counters": _nvlink_counters,
}
"""Parsers of the readings whose type is not that of their field. The readings of the links are combined later."""
_TYPES: Mapping[str, Any] = {part.name: part.type for part in fields(Gpu)}


def _p2p(raw: Any, gpus: tuple[Gpu, ...]) -> Iterator[P2p]:
    addresses = {gpu.index: gpu.address for gpu in gpus}
    for first_index, second_index, read, nvlink in raw:
        first_address, second_address = addresses[first_index], addresses[second_index]
        if first_address and second_address:
            yield P2p(first_address, second_address, _unsigned(read), _unsigned(nvlink))


def _refused(answer: dict[str, Any]) -> Unobserved:
    cause = str(answer["cause"])
    if is_shortage(cause):
        return Unobserved(PROBE_FAILED, f"nvml: {cause}")
    if answer["library"] is None:
        return Unobserved(error_causes.LIBRARY_NOT_FOUND, cause)
    match answer["error"]:
        case 9:
            return Unobserved(error_causes.DRIVER_NOT_LOADED, f"NVML: {cause} ({answer['library']})")
        case 18:
            return Unobserved(error_causes.LIBRARY_MISMATCH, f"NVML: {cause} ({answer['library']})")
        case None:
            return Unobserved(error_causes.NONSENSE, f"NVML's answer is implausible: {cause}")
    return Unobserved(error_causes.ERROR, f"NVML: {cause} (error {answer['error']}, {answer['library']})")
