"""What runs in the cluster, as the list of commands and their help have it.

Each is a program of its own: `main` has handed over to it before any of this is loaded, but for `-h`. Its options stand
in that program, and here for whoever asks; a test holds both equal.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import Context, Kubeconfig, RequestTimeout

Once = Annotated[bool, typer.Option("--once", help="Look once, apply it, and end.")]


def agent(
    once: Once = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be written instead.")] = False,
) -> None:
    """Run the node agent: what the DaemonSet starts."""


def sweep(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which nodes it would take, and why no other.")
    ] = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Test the idle nodes that are due: what the CronJob starts."""


def sweep_run() -> None:
    """Test the node NODE_NAME: what the pod of a sweep's Job starts."""


def quarantine_run(
    force: Annotated[bool, typer.Option("--force", help="Test although GPU pods are on the node.")] = False,
) -> None:
    """Test the node that this runs on, hours long: what the quarantine Job starts."""
