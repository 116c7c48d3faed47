"""Parser of the child's answer.

An invalid value in one reading of a GPU does not affect its other readings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

from msgspec import Struct

from healthcheck.host.opening import is_shortage
from healthcheck.model import PROBE_FAILED, Unobserved
from healthcheck.probes.nvml import error_causes
from healthcheck.probes.nvml.gpus import (
    NONSENSE,
    SUCCESS,
    EccCounts,
    Fabric,
    Gpu,
    Gpus,
    Load,
    MemoryErrors,
    MemoryUse,
    Mode,
    NvLink,
    P2p,
    PcieLink,
    PendingRepair,
    RetiredPages,
    RowRemap,
    Samples,
    SramUnique,
    Temperature,
    ThrottledTime,
)
from healthcheck.probes.pci import normalise_address

_MOST_NVLINKS = 36
"""Value of NVML_NVLINK_MAX_LINKS in the newest nvml.h."""
_TRAFFIC_DISABLED = 3
"""Value of NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED (nvml.h of R615)."""
_MOST_SAMPLES = 1024
"""Most samples that the child reads of one buffer."""


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
    names, unnamed = _read(_NAMES, raw)
    readings, unread = _read(_READINGS, raw)
    errors |= dict.fromkeys(unread, NONSENSE)
    readings |= _read(_OPTIONAL, raw)[0]
    counters = readings.pop("nvlink_counters", {})
    if "nvlinks" in readings:
        numbers = enumerate(readings["nvlinks"])
        readings["nvlinks"] = tuple(
            NvLink(link, state != 0, version, counters.get(link, {}), state == _TRAFFIC_DISABLED)
            for link, (state, version) in numbers
        )
    return Gpu(
        index,
        code or (NONSENSE if unnamed else SUCCESS),
        **names,
        recovery_error=errors.pop("recovery_action", SUCCESS),
        errors=errors,
        **readings,
    )


def _read(table: Mapping[str, Callable[[Any], Any]], raw: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the readings of a GPU that the table lists, and the names of those with invalid values."""
    numbers = {}
    nonsense = [name for name in _listed(raw.get("nonsense", [])) if name in table]
    for name, read in table.items():
        if raw.get(name) is None:
            continue
        try:
            numbers[name] = read(raw[name])
        except (ValueError, TypeError, AttributeError):
            nonsense.append(name)
    return numbers, nonsense


def _integer(least: int, most: int) -> Callable[[Any], int]:
    def read(raw: Any) -> int:
        if type(raw) is not int or not least <= raw <= most:
            raise ValueError(f"{raw!r} is not a number from {least} to {most}")
        return raw

    return read


_unsigned = _integer(0, 2**32 - 1)
_signed = _integer(-(2**31), 2**31 - 1)
_count = _integer(0, 2**64 - 1)
_celsius = _integer(-300, 1000)


def _flag(raw: Any) -> bool:
    return _unsigned(raw) != 0


def _listed(raw: Any, most: int = 64) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise TypeError(f"{str(raw)[:40]} is not a list of at most {most}")
    return raw


def _numbers(raw: Any) -> tuple[int, ...]:
    return tuple(_unsigned(entry) for entry in _listed(raw))


