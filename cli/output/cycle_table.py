"""The verdict of one check cycle: a line per check, its findings below, and the evidence on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from gpu_healthcheck.cli.judged_cycle import CheckResult
from gpu_healthcheck.cli.options import OutputFormat
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.output.lines import print_rows
from gpu_healthcheck.cli.words import SEVERITY_STYLES, STATUS_STYLES, severity_words
from gpu_healthcheck.healthcheck.catalog.plain_words import plain_words
from gpu_healthcheck.healthcheck.checks import DEEP_CHECKS, MEANINGS
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Nature,
    Observation,
    Outcome,
    Severity,
    Status,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.text import boundary
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.inventory_seen import seen_in
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, Identity
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, status_of, worst

_MOST_SHOWN, _LONGEST_SHOWN, _WIDTH_SHOWN = 64, 100, 160
"""Limits of a list, a text and a line of the printed evidence: a kernel log has thousands of lines."""


def show(judged: CheckResult, form: OutputFormat | None, *, verbose: bool) -> None:
    """Print the verdict as a table or as the record; with `verbose` also its evidence."""
    if form:
        # Standard output contains only the record.
        console = Screen(stderr=True)
        write_as(form, boundary.as_json(_record(judged)), indent=None)
    else:
        console = Screen()
        _show_table(console, judged)
    if verbose:
        _show_evidence(console, judged.cycle.evidence)


def _record(judged: CheckResult) -> AgentRecord:
    cycle = judged.cycle
    identity = Identity(cycle.hostname, cycle.expected.instance_type, inventory=seen_in(cycle.evidence))
    return records.render(judged.verdict, judged.memory, identity, cycle.now.wall)


def _show_table(console: Screen, judged: CheckResult) -> None:
    cycle, verdict = judged.cycle, judged.verdict
    titles = [Text(title, "bold") for title in ("check", "status", "result")] if console.is_terminal else None
    rows = _rows(cycle.checks, judged.outcomes, judged.memory)
    print_rows(console, [*([titles] if titles else []), *rows])
    kind = cycle.expected.instance_type or "unknown instance type: no expectation"
    status = (verdict.status.value, STATUS_STYLES[verdict.status])
    console.print()
    text = Text.assemble(printable(f"{cycle.hostname} ({kind}): "), status, _more(verdict))
    console.print(text, soft_wrap=True)


def _more(verdict: Verdict) -> str:
    words = severity_words(verdict.status, verdict.severity.name)
    return f", {words}" if words else ""


def _rows(checks: Iterable[Check], outcomes: Iterable[Outcome], memory: Memory) -> Iterator[list[Text]]:
    unobserveds: set[Unobserved] = set()
    for check, outcome in zip(checks, outcomes, strict=True):
        counted = (finding for finding in memory.active if finding.finding.severity is not Severity.PASS)
        active = [finding for finding in counted if finding.check == outcome.check]
        status = status_of(worst(finding.finding.severity for finding in active), could_not_check=not outcome.observed)
        if not outcome.configured and not active:
            status = Status.NOT_CONFIGURED
        label = f"{outcome.group.partition('-')[0]} {outcome.check}"
        word = Text(status.value, STATUS_STYLES[status])
        for line in _lines(check, outcome, active, unobserveds):
            yield [Text(label), word, line]
            label, word = "", Text()
        unobserveds.update(outcome.unobserved)


def _lines(
    check: Check, outcome: Outcome, active: Iterable[ActiveFinding], unobserveds: set[Unobserved]
) -> Iterator[Text]:
    """Yield the observation, then a line per finding, and per cause that was not shown above."""
    reads_the_log = check.nature is Nature.EVENT and check not in DEEP_CHECKS
    seen = outcome.seen or (_lines_read(check, outcome) if reads_the_log and outcome.observed else ())
    first, *more = [_seen_line(observation) for observation in seen] or [Text()]
    for aside in _asides(outcome, unobserveds):
        first.append("; " if first else "").append(printable(aside), "dim")
    further = [*more, *(_finding_line(finding) for finding in active)]
    further += [
        Text(printable(f"{unobserved.cause.name}: {unobserved.detail}"))
        for unobserved in dict.fromkeys(outcome.unobserved)
        if unobserved not in unobserveds
    ]
    yield from [first, *further] if first or not further else further


def _asides(outcome: Outcome, unobserveds: set[Unobserved]) -> Iterator[str]:
    """Yield the parts without a line of their own: causes shown above, and faults that can't be judged yet."""
    causes = [unobserved.cause.name for unobserved in outcome.unobserved if unobserved in unobserveds]
    yield from (f"{cause}: as above" for cause in dict.fromkeys(causes))
    subjects: dict[str, list[str]] = {}
    for early in outcome.too_early:
        if not early.reasons:  # otherwise a reading that this GPU lacks, which only keeps earlier findings
            subjects.setdefault(early.detail, []).append(early.subject)
    for detail, (first, *others) in subjects.items():
        also = f" and {counted(len(others), 'other')}" if others else ""
        yield f"{first}{also}: {detail}" if first else detail


