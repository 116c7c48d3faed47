"""`gpu-healthcheck status`: state of the fleet, from its Nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Generic, NoReturn, TypeVar

import typer
from msgspec import Struct, to_builtins
from rich.console import Group
from rich.live import Live

from gpu_healthcheck.cli.access import acyclic, cluster_of, listings_of
from gpu_healthcheck.cli.fleet import Fleet, NodeReport, fleet_document, read_fleet, read_node
from gpu_healthcheck.cli.fleet_faults import rank
from gpu_healthcheck.cli.options import (
    Context,
    Kubeconfig,
    Prometheus,
    RequestTimeout,
    Selector,
    complete_nodes,
    node_names,
    one_of,
)
from gpu_healthcheck.cli.output.fleet_table import print_fleet, print_slow, watched
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.output.node_page import node_document, node_in_place, node_lines
from gpu_healthcheck.cli.words import end
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, NotFound, Refused
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access, context_and_user
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, INTERRUPTED, USAGE
from gpu_healthcheck.healthcheck.host.streams import say, write_document

T = TypeVar("T")
_REFRESH_SECONDS = 5.0


class StatusFormat(StrEnum):
    """Output format of `status`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    HTML = "html"


NodeName = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NODE]",
        callback=node_names,
        autocompletion=complete_nodes,
        help="Show everything about this node; default: all GPU nodes.",
    ),
]
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
Slow = Annotated[bool, typer.Option("--slow", help="Show the slow GPUs, slowest first, and nodes not compared.")]
Allocation = Annotated[
    bool, typer.Option("--allocation", help="Show the GPUs of each node and the pods that hold them.")
]


