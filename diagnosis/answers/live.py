"""Read the state of a cluster: only near one pod, or as much as a question needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from diagnosis.answers.allocation import Allocation, allocation
from diagnosis.answers.one_pod import look_at_pod
from diagnosis.answers.target import Target
from diagnosis.snapshot import Snapshot
from diagnosis.sources.collect import Collector, Keep
from diagnosis.sources.kinds import KINDS, ApiKind

if TYPE_CHECKING:
    from healthcheck.cluster.listings import Listings

_OF_ALLOCATION = frozenset(("Node", "Pod", "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"))


def read_cluster(
    listings: Listings, namespace: str, near: Target | None, keep: Keep | None, listed: Callable[[ApiKind], None]
) -> Snapshot:
    """Return the state of the cluster, or of the dependencies of the pod `near`. Raises ClusterError.

    `namespace`: the one to list if listing all is forbidden.
    """
    collector = Collector(listings.objects, keep, listed)
    if near is not None:
        return look_at_pod(collector, listings.read_log, near)
    return collector.with_logs(collector.collect(namespace=namespace), listings.read_log)


def read_allocation(listings: Listings, prometheus: str = "") -> Allocation:
    """Return the allocation, with utilization from a Prometheus. Raises ClusterError if nothing can be listed."""
    kinds = (kind for kind in KINDS if kind.kind in _OF_ALLOCATION)
    snapshot = Collector(listings.objects, kinds=kinds).collect()
    if prometheus:
        from diagnosis.sources.measured_use import with_use  # noqa: PLC0415 - where a Prometheus is to be asked

        snapshot = with_use(snapshot, prometheus)
    return allocation(snapshot)
