"""`gpu-healthcheck release`: a person says that a node's event findings are dealt with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from cli.node_names import Nodes
from cli.options import Context, Kubeconfig, RequestTimeout, positive_seconds
from healthcheck.cluster.kubeconfig import Access


def _reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("why the findings are dealt with is wanted, and it is empty")
    return text


Reason = Annotated[
    str,
    typer.Option(
        "--reason",
        metavar="TEXT",
        callback=_reason,
        help="Why: it stands in the record and in an Event. Required.",
    ),
]

By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who; default: the kubeconfig's user, else yours here.")]
KeepCordoned = Annotated[bool, typer.Option("--keep-cordoned", help="Leave the cordon of a quarantine run, too.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", show_default=False, help="Wait until the node's agent has taken it (the default)."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="TIME", parser=positive_seconds, show_default=False, help="To wait at most; default: 2m."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be released, and write nothing.")]


@dataclass(frozen=True, slots=True)
class ReleaseWish:
    """What was asked for on the command line."""

    by: str
    """'' for whoever types it."""
    reason: str
    keep_cordoned: bool
    dry_run: bool
    wait_seconds: float


def release(  # noqa: PLR0913, PLR0917 - each is an option of the command
    nodes: Nodes,
    reason: Reason,
    by: By = "",
    keep_cordoned: KeepCordoned = False,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    dry_run: DryRun = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Release nodes: their event findings of now are dealt with, and count no more. A fault that is there comes back.

    A node that a quarantine run cordoned is uncordoned; a person's own cordon stays.

    Exit code: 0 released, or nothing to release; 1 something still stands; 2 could not, or no agent answered in time.
    """
    from cli.releasing import release_nodes  # noqa: PLC0415 - its help needs none of it

    wish = ReleaseWish(by, reason, keep_cordoned, dry_run, timeout if wait else 0.0)
    raise typer.Exit(release_nodes(nodes, wish, Access(kubeconfig, context, request_timeout)))
