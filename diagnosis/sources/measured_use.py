"""`--prometheus URL`: GPU utilization from a Prometheus with the DCGM exporter's series."""

from __future__ import annotations

from msgspec.structs import replace

from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.gpu_use import IDLE, NOW, SERIES, THERE, USE, read_use
from diagnosis.snapshot.hami_use import CORES, MEMORY, read_cores, read_memory
from healthcheck.cluster.prometheus import PrometheusError, instant


def with_use(snapshot: Snapshot, url: str) -> Snapshot:
    """Return the snapshot with the current utilization of each card, or the reason why it is unknown."""
    snapshot = with_shares(snapshot, url)
    try:
        return replace(snapshot, gpu_use=read_use(_there(url, instant(url, NOW))))
    except PrometheusError as error:
        return _without(snapshot, error)


def with_idle(snapshot: Snapshot, url: str) -> Snapshot:
    """Return the snapshot with the current utilization of each card and the cards idle for an hour, or the reason."""
    snapshot = with_shares(snapshot, url)
    try:
        _there(url, instant(url, THERE))
        return replace(snapshot, gpu_use=read_use(instant(url, NOW)), idle_gpus=read_use(instant(url, IDLE)))
    except PrometheusError as error:
        return _without(snapshot, error)


def with_shares(snapshot: Snapshot, url: str) -> Snapshot:
    """Add each pod's use of its HAMi share, if this Prometheus has the series of HAMi's monitor."""
    if not any(node.hami.shared for node in snapshot.nodes):
        return snapshot
    try:
        uses = (*read_memory(instant(url, MEMORY)), *read_cores(instant(url, CORES)))
    except PrometheusError:
        return snapshot  # the next query of this Prometheus reports the reason
    return replace(snapshot, share_use=uses)


def _there(url: str, series: list[object]) -> list[object]:
    if not series:
        raise PrometheusError(f"{url} has no series {SERIES}: does it scrape the DCGM exporter?")
    return series


def _without(snapshot: Snapshot, error: PrometheusError) -> Snapshot:
    return replace(snapshot, missing={**snapshot.missing, USE: str(error)})
