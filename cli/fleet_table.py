"""Output of `gpu-healthcheck status`: a table, also live, or a document."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

from msgspec import to_builtins
from msgspec.structs import astuple
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli import columns
from cli.access import cluster_of
from cli.fleet import Fleet, FleetRow, ago, looked, read_fleet
from cli.json_documents import write_as
from cli.status import StatusFormat, StatusOptions
from cli.words import SEVERITY_STYLES, STATUS_STYLES
from healthcheck.cluster.errors import ClusterError, Refused
from healthcheck.host.console import Screen
from healthcheck.host.program import COULD_NOT, USAGE
from healthcheck.host.streams import complain, say, write_document, write_json
from healthcheck.model import Status, counted
from healthcheck.text.moments import moment
from healthcheck.text.naming import named
from healthcheck.verdict.taint_decision import DEVICES

Cell = tuple[str, str]
"""Texts and their styles."""
_REFRESH_SECONDS = 5.0
_MOST_ROWS, _MOST_NAMED = 500, 20
"""Most named nodes: on a terminal, and in one sentence."""
_STATUS_STYLES = {status.value: style for status, style in STATUS_STYLES.items()}
_SEVERITY_STYLES = {severity.name: style for severity, style in SEVERITY_STYLES.items()}
_COLUMNS = ("node", "status", "severity", "taint", "type", "looked", "tested", "reason", "message")
_WIDE_COLUMNS = ("since", "findings", "next step")
_UNBROKEN = ("status", "severity", "taint", "looked", "tested", "since")


def tell(options: StatusOptions) -> int:
    """Returns the exit code."""
    try:
        if options.by_node:
            _show_allocation(options)
            return 0
        unread: list[str] = []
        cluster = cluster_of(options.access, unread.append)
        read = partial(read_fleet, cluster, unread, options.selector)
        if options.watch:
            _watch(read, options)
        else:
            _show(read(), options)
    except Refused as error:
        complain("status", f"-l {options.selector!r}: {error}" if options.selector else str(error))
        return USAGE if options.selector else COULD_NOT
    except ClusterError as error:
        complain("status", str(error))
        return COULD_NOT
    return 0


def _show(fleet: Fleet, options: StatusOptions) -> None:
    match options.output:
        case StatusFormat.JSON:
            write_json(fleet, indent=2)
        case StatusFormat.YAML:
            write_as(options.output, to_builtins(fleet))
        case StatusFormat.HTML:
            from cli import fleet_page  # noqa: PLC0415 - no other form needs its templates

            write_document(fleet_page.text(fleet, datetime.now(UTC)))
        case StatusFormat.NAME:
            write_document("".join(f"node/{row.node}\n" for row in fleet.nodes))
        case StatusFormat.TABLE | StatusFormat.WIDE:
            _print(fleet, options)


def _show_allocation(options: StatusOptions) -> None:
    from cli.allocation_table import page, read_allocation  # noqa: PLC0415 - only here
    from diagnosis.report.document import cluster_document  # noqa: PLC0415 - only here

    allocation = read_allocation(options.access, options.prometheus)
    if options.output in (StatusFormat.JSON, StatusFormat.YAML):
        write_as(options.output, cluster_document(allocation))
    else:
        screen = Screen.of_rows()
        for part in page(allocation, screen):
            screen.print(part, soft_wrap=isinstance(part, Text))
    if allocation.use_missing:
        raise ClusterError(allocation.use_missing)


def _watch(read: Callable[[], Fleet], options: StatusOptions) -> None:
    """Print the fleet until Ctrl-C: one updated table on a terminal, otherwise one output after the other."""
    screen = Screen()
    if options.output in (StatusFormat.TABLE, StatusFormat.WIDE) and screen.is_terminal:
        with Live(_page(read(), options, screen.height), console=screen, auto_refresh=False) as live:
            _again_and_again(read, lambda fleet: live.update(_page(fleet, options, screen.height), refresh=True))
    else:
        _show_next(read(), options)
        _again_and_again(read, lambda fleet: _show_next(fleet, options))


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


def _show_next(fleet: Fleet, options: StatusOptions) -> None:
    """Print one of several documents: a JSON line, or a YAML document with a separator."""
    if options.output is StatusFormat.JSON:
        write_json(fleet)
    else:
        if options.output is StatusFormat.YAML:
            write_document("---\n")
        _show(fleet, options)
    sys.stdout.flush()


def _print(fleet: Fleet, options: StatusOptions) -> None:
    """Print a table on a terminal, otherwise one line per node."""
    screen = Screen()
    if screen.is_terminal:
        screen.print(_page(fleet, options, _MOST_ROWS))
        return
    head = [_columns(options)] if options.headers else []
    write_document(columns.text([*head, *([words for words, _ in _cells(row, options)] for row in fleet.nodes)]))
    if options.headers:
        screen.print(Text.assemble("\n", *_words(fleet)), soft_wrap=True)


def _page(fleet: Fleet, options: StatusOptions, most: int) -> Group:
    """Print the worst nodes, and the number of the others."""
    parts: list[RenderableType] = [_table(fleet.nodes[:most], options)]
    if (more := len(fleet.nodes) - most) > 0:
        parts.append(Text(f"\nand {more} more: `gpu-healthcheck status | less` lists all", "dim"))
    if options.headers:
        parts.append(Text.assemble("\n", *_words(fleet)))
    return Group(*parts)


def _words(fleet: Fleet) -> Iterator[Text]:
    yield _counted(fleet.nodes)
    yield from _budget_words(fleet)


def _counted(rows: list[FleetRow]) -> Text:
    """Return the number of nodes by status, worst first."""
    numbers = Counter(row.status or "no verdict" for row in rows)
    message = ", ".join(f"{number} {status}" for status, number in numbers.items())
    return Text(f"{counted(len(rows), 'node')}: {message}\n" if rows else "")


def _budget_words(fleet: Fleet) -> Iterator[Text]:
    used, places, size = ("?" if entry is None else str(entry) for entry in astuple(fleet.budget))
    have = "node has" if size == "1" else "nodes have"
    yield Text(f"{used} of {places} slots for tainted nodes are in use; {size} {have} an agent")
    withheld = [row.node for row in fleet.nodes if row.taint == "withheld"]
    if withheld:
        yield Text(f"\nnot tainted although their verdicts require it: {named(withheld, _MOST_NAMED)}", "bold red")
    overdue: dict[str, list[str]] = {}
    for row in fleet.nodes:
        overdue.setdefault(row.overdue, []).append(row.node)
    overdue.pop("", None)
    for why in sorted(overdue, key=lambda why: (-len(overdue[why]), why))[:_MOST_NAMED]:
        yield Text(f"\noverdue for a deep test: {named(overdue[why], _MOST_NAMED)}: {why}", "magenta")
    if (more := len(overdue) - _MOST_NAMED) > 0:
        yield Text(f"\noverdue for a deep test for {more} other reasons: `-o json` lists them", "magenta")
    for what in fleet.passed_over[:_MOST_NAMED]:
        yield Text(f"\nskipped: {what}", "magenta")
    if (more := len(fleet.passed_over) - _MOST_NAMED) > 0:
        yield Text(f"\nskipped: {more} more: `-o json` lists them", "magenta")


def _table(rows: list[FleetRow], options: StatusOptions) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=options.headers)
    for name in _columns(options):
        table.add_column(name, no_wrap=name in _UNBROKEN, overflow="fold")
    for row in rows:
        table.add_row(*(Text(words, style) for words, style in _cells(row, options)))
    return table


def _columns(options: StatusOptions) -> tuple[str, ...]:
    return (*_COLUMNS, *(_WIDE_COLUMNS if options.output is StatusFormat.WIDE else ()))


def _cells(row: FleetRow, options: StatusOptions) -> Iterator[Cell]:
    is_pass = row.status == Status.PASS
    yield row.node, ""
    yield row.status or "-", _STATUS_STYLES.get(row.status, "")
    yield row.severity or "-", _SEVERITY_STYLES.get(row.severity, "")
    yield _taint(row)
    yield row.instance_type, ""
    yield looked(row), "magenta" if row.silent or row.heartbeat_age_seconds is None else ""
    yield _tested(row)
    yield "" if is_pass else row.reason, ""
    yield (row.released and f"released {row.released}") if is_pass else row.message, ""
    if options.output is StatusFormat.WIDE:
        yield row.since, ""
        yield ", ".join(dict.fromkeys(f"{finding.reason} {finding.subject}" for finding in row.findings)), ""
        yield " ".join(filter(None, (row.next_step.note, *row.next_step.commands))), ""


def _taint(row: FleetRow) -> Cell:
    if row.tainted:
        return "yes", ""
    return ("withheld", "bold red") if row.taint == "withheld" else ("GPUs" if row.taint == DEVICES else "", "")


def _tested(row: FleetRow) -> Cell:
    """Return the age and result of the last DCGM diagnostic."""
    if not row.tested_at:
        return ("overdue", "magenta") if row.overdue else ("never", "")
    age = (datetime.now(UTC) - moment(row.tested_at)).total_seconds()
    words = [f"{row.test_result} {ago(age)}", *(["overdue"] if row.overdue else [])]
    return ", ".join(words), "magenta" if row.overdue else _STATUS_STYLES.get(row.test_result, "")
