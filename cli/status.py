"""`gpu-healthcheck status`: state of the fleet, from its Nodes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from msgspec import Struct

from cli.options import Context, Kubeconfig, Prometheus, RequestTimeout, Selector, one_of
from healthcheck.cluster.kubeconfig import Access


class StatusFormat(StrEnum):
    """Output format of `status`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    HTML = "html"


class StatusOptions(Struct, frozen=True):
    """Options of the command line."""

    access: Access
    output: StatusFormat
    selector: str
    watch: bool
    headers: bool
    by_node: bool
    prometheus: str


Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")]
OutputForm = Annotated[
    StatusFormat,
    typer.Option(
        "--output",
        "-o",
        metavar="FORM",
        show_default=False,
        help="table (default), wide, json, yaml, name or html.",
        **one_of(StatusFormat),
    ),
]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Print only the rows of the table.")]
Allocation = Annotated[
    bool, typer.Option("--allocation", help="Show the GPUs of each node and the pods that hold them.")
]


def status(  # noqa: PLR0913, PLR0917 - each is an option of the command
    watch: Watch = False,
    output: OutputForm = StatusFormat.TABLE,
    selector: Selector = "",
    no_headers: NoHeaders = False,
    by_node: Allocation = False,
    prometheus: Prometheus = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Show every GPU node, worst first.

    Exit code: 0, or 2 when the cluster could not be read.
    """
    if prometheus and not by_node:
        raise typer.BadParameter("--prometheus needs --allocation")
    if output is StatusFormat.HTML and (watch or by_node):
        raise typer.BadParameter("-o html shows the current fleet, without --watch and --allocation")
    if output is StatusFormat.NAME and (watch or by_node):
        raise typer.BadParameter("-o name lists the current nodes, without --watch and --allocation")
    if by_node and (watch or selector or no_headers):
        raise typer.BadParameter("--allocation shows the whole cluster once, without --watch, -l and --no-headers")
    from cli.fleet_table import tell  # noqa: PLC0415 - its help needs none of it

    access = Access(kubeconfig, context, request_timeout)
    options = StatusOptions(access, output, selector, watch, not no_headers, by_node, prometheus)
    raise typer.Exit(tell(options))
