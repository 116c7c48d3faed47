"""The fleet as a table with one line per node, its slow GPUs with one line per GPU, and sentences below each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec.structs import replace
from rich.console import Group
from rich.text import Text

from gpu_healthcheck.cli.fleet import SILENT, Fleet, FleetFinding, FleetRow, ago, heartbeat_text, totals_of
from gpu_healthcheck.cli.fleet_faults import (
    UNHEARD,
    FaultPattern,
    SlowGpu,
    SlowGpus,
    fault_pattern,
    group_sentence,
    loss_text,
    unheard_group,
)
from gpu_healthcheck.cli.output.lines import COMMAND, MOST_NAMED, more_rows, print_table, skipped
from gpu_healthcheck.cli.words import STYLES
from gpu_healthcheck.healthcheck.host.console import Cell, FittedTable, Screen, TableColumn, fitted_table
from gpu_healthcheck.healthcheck.model import Severity, Status, counted
from gpu_healthcheck.healthcheck.node.evictions import EvictionState
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.text.moments import moment, moment_or_none
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict.taint_decision import DEVICES, WITHHELD

_SLOW_COLUMNS = (
    TableColumn("node", is_name=True),
    TableColumn("gpu"),
    TableColumn("loss"),
    TableColumn("reason", least=21),
    TableColumn("since", leaves=2),
    TableColumn("type", least=12, leaves=1),
    TableColumn("detail", least=16, leaves=3),
)


def print_slow(slow: SlowGpus, *, wide: bool, headers: bool) -> None:
    """Print the table and the totals."""
    screen = Screen()
    if slow.gpus:
        print_table(
            _SLOW_COLUMNS, map(_slow_cells, slow.gpus), "gpu-healthcheck status --slow", wide=wide, headers=headers
        )
    if headers:
        if slow.gpus:
            screen.print()
        for sentence in _slow_totals(slow):
            screen.print_words(Text(" ".join(sentence.plain.split()), sentence.style), indent=2)


def _slow_cells(gpu: SlowGpu) -> Iterator[Cell]:
    yield gpu.node, ""
    yield gpu.gpu, ""
    yield loss_text(gpu), ""
    yield ", ".join(gpu.reasons), STYLES.get(gpu.severity, "")
    since = moment_or_none(gpu.since)
    yield ago(max((datetime.now(UTC) - since).total_seconds(), 0.0)) if since else "", ""
    yield gpu.instance_type, ""
    yield gpu.detail, ""


def _slow_totals(slow: SlowGpus) -> Iterator[Text]:
    """Yield the number of slow GPUs, the nodes with several, and the nodes that could not be compared, by reason."""
    nodes = Counter(gpu.node for gpu in slow.gpus)
    records = f"by the records of {counted(slow.known, 'node')}; idle GPUs are not compared"
    if slow.gpus:
        yield Text(f"{counted(len(slow.gpus), 'slow GPU')} on {counted(len(nodes), 'node')}, {records}")
        several = [f"{node} ({number})" for node, number in nodes.most_common() if number > 1]
        if several:
            yield Text(f"nodes with several: {named(several, MOST_NAMED)}", "yellow")
    elif slow.known:
        yield Text(f"no GPU is slower than others, {records}", "green")
    elif not slow.not_compared:
        yield Text("there is no GPU node", "magenta")
    else:
        yield Text("no node could be compared, so it is unknown whether a GPU is slow", "magenta")
    for reason, _ in Counter(entry.reason for entry in slow.not_compared).most_common(MOST_NAMED):
        unknown = [entry.node for entry in slow.not_compared if entry.reason == reason]
        yield Text(f"not compared: {named(unknown, MOST_NAMED)}: {reason}", "magenta")
    yield from skipped(slow.passed_over)


_SHARED = "First find what these nodes share: power, cooling, a switch, a rollout."
_ONE_LINE = "Then one command line for all of them:"
_EACH = "Then `gpu-healthcheck status -o wide` has the step of each."
_COLUMNS = (
    TableColumn("node", is_name=True),
    TableColumn("status", least=8),
    TableColumn("severity", least=8, leaves=6),
    TableColumn("taint", leaves=5),
    TableColumn("type", least=16, leaves=1),
    TableColumn("checked", leaves=3),
    TableColumn("tested", leaves=2),
    TableColumn("reason", least=36),
    TableColumn("message", least=20, leaves=4),
)
_WIDE_COLUMNS = (*_COLUMNS, *map(TableColumn, ("since", "findings", "next step")))


def print_fleet(fleet: Fleet, *, wide: bool, headers: bool) -> None:
    """Print the table and the totals."""
    screen, pattern = Screen(), fault_pattern(fleet.nodes)
    common = list(_common_lines(fleet, pattern))
    if common and headers and screen.is_terminal:
        for sentence in common:
            _print_sentence(sentence, screen)
        screen.print()
    shown = (_without_step(row, pattern) if headers and screen.is_terminal else row for row in fleet.nodes)
    rows = (_cells(row, wide=wide) for row in shown)
    print_table(_WIDE_COLUMNS if wide else _COLUMNS, rows, "gpu-healthcheck status", wide=wide, headers=headers)
    if headers:
        screen.print()
        for sentence in (*(() if screen.is_terminal else common), *_totals(fleet)):
            _print_sentence(sentence, screen)


def _print_sentence(sentence: Text, screen: Screen) -> None:
    """Print a sentence in lines, and a command without line breaks."""
    if sentence.plain.startswith(COMMAND):
        screen.print(sentence, soft_wrap=True)
    else:
        screen.print_words(sentence, indent=2)


def _common_lines(fleet: Fleet, pattern: FaultPattern | None) -> Iterator[Text]:
    """Yield what nodes have in common, and the command line that replaces one step for each of the faulty nodes."""
    if silence := unheard_group(fleet.nodes):
        yield Text("".join(group_sentence(silence, UNHEARD)), "magenta")
    if pattern is not None:
        yield Text(f"{pattern.where}{pattern.size}", "bold red")
        yield Text(f"{_SHARED} {_ONE_LINE if pattern.command else _EACH}")
        if pattern.command:
            yield Text(f"{COMMAND}{pattern.command}")


def _without_step(row: FleetRow, pattern: FaultPattern | None) -> FleetRow:
    """Return the row without a step of its own if one command line is for all nodes of the pattern."""
    if pattern is None or row.node not in pattern.nodes:
        return row
    return replace(row, next_step=NextStep(note="The command line above is for this node, too."))


def watched(fleet: Fleet, screen: Screen, *, wide: bool, headers: bool) -> Group:
    """Return the worst nodes, and below them the totals: as many lines as the terminal shows, each in its width."""
    common = _common_lines(fleet, fault_pattern(fleet.nodes))
    totals = [*common, *_totals(fleet)][: screen.height // 2] if headers else []
    height = max(screen.height - 1 - len(totals), 1)
    table = _table(fleet.nodes[:height], screen, wide=wide, headers=headers)
    more: list[Text] = []
    if len(table.lines) + len(table.notes) > height or len(fleet.nodes) > height:
        most = max(height - len(table.notes) - headers - 1, 1)
        table = _table(fleet.nodes[:most], screen, wide=wide, headers=headers)
        more = [*more_rows(len(fleet.nodes) - most, "gpu-healthcheck status")]
    lines = [*table.lines, *table.notes, *more, *totals]
    for line in lines:
        line.truncate(screen.width, overflow="ellipsis")
    return Group(*lines)


def _table(rows: list[FleetRow], screen: Screen, *, wide: bool, headers: bool) -> FittedTable:
    cells = (list(_cells(row, wide=wide)) for row in rows)
    return fitted_table(_WIDE_COLUMNS if wide else _COLUMNS, cells, None if wide else screen.width, headers=headers)


def _totals(fleet: Fleet) -> Iterator[Text]:
    """Yield the number of nodes by status, worst first, the fleet budget, and nodes that need attention."""
    totals = totals_of(fleet)
    if fleet.nodes:
        by_status = ", ".join(f"{number} {status}" for status, number in totals.by_status.items())
        yield Text(f"{counted(totals.nodes, 'node')}: {by_status}")
    used, places, live = (
        "?" if number is None else number for number in (fleet.budget.used, fleet.budget.allowed, totals.live_agents)
    )
    have = "has" if totals.nodes == 1 else "have"
    yield Text(
        f"{live} of {counted(totals.nodes, 'node')} {have} a live agent; tainted nodes: {used}, at most {places}",
        "" if live in ("?", totals.nodes) else "magenta",
    )
    accepting = [row.node for row in fleet.nodes if row.accepts_work]
    if accepting:
        which = f"the first {MOST_NAMED}" if len(accepting) > MOST_NAMED else "them"
        accept, which = ("accepts", "it") if len(accepting) == 1 else ("accept", which)
        message = f"{counted(len(accepting), 'faulty node')} {accept} new work (limit of tainted nodes)."
        yield Text(f"{message} Cordon {which}:", "bold red")
        yield Text(f"{COMMAND}kubectl cordon {' '.join(accepting[:MOST_NAMED])}")
    if cordoned := [row.node for row in fleet.nodes if row.cordoned]:
        yield Text(f"cordoned: {named(cordoned, MOST_NAMED)}", "magenta")
    if running := [f"{row.node} ({row.run})" for row in fleet.nodes if row.run]:
        yield Text(f"a deep test or a reset runs on: {named(running, MOST_NAMED)}")
    if evictions := "; ".join(_evictions(fleet)):
        yield Text(f"evictions: {evictions}", "magenta")
    if fleet.unused_settings:
        keys = named(map(printable, fleet.unused_settings), MOST_NAMED)
        yield Text(f"settings that are not used: {keys}; `gpu-healthcheck verify` has the reasons", "bold red")
    if fleet.refused:
        pods = [
            f"{each.node} ({each.reason}, {counted(each.pods, 'pod')}"
            + (f", last {_age(each.last)})" if each.last else ")")
            for each in fleet.refused
        ]
        yield Text(f"the gate refused pods: {named(pods, MOST_NAMED)}", "magenta")
    stopped = [row.node for row in fleet.nodes if row.stops_pods]
    if stopped:
        yield Text(f"GPU pods can't start on: {named(stopped, MOST_NAMED)}", "bold red")
    reasons = Counter(row.overdue for row in fleet.nodes if row.overdue)
    for why, _ in reasons.most_common(MOST_NAMED):
        overdue = [row.node for row in fleet.nodes if row.overdue == why]
        yield Text(f"overdue for a deep test: {named(overdue, MOST_NAMED)}: {why}", "magenta")
    if (more := len(reasons) - MOST_NAMED) > 0:
        yield Text(f"overdue for a deep test for {more} other reasons: `-o json` lists them", "magenta")
    yield from skipped(fleet.passed_over)


def _evictions(fleet: Fleet) -> Iterator[str]:
    """Yield the evictions in each state. Refused pods and Slurm's are named: they need a person."""
    by_state = {
        state: [(row, each) for row in fleet.nodes for each in row.evictions if each.state == state]
        for state in EvictionState
    }
    for state, some in by_state.items():
        if some:
            nodes, due = {row.node for row, _ in some}, min((each.due for _, each in some if each.due), default="")
            where = f"{counted(len(some), 'pod')} on {counted(len(nodes), 'node')}"
            blocked = [f"{each.pod} on {row.node} by {each.why}" for row, each in some]
            yield {
                EvictionState.ANNOUNCED: f"{where} announced" + (f", next at {moment(due):%H:%M}Z" if due else ""),
                EvictionState.REQUESTED: f"{where} requested",
                EvictionState.REFUSED: f"{len(some)} refused: {named(blocked, MOST_NAMED)}",
                EvictionState.SLURM: f"{where} left to Slurm, which must drain {named(sorted(nodes), MOST_NAMED)}",
            }[state]


