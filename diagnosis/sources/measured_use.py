"""`--prometheus URL`: GPU utilization from a Prometheus with our recording rules for the DCGM exporter's series."""

from __future__ import annotations

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.gpu_use import AN_HOUR_AGO, EXPORTED, IDLE, RULES, SERIES, USE, GpuUse, read_use
from gpu_healthcheck.diagnosis.snapshot.hami_use import CORES, MEMORY, read_cores, read_memory
from gpu_healthcheck.healthcheck.cluster.prometheus import PrometheusError, instant


def with_use(snapshot: Snapshot, url: str, *, idle: bool = False) -> Snapshot:
    """Return the snapshot with the current utilization of each card, or the reason why it is unknown.

    `idle`: also with the cards that were idle for an hour.
    """
    snapshot = with_shares(snapshot, url)
    try:
        snapshot = replace(snapshot, gpu_use=_current(url))
        if not idle:
            return snapshot
        if instant(url, AN_HOUR_AGO):
            return replace(snapshot, idle_gpus=read_use(instant(url, IDLE)))
        why = f"{url} has recorded {SERIES} for less than an hour: could not check. Try again later"
    except PrometheusError as error:
        why = str(error)
    return replace(snapshot, missing={**snapshot.missing, USE: why})


def with_shares(snapshot: Snapshot, url: str) -> Snapshot:
    """Add each pod's use of its HAMi share, if this Prometheus has the series of HAMi's monitor."""
    if not any(node.hami.shared for node in snapshot.nodes):
        return snapshot
    try:
        uses = (*read_memory(instant(url, MEMORY)), *read_cores(instant(url, CORES)))
    except PrometheusError:
        return snapshot  # the next query of this Prometheus reports the reason
    return replace(snapshot, share_use=uses)


def _current(url: str) -> tuple[GpuUse, ...]:
    if series := instant(url, SERIES):
        return read_use(series)
    if instant(url, EXPORTED):
        raise PrometheusError(
            f"{url} scrapes the DCGM exporter but has no series {SERIES}: could not check. Load the recording rules in"
            f" {RULES} into it (Prometheus operator: kubectl apply -k kubernetes/overlays/monitoring), and try again"
            " after two minutes"
        )
    raise PrometheusError(
        f"{url} has no series {SERIES}, and none of whole GPUs by the DCGM exporter: could not check."
        " Does it scrape the DCGM exporter?"
    )
