"""Which cluster a command is for: kubectl's options, with kubectl's names and kubectl's rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.connection import connect, refuse_to_read
from healthcheck.cluster.kubeconfig import Access

Context = Annotated[str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig; default: its current one.")]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="Default: KUBECONFIG, ~/.kube/config, the pod's account.")
]


def cluster_of(access: Access, pass_over: Callable[[str], None] = refuse_to_read) -> Cluster:
    """`pass_over` is told which object of a listing nobody can read. Raises ClusterError."""
    return Cluster(partial(connect, access), pass_over)
