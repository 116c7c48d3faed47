"""`gpu-healthcheck status -o html`: the fleet as one HTML file, a square per node and the facts below. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice

from msgspec import Struct

from gpu_healthcheck.cli import index
from gpu_healthcheck.cli.fleet import SILENT, Fleet, FleetFinding, FleetRow, heartbeat_text, totals_of
from gpu_healthcheck.cli.fleet_faults import UNHEARD, fault_pattern, group_sentence, loss_text, rank, unheard_group
from gpu_healthcheck.cli.node_groups import Concentration, dividing
from gpu_healthcheck.diagnosis.report.pages import render_html
from gpu_healthcheck.healthcheck.model import Severity, Status, counted
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict.taint_decision import DEVICES, WITHHELD

_MOST_REASONS, _MOST_SUBJECTS = 6, 8
"""Most reasons shown for one node, and most subjects of one reason."""
_MOST_ROWS, _MOST_NAMES = 100, 10
_LONGEST, _LONGEST_STEP = 120, 400
_BLIND = "could not check"
_LARGE, _MIDDLE = 60, 600
"""Largest number of nodes for large and for middle squares."""
_MOST_CALM = 24
"""Most groups without a faulty, unknown or silent node that are shown; more are folded."""
_REPOSITORY = "https://github.com/aws-samples/gpu-healthcheck/blob/main/"
_PAGES = ("docs/findings.md", "docs/could-not-check.md")
_CODE = re.compile(r"(s?xid)\d+(?:repeated)?\Z", re.ASCII)
KINDS = {
    "isolate": "fail: ISOLATE",
    "reboot": "fail: REBOOT",
    "reset": "fail: RESET",
    "unknown": "unknown: a check could not run",
    "unreported": "no agent has reported",
    "warn": "warn: MONITOR",
    "pass": "pass",
}
"""CSS class of a square, and its meaning; worst first."""
_FAULTY = ("isolate", "reboot", "reset")


class ReasonEntry(Struct, frozen=True):
    """One reason of a node, and its subjects."""

    words: str
    """What happened, in plain words; '' for a check that could not run."""
    reason: str
    link: str
    """Address of the reason in the documentation; '' if it has none."""
    severity: str
    subjects: tuple[tuple[str, ...], ...]
    """Names of each subject; the page breaks lines between them."""
    left_out: int
    """Number of further subjects."""
    first: str
    """Time of its first observation, if that was before the present severity."""


class NodeSquare(Struct, frozen=True):
    """One node on the HTML page, with the parts of its row that need more than formatting."""

    place: int
    kind: str
    title: str
    """Tooltip of the square, also for screen readers."""
    row: FleetRow
    groups: tuple[str, ...]
    reasons: tuple[ReasonEntry, ...]
    left_out: int
    """Number of further reasons."""
    taint: str

    @property
    def calm(self) -> bool:
        """Whether nothing is to be done for the node."""
        return self.kind == "pass" and not self.row.silent


class SquareGroup(Struct, frozen=True):
    """Nodes with the same label, worst first."""

    name: str
    squares: list[NodeSquare]
    plain: int
    """Number of further nodes that pass, drawn without a link."""
    size: int
    faulty: int
    calm: bool
    """Whether no node is faulty, unknown or silent."""
    marked: bool
    """Whether the faults of the fleet concentrate here."""

    @property
    def width(self) -> str:
        """CSS class by the number of squares."""
        return "few" if self.size <= 16 else "some" if self.size <= 64 else "many"


class ReasonSpread(Struct, frozen=True):
    """One reason and its nodes. `severity` is the worst severity, or "could not check"."""

    reason: str
    link: str
    severity: str
    nodes: tuple[tuple[int, str], ...]
    """Positions on the page and names of the nodes, worst first."""


def text(fleet: Fleet, at: datetime, cluster: str = "") -> str:
    """Return the page. `cluster` is the name of the kubeconfig's context."""
    nodes = [row.groups for row in fleet.nodes]
    groupings = dividing(nodes)
    link = _links()
    squares = [_square(place, row, groupings, link) for place, row in enumerate(fleet.nodes)]
    faulty = [square.place for square in squares if square.kind in _FAULTY]
    numbers = Counter(square.kind for square in squares if not square.row.silent or square.kind in _FAULTY)
    pattern, silence = fault_pattern(fleet.nodes), unheard_group(fleet.nodes)
    reasons, slow = _spread(fleet.nodes, link), rank(fleet)
    places = {row.node: place for place, row in enumerate(fleet.nodes)}
    return render_html(
        "gpu_healthcheck.cli.output",
        "fleet.html.j2",
        at=timestamp(at),
        cluster=_shown(cluster),
        name=_shown(cluster.rpartition("/")[2] if cluster.startswith("arn:") else cluster),
        squares=squares,
        faulty=len(faulty),
        size="large" if len(squares) <= _LARGE else "middle" if len(squares) <= _MIDDLE else "small",
        legend=[(kind, KINDS[kind], numbers[kind]) for kind in KINDS if numbers[kind]],
        totals=totals_of(fleet),
        silent=sum(row.shown_status == SILENT for row in fleet.nodes),
        accepting=sum(row.accepts_work for row in fleet.nodes),
        overdue=sum(bool(row.overdue) for row in fleet.nodes),
        budget=fleet.budget,
        concentrations=[
            *([(pattern.where, pattern.size)] if pattern else []),
            *([group_sentence(silence, UNHEARD)] if silence else []),
        ],
        views=list(_views(squares, nodes, groupings, pattern.found if pattern else None)),
        most_calm=_MOST_CALM,
        reasons=reasons[:_MOST_ROWS],
        reasons_left_out=max(len(reasons) - _MOST_ROWS, 0),
        slow=slow.gpus[:_MOST_ROWS],
        slow_left_out=max(len(slow.gpus) - _MOST_ROWS, 0),
        not_compared=len(slow.not_compared),
        passed_over=[printable(name) for name in fleet.passed_over[:_MOST_ROWS]],
        passed_over_left_out=max(len(fleet.passed_over) - _MOST_ROWS, 0),
        most=_MOST_NAMES,
        shown=_shown,
        step=partial(printable, longest=_LONGEST_STEP),
        link=link,
        loss_text=loss_text,
        heartbeat_text=heartbeat_text,
        places=places,
        passed=Severity.PASS.name,
    )


