"""`gpu-healthcheck uninstall`: remove all labels, taints, annotations and conditions of this project from all nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import Context, Kubeconfig, RequestTimeout
from healthcheck.cluster.kubeconfig import Access


def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed; write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Remove our labels, taints, annotations and conditions from all nodes, and our device taints from GPUs.

    Other tools' values stay, and so does a person's cordon.

    Remove our agents and CronJobs first, because they would write again; the command prints how.

    Exit code: 0 no node has anything of ours; 1 a node has, or our programs still run; 2 could not.
    """
    from cli.uninstalling import uninstall_from  # noqa: PLC0415 - its help needs none of it

    access = Access(kubeconfig, context, request_timeout)
    raise typer.Exit(uninstall_from(access, dry_run=dry_run, yes=yes))
