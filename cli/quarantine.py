"""`gpu-healthcheck quarantine`: find the fault of nodes, and recommend an action."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.node_names import Nodes
from cli.options import Context, Kubeconfig, RequestTimeout, TableFormat, TableJsonOrYaml, positive_seconds
from healthcheck.cluster.kubeconfig import Access

Drain = Annotated[
    bool,
    typer.Option("--drain/--no-drain", show_default=False, help="Evict the pods on it first (the default)."),
]
Force = Annotated[bool, typer.Option("--force", help="Also evict pods that no controller recreates.")]
EmptyDir = Annotated[
    bool, typer.Option("--delete-emptydir-data", help="Also evict pods with an emptyDir; its data is lost.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=positive_seconds,
        show_default=False,
        help="Longest wait for the pods to end; default: 15m.",
    ),
]
ReleaseOnPass = Annotated[
    bool,
    typer.Option("--release-on-pass", help="Uncordon the node if no fault was found and this command cordoned it."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the planned actions; change nothing.")]


def quarantine(  # noqa: PLR0913, PLR0917 - each is an option of the command
    nodes: Nodes,
    drain: Drain = True,
    force: Force = False,
    delete_emptydir_data: EmptyDir = False,
    timeout: Timeout = 900.0,
    release_on_pass: ReleaseOnPass = False,
    dry_run: DryRun = False,
    output: TableJsonOrYaml = TableFormat.TABLE,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Cordon, drain and test nodes with a deep diagnostic, and recommend an action for each. Takes an hour or more.

    Ctrl-C leaves the test running; the same command follows it again, or shows its result. A person's own cordon is
    never lifted.

    Exit code: 0 return to service; 1 another recommendation; 2 a node could not be tested; 130 Ctrl-C. Of several
    nodes, the worst.
    """
    from cli.quarantine_node import QuarantineOptions  # noqa: PLC0415 - its help needs none of it
    from cli.quarantining import quarantine_nodes  # noqa: PLC0415
    from healthcheck.operations.drain import DrainPermissions  # noqa: PLC0415

    options = QuarantineOptions(drain, DrainPermissions(force, delete_emptydir_data), timeout, release_on_pass)
    access = Access(kubeconfig, context, request_timeout)
    raise typer.Exit(quarantine_nodes(nodes, options, access, output, dry_run=dry_run))
