"""The diagnosis on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnosis.cause import Certainty, Severity
from diagnosis.chain import Chain, State
from diagnosis.diagnose import Problem
from diagnosis.node_inventory import Row
from diagnosis.report.whole import Report

_STYLES = {Severity.HIGH: "bold red", Severity.MEDIUM: "bold yellow", Severity.LOW: "bold blue"}
_MARKS = {State.FINE: "✓", State.BROKEN: "✗", State.WAITING: "…", State.NOT_REACHED: "·"}
_STATE_STYLES = {State.FINE: "green", State.BROKEN: "bold red", State.WAITING: "yellow", State.NOT_REACHED: "dim"}
_MOST_AFFECTED = 5


def page(report: Report) -> Iterator[RenderableType]:
    """What to print, in order."""
    diagnosis = report.diagnosis
    if report.node:
        yield _node(report.node)
    for one in report.chains:
        yield from _chain(one)
    if not diagnosis.problems:
        yield Text("Nothing found." if not diagnosis.unseen else "Nothing found in what could be seen.")
    for number, problem in enumerate(diagnosis.problems, start=1):
        yield from _problem(problem, f"{number}. ", 0)
    if diagnosis.unseen:
        yield Text("Not visible", "bold")
        for unseen in diagnosis.unseen:
            yield Padding(Text(f"{unseen.kind}: {unseen.why}; hides {unseen.hides}"), (0, 0, 0, 2))
    if report.changes is not None:
        yield Text("Changed since" if report.changes else "Nothing has changed that a GPU pod depends on.", "bold")
        yield from (Padding(Text(str(change)), (0, 0, 0, 2)) for change in report.changes)


def _node(rows: Iterable[Row]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold")
    table.add_column(style="dim", overflow="fold")
    for one in rows:
        table.add_row(one.what, one.value, one.by)
    return table


def _chain(one: Chain) -> Iterator[Text | Padding]:
    yield Text(one.pod, "bold")
    for step in one.steps:
        line = Text(f"{_MARKS[step.state]} ", _STATE_STYLES[step.state])
        line.append(step.link.value, "dim" if step.state is State.NOT_REACHED else "")
        if why := ", ".join(problem.found.cause.name for problem in step.problems) or step.seen:
            line.append(f": {why}", _STATE_STYLES[step.state] if step.problems else "dim")
        yield Padding(line, (0, 0, 0, 2))


def _problem(one: Problem, number: str, depth: int) -> Iterator[Text | Padding]:
    found, indent = one.found, 3 * depth
    title = Text(number)
    title.append(found.cause.severity.name.lower().ljust(7), _STYLES[found.cause.severity])
    title.append(f"{found.cause.name} ", "bold")
    title.append(found.subject)
    if found.certainty is Certainty.LIKELY:
        title.append(" (likely)", "dim")
    yield Padding(title, (1 if not depth else 0, 0, 0, indent))
    lines = [found.cause.means, *found.evidence]
    if one.evidence_left_out:
        lines.append(f"… and {one.evidence_left_out} more")
    if found.affected not in ((), (found.subject,)):
        more = len(found.affected) - _MOST_AFFECTED
        lines.append("keeps: " + ", ".join(found.affected[:_MOST_AFFECTED]) + (f" and {more} more" if more > 0 else ""))
    for line in lines:
        yield Padding(Text(line), (0, 0, 0, indent + 3))
    for step in found.remedy or (found.cause.remedy,):
        yield Padding(Text(f"→ {step}", "green"), (0, 0, 0, indent + 3))
    for child in one.consequences:
        yield from _problem(child, "↳ ", depth + 1)
