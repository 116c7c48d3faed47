"""Parser of the child's answer.

An invalid value in one reading of a GPU does not affect its other readings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Struct, convert
from msgspec.structs import fields, replace

from gpu_healthcheck.healthcheck.host.opening import is_shortage
from gpu_healthcheck.healthcheck.model import PROBE_FAILED, Unobserved
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NONSENSE, READINGS, SUCCESS, Gpu, Gpus, P2p
from gpu_healthcheck.healthcheck.probes.pci import normalise_address


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
    readings, invalid = _readings(raw)
    nameless = [name for name in invalid if READINGS[name].on_failure == "gpu"]
    errors |= {name: NONSENSE for name in invalid if READINGS[name].on_failure == "reading"}
    counters = readings.pop("nvlink_counters", {})
    if "nvlinks" in readings:
        readings["nvlinks"] = tuple(replace(link, counters=counters.get(link.link, {})) for link in readings["nvlinks"])
    return Gpu(
        index,
        code or (NONSENSE if nameless else SUCCESS),
        recovery_error=errors.pop("recovery_action", SUCCESS),
        errors=errors,
        **readings,
    )


def _readings(raw: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the readings of a GPU, and the names of those with invalid values."""
    readings = {}
    invalid = [name for name in _listed(raw.get("nonsense", [])) if name in READINGS]
    for name, parse in PARSERS.items():
        if raw.get(name) is None:
            continue
        try:
            readings[name] = parse(raw[name])
        except (ValueError, TypeError, AttributeError):
            invalid.append(name)
    return readings, invalid


def _integer(least: int, most: int) -> Callable[[Any], int]:
    def read(raw: Any) -> int:
        if type(raw) is not int or not least <= raw <= most:
            raise ValueError(f"{raw!r} is not a number from {least} to {most}")
        return raw

    return read


_unsigned = _integer(0, 2**32 - 1)
_signed = _integer(-(2**31), 2**31 - 1)
_count = _integer(0, 2**64 - 1)


def _flag(raw: Any) -> bool:
    return _unsigned(raw) != 0


def _listed(raw: Any, most: int = 64) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise TypeError(f"{str(raw)[:40]} is not a list of at most {most}")
    return raw


def _address(raw: Any) -> str:
    address = normalise_address(raw)
    if not address:
        raise ValueError(f"{raw!r} is not a PCI address")
    return address


def _parser(kind: Any) -> Callable[[Any], Any]:
    """Return the parser of a reading of this type. It raises ValueError, TypeError or AttributeError."""
    convertible = _convertible(kind)
    return lambda raw: convert(convertible(raw), kind, str_keys=True)


def _convertible(kind: Any) -> Callable[[Any], Any]:
    """Return the function that gives the child's value the form of this type.

    The child sends the fields of a Struct as a list, and flags as numbers. A plain `int` has 64 bits.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated and parts[0] is not int:
        return _convertible(parts[0])
    if origin in (Union, UnionType):
        known = _convertible(parts[0])
        return lambda raw: None if raw is None else known(raw)
    if origin is tuple:
        item = _convertible(parts[0])
        return lambda raw: [item(one) for one in _listed(raw)]
    if origin is Mapping:
        item = _convertible(parts[1])
        return lambda raw: {key: item(one) for key, one in raw.items()}
    if isinstance(kind, type) and issubclass(kind, Struct):
        members = [(part.name, _convertible(part.type)) for part in fields(kind)]
        return lambda raw: {name: member(one) for (name, member), one in zip(members, _listed(raw), strict=True)}
    return {bool: _flag, int: _count}.get(kind, lambda raw: raw)


PARSERS: Mapping[str, Callable[[Any], Any]] = {
    **{part.name: _parser(part.type) for part in fields(Gpu) if part.name in READINGS},
    "address": _address,
    "nvlink_counters": _parser(Mapping[int, Mapping[str, int]]),
}
"""Parsers of the readings by name. Their types are resolved once: that costs more than all else done with a GPU."""


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
