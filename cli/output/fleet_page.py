"""`gpu-healthcheck status -o html`: the fleet as one HTML file, a square per node and the facts below. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from msgspec import Struct

from cli.fleet import Fleet, FleetRow, looked
from diagnosis.report.one_file import rendered
from healthcheck.model import Severity, Status
from healthcheck.text.moments import timestamp
from healthcheck.text.naming import named
from healthcheck.text.printable import printable
from healthcheck.verdict.taint_decision import DEVICES

_MOST_REASONS = 6
"""Most reasons shown for one node."""
_MOST_ROWS, _MOST_NAMES = 100, 10
_LONGEST, _LONGEST_STEP = 120, 400
_BLIND = "could not check"
_LARGE, _MIDDLE = 60, 600
"""Largest number of nodes for large and for middle squares."""
KINDS = {
    "isolate": "fail: ISOLATE",
    "reboot": "fail: REBOOT",
    "reset": "fail: RESET",
    "unknown": "unknown: a check could not run",
    "untold": "no agent has reported",
    "warn": "warn: MONITOR",
    "pass": "pass",
}
"""CSS class of a square, and its meaning; worst first."""


class NodeSquare(Struct, frozen=True):
    """One node on the HTML page. Its texts are printed there as they are."""

    place: int
    kind: str
    title: str
    """Tooltip of the square, also for screen readers."""
    node: str
    instance_type: str
    status: str
    severity: str
    reasons: tuple[tuple[str, str], ...]
    """Reasons, each with its subjects."""
    left_out: int
    """Number of further reasons."""
    since: str
    taint: str
    looked: str
    silent: bool
    note: str
    commands: tuple[str, ...]


class ReasonSpread(Struct, frozen=True):
    """One reason and its nodes. `severity` is the worst severity, or "could not check"."""

    reason: str
    severity: str
    nodes: tuple[tuple[int, str], ...]
    """Positions on the page and names of the nodes, worst first."""


def text(fleet: Fleet, at: datetime) -> str:
    squares = [_square(place, row) for place, row in enumerate(fleet.nodes)]
    reasons = _spread(fleet.nodes)
    return rendered(
        "cli.output",
        "fleet.html.j2",
        at=timestamp(at),
        squares=squares,
        size="large" if len(squares) <= _LARGE else "middle" if len(squares) <= _MIDDLE else "small",
        legend=[(kind, KINDS[kind], number) for kind, number in _counted(squares)],
        silent=sum(row.silent for row in fleet.nodes),
        withheld=sum(row.taint == "withheld" for row in fleet.nodes),
        overdue=sum(bool(row.overdue) for row in fleet.nodes),
        budget=fleet.budget,
        reasons=reasons[:_MOST_ROWS],
        reasons_left_out=max(len(reasons) - _MOST_ROWS, 0),
        passed_over=[printable(name) for name in fleet.passed_over[:_MOST_ROWS]],
        passed_over_left_out=max(len(fleet.passed_over) - _MOST_ROWS, 0),
        most=_MOST_NAMES,
        shown=_shown,
    )


def _shown(words: str) -> str:
    return printable(words, _LONGEST)


def _counted(squares: list[NodeSquare]) -> Iterator[tuple[str, int]]:
    numbers = Counter(square.kind for square in squares)
    return ((kind, numbers[kind]) for kind in KINDS if numbers[kind])


def _square(place: int, row: FleetRow) -> NodeSquare:
    taint = "yes" if row.tainted else {"withheld": "withheld", DEVICES: "GPUs"}.get(row.taint, "")
    reasons = _reasons(row)
    entries = tuple((_shown(name), _where(subjects)) for name, subjects in islice(reasons.items(), _MOST_REASONS))
    left_out = max(len(reasons) - _MOST_REASONS, 0)
    return NodeSquare(
        place=place,
        kind=_kind(row),
        title=_title(row, taint, [name for name, _ in entries], left_out),
        node=_shown(row.node),
        instance_type=_shown(row.instance_type),
        status=_shown(row.status) or "-",
        severity=_shown(row.severity) or "-",
        reasons=entries,
        left_out=left_out,
        since=row.since.replace("T", " ").replace("Z", ""),
        taint=taint,
        looked=looked(row),
        silent=row.silent,
        note=_step(row.next_step.note),
        commands=tuple(map(_step, row.next_step.commands)),
    )


def _title(row: FleetRow, taint: str, reasons: list[str], left_out: int) -> str:
    tainted = {"yes": "tainted", "GPUs": "GPUs tainted"}.get(taint, taint)
    silent = "its heartbeat is overdue" if row.silent else ""
    messages = ("" if row.status == Status.PASS else row.severity, *reasons, f"{left_out} more" if left_out else "")
    words = filter(None, (row.status or KINDS["untold"], *messages, tainted, silent))
    return printable(f"{row.node}: {', '.join(words)}", 3 * _LONGEST)


def _step(words: str) -> str:
    return printable(words, _LONGEST_STEP)


def _kind(row: FleetRow) -> str:
    if row.status == Status.FAIL:
        return row.severity.lower() if row.severity.lower() in KINDS else "reset"
    return row.status if row.status in KINDS else "untold"


def _reasons(row: FleetRow) -> dict[str, list[str]]:
    """Return the subjects by reason; without findings in the record, the reason of the condition."""
    fields: dict[str, list[str]] = {}
    for finding in row.findings:
        fields.setdefault(finding.reason, []).append(finding.subject)
    for cause in row.unobserved:
        fields.setdefault(cause, []).append(_BLIND)
    if not fields and row.status not in ("", Status.PASS) and row.reason:
        fields[row.reason] = []
    return fields


def _where(subjects: list[str]) -> str:
    return named(map(_shown, subjects), 1)


def _spread(rows: list[FleetRow]) -> list[ReasonSpread]:
    """Return the reasons, worst first, then by number of nodes."""
    nodes: dict[str, list[tuple[int, str]]] = {}
    worst: dict[str, Severity] = {}
    for place, row in enumerate(rows):
        for reason in _reasons(row):
            nodes.setdefault(reason, []).append((place, row.node))
            worst[reason] = max(worst.get(reason, Severity.PASS), _severity(row, reason))
    messages = sorted(nodes, key=lambda reason: (-worst[reason], -len(nodes[reason]), reason))
    return [
        ReasonSpread(reason, worst[reason].name if worst[reason] else _BLIND, tuple(nodes[reason]))
        for reason in messages
    ]


def _severity(row: FleetRow, reason: str) -> Severity:
    """Return the severity; PASS if a check could not run, because that is not a result about the hardware."""
    known = [finding.severity for finding in row.findings if finding.reason == reason]
    messages = known or ([] if reason in row.unobserved else [row.severity])
    return max((Severity.__members__.get(text, Severity.PASS) for text in messages), default=Severity.PASS)