def _made(what: Callable[..., Any], *parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader that passes the elements of a list to a class."""

    def read(raw: Any) -> Any:
        return what(*(part(value) for part, value in zip(parts, _listed(raw), strict=True)))

    return read


def _perhaps(part: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda raw: None if raw is None else part(raw)


def _nvlinks(raw: Any) -> list[tuple[int, int | None]]:
    """Return state and version of each link."""
    version_of = _perhaps(_unsigned)
    return [(_unsigned(state), version_of(version)) for state, version in _listed(raw, _MOST_NVLINKS)]


def _mig_devices(raw: Any) -> dict[str, int]:
    return {_text(uuid): _unsigned(instance) for uuid, instance in map(_listed, _listed(raw))}


def _nvlink_counters(raw: Any) -> dict[int, dict[str, int]]:
    return {int(link): {name: _count(value) for name, value in counts.items()} for link, counts in raw.items()}


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{raw!r} is not a string")
    return raw


def _address(raw: Any) -> str:
    address = normalise_address(_text(raw))
    if not address:
        raise ValueError(f"{raw!r} is not a PCI address")
    return address


def _cluster(raw: Any) -> str:
    """Return a UUID in its usual form; '' for zeros, which mean that the GPU is not in a cluster of several nodes."""
    return str(UUID(raw)) if _text(raw).strip("0") else ""


_NAMES: Mapping[str, Callable[[Any], Any]] = {"address": _address, "uuid": _text, "serial": _text, "name": _text}
_READINGS: Mapping[str, Callable[[Any], Any]] = {
    "minor": _unsigned,
    "recovery_action": _unsigned,
    "instances": _numbers,
    "persistence": _flag,
    "ecc_mode": _made(Mode, _flag, _flag),
    "mig_mode": _made(Mode, _flag, _flag),
    "ecc": _made(EccCounts, _count, _count, _count, _count),
    "sram_threshold_exceeded": _flag,
    "row_remap": _made(RowRemap, _unsigned, _unsigned, _flag, _flag, _perhaps(_count)),
    "exhausted_banks": _unsigned,
    "retired_pages": _made(RetiredPages, _count, _count, _flag),
    "repair": _made(PendingRepair, _flag, _flag),
    "clock_reasons": _count,
    "temperature": _made(Temperature, *[_perhaps(_celsius)] * 4),
    "inforom_valid": _flag,
    "memory": _made(MemoryUse, _count, _count, _count),
    "processes": _unsigned,
    "pcie": _made(PcieLink, _unsigned, _unsigned, _perhaps(_unsigned), _perhaps(_unsigned)),
    "pcie_replays": _unsigned,
    "nvlinks": _nvlinks,
    "nvlink_counters": _nvlink_counters,
    "fabric": _made(Fabric, _unsigned, _signed, _unsigned, _cluster, *[_perhaps(_unsigned)] * 2),
}
"""Parser of each reading of the child. The readings of the links are combined later.

Numbers outside the range of NVML's types are invalid.
"""
_samples = _made(Samples, _integer(1, _MOST_SAMPLES), _count, _count)
_OPTIONAL: Mapping[str, Callable[[Any], Any]] = {
    "memory_errors": _made(MemoryErrors, *[_perhaps(_count)] * 2),
    "throttled": _made(ThrottledTime, *[_perhaps(_count)] * 4),
    "load": _made(Load, *[_perhaps(_count)] * 6, *[_perhaps(_samples)] * 3),
    "unrepairable_memory": _flag,
    "sram_unique": _made(SramUnique, _unsigned, _unsigned),
    "mig_devices": _mig_devices,
}
"""Parsers of the optional readings: an invalid one is omitted."""


def _p2p(raw: Any, gpus: tuple[Gpu, ...]) -> Iterator[P2p]:
    addresses = {gpu.index: gpu.address for gpu in gpus}
    for first, second, read, nvlink in raw:
        text, other = addresses[first], addresses[second]
        if text and other:
            yield P2p(text, other, _unsigned(read), _unsigned(nvlink))


def _refused(answer: dict[str, Any]) -> Unobserved:
    message = str(answer["cause"])
    if is_shortage(message):
        return Unobserved(PROBE_FAILED, f"nvml: {message}")
    if answer["library"] is None:
        return Unobserved(error_causes.LIBRARY_NOT_FOUND, message)
    match answer["error"]:
        case 9:
            return Unobserved(error_causes.DRIVER_NOT_LOADED, f"NVML: {message} ({answer['library']})")
        case 18:
            return Unobserved(error_causes.LIBRARY_MISMATCH, f"NVML: {message} ({answer['library']})")
        case None:
            return Unobserved(error_causes.NONSENSE, f"NVML's answer is implausible: {message}")
    return Unobserved(error_causes.ERROR, f"NVML: {message} (error {answer['error']}, {answer['library']})")
