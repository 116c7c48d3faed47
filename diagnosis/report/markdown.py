"""Render the diagnosis as a Markdown document. Texts from the cluster never act as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from diagnosis.allocation import Allocation, NamespaceAllocation, NodeAllocation, totals
from diagnosis.cause import Certainty
from diagnosis.components import ComponentRow, Health
from diagnosis.hami.card_row import COLUMNS, card_row
from diagnosis.hami_parts import COLUMNS as PART_COLUMNS
from diagnosis.hami_parts import InstallationTable
from diagnosis.quantity import shown
from diagnosis.report.alike import ProblemGroup, told_once
from diagnosis.report.whole import Report
from healthcheck.text.moments import timestamp
from healthcheck.text.naming import named

_MARKUP = re.compile(r"([\\`*_\[\]<>|~$#!{}])")
_ENTITIES = {"&": "&amp;", "@": "&#64;"}
"""What a backslash does not take the meaning from everywhere: entities, and names of people."""
_LIST = re.compile(r"\A(\d{1,9})([.)])|\A([-+=])")
_FENCES = re.compile(r"`+")
_MARKS = {Health.WORKING: "✅", Health.PARTLY: "⚠️", Health.DOWN: "❌", Health.IDLE: "-", Health.UNKNOWN: "?"}
_MOST_NODES, _MOST_AFFECTED, _MOST_LACKING, _MOST_HOLDERS, _MOST_ALIKE = 200, 10, 5, 8, 20


def text(report: Report) -> str:
    """The whole document."""
    return "\n".join(_lines(report)) + "\n"


def escaped(words: str) -> str:
    """Escape words for running text: no character acts as markup, a link or a mention."""
    plain = _MARKUP.sub(r"\\\1", "".join(_ENTITIES.get(one, one) for one in words.replace("\n", " ")))
    plain = plain.replace("&\\#64;", "&#64;").replace("://", "\\://").replace("www.", "www\\.")
    return _LIST.sub(lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", plain)


def code(words: str) -> str:
    """Format words as code, between as many backticks as needed.

    A bar is escaped, because in a table it would end the cell.
    """
    plain = words.replace("\n", " ").replace("|", "\\|")
    fence = "`" * (max((len(one) for one in _FENCES.findall(plain)), default=0) + 1)
    space = " " if plain.startswith("`") or plain.endswith("`") or not plain.strip() else ""
    return f"{fence}{space}{plain}{space}{fence}"


def sentence(words: str) -> str:
    """Format a remedy: commands, which are in backticks, as code, everything else as text."""
    parts = words.split("`")
    if len(parts) % 2 == 0:
        return escaped(words)
    return "".join(code(part) if place % 2 else escaped(part) for place, part in enumerate(parts) if part)


def _lines(report: Report) -> Iterator[str]:
    yield from ("# GPU Troubleshooting Report", "", f"As of {timestamp(report.diagnosis.at)}.", "")
    yield from _chains(report)
    yield from _node_rows(report)
    if report.cluster is not None:
        yield from _status(report.cluster)
    yield from _components(report.components)
    for one in report.hami:
        yield from _installation(one)
    yield from ("## Identified Issues", "")
    problems = told_once(report.diagnosis.problems)
    if not problems:
        seen = "in what could be seen." if report.diagnosis.unseen else ""
        yield from (f"Nothing found {seen}".strip() + ("" if seen else "."), "")
    for number, problem in enumerate(problems, start=1):
        yield from _problem(problem, f"{number}.", 0)
    if report.cluster is not None:
        yield from _namespaces(report.cluster)
        yield from _nodes(report.cluster)
    yield from _actions(problems)
    yield from _rest(report)


def _status(cluster: Allocation) -> Iterator[str]:
    known = [one.gpus for one in cluster.nodes if one.gpus is not None]
    usable = sum(one.usable for one in cluster.nodes)
    yield from ("## Cluster GPU Status", "")
    kept = sum(one.closed.startswith("our taint") for one in cluster.nodes)
    beside = f", {kept} with our taint" if kept else ""
    yield f"- Total GPU Nodes: {len(cluster.nodes)} ({usable} ready and not cordoned{beside})"
    unknown = len(cluster.nodes) - len(known)
    yield f"- Total GPU Devices: {sum(known)}" + (
        f" (and those of {unknown} nodes that nobody counted)" if unknown else ""
    )
    if cluster.percent is not None:
        yield f"- GPU utilization: {cluster.percent:.0f} % on average of the cards that are measured"
    for one in totals(cluster):
        lost = f", {one.capacity - one.total} not given out" if one.capacity > one.total else ""
        free = f"{one.free} of {one.total} free" if cluster.pods_seen else f"{one.total}; who holds them is not visible"
        yield f"- {one.kind} {code(one.resource)}: {free}{lost}"
    if cluster.memory_scaling:
        scaled = (
            f"{code(node)} {number:g}" if node else f"{number:g}" for node, number in cluster.memory_scaling.items()
        )
        yield f"- Device Memory Scaling by HAMi: {', '.join(islice(scaled, _MOST_NODES))}"
    yield ""


def _components(rows: Iterable[ComponentRow]) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        return
    yield from ("## Component Status", "")
    yield from (
        "| Component | Status | Version | Ready | Workload | GPU nodes without it |",
        "|---|---|---|---|---|---|",
    )
    for row in rows:
        one = row.component
        ready = "?" if one.wanted is None else f"{one.ready}/{one.wanted}"
        cells = (
            one.role.value,
            f"{_MARKS[one.health]} {one.health.value}",
            code(one.version) if one.version else "",
            ready,
            code(one.subject),
            named(map(code, row.lacking), _MOST_LACKING),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def _installation(told: InstallationTable) -> Iterator[str]:
    yield from (f"## HAMi Component Status: {code(told.name)}", "")
    yield from (f"| {' | '.join(PART_COLUMNS)} |", "|---" * len(PART_COLUMNS) + "|")
    for one in told.parts:
        status = f"{_MARKS[one.health]} {one.status}" if one.health is not None else one.status
        version = code(one.version) if one.version else ""
        yield f"| {escaped(one.what)} | {status} | {version} | {escaped(one.told)} |"
    yield ""


def _problem(told: ProblemGroup, number: str, depth: int) -> Iterator[str]:
    found, indent = told.problem.found, "   " * depth
    likely = " (likely)" if found.certainty is Certainty.LIKELY else ""
    yield f"{indent}{number} Issue: **{found.cause.name}**, {_subject(told)}{likely}"
    inner = f"{indent}   "
    yield f"{inner}- Severity: {found.cause.severity.name.capitalize()}"
    if told.others:
        yield f"{inner}- In: {_named(told.subjects, _MOST_ALIKE)}; what follows is of the first."
    yield f"{inner}- Root Cause: {escaped(found.cause.means)}"
    yield from (f"{inner}   - {escaped(line)}" for line in found.evidence)
    if told.problem.evidence_left_out:
        yield f"{inner}   - … and {told.problem.evidence_left_out} more"
    if told.affected:
        yield f"{inner}- Affected: {_named(told.affected, _MOST_AFFECTED)}"
    yield f"{inner}- Remediation:"
    for place, step in enumerate(found.remedy or (found.cause.remedy,), start=1):
        yield f"{inner}   {place}. {sentence(step)}"
    if told.consequences:
        yield f"{inner}- What follows from it:"
        for child in told.consequences:
            yield from _problem(child, "-", depth + 2)
    if told.unlike:
        yield f"{inner}- {len(told.unlike)} more, each with words of its own: {_named(told.unlike, _MOST_ALIKE)}"
    if not depth:
        yield ""


def _subject(told: ProblemGroup) -> str:
    return f"{len(told.subjects)} times" if told.others else code(told.problem.found.subject)


def _named(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return ", ".join(map(code, names[:most])) + (f" and {more} more" if more > 0 else "")


def _namespaces(cluster: Allocation) -> Iterator[str]:
    if not cluster.namespaces:
        return
    yield from ("## Resource Allocation Summary", "")
    yield "| Namespace | Pending GPU Pods | Running GPU Pods | GPUs held | GPU Memory Held |"
    yield "|---|---|---|---|---|"
    yield from map(_namespace, cluster.namespaces)
    yield ""


def _namespace(one: NamespaceAllocation) -> str:
    held = ", ".join(f"{number} {code(name)}" for name, number in sorted(one.devices.items()))
    memory = f"{one.memory / 1024:.0f} GiB" if one.memory else ""
    return f"| {code(one.namespace)} | {one.pending} | {one.running} | {held} | {memory} |"


def _nodes(cluster: Allocation) -> Iterator[str]:
    if not cluster.nodes:
        return
    used = any(one.loads for one in cluster.nodes)
    columns = ("Node", "GPUs", "Offered", "Free", *(("Used",) if used else ()), "By whom", "CPU, memory left")
    yield from ("## Allocation per Node", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")
    for one in cluster.nodes[:_MOST_NODES]:
        yield from (f"| {' | '.join(cells)} |" for cells in _node(one, cluster.pods_seen, used))
    more = len(cluster.nodes) - _MOST_NODES
    if more > 0:
        yield from ("", f"… and {more} more nodes: `-o json` has them all.")
    yield ""
    shared = [one for one in cluster.nodes if one.cards]
    if shared:
        yield from _cards(shared[:_MOST_NODES], cluster.pods_seen)


def _cards(nodes: Iterable[NodeAllocation], pods_seen: bool) -> Iterator[str]:
    yield from ("## Cards Shared by HAMi", "", f"| Node | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|")
    for node in nodes:
        for one in node.cards:
            row = card_row(one, pods_seen)
            pods = ", ".join(map(code, row.pods))
            yield f"| {code(node.node)} | {code(row.card)} | {row.slots} | {row.memory} | {row.cores} | {pods} |"
    yield ""


def _node(one: NodeAllocation, pods_seen: bool, used: bool) -> Iterator[tuple[str, ...]]:
    gpus = "?" if one.gpus is None else str(one.gpus)
    left = f"{shown('cpu', one.cpu_free)}, {shown('memory', one.memory_free)}" if pods_seen else "?"
    name = code(one.node) + ("" if one.usable else f" (not usable: {one.closed})")
    percent = ("?" if one.percent is None else f"{one.percent:.0f} %",) if used else ()
    if not one.pools:
        yield name, gpus, "none offered", "0", *percent, "", left
    for pool in one.pools:
        holders = [f"{code(holder.pod)} {holder.amount}" for holder in pool.holders[:_MOST_HOLDERS]]
        more = len(pool.holders) - _MOST_HOLDERS
        who = ", ".join(holders) + (f" and {more} more" if more > 0 else "")
        free = str(pool.free) if pods_seen else "?"
        yield name, gpus, f"{pool.total} {pool.kind} {code(pool.resource)}", free, *percent, who, left


def _actions(problems: Iterable[ProblemGroup]) -> Iterator[str]:
    told = list(problems)
    if told:
        yield from ("## Recommended Actions", "")
        for number, one in enumerate(told, start=1):
            found = one.problem.found
            first = (found.remedy or (found.cause.remedy,))[0]
            yield f"{number}. {found.cause.name}, {_subject(one)}: {sentence(first)}"
        yield ""


def _chains(report: Report) -> Iterator[str]:
    for one in report.chains:
        yield from (f"## {code(one.pod)}", "", "| Link | State | |", "|---|---|---|")
        for step in one.steps:
            why = ", ".join(problem.found.cause.name for problem in step.problems) or step.seen
            yield f"| {step.link.value} | {step.state.value} | {escaped(why)} |"
        yield ""


def _node_rows(report: Report) -> Iterator[str]:
    if report.node:
        yield from ("## What the Node Has", "", "| | | By |", "|---|---|---|")
        yield from (f"| {escaped(one.what)} | {escaped(one.value)} | {escaped(one.by)} |" for one in report.node)
        yield ""


def _rest(report: Report) -> Iterator[str]:
    if report.diagnosis.unseen:
        yield from ("## Not Visible", "")
        for unseen in report.diagnosis.unseen:
            yield f"- {escaped(unseen.kind)}: {escaped(unseen.why)}; hides {escaped(unseen.hides)}"
        yield ""
    if report.changes is not None:
        yield from ("## Changed", "")
        yield from (f"- {escaped(str(change))}" for change in report.changes)
        if not report.changes:
            yield "Nothing has changed that a GPU pod depends on."
        yield ""
