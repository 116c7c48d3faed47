"""Programs of the cluster, for the list of commands and their help.

Each is a separate program: `main` starts it before this module is loaded, except for `-h`. Their options are declared
there, and here for the help; a test keeps both equal.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import Context, Kubeconfig, RequestTimeout

Once = Annotated[bool, typer.Option("--once", help="Run one check cycle, apply its result, and exit.")]


def agent(
    once: Once = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Log the writes instead of sending them.")] = False,
) -> None:
    """Run the node agent. The DaemonSet starts it."""


def sweep(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the nodes that would be tested, and why the others would not.")
    ] = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Test the idle nodes that are due. The CronJob starts it."""


def sweep_run() -> None:
    """Test the node NODE_NAME. The pod of a sweep Job starts it."""


def quarantine_run(
    force: Annotated[bool, typer.Option("--force", help="Test although GPU pods are on the node.")] = False,
) -> None:
    """Test this node for hours. The quarantine Job starts it."""


def reset_run(
    gpu: Annotated[list[str] | None, typer.Option("--gpu", help="UUID, PCI address or index of a GPU.")] = None,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait until the GPUs are free.")] = 900.0,
) -> None:
    """Reset GPUs of this node. The pod of a reset Job starts it."""