def status(  # noqa: PLR0913, PLR0917 - each is an option of the command
    nodes: NodeName = None,
    watch: Watch = False,
    output: OutputForm = StatusFormat.TABLE,
    selector: Selector = "",
    no_headers: NoHeaders = False,
    by_node: Allocation = False,
    slow: Slow = False,
    prometheus: Prometheus = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Show every GPU node, worst first.

    With NODE, it shows everything about one node: findings and what ends them, deep results, and the next step.

    Exit code: 0; 2 when the cluster could not be read; 130 Ctrl-C of --watch.
    """
    if prometheus and not by_node:
        raise typer.BadParameter("--prometheus needs --allocation")
    if nodes and (len(nodes) > 1 or selector or by_node or no_headers or output is StatusFormat.HTML):
        raise typer.BadParameter("one NODE is shown, without -l, --allocation, --no-headers and -o html")
    if output in (StatusFormat.HTML, StatusFormat.NAME) and (watch or by_node):
        raise typer.BadParameter(f"-o {output} shows the current nodes, without --watch and --allocation")
    if by_node and (watch or selector or no_headers):
        raise typer.BadParameter("--allocation shows the whole cluster once, without --watch, -l and --no-headers")
    if slow and (nodes or watch or by_node or output is StatusFormat.HTML):
        raise typer.BadParameter("--slow shows the fleet once, without NODE, --watch, --allocation and -o html")
    access = Access(kubeconfig, context, request_timeout)
    try:
        if by_node:
            _show_allocation(access, prometheus, output)
            return
        cluster = cluster_of(access)
        wide, headers = output is StatusFormat.WIDE, not no_headers
        if slow:
            _show_slow(read_fleet(cluster, selector), output, headers=headers)
        elif nodes:
            read = partial(read_node, cluster, nodes[0])
            _run(_View(read, output, node_document, partial(_print_node, output), node_in_place), watch=watch)
        else:
            rows = partial(_print_rows, output, access, wide=wide, headers=headers)
            in_place = partial(watched, wide=wide, headers=headers)
            read_all = partial(read_fleet, cluster, selector)
            _run(_View(read_all, output, fleet_document, rows, in_place), watch=watch)
    except NotFound as error:
        end("status", f"there is no node {nodes[0]}" if nodes else str(error), USAGE if nodes else COULD_NOT)
    except Refused as error:
        end("status", f"-l {selector!r}: {error}" if selector else str(error), USAGE if selector else COULD_NOT)
    except ClusterError as error:
        end("status", str(error), COULD_NOT)


class _View(Struct, Generic[T], frozen=True):
    """How the fleet, or one node, is read and printed."""

    read: Callable[[], T]
    output: StatusFormat
    document: Callable[[T], Any]
    """Return the value for a program."""
    print_text: Callable[[T], None]
    in_place: Callable[[T, Screen], Group]
    """Return the value for a terminal, in no more lines than it shows."""

    def show(self, value: T, *, is_last: bool = True) -> None:
        """Print the value; if others follow, as a JSON line, or a YAML document with a separator."""
        if self.output in (StatusFormat.JSON, StatusFormat.YAML):
            if self.output is StatusFormat.YAML and not is_last:
                write_document("---\n")
            write_as(self.output, self.document(value), 2 if is_last else None)
        else:
            self.print_text(value)
        sys.stdout.flush()


def _print_rows(output: StatusFormat, access: Access, fleet: Fleet, *, wide: bool, headers: bool) -> None:
    if output is StatusFormat.HTML:
        from gpu_healthcheck.cli.output import fleet_page  # noqa: PLC0415 - no other form needs its templates

        write_document(fleet_page.text(fleet, datetime.now(UTC), context_and_user(access)[0]))
    elif output is StatusFormat.NAME:
        write_document("".join(f"node/{row.node}\n" for row in fleet.nodes))
    else:
        print_fleet(fleet, wide=wide, headers=headers)


def _show_slow(fleet: Fleet, output: StatusFormat, *, headers: bool) -> None:
    """Print the slow GPUs of the fleet."""
    ranking = rank(fleet)
    if output in (StatusFormat.JSON, StatusFormat.YAML):
        write_as(output, to_builtins(ranking))
    elif output is StatusFormat.NAME:
        write_document("".join(f"node/{node}\n" for node in dict.fromkeys(gpu.node for gpu in ranking.gpus)))
    else:
        print_slow(ranking, wide=output is StatusFormat.WIDE, headers=headers)


def _print_node(output: StatusFormat, report: NodeReport) -> None:
    if output is StatusFormat.NAME:
        write_document(f"node/{report.row.node}\n")
        return
    screen = Screen()
    for line in node_lines(report, screen, datetime.now(UTC)):
        screen.print(line, soft_wrap=True)


def _show_allocation(access: Access, prometheus: str, output: StatusFormat) -> None:
    """Print the pods that hold GPUs. Raises ClusterError if nothing can be listed, or the utilization is unknown."""
    from gpu_healthcheck.cli.output import allocation_table  # noqa: PLC0415 - the fleet does not need it
    from gpu_healthcheck.diagnosis.answers.live import read_allocation  # noqa: PLC0415
    from gpu_healthcheck.diagnosis.report.document import cluster_document  # noqa: PLC0415

    with acyclic():
        allocation = read_allocation(listings_of(access), prometheus)
    if output in (StatusFormat.JSON, StatusFormat.YAML):
        write_as(output, cluster_document(allocation))
    else:
        screen = Screen()
        is_fitted = screen.is_terminal and output is not StatusFormat.WIDE
        for line in allocation_table.page(allocation, screen.width if is_fitted else None):
            screen.print(line, soft_wrap=True)
    if allocation.use_missing:
        raise ClusterError(allocation.use_missing)


def _run(view: _View[T], *, watch: bool) -> None:
    """Print the state once, or with `watch` until Ctrl-C.

    A terminal shows one updated output; otherwise one follows the other.
    """
    screen = Screen()
    if not watch:
        view.show(view.read())
    elif screen.is_terminal and view.output in (StatusFormat.TABLE, StatusFormat.WIDE):
        with Live(view.in_place(view.read(), screen), console=screen, auto_refresh=False) as live:
            _repeat(view, lambda value: live.update(view.in_place(value, screen), refresh=True))
    else:
        view.show(view.read(), is_last=False)
        _repeat(view, partial(view.show, is_last=False))


def _repeat(view: _View[T], show: Callable[[T], None]) -> NoReturn:
    try:
        while True:
            time.sleep(_REFRESH_SECONDS)
            try:
                show(view.read())
            except ClusterError as error:
                say(f"{datetime.now(UTC):%H:%M:%S} {error}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
