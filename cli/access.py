"""The cluster of a command, chosen with kubectl's options and rules. Its client is imported when a cluster is used."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.cluster.client import Cluster
    from gpu_healthcheck.healthcheck.cluster.pods import Listings


def cluster_of(access: Access) -> Cluster:
    """Return the cluster. Raises ClusterError."""
    from gpu_healthcheck.healthcheck.cluster.client import Cluster  # noqa: PLC0415
    from gpu_healthcheck.healthcheck.cluster.connection import connect  # noqa: PLC0415

    return Cluster(partial(connect, access), request_seconds=access.request_seconds)


def listings_of(access: Access) -> Listings:
    """Return the listings of the cluster's objects. Raises ClusterError."""
    from gpu_healthcheck.healthcheck.cluster.connection import Connection, connect  # noqa: PLC0415
    from gpu_healthcheck.healthcheck.cluster.pods import Listings  # noqa: PLC0415

    return Listings(Connection(partial(connect, access), request_seconds=access.request_seconds))


@contextmanager
def acyclic() -> Iterator[None]:
    """Disable garbage collection while the objects of a cluster are read: there are millions, without cycles.

    It would double the time. Reference counting still frees objects.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