def _lines_read(check: Check, outcome: Outcome) -> tuple[Observation, ...]:
    """Return the lines that an event check read; informational lines are not counted as faults."""
    noun = check.reasons[0].name if len(check.reasons) == 1 else "fault message"
    reasons = Counter(event.reason for event in outcome.events if not (event.driver_loaded or event.uuid))
    names = ", ".join(f"{reason} {count} times" if count > 1 else reason for reason, count in reasons.items())
    message = (
        f"{counted(reasons.total(), noun)} in the kernel log: {names}" if reasons else f"no {noun} in the kernel log"
    )
    return (Observation(message),)


def _seen_line(seen: Observation) -> Text:
    """Return the observation with the expected value and its source."""
    expected = f"; expected {seen.expected}" if seen.expected else ""
    source = f" ({seen.source})" if seen.source else ""
    return Text.assemble(printable(seen.what), (printable(expected + source), "dim"))


def _finding_line(active_finding: ActiveFinding) -> Text:
    finding = active_finding.finding
    times = f" ({active_finding.count} times)" if active_finding.count > 1 else ""
    words = plain_words(finding.reason, finding.subject, finding.about, MEANINGS)
    severity = (f"{finding.reason} {finding.severity.name}", SEVERITY_STYLES[finding.severity])
    return Text.assemble(
        printable(words), " (", severity, printable(f" on {finding.subject}): {finding.detail}{times}")
    )


def _show_evidence(console: Screen, evidence: Evidence) -> None:
    """Print the facts of each probe; long lists and texts are cut, and the rest is counted."""
    from rich.pretty import pretty_repr  # noqa: PLC0415 - only with --verbose

    note = "\nEvidence. Further entries of a list show only the fields that differ from the first."
    console.print(Text(note, "dim"), soft_wrap=True)
    for probe in evidence.probes:
        console.print(Text.assemble("\n", (probe.name, "bold"), f", {evidence.seconds.get(probe.name, 0.0):.3f} s"))
        cause = evidence.unread(probe)
        if cause:
            console.print(Text(printable(f"{cause.cause.name}: {cause.detail}")))
        else:
            facts = pretty_repr(
                _brief(evidence[probe]), max_width=_WIDTH_SHOWN, max_length=_MOST_SHOWN, max_string=_LONGEST_SHOWN
            )
            console.print(Text(facts), soft_wrap=True)


def _brief(value: Any) -> Any:
    """Return the facts for printing: eight equal GPUs need not be read eight times."""
    if isinstance(value, Struct):
        return replace(value, **{name: _brief(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, tuple | list):
        return tuple(_different(entry, value[0]) if index else _brief(entry) for index, entry in enumerate(value))
    return value


def _different(entry: Any, first: Any) -> Any:
    """Return the fields of the entry that differ from the first one's; the whole entry if it has another type."""
    if not isinstance(entry, Struct) or type(entry) is not type(first):
        return _brief(entry)
    fields = ((name, getattr(entry, name)) for name in entry.__struct_fields__)
    return {name: _brief(value) for name, value in fields if value != getattr(first, name)}