def _shown(words: str) -> str:
    return printable(words, _LONGEST)


def _links() -> Callable[[str], str]:
    """Return the function from a reason, or a cause, to its address in the documentation."""
    known = {name: f"docs/findings.md#{name}" for name in index.reasons()}
    words = index.words()

    def link(reason: str) -> str:
        name = reason.lower()
        pages = (entry.more for entry in words.get(name, ()) if entry.more.startswith(_PAGES))
        code = _CODE.match(name)
        page = f"docs/findings.md#{code[1]}" if code else known.get(name) or next(pages, "")
        return f"{_REPOSITORY}{page}" if page else ""

    return link


def _views(
    squares: list[NodeSquare],
    nodes: list[Mapping[str, str]],
    groupings: list[str],
    found: Concentration | None,
) -> Iterator[tuple[str, list[SquareGroup]]]:
    """Yield the squares in each grouping, first the one in which the faults concentrate, last all in one group.

    In a large fleet the squares of healthy nodes have a link in the first grouping only.
    """
    ordered = sorted(groupings, key=lambda grouping: found is None or grouping != found.grouping)
    for grouping in [*ordered, ""]:
        linked = len(squares) <= _MIDDLE or grouping == (ordered or [""])[0]
        members: dict[str, list[NodeSquare]] = {}
        for square in squares:
            members.setdefault(nodes[square.place].get(grouping, ""), []).append(square)
        is_found = found is not None and grouping == found.grouping
        groups = [
            _group(name, some, linked=linked, marked=is_found and found is not None and name == found.group)
            for name, some in members.items()
        ]
        yield grouping, sorted(groups, key=lambda group: (-group.faulty, group.calm, not group.name, group.name))


def _group(name: str, squares: list[NodeSquare], *, linked: bool, marked: bool) -> SquareGroup:
    drawn = squares if linked else [square for square in squares if not square.calm]
    return SquareGroup(
        _shown(name),
        drawn,
        len(squares) - len(drawn),
        len(squares),
        sum(square.kind in _FAULTY for square in squares),
        all(square.calm or square.kind == "warn" for square in squares),
        marked,
    )


def _square(place: int, row: FleetRow, groupings: list[str], link: Callable[[str], str]) -> NodeSquare:
    taint = "yes" if row.tainted else {WITHHELD: "none: limit reached", DEVICES: "GPUs"}.get(row.taint, "")
    counts = Counter(each.state for each in row.evictions)
    evicted = [f"{counted(number, 'eviction')} {state}" for state, number in counts.items()]
    shown = ", ".join(filter(None, (taint, "cordoned" if row.cordoned else "", row.run, *evicted)))
    reasons = _reasons(row)
    entries = tuple(_entry(name, found, link, row.since) for name, found in islice(reasons.items(), _MOST_REASONS))
    left_out = max(len(reasons) - _MOST_REASONS, 0)
    title = _title(row, taint, [entry.reason for entry in entries], left_out)
    return NodeSquare(place, _kind(row), title, row, _where(row, groupings), entries, left_out, shown)


