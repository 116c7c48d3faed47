"""`gpu-healthcheck uninstall`: take everything of ours off all nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import Context, Kubeconfig, RequestTimeout
from healthcheck.cluster.kubeconfig import Access


def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Take our labels, taints, annotations and conditions off all nodes, and our device taints off GPUs.

    What others set stays, and a person's cordon.

    Our agents and CronJobs have to be gone before: they would write again. What is to be done for it is printed.

    Exit code: 0 nothing of ours is left on any node; 1 something is, or our programs still run; 2 could not.
    """
    from cli.uninstalling import uninstall_from  # noqa: PLC0415 - its help needs none of it

    access = Access(kubeconfig, context, request_timeout)
    raise typer.Exit(uninstall_from(access, dry_run=dry_run, yes=yes))
