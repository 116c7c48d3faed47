"""Render a report as one HTML file or as a Markdown document. Texts from the cluster never act as markup.

An HTML file needs no network. It has one style sheet, and at most one script, which its Content-Security-Policy allows
by its hash. Its template escapes all text; the template of Markdown names the form of each text.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from gpu_healthcheck.diagnosis.answers.allocation import FAULTY_OPEN, totals
from gpu_healthcheck.diagnosis.answers.hami_parts import COLUMNS as PART_COLUMNS
from gpu_healthcheck.diagnosis.facts.components import Health
from gpu_healthcheck.diagnosis.facts.quantity import shown
from gpu_healthcheck.diagnosis.hami.cards import COLUMNS, card_row
from gpu_healthcheck.diagnosis.model import Certainty
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.diagnosis.report.picture import COLOURS, OTHERS, WIDTH, bars, colours
from gpu_healthcheck.diagnosis.report.problem_groups import problem_groups
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.naming import named

_MOST_DRAWN = {"html": 500, "md": 200}
"""Most nodes with a row of their own."""
_MARKUP = re.compile(r"([\\`*_\[\]<>|~$#!{}])")
_ENTITIES = {"&": "&amp;", "@": "&#64;"}
"""Characters that a backslash does not escape everywhere: entities and mentions."""
_LIST = re.compile(r"\A(\d{1,9})([.)])|\A([-+=])")
_FENCES = re.compile(r"`+")
_MARKS = {Health.WORKING: "✅", Health.PARTLY: "⚠️", Health.DOWN: "❌", Health.IDLE: "-", Health.UNKNOWN: "?"}


def html_page(report: Report) -> str:
    drawn = list(bars(report.cluster, _MOST_DRAWN["html"])) if report.cluster is not None else []
    return render_html(
        __package__,
        "page.html.j2",
        **_values(report, "html"),
        bars=drawn,
        legend=_legend(colours(report.cluster)) if report.cluster is not None else [],
        width=WIDTH,
        most_drawn=_MOST_DRAWN["html"],
        used=any(bar.used for bar in drawn),
        parts=remedy_parts,
    )


def markdown_page(report: Report) -> str:
    template = _environment(__package__).get_template("page.md.j2")
    return template.render(**_values(report, "md"), faulty_open=FAULTY_OPEN, marks=_MARKS, shown=shown)


def render_html(package: str, template: str, **values: Any) -> str:
    """Render a package's template, which extends `base.html.j2`, in ASCII, which all character sets share."""
    page = _environment(package).get_template(template).render(values)
    return page.encode("ascii", "xmlcharrefreplace").decode()


def _values(report: Report, form: str) -> dict[str, Any]:
    """Return the values that both templates use."""
    cluster = report.cluster
    shared = [node for node in cluster.nodes if node.cards][: _MOST_DRAWN[form]] if cluster is not None else []
    return {
        "report": report,
        "at": timestamp(report.diagnosis.at),
        "cluster": cluster,
        "totals": totals(cluster) if cluster is not None else (),
        "gpus": sum(node.gpus or 0 for node in cluster.nodes) if cluster is not None else 0,
        "problems": problem_groups(report.diagnosis.problems),
        "likely": Certainty.LIKELY,
        "card_columns": COLUMNS,
        "part_columns": PART_COLUMNS,
        "cards": [
            (node.node, card_row(card, cluster is not None and cluster.pods_seen))
            for node in shared
            for card in node.cards
        ],
    }


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


def remedy_parts(remedy: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a remedy: commands, which are in backticks, and the text between them."""
    parts = remedy.split("`")
    if len(parts) % 2 == 0:
        yield False, remedy
        return
    yield from ((bool(place % 2), part) for place, part in enumerate(parts) if part)


def escaped(text: str) -> str:
    """Escape text for Markdown: no character acts as markup, a link or a mention."""
    plain = _MARKUP.sub(r"\\\1", "".join(_ENTITIES.get(char, char) for char in text.replace("\n", " ")))
    plain = plain.replace("&\\#64;", "&#64;").replace("://", "\\://").replace("www.", "www\\.")
    return _LIST.sub(lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", plain)


def code(text: str) -> str:
    """Format text as code in Markdown, between as many backticks as needed.

    A bar is escaped, because in a table it would end the cell.
    """
    plain = text.replace("\n", " ").replace("|", "\\|")
    fence = "`" * (max((len(run) for run in _FENCES.findall(plain)), default=0) + 1)
    space = " " if plain.startswith("`") or plain.endswith("`") or not plain.strip() else ""
    return f"{fence}{space}{plain}{space}{fence}"


def sentence(remedy: str) -> str:
    """Format a remedy in Markdown: commands as code, everything else as text."""
    return "".join(code(part) if is_command else escaped(part) for is_command, part in remedy_parts(remedy))


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("gpu_healthcheck.diagnosis.report", ".")]),
        autoescape=select_autoescape(("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "csp_hash": _csp_hash,
        "plain": escaped,
        "code": code,
        "sentence": sentence,
        "moment": timestamp,
        "named": named,
        "holders": lambda shares: (f"{code(share.pod)} {share.amount}" for share in shares),
    }
    environment.tests["tainted_by_us"] = lambda closed: closed.startswith("our taint")
    return environment


def _csp_hash(script: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline script."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"
