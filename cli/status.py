"""`gpu-healthcheck status`: the fleet as its nodes tell it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli import fleet_page
from cli.access import Context, Kubeconfig, cluster_of
from cli.allocation import page, read_allocation
from cli.fleet import Fleet, Row, ago, looked, read_fleet
from cli.utilization import Prometheus
from cli.words import SEVERITY_STYLES, STATUS_STYLES
from diagnosis.report.document import cluster_document
from healthcheck.cluster.errors import ClusterError
from healthcheck.cluster.kubeconfig import Access
from healthcheck.host.console import Screen
from healthcheck.host.streams import complain, write_document, write_json
from healthcheck.model import Status
from healthcheck.text.moments import moment

COULD_NOT_LOOK = 2
_REFRESH_SECONDS = 5.0
_STATUS_STYLES = {status.value: style for status, style in STATUS_STYLES.items()}
_SEVERITY_STYLES = {severity.name: style for severity, style in SEVERITY_STYLES.items()}


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    HTML = "html"


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it live until Ctrl-C.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="table, json or html.")] = Output.TABLE,
    by_node: Annotated[bool, typer.Option("--allocation", help="Show who has which GPUs, node by node.")] = False,
    prometheus: Prometheus = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show every GPU node, worst first. Exit code: 0, or 2 when the cluster could not be read."""
    if prometheus and not by_node:
        raise typer.BadParameter("--prometheus goes with --allocation")
    if output is Output.HTML and (watch or by_node):
        raise typer.BadParameter("-o html shows the fleet as it is now, without --watch and --allocation")
    try:
        if by_node:
            _show_allocation(Access(kubeconfig, context), output, prometheus)
            return
        unread: list[str] = []
        read = partial(read_fleet, cluster_of(Access(kubeconfig, context), unread.append), unread)
        if watch:
            _watch(read)
        elif output is Output.JSON:
            write_json(asdict(read()), indent=2)
        elif output is Output.HTML:
            write_document(fleet_page.text(read(), datetime.now(UTC)))
        else:
            Screen.of_rows().print(_page(read()))
    except ClusterError as error:
        complain("status", str(error))
        raise typer.Exit(COULD_NOT_LOOK) from None


def _show_allocation(access: Access, output: Output, prometheus: str) -> None:
    told = read_allocation(access, prometheus)
    if output is Output.JSON:
        write_json(cluster_document(told), indent=2)
    else:
        screen = Screen.of_rows()
        for part in page(told, screen):
            screen.print(part, soft_wrap=isinstance(part, Text))
    if told.use_missing:
        raise ClusterError(told.use_missing)


def _watch(read: Callable[[], Fleet]) -> None:
    with Live(_page(read()), console=Screen(), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(_REFRESH_SECONDS)
                try:
                    live.update(_page(read()), refresh=True)
                except ClusterError as error:
                    live.console.print(Text(f"{datetime.now(UTC):%H:%M:%S} {error}", "yellow"))
        except KeyboardInterrupt:
            return


def _page(fleet: Fleet) -> Group:
    return Group(_table(fleet.nodes), Text.assemble("\n", *_budget_words(fleet)))


def _budget_words(fleet: Fleet) -> Iterator[Text]:
    used, places, size = ("?" if one is None else str(one) for one in astuple(fleet.budget))
    yield Text(f"{used} of {places} places for tainted nodes are taken; {size} nodes have an agent")
    withheld = [row.node for row in fleet.nodes if row.taint == "withheld"]
    if withheld:
        yield Text(f"\nnot tainted though their agents want it: {', '.join(withheld)}", "bold red")
    for why, rows in groupby(sorted(fleet.nodes, key=lambda row: row.overdue), key=lambda row: row.overdue):
        if why:
            yield Text(f"\noverdue for a deep test: {', '.join(row.node for row in rows)}: {why}", "magenta")
    for what in fleet.passed_over:
        yield Text(f"\npassed over: {what}", "magenta")


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "status", "severity", "taint", "type", "looked", "tested", "reason"):
        table.add_column(name, no_wrap=name in ("status", "severity", "taint", "looked", "tested"), overflow="fold")
    table.add_column("message", overflow="fold")
    for row in rows:
        table.add_row(
            row.node,
            Text(row.status or "-", _STATUS_STYLES.get(row.status, "")),
            Text(row.severity or "-", _SEVERITY_STYLES.get(row.severity, "")),
            "yes" if row.tainted else Text("withheld", "bold red") if row.taint == "withheld" else "",
            row.instance_type,
            Text(looked(row), "magenta" if row.silent or row.heartbeat_age_seconds is None else ""),
            _tested(row),
            row.reason if row.status != Status.PASS else "",
            row.message if row.status != Status.PASS else row.released and f"released {row.released}",
        )
    return table


def _tested(row: Row) -> Text:
    """How long ago DCGM tested it, and what came of it."""
    if not row.tested_at:
        return Text("overdue" if row.overdue else "never", "magenta" if row.overdue else "")
    age = (datetime.now(UTC) - moment(row.tested_at)).total_seconds()
    words = [f"{row.test_result} {ago(age)}", *(["overdue"] if row.overdue else [])]
    return Text(", ".join(words), "magenta" if row.overdue else _STATUS_STYLES.get(row.test_result, ""))
