"""What `gpu-healthcheck status` shows: a table, live where that is wanted, or a document."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from functools import partial
from itertools import groupby

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli import fleet_page
from cli.access import cluster_of
from cli.allocation import page, read_allocation
from cli.documents import write_as
from cli.fleet import Fleet, Row, ago, looked, read_fleet
from cli.status import Output, StatusWish
from cli.words import SEVERITY_STYLES, STATUS_STYLES
from diagnosis.report.document import cluster_document
from healthcheck.cluster.errors import ClusterError, Refused
from healthcheck.host.console import Screen
from healthcheck.host.program import COULD_NOT, USAGE
from healthcheck.host.streams import complain, say, write_document, write_json
from healthcheck.model import Status
from healthcheck.text.moments import moment
from healthcheck.verdict.change import DEVICES

_REFRESH_SECONDS = 5.0
_STATUS_STYLES = {status.value: style for status, style in STATUS_STYLES.items()}
_SEVERITY_STYLES = {severity.name: style for severity, style in SEVERITY_STYLES.items()}
_COLUMNS = ("node", "status", "severity", "taint", "type", "looked", "tested", "reason", "message")
_WIDE_COLUMNS = ("since", "findings", "next step")
_UNBROKEN = ("status", "severity", "taint", "looked", "tested", "since")


def tell(wish: StatusWish) -> int:
    """Returns the exit code."""
    try:
        if wish.by_node:
            _show_allocation(wish)
            return 0
        unread: list[str] = []
        cluster = cluster_of(wish.access, unread.append)
        read = partial(read_fleet, cluster, unread, wish.selector)
        if wish.watch:
            _watch(read, wish)
        else:
            _show(read(), wish)
    except Refused as error:
        complain("status", f"-l {wish.selector!r}: {error}" if wish.selector else str(error))
        return USAGE if wish.selector else COULD_NOT
    except ClusterError as error:
        complain("status", str(error))
        return COULD_NOT
    return 0


def _show(fleet: Fleet, wish: StatusWish) -> None:
    match wish.output:
        case Output.JSON | Output.YAML:
            write_as(wish.output, asdict(fleet))
        case Output.HTML:
            write_document(fleet_page.text(fleet, datetime.now(UTC)))
        case Output.NAME:
            write_document("".join(f"node/{row.node}\n" for row in fleet.nodes))
        case Output.TABLE | Output.WIDE:
            Screen.of_rows().print(_page(fleet, wish))


def _show_allocation(wish: StatusWish) -> None:
    told = read_allocation(wish.access, wish.prometheus)
    if wish.output in (Output.JSON, Output.YAML):
        write_as(wish.output, cluster_document(told))
    else:
        screen = Screen.of_rows()
        for part in page(told, screen):
            screen.print(part, soft_wrap=isinstance(part, Text))
    if told.use_missing:
        raise ClusterError(told.use_missing)


def _watch(read: Callable[[], Fleet], wish: StatusWish) -> None:
    """Until Ctrl-C: a table stands and changes on a terminal; whoever else reads gets one after the other."""
    screen = Screen()
    if wish.output in (Output.TABLE, Output.WIDE) and screen.is_terminal:
        with Live(_page(read(), wish), console=screen, auto_refresh=False) as live:
            _again_and_again(read, lambda fleet: live.update(_page(fleet, wish), refresh=True))
    else:
        _show_next(read(), wish)
        _again_and_again(read, lambda fleet: _show_next(fleet, wish))


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


def _show_next(fleet: Fleet, wish: StatusWish) -> None:
    """One of many: JSON on a line of its own, YAML as a document of several."""
    if wish.output is Output.JSON:
        write_json(asdict(fleet))
    else:
        if wish.output is Output.YAML:
            write_document("---\n")
        _show(fleet, wish)
    sys.stdout.flush()


def _page(fleet: Fleet, wish: StatusWish) -> Group:
    table = _table(fleet.nodes, wish)
    return Group(table, Text.assemble("\n", *_budget_words(fleet))) if wish.headers else Group(table)


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


def _table(rows: list[Row], wish: StatusWish) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=wish.headers)
    is_wide = wish.output is Output.WIDE
    for name in (*_COLUMNS, *(_WIDE_COLUMNS if is_wide else ())):
        table.add_column(name, no_wrap=name in _UNBROKEN, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row), *(_wide_cells(row) if is_wide else ()))
    return table


def _cells(row: Row) -> Iterator[str | Text]:
    yield row.node
    yield Text(row.status or "-", _STATUS_STYLES.get(row.status, ""))
    yield Text(row.severity or "-", _SEVERITY_STYLES.get(row.severity, ""))
    by_devices = "GPUs" if row.taint == DEVICES else ""
    yield "yes" if row.tainted else Text("withheld", "bold red") if row.taint == "withheld" else by_devices
    yield row.instance_type
    yield Text(looked(row), "magenta" if row.silent or row.heartbeat_age_seconds is None else "")
    yield _tested(row)
    yield row.reason if row.status != Status.PASS else ""
    yield row.message if row.status != Status.PASS else row.released and f"released {row.released}"


def _wide_cells(row: Row) -> Iterator[str]:
    yield row.since
    yield ", ".join(dict.fromkeys(f"{one.reason} {one.subject}" for one in row.findings))
    yield " ".join(filter(None, (row.next_step.note, *row.next_step.commands)))


def _tested(row: Row) -> Text:
    """How long ago DCGM tested it, and what came of it."""
    if not row.tested_at:
        return Text("overdue" if row.overdue else "never", "magenta" if row.overdue else "")
    age = (datetime.now(UTC) - moment(row.tested_at)).total_seconds()
    words = [f"{row.test_result} {ago(age)}", *(["overdue"] if row.overdue else [])]
    return Text(", ".join(words), "magenta" if row.overdue else _STATUS_STYLES.get(row.test_result, ""))