def _age(at: str) -> str:
    return ago((datetime.now(UTC) - moment(at)).total_seconds())


def _cells(row: FleetRow, *, wide: bool) -> Iterator[Cell]:
    is_pass, is_silent = row.status == Status.PASS, row.shown_status == SILENT
    reason = "" if is_pass else row.reason
    yield row.node, ""
    yield (SILENT, "magenta") if is_silent else (row.status or "-", STYLES.get(row.status, ""))
    is_unknown = row.status == Status.UNKNOWN and row.severity == Severity.PASS.name
    yield ("-", "") if is_unknown else (row.severity or "-", STYLES.get(row.severity, ""))
    yield _taint(row)
    yield row.instance_type, ""
    yield heartbeat_text(row), "magenta" if row.silent or row.heartbeat_age_seconds is None else ""
    yield _tested(row)
    yield reason or (f"last report: {row.status}" if is_silent else ""), ""
    yield (row.released and f"released {row.released}") if is_pass else row.message, ""
    if wide:
        yield row.since, ""
        yield ", ".join(dict.fromkeys(map(_finding, row.findings))), ""
        commands = " && ".join(row.next_step.commands)
        yield " ".join(filter(None, (row.next_step.note, commands and f"{COMMAND}{commands}"))), ""


def _finding(finding: FleetFinding) -> str:
    first = f" (first {_age(finding.since)})" if finding.since else ""
    return f"{finding.reason} {finding.subject}{first}"


def _taint(row: FleetRow) -> Cell:
    if row.tainted:
        return "yes", ""
    return ("limit", "bold red") if row.taint == WITHHELD else ("GPUs" if row.taint == DEVICES else "", "")


def _tested(row: FleetRow) -> Cell:
    """Return the age and result of the last DCGM diagnostic."""
    if not row.tested_at:
        return ("overdue", "magenta") if row.overdue else ("never", "")
    words = [f"{row.test_result} {_age(row.tested_at)}", *(["overdue"] if row.overdue else [])]
    return ", ".join(words), "magenta" if row.overdue else STYLES.get(row.test_result, "")
