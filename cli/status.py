"""`gpu-healthcheck status`: state of the fleet, from its Nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from msgspec import to_builtins
from rich.live import Live
from rich.text import Text

from cli.access import cluster_of, listings_of
from cli.acyclic import acyclic
from cli.fleet import Fleet, read_fleet
from cli.options import Context, Kubeconfig, Prometheus, RequestTimeout, Selector, one_of
from cli.output.fleet_table import page, print_fleet
from cli.output.json_documents import write_as
from cli.words import end
from healthcheck.cluster.errors import ClusterError, Refused
from healthcheck.cluster.kubeconfig import Access, context_name
from healthcheck.host.console import Screen
from healthcheck.host.program import COULD_NOT, USAGE
from healthcheck.host.streams import say, write_document, write_json

_REFRESH_SECONDS = 5.0


class StatusFormat(StrEnum):
    """Output format of `status`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    HTML = "html"


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
    access = Access(kubeconfig, context, request_timeout)
    try:
        if by_node:
            _show_allocation(access, prometheus, output)
            return
        unread: list[str] = []
        read = partial(read_fleet, cluster_of(access, unread.append), unread, selector)
        if watch:
            _watch(read, output, headers=not no_headers)
        else:
            _show(read(), output, headers=not no_headers, access=access)
    except Refused as error:
        end("status", f"-l {selector!r}: {error}" if selector else str(error), USAGE if selector else COULD_NOT)
    except ClusterError as error:
        end("status", str(error), COULD_NOT)


def _show(fleet: Fleet, output: StatusFormat, *, headers: bool, access: Access | None = None) -> None:
    match output:
        case StatusFormat.JSON:
            write_json(fleet, indent=2)
        case StatusFormat.YAML:
            write_as(output, to_builtins(fleet))
        case StatusFormat.HTML:
            from cli.output import fleet_page  # noqa: PLC0415 - no other form needs its templates

            write_document(fleet_page.text(fleet, datetime.now(UTC), context_name(access)))
        case StatusFormat.NAME:
            write_document("".join(f"node/{row.node}\n" for row in fleet.nodes))
        case StatusFormat.TABLE | StatusFormat.WIDE:
            print_fleet(fleet, wide=output is StatusFormat.WIDE, headers=headers)


def _show_allocation(access: Access, prometheus: str, output: StatusFormat) -> None:
    """Print the pods that hold GPUs. Raises ClusterError if nothing can be listed, or the utilization is unknown."""
    from cli.output import allocation_table  # noqa: PLC0415 - the fleet does not need it
    from diagnosis.answers.live import read_allocation  # noqa: PLC0415
    from diagnosis.report.document import cluster_document  # noqa: PLC0415

    with acyclic():
        allocation = read_allocation(listings_of(access), prometheus)
    if output in (StatusFormat.JSON, StatusFormat.YAML):
        write_as(output, cluster_document(allocation))
    else:
        screen = Screen.of_rows()
        for part in allocation_table.page(allocation, screen):
            screen.print(part, soft_wrap=isinstance(part, Text))
    if allocation.use_missing:
        raise ClusterError(allocation.use_missing)


def _watch(read: Callable[[], Fleet], output: StatusFormat, *, headers: bool) -> None:
    """Print the fleet until Ctrl-C: one updated table on a terminal, otherwise one output after the other."""
    screen = Screen()
    if output in (StatusFormat.TABLE, StatusFormat.WIDE) and screen.is_terminal:
        table = partial(page, wide=output is StatusFormat.WIDE, headers=headers)
        with Live(table(read(), screen.height), console=screen, auto_refresh=False) as live:
            _again_and_again(read, lambda fleet: live.update(table(fleet, screen.height), refresh=True))
    else:
        _show_next(read(), output, headers=headers)
        _again_and_again(read, partial(_show_next, output=output, headers=headers))


def _again_and_again(read: Callable[[], Fleet], show: Callable[[Fleet], None]) -> None:
    try:
        while True:
            time.sleep(_REFRESH_SECONDS)
            try:
                show(read())
            except ClusterError as error:
                say(f"{datetime.now(UTC):%H:%M:%S} {error}")
    except KeyboardInterrupt:
        return


def _show_next(fleet: Fleet, output: StatusFormat, *, headers: bool) -> None:
    """Print one of several documents: a JSON line, or a YAML document with a separator."""
    if output is StatusFormat.JSON:
        write_json(fleet)
    else:
        if output is StatusFormat.YAML:
            write_document("---\n")
        _show(fleet, output, headers=headers)
    sys.stdout.flush()
