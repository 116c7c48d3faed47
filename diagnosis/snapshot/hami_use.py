"""Use of shares by pods, from HAMi's monitor in Prometheus: the queries, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot.gpu_use import EXPORTED_POD, OWN_POD, Pair, pods, samples

_UUID = ("device_uuid", "deviceuuid")
_PODS = (EXPORTED_POD, OWN_POD, ("podnamespace", "podname"))
"""Pod labels: common names from 2.9 on, possibly renamed by Prometheus; HAMi's own names up to 2.8."""
_LABELS = ", ".join((*_UUID, *(label for pair in _PODS for label in pair)))


def _question(*names: str) -> str:
    return f'sum by ({_LABELS}) ({{__name__=~"{"|".join(names)}"}})'


MEMORY = _question("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes")
CORES = _question("hami_container_device_utilization_ratio", "Device_utilization_desc_of_container")
_MIB = 1 << 20
_MOST_BYTES, _MOST_PERCENT = 1 << 53, 100


class ShareUse(Struct, frozen=True):
    """Use of one card by one pod: memory in MiB, or percent of cores.

    `pods`: the pods that the labels may name, the likeliest first.
    """

    uuid: str
    pods: tuple[Pair, ...]
    memory: int | None = None
    cores: int | None = None


def read_memory(series: Iterable[object]) -> tuple[ShareUse, ...]:
    return tuple(ShareUse(uuid, named, memory=int(value) // _MIB) for uuid, named, value in _read(series, _MOST_BYTES))


def read_cores(series: Iterable[object]) -> tuple[ShareUse, ...]:
    return tuple(ShareUse(uuid, named, cores=round(value)) for uuid, named, value in _read(series, _MOST_PERCENT))


def _read(series: Iterable[object], most: float) -> Iterator[tuple[str, tuple[Pair, ...], float]]:
    for labels, value in samples(series, most):
        uuid = next(filter(None, map(labels.get, _UUID)), "")
        named = pods(labels, *_PODS)
        if uuid and named:
            yield uuid, named, value
