"""The cluster of a command, chosen with kubectl's options and rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.connection import connect, refuse_to_read
from healthcheck.cluster.kubeconfig import Access
from healthcheck.cluster.listings import Listings


def cluster_of(access: Access, pass_over: Callable[[str], None] = refuse_to_read) -> Cluster:
    """Return the cluster. `pass_over` is called for each unreadable object of a listing. Raises ClusterError."""
    return Cluster(partial(connect, access), pass_over, access.request_seconds)


def listings_of(access: Access) -> Listings:
    """Raises ClusterError."""
    return Listings(partial(connect, access), request_seconds=access.request_seconds)
