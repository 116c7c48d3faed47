"""Render the diagnosis as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diagnosis.answers.allocation import Allocation, totals
from diagnosis.answers.hami_parts import COLUMNS as PART_COLUMNS
from diagnosis.facts.quantity import shown
from diagnosis.hami.card_row import COLUMNS, CardRow, card_row
from diagnosis.model import Certainty
from diagnosis.report.content import Report
from diagnosis.report.one_file import rendered
from diagnosis.report.picture import COLOURS, OTHERS, WIDTH, bars, colours
from diagnosis.report.problem_groups import ProblemGroup, problem_groups
from healthcheck.text.moments import timestamp

_MOST_NODES = 500
_MOST_AFFECTED = 20


def text(report: Report) -> str:
    cluster = report.cluster
    problems = problem_groups(report.diagnosis.problems)
    drawn = list(bars(cluster, _MOST_NODES)) if cluster is not None else []
    return rendered(
        __package__,
        "page.html.j2",
        report=report,
        at=timestamp(report.diagnosis.at),
        cluster=cluster,
        totals=totals(cluster) if cluster is not None else (),
        gpus=sum(node.gpus or 0 for node in cluster.nodes) if cluster is not None else 0,
        bars=drawn,
        left_out=max(len(cluster.nodes) - _MOST_NODES, 0) if cluster is not None else 0,
        legend=_legend(colours(cluster)) if cluster is not None else [],
        problems=problems,
        actions=_actions(problems),
        width=WIDTH,
        likely=Certainty.LIKELY,
        most=_MOST_AFFECTED,
        used=any(bar.used for bar in drawn),
        parts=_parts,
        shown=shown,
        card_columns=COLUMNS,
        part_columns=PART_COLUMNS,
        cards=_cards(cluster) if cluster is not None else [],
    )


def _legend(fills: dict[str, str]) -> list[tuple[str, str]]:
    """Return names with their colours: namespaces with a colour of their own, then the shared colours."""
    own = [(name, fill) for name, fill in fills.items() if fill != OTHERS]
    more = [("other namespaces", OTHERS)] if len(fills) > COLOURS else []
    return [
        *own,
        *more,
        ("free", "free"),
        ("unused on a node that takes no pods, or unknown", "unknown"),
        ("not offered", "lost"),
    ]


def _actions(problems: Iterable[ProblemGroup]) -> list[tuple[str, ProblemGroup, str]]:
    """Return the first step to take for each problem."""
    entries = [(problem, problem.problem.found) for problem in problems]
    return [(found.cause.name, group, (found.remedy or (found.cause.remedy,))[0]) for group, found in entries]


def _cards(cluster: Allocation) -> list[tuple[str, CardRow]]:
    """Return the cards of the nodes that are drawn."""
    shared = [node for node in cluster.nodes if node.cards][:_MOST_NODES]
    return [(node.node, card_row(card, cluster.pods_seen)) for node in shared for card in node.cards]


def _parts(words: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a remedy: commands, which are in backticks, and the text between them."""
    parts = words.split("`")
    if len(parts) % 2 == 0:
        yield False, words
        return
    yield from ((bool(place % 2), part) for place, part in enumerate(parts) if part)
