"""Render the diagnosis for a terminal, in lines of its width. No name or command is broken.

A longer name or command exceeds the line, and the terminal wraps it. When copied, it is complete.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from gpu_healthcheck.diagnosis.answers.chain import Chain, LinkState
from gpu_healthcheck.diagnosis.answers.hami_parts import InstallationTable
from gpu_healthcheck.diagnosis.answers.node_inventory import InventoryRow
from gpu_healthcheck.diagnosis.answers.timeline import TimelineRow
from gpu_healthcheck.diagnosis.facts.components import Health
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.diagnosis.report.problem_groups import ProblemGroup, problem_groups
from gpu_healthcheck.healthcheck.host.console import wrapped
from gpu_healthcheck.healthcheck.text.naming import named

_STYLES = {CauseSeverity.HIGH: "bold red", CauseSeverity.MEDIUM: "bold yellow", CauseSeverity.LOW: "bold blue"}
_MARKS = {
    LinkState.FINE: "✓",
    LinkState.BROKEN: "✗",
    LinkState.WAITING: "…",
    LinkState.UNKNOWN: "?",
    LinkState.NOT_REACHED: "·",
}
_STATE_STYLES = {
    LinkState.FINE: "green",
    LinkState.BROKEN: "bold red",
    LinkState.WAITING: "yellow",
    LinkState.UNKNOWN: "yellow",
    LinkState.NOT_REACHED: "dim",
}
_HEALTH_STYLES = {Health.WORKING: "green", Health.PARTLY: "bold yellow", Health.DOWN: "bold red"}
_MOST_AFFECTED, _MOST_ALIKE = 5, 20
_NARROWEST, _WIDEST_LABEL = 40, 28
_KEPT = "\N{NO-BREAK SPACE}"
"""Replaces spaces in commands while lines are wrapped."""


def page(report: Report, width: int) -> Iterator[Text]:
    """Yield the lines to print in order, for a width of `width` columns."""
    diagnosis = report.diagnosis
    if report.recognised:
        yield from _lines(f"recognised: {report.recognised_parts}", width, 0, style="dim")
    if report.node:
        yield from _node(report.node, width)
    for installation in report.hami:
        yield from _installation(installation, width)
    for chain in report.chains:
        yield from _chain(chain, width)
    problems = problem_groups(diagnosis.problems)
    if not problems:
        yield from _lines(report.nothing, width, 0)
    for number, problem in enumerate(problems, start=1):
        yield Text()
        yield from _problem(problem, f"{number}. ", 0, width, report.own)
    if len(problems) > 1:
        severities = Counter(problem.found.cause.severity for problem in diagnosis.problems)
        parts = [f"{severities[each]} {each.name.lower()}" for each in reversed(CauseSeverity) if severities[each]]
        yield from (Text(), Text(f"{severities.total()} problems ({', '.join(parts)}), the worst first.", "bold"))
    ranks = report.ranks.lines if report.ranks is not None else ()
    for title, sentences in (("NCCL's ranks", ranks), ("Not visible", report.unseen)):
        yield from (Text(title, "bold"),) if sentences else ()
        for sentence in sentences:
            yield from _lines(sentence, width, 2)
    if report.changes is not None:
        yield Text("Changed since" if report.changes else "No change that affects GPU pods.", "bold")
        for change in report.changes:
            yield from _lines(str(change), width, 2)
    yield from _timeline(report.timeline, width)


def _timeline(rows: Sequence[TimelineRow], width: int) -> Iterator[Text]:
    if rows:
        yield Text("Timeline", "bold")
    day = None
    for row in rows:
        time = f"  {'' if row.at.date() == day else f'{row.at:%Y-%m-%d}':10} {row.at:%H:%M:%S}Z  "
        line = Text.assemble((time, "dim"), row.what, (f"  ({row.source})", "dim"))
        yield from wrapped(line, width, len(time))
        day = row.at.date()


def _node(rows: Sequence[InventoryRow], width: int) -> Iterator[Text]:
    indent = min(max(len(row.what) for row in rows), _WIDEST_LABEL) + 2
    for row in rows:
        line = Text.assemble((f"{row.what}  ".ljust(indent), "dim"), row.value, (f"  ({row.by})", "dim"))
        yield from wrapped(line, width, indent)


def _installation(table: InstallationTable, width: int) -> Iterator[Text]:
    yield Text(f"HAMi {table.name}", "bold")
    for part in table.parts:
        line = Text(f"  {part.what}")
        if part.health is not None:
            line.append(f" {part.status}", _HEALTH_STYLES.get(part.health, "dim"))
        line.append(f" {part.version}" if part.version else "", "dim")
        yield from _in_column(line, part.detail, width)


def _in_column(line: Text, words: str, width: int, style: str = "dim") -> Iterator[Text]:
    """Append the words after a colon, or yield them below if the line is too short."""
    if words and line.cell_len + len(words) + 2 <= width:
        yield line.append(f": {words}", style)
    else:
        yield line
        yield from _lines(words, width, 6, style=style)


def _chain(chain: Chain, width: int) -> Iterator[Text]:
    yield Text(chain.pod, "bold")
    for step in chain.steps:
        line = Text(f"  {_MARKS[step.state]} ", _STATE_STYLES[step.state])
        line.append(step.link.value, "dim" if step.state is LinkState.NOT_REACHED else "")
        yield from _in_column(line, step.reason, width, _STATE_STYLES[step.state] if step.problems else "dim")


def _problem(group: ProblemGroup, number: str, depth: int, width: int, own: frozenset[str] | None) -> Iterator[Text]:
    found, indent = group.problem.found, 3 * depth
    title = Text(" " * indent + number)
    title.append(found.cause.severity.name.lower().ljust(7), _STYLES[found.cause.severity])
    title.append(f"{found.cause.name} ", "bold")
    title.append(found.subject if not group.others else f"{len(group.subjects)} times")
    if found.certainty is Certainty.LIKELY:
        title.append(" (likely)", "dim")
    yield title
    for line in _facts(group):
        yield from _lines(line, width, indent + 3)
    if group.affected and own is None:
        yield from _lines(f"affects: {named(group.affected, _MOST_AFFECTED)}", width, indent + 3)
    elif others := [name for name in group.affected if name not in (own or ())]:
        yield Text(_in_one_line(" " * (indent + 3) + "also affects: ", others, width))
    for step in found.steps:
        yield from _lines(step, width, indent + 3, "→ ", style="green")
    for child in group.consequences:
        yield from _problem(child, "↳ ", depth + 1, width, own)
    if group.unlike:
        more = f"… and {len(group.unlike)} more, with other details: {named(group.unlike, _MOST_ALIKE)}"
        yield from _lines(more, width, indent + 3)


def _facts(group: ProblemGroup) -> Iterator[str]:
    found = group.problem.found
    yield found.cause.means
    if group.others:
        yield f"in {named(group.subjects, _MOST_ALIKE)}; the first one:"
    yield from found.evidence
    if group.problem.evidence_left_out:
        yield f"… and {group.problem.evidence_left_out} more"


def _in_one_line(begin: str, names: Sequence[str], width: int) -> str:
    """Return as many of the names as one line holds, at least one, and the number of the others."""
    lines = (begin + named(names, most) for most in range(_MOST_AFFECTED, 1, -1))
    return next((line for line in lines if len(line) <= width), begin + named(names, 1))


def _lines(words: str, width: int, indent: int, first: str = "", *, style: str = "") -> Iterator[Text]:
    """Yield lines wrapped between words, but never within a command.

    Continuation lines are indented to the text of the first line.
    """
    parts = words.split("`")
    whole = len(parts) % 2 == 1
    kept = "`".join(text.replace(" ", _KEPT) if whole and place % 2 else text for place, text in enumerate(parts))
    begin = " " * indent
    for line in textwrap.wrap(
        kept,
        max(width, _NARROWEST),
        initial_indent=begin + first,
        subsequent_indent=begin + " " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    ):
        yield Text(line.replace(_KEPT, " "), style)
