"""Render the diagnosis as a Markdown document. Texts from the cluster never act as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from diagnosis.answers.allocation import FAULTY_OPEN, Allocation, NamespaceAllocation, NodeAllocation, totals
from diagnosis.answers.chain import Chain
from diagnosis.answers.hami_parts import COLUMNS as PART_COLUMNS
from diagnosis.answers.hami_parts import HamiPart
from diagnosis.facts.components import ComponentRow, Health
from diagnosis.facts.quantity import shown
from diagnosis.hami.card_row import COLUMNS, card_row
from diagnosis.hami.card_usage import CardUsage
from diagnosis.model import Certainty
from diagnosis.report.content import Report
from diagnosis.report.problem_groups import ProblemGroup, problem_groups
from healthcheck.text.moments import timestamp
from healthcheck.text.naming import named

_MARKUP = re.compile(r"([\\`*_\[\]<>|~$#!{}])")
_ENTITIES = {"&": "&amp;", "@": "&#64;"}
"""Characters that a backslash does not escape everywhere: entities and mentions."""
_LIST = re.compile(r"\A(\d{1,9})([.)])|\A([-+=])")
_FENCES = re.compile(r"`+")
_MARKS = {Health.WORKING: "✅", Health.PARTLY: "⚠️", Health.DOWN: "❌", Health.IDLE: "-", Health.UNKNOWN: "?"}
_COMPONENT_COLUMNS = ("Component", "Status", "Version", "Ready", "Workload", "GPU nodes without it")
_NAMESPACE_COLUMNS = ("Namespace", "Pending GPU Pods", "Running GPU Pods", "GPUs in Use", "GPU Memory in Use")
_MOST_NODES, _MOST_AFFECTED, _MOST_LACKING, _MOST_HOLDERS, _MOST_ALIKE = 200, 10, 5, 8, 20


def text(report: Report) -> str:
    """Return the whole document."""
    return "\n".join(_lines(report)) + "\n"


def escaped(words: str) -> str:
    """Escape words for running text: no character acts as markup, a link or a mention."""
    plain = _MARKUP.sub(r"\\\1", "".join(_ENTITIES.get(text, text) for text in words.replace("\n", " ")))
    plain = plain.replace("&\\#64;", "&#64;").replace("://", "\\://").replace("www.", "www\\.")
    return _LIST.sub(lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", plain)


def code(words: str) -> str:
    """Format words as code, between as many backticks as needed.

    A bar is escaped, because in a table it would end the cell.
    """
    plain = words.replace("\n", " ").replace("|", "\\|")
    fence = "`" * (max((len(entry) for entry in _FENCES.findall(plain)), default=0) + 1)
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
    for chain in report.chains:
        yield from _table(code(chain.pod), ("Link", "State", "Reason"), _chain(chain))
    rows = ((escaped(row.what), escaped(row.value), escaped(row.by)) for row in report.node)
    yield from _table("Hardware and Software of the Node", ("Property", "Value", "Source"), rows)
    if report.cluster is not None:
        yield from _status(report.cluster)
    yield from _table("Component Status", _COMPONENT_COLUMNS, map(_component, report.components))
    for installation in report.hami:
        title = f"HAMi Component Status: {code(installation.name)}"
        yield from _table(title, PART_COLUMNS, map(_part, installation.parts))
    yield from ("## Identified Issues", "")
    problems = problem_groups(report.diagnosis.problems)
    if not problems:
        yield from (escaped(report.nothing), "")
    for number, problem in enumerate(problems, start=1):
        yield from _problem(problem, f"{number}.", 0)
    if report.cluster is not None:
        yield from _table("Resource Allocation Summary", _NAMESPACE_COLUMNS, map(_namespace, report.cluster.namespaces))
        yield from _nodes(report.cluster)
    yield from _actions(problems)
    yield from _rest(report)


def _status(cluster: Allocation) -> Iterator[str]:
    known = [allocation.gpus for allocation in cluster.nodes if allocation.gpus is not None]
    usable = sum(allocation.usable for allocation in cluster.nodes)
    yield from ("## Cluster GPU Status", "")
    kept = sum(allocation.closed.startswith("our taint") for allocation in cluster.nodes)
    faulty = sum(allocation.closed == FAULTY_OPEN for allocation in cluster.nodes)
    text = f", {kept} with our taint" if kept else ""
    text += f", {faulty} {FAULTY_OPEN}" if faulty else ""
    yield f"- Total GPU Nodes: {len(cluster.nodes)} ({usable} ready and not cordoned{text})"
    unknown = len(cluster.nodes) - len(known)
    yield f"- Total GPU Devices: {sum(known)}" + (
        f" (and those of {unknown} nodes with an unknown number)" if unknown else ""
    )
    if cluster.percent is not None:
        yield f"- GPU utilization: {cluster.percent:.0f} % on average of the measured cards"
    for total in totals(cluster):
        lost = f", {total.capacity - total.total} not offered" if total.capacity > total.total else ""
        free = (
            f"{total.free} of {total.total} free"
            if cluster.pods_seen
            else f"{total.total}; their owners are not visible"
        )
        yield f"- {total.kind} {code(total.resource)}: {free}{lost}"
    if cluster.memory_scaling:
        scaled = (
            f"{code(node)} {number:g}" if node else f"{number:g}" for node, number in cluster.memory_scaling.items()
        )
        yield f"- Device Memory Scaling by HAMi: {', '.join(islice(scaled, _MOST_NODES))}"
    yield ""


def _table(title: str, columns: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield a table; nothing if it has no rows."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    if lines:
        yield from (f"## {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines, "")


def _component(row: ComponentRow) -> tuple[str, ...]:
    component = row.component
    return (
        component.role.value,
        f"{_MARKS[component.health]} {component.health.value}",
        code(component.version) if component.version else "",
        "?" if component.wanted is None else f"{component.ready}/{component.wanted}",
        code(component.subject),
        named(map(code, row.lacking), _MOST_LACKING),
    )


def _part(part: HamiPart) -> tuple[str, ...]:
    status = f"{_MARKS[part.health]} {part.status}" if part.health is not None else part.status
    return escaped(part.what), status, code(part.version) if part.version else "", escaped(part.detail)


def _problem(group: ProblemGroup, number: str, depth: int) -> Iterator[str]:
    found, indent = group.problem.found, "   " * depth
    likely = " (likely)" if found.certainty is Certainty.LIKELY else ""
    yield f"{indent}{number} Issue: **{found.cause.name}**, {_subject(group)}{likely}"
    inner = f"{indent}   "
    yield f"{inner}- Severity: {found.cause.severity.name.capitalize()}"
    if group.others:
        yield f"{inner}- In: {named(map(code, group.subjects), _MOST_ALIKE)}; the details are those of the first."
    yield f"{inner}- Root Cause: {escaped(found.cause.means)}"
    yield from (f"{inner}   - {escaped(line)}" for line in found.evidence)
    if group.problem.evidence_left_out:
        yield f"{inner}   - … and {group.problem.evidence_left_out} more"
    if group.affected:
        yield f"{inner}- Affected: {named(map(code, group.affected), _MOST_AFFECTED)}"
    yield f"{inner}- Remediation:"
    for place, step in enumerate(found.remedy or (found.cause.remedy,), start=1):
        yield f"{inner}   {place}. {sentence(step)}"
    if group.consequences:
        yield f"{inner}- Consequences:"
        for child in group.consequences:
            yield from _problem(child, "-", depth + 2)
    if group.unlike:
        yield f"{inner}- {len(group.unlike)} more, with other details: {named(map(code, group.unlike), _MOST_ALIKE)}"
    if not depth:
        yield ""


def _subject(group: ProblemGroup) -> str:
    return f"{len(group.subjects)} times" if group.others else code(group.problem.found.subject)


def _namespace(allocation: NamespaceAllocation) -> tuple[str, ...]:
    held = ", ".join(f"{number} {code(name)}" for name, number in sorted(allocation.devices.items()))
    memory = f"{allocation.memory / 1024:.0f} GiB" if allocation.memory else ""
    return code(allocation.namespace), str(allocation.pending), str(allocation.running), held, memory


def _nodes(cluster: Allocation) -> Iterator[str]:
    used = any(node.loads for node in cluster.nodes)
    columns = ("Node", "GPUs", "Offered", "Free", *(("Used",) if used else ()), "Owners", "CPU, memory free")
    rows = (cells for node in cluster.nodes[:_MOST_NODES] for cells in _node(node, cluster.pods_seen, used))
    yield from _table("Allocation per Node", columns, rows)
    more = len(cluster.nodes) - _MOST_NODES
    if more > 0:
        yield from (f"… and {more} more nodes: `-o json` has them all.", "")
    shared = [node for node in cluster.nodes if node.cards][:_MOST_NODES]
    cards = ((code(node.node), *_card(card, cluster.pods_seen)) for node in shared for card in node.cards)
    yield from _table("Cards Shared by HAMi", ("Node", *COLUMNS), cards)


def _card(card: CardUsage, pods_seen: bool) -> tuple[str, ...]:
    row = card_row(card, pods_seen)
    return code(row.card), row.slots, row.memory, row.cores, ", ".join(map(code, row.pods))


def _node(allocation: NodeAllocation, pods_seen: bool, used: bool) -> Iterator[tuple[str, ...]]:
    gpus = "?" if allocation.gpus is None else str(allocation.gpus)
    left = f"{shown('cpu', allocation.cpu_free)}, {shown('memory', allocation.memory_free)}" if pods_seen else "?"
    name = code(allocation.node) + ("" if allocation.usable else f" (not usable: {allocation.closed})")
    percent = ("?" if allocation.percent is None else f"{allocation.percent:.0f} %",) if used else ()
    if not allocation.pools:
        yield name, gpus, "none offered", "0", *percent, "", left
    for pool in allocation.pools:
        owner = named((f"{code(holder.pod)} {holder.amount}" for holder in pool.holders), _MOST_HOLDERS)
        free = str(pool.free) if pods_seen else "?"
        yield name, gpus, f"{pool.total} {pool.kind} {code(pool.resource)}", free, *percent, owner, left


def _actions(problems: Iterable[ProblemGroup]) -> Iterator[str]:
    groups = list(problems)
    if groups:
        yield from ("## Recommended Actions", "")
        for number, group in enumerate(groups, start=1):
            found = group.problem.found
            first = (found.remedy or (found.cause.remedy,))[0]
            yield f"{number}. {found.cause.name}, {_subject(group)}: {sentence(first)}"
        yield ""


def _chain(chain: Chain) -> Iterator[tuple[str, ...]]:
    for step in chain.steps:
        why = ", ".join(problem.found.cause.name for problem in step.problems) or step.seen
        yield step.link.value, step.state.value, escaped(why)


def _rest(report: Report) -> Iterator[str]:
    if report.diagnosis.unseen:
        yield from ("## Not Visible", "")
        yield from (f"- {sentence(text)}" for text in report.unseen)
        yield ""
    if report.changes is not None:
        yield from ("## Changed", "")
        yield from (f"- {escaped(str(change))}" for change in report.changes)
        if not report.changes:
            yield "No change that affects GPU pods."
        yield ""