def _where(row: FleetRow, groupings: list[str]) -> tuple[str, ...]:
    """Return the node's groups of the groupings that divide the fleet; the instance type has its own place."""
    names = (name for name in groupings if name in row.groups and name != "instance type")
    return tuple(_shown(f"{name} {row.groups[name]}") for name in names)


def _title(row: FleetRow, taint: str, reasons: list[str], left_out: int) -> str:
    tainted = {"yes": "tainted", "GPUs": "GPUs tainted"}.get(taint, "no taint: limit reached" if taint else "")
    silent = "its heartbeat is overdue" if row.silent else ""
    messages = (
        "" if row.severity == Severity.PASS.name else row.severity,
        *reasons,
        f"{left_out} more" if left_out else "",
    )
    words = filter(None, (row.status or KINDS["unreported"], *messages, tainted, silent))
    return printable(f"{row.node}: {', '.join(words)}", 3 * _LONGEST)


def _kind(row: FleetRow) -> str:
    if row.status == Status.FAIL:
        return row.severity.lower() if row.severity.lower() in _FAULTY else "reset"
    return row.status if row.status in KINDS else "unreported"


def _reasons(row: FleetRow) -> dict[str, list[FleetFinding]]:
    """Return the findings by reason, without any for a check that could not run.

    Without findings in the record, return the reason of the condition.
    """
    fields: dict[str, list[FleetFinding]] = {}
    for finding in row.findings:
        fields.setdefault(finding.reason, []).append(finding)
    for cause in row.unobserved:
        fields.setdefault(cause, [])
    if not fields and row.status not in ("", Status.PASS) and row.reason:
        fields[row.reason] = [FleetFinding(row.reason, row.severity, "", "", {})]
    return fields


def _entry(reason: str, findings: list[FleetFinding], link: Callable[[str], str], since: str) -> ReasonEntry:
    subjects = [subject for finding in findings if (subject := _subject(finding))]
    severity = findings[0].severity if findings else _BLIND
    left_out = max(len(subjects) - _MOST_SUBJECTS, 0)
    first = min((finding.since for finding in findings if finding.since), default="")
    return ReasonEntry(
        _in_plain_words(findings),
        _shown(reason),
        link(reason),
        _shown(severity),
        tuple(subjects[:_MOST_SUBJECTS]),
        left_out,
        first.replace("T", " ").replace("Z", "") if first < since else "",
    )


def _in_plain_words(findings: list[FleetFinding]) -> str:
    """Return what happened to the first device, and the number of further ones; '' for a check that could not run."""
    if not findings or not findings[0].subject:
        return ""
    words = index.in_plain_words(findings[0].reason, findings[0].subject, findings[0].about)
    more = f" (and {counted(len(findings) - 1, 'other')})" if len(findings) > 1 else ""
    return _shown(f"{words}{more}")


def _subject(finding: FleetFinding) -> tuple[str, ...]:
    """Return the names of the faulty part; of a GPU its index, PCI address, UUID and serial."""
    number, uuid, serial = (finding.about.get(key, "") for key in ("index", "uuid", "serial"))
    head = f"GPU {number} at {finding.subject.removeprefix('gpu/')}" if number else finding.subject
    return tuple(_shown(name) for name in (head, serial and f"serial {serial}", uuid) if name)


def _spread(rows: list[FleetRow], link: Callable[[str], str]) -> list[ReasonSpread]:
    """Return the reasons, worst first, then by number of nodes."""
    nodes: dict[str, list[tuple[int, str]]] = {}
    worst: dict[str, Severity] = {}
    for place, row in enumerate(rows):
        for reason, findings in _reasons(row).items():
            nodes.setdefault(reason, []).append((place, row.node))
            worst[reason] = max(worst.get(reason, Severity.PASS), _severity(findings))
    ordered = sorted(nodes, key=lambda reason: (-worst[reason], -len(nodes[reason]), reason))
    return [
        ReasonSpread(reason, link(reason), worst[reason].name if worst[reason] else _BLIND, tuple(nodes[reason]))
        for reason in ordered
    ]


def _severity(findings: Iterable[FleetFinding]) -> Severity:
    """Return the worst severity; PASS if a check could not run, because that is not a result about the hardware."""
    names = (finding.severity for finding in findings)
    return max((Severity.__members__.get(name, Severity.PASS) for name in names), default=Severity.PASS)
