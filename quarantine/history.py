"""Findings of earlier quarantine runs on a node, kept in the record of the last one. Pure.

A node is replaced if the same fault recurs after its return to service.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from healthcheck.memory.exits import ESCALATE_WITHIN
from healthcheck.memory.findings import gpu_identity
from healthcheck.model import Severity
from healthcheck.node.state import QUARANTINE_RESULT, NodeState
from healthcheck.text.moments import moment_or_none
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import released_at
from healthcheck.verdict.record import HistoryRow, RunRecord
from quarantine.recommendation import Recommendation, Returned

MOST_RUNS, MOST_FINDINGS = 5, 6
_LONGEST_NAME, _LONGEST_IDENTITY = 120, 64


class History(Struct, frozen=True):
    """Runs of the last 7 days with a fault of RESET or worse, newest first (docs/rules.md 6)."""

    rows: tuple[HistoryRow, ...] = ()

    @property
    def returned_with(self) -> tuple[Returned, ...]:
        """Return the faults found before the node returned to service."""
        rows = (row for row in self.rows if row.returned)
        named = ((name, (row.gpus or {}).get(name, "")) for row in rows for name in row.findings or ())
        parted = ((*name.partition(" ")[::2], gpu) for name, gpu in named)
        return tuple(Returned(reason, subject, gpu) for reason, subject, gpu in parted)


def history_of(node: NodeState, now: datetime) -> History:
    """Return the history for the next run, from the record on the Node; empty for another machine."""
    record = records.on_node(RunRecord, node, QUARANTINE_RESULT)
    if node.machine and record.machine not in (None, "", node.machine):
        return History()
    earlier = [*_of_last_run(record), *(row for row in record.history or () if row.findings is not None)]
    recent = [row for row in earlier if _is_recent(row, now)]
    back = record.recommendation == Recommendation.RETURN_TO_SERVICE.value
    released = released_at(node, now)
    rows = map(_bounded, recent[:MOST_RUNS])
    return History(tuple(replace(row, returned=row.returned or back or _is_before(row, released)) for row in rows))


def _of_last_run(record: RunRecord) -> Iterator[HistoryRow]:
    faults = [
        finding
        for finding in record.findings or ()
        if finding.severity is not None and finding.severity >= Severity.RESET
    ]
    names = tuple(dict.fromkeys(f"{fault.reason} {fault.subject}" for fault in faults))
    if names:
        gpus = {f"{fault.reason} {fault.subject}": gpu for fault in faults if (gpu := gpu_identity(fault.about or {}))}
        yield HistoryRow(record.timestamp or "", record.recommendation or "", names, gpus or None, returned=False)


def _bounded(row: HistoryRow) -> HistoryRow:
    """Return the row with bounded texts, because other clients may have written it."""
    names = [name[:_LONGEST_NAME] for name in (row.findings or ())[:MOST_FINDINGS]]
    gpus = {name: gpu[:_LONGEST_IDENTITY] for name in names if (gpu := (row.gpus or {}).get(name))}
    return HistoryRow(
        (row.at or "")[:_LONGEST_NAME],
        (row.recommendation or "")[:_LONGEST_NAME],
        tuple(names),
        gpus or None,
        returned=row.returned is True,
    )


def _is_recent(row: HistoryRow, now: datetime) -> bool:
    at = moment_or_none(row.at)
    return at is not None and abs(now - at) <= ESCALATE_WITHIN


def _is_before(row: HistoryRow, released: datetime | None) -> bool:
    at = moment_or_none(row.at)
    return at is not None and released is not None and at <= released
