"""How much of their shares pods use, as HAMi's monitor tells a Prometheus: the questions, and their answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from diagnosis.snapshot.reading import Fields

_UUID = ("device_uuid", "deviceuuid")
_PODS = (("exported_namespace", "exported_pod"), ("namespace", "pod"), ("podnamespace", "podname"))
"""From 2.9 as others call them, renamed where Prometheus keeps its own labels; up to 2.8 by HAMi's own names."""
_LABELS = ", ".join((*_UUID, *(label for pair in _PODS for label in pair)))


def _question(*names: str) -> str:
    return f'sum by ({_LABELS}) ({{__name__=~"{"|".join(names)}"}})'


MEMORY = _question("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes")
CORES = _question("hami_container_device_utilization_ratio", "Device_utilization_desc_of_container")
_MOST_SERIES = 200_000
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ShareUse:
    """Of one pod on one card: memory in MiB, or percent of cores. `pods`: what its labels say, the likeliest first."""

    uuid: str
    pods: tuple[tuple[str, str], ...]
    memory: int | None = None
    cores: int | None = None


def read_memory(series: Iterable[object]) -> tuple[ShareUse, ...]:
    return tuple(ShareUse(uuid, pods, memory=int(value) // _MIB) for uuid, pods, value in _read(series))


def read_cores(series: Iterable[object]) -> tuple[ShareUse, ...]:
    return tuple(ShareUse(uuid, pods, cores=round(value)) for uuid, pods, value in _read(series) if value <= 100)


def _read(series: Iterable[object]) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
    for one in islice(series, _MOST_SERIES):
        value = _number(one.get("value")) if isinstance(one, dict) else None
        labels = Fields(one).at("metric")
        uuid = next(filter(None, map(labels.text, _UUID)), "")
        pods = ((labels.text(namespace), labels.text(pod)) for namespace, pod in _PODS)
        named = tuple(pair for pair in pods if all(pair))
        if value is not None and uuid and named:
            yield uuid, named, value


def _number(value: object) -> float | None:
    """Of a sample: a time, and a number as text. Bytes of a card are far below the bound."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str) or len(value[1]) > 40:
        return None
    try:
        number = float(value[1])
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number < 1 << 53 else None
