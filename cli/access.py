"""Which cluster a command is for: kubectl's options, with kubectl's names and kubectl's rules."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from healthcheck.cluster import Cluster, connect
from healthcheck.kubeconfig import Access

Context = Annotated[str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig; default: its current one.")]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="Default: KUBECONFIG, ~/.kube/config, the pod's account.")
]


def cluster_of(access: Access) -> Cluster:
    """Raises ClusterError."""
    return Cluster(partial(connect, access))
