"""`gpu-healthcheck release`: acknowledge the event findings of a node."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from msgspec import Struct

from cli.node_names import MaybeNodes
from cli.options import Context, Kubeconfig, RequestTimeout, Selector, positive_seconds
from healthcheck.cluster.kubeconfig import Access


def _reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("the reason is empty; state how the findings were dealt with")
    return text


Reason = Annotated[
    str,
    typer.Option(
        "--reason",
        metavar="TEXT",
        callback=_reason,
        help="Reason, shown in the record and in an Event. Required.",
    ),
]

By = Annotated[
    str, typer.Option("--by", metavar="NAME", help="Your name; default: the kubeconfig's user, else the local user.")
]
KeepCordoned = Annotated[bool, typer.Option("--keep-cordoned", help="Also leave the cordon of a quarantine run.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", show_default=False, help="Wait until the node's agent has applied it (the default)."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="TIME", parser=positive_seconds, show_default=False, help="Longest wait; default: 2m."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With -l: do not ask for confirmation.")]
Local = Annotated[
    bool, typer.Option("--local", help="Release this machine without a cluster: for `check` in a prolog.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the findings that would be released; write nothing.")]


class ReleaseOptions(Struct, frozen=True):
    """Options of the command line."""

    by: str
    """Name of the person; '' for the local user."""
    reason: str
    keep_cordoned: bool
    dry_run: bool
    wait_seconds: float
    shown: frozenset[tuple[str, str, datetime]] | None = None
    """Findings that the user saw and confirmed; None: all active ones."""


def release(  # noqa: PLR0913, PLR0917 - each is an option of the command
    reason: Reason,
    nodes: MaybeNodes = None,
    selector: Selector = "",
    local: Local = False,
    by: By = "",
    keep_cordoned: KeepCordoned = False,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Release nodes: their present event findings are acknowledged and no longer count.

    A fault that persists is found again.

    With -l, it lists all nodes with these labels that have something to release, and asks for confirmation. A
    node that a quarantine run cordoned is uncordoned; a person's own cordon stays.

    With --local no cluster is used: the events of this machine's kernel log are released, for `check` here.

    Exit code: 0 released, or nothing to release; 1 a finding is still active; 2 could not, or no agent answered in
    time.
    """
    if local:
        if nodes or selector:
            raise typer.BadParameter("--local releases this machine: give no node name and no -l")
        from cli.local_release import release_here  # noqa: PLC0415 - it reads this machine, the others a cluster

        raise typer.Exit(release_here(by, reason, dry_run=dry_run))
    if bool(nodes) == bool(selector):
        raise typer.BadParameter("give node names or -l SELECTOR; --local is for this machine")
    from cli.releasing import release_nodes, release_selected  # noqa: PLC0415 - its help needs none of it

    options = ReleaseOptions(by, reason, keep_cordoned, dry_run, timeout if wait else 0.0)
    access = Access(kubeconfig, context, request_timeout)
    raise typer.Exit(
        release_nodes(nodes, options, access) if nodes else release_selected(selector, options, access, yes=yes)
    )
