"""What earlier quarantine runs found on a node, kept in the record of the last one. Pure.

The same fault again, after the node had gone back to work, is why a node is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from healthcheck.model import Severity
from healthcheck.node.state import QUARANTINE_RESULT, NodeState
from healthcheck.text.moments import moment_or_none
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import released_at
from healthcheck.verdict.record import HistoryRow, RunRecord
from quarantine.recommendation import Recommendation

MOST_RUNS, MOST_FINDINGS = 5, 6
_LONGEST_NAME = 120


class History(Struct, frozen=True):
    """Newest first: the runs that found a fault of RESET or worse."""

    rows: tuple[HistoryRow, ...] = ()

    @property
    def returned_with(self) -> frozenset[tuple[str, str]]:
        names = (name.partition(" ") for row in self.rows if row.returned for name in row.findings or ())
        return frozenset((reason, subject) for reason, _, subject in names)


def history_of(node: NodeState, now: datetime) -> History:
    """What the record on the Node tells to the next run. Of another machine it tells nothing."""
    record = records.on_node(RunRecord, node, QUARANTINE_RESULT)
    if node.machine and record.machine not in (None, "", node.machine):
        return History()
    told = [*_of_last_run(record), *(one for one in record.history or () if one.findings is not None)]
    back = record.recommendation == Recommendation.RETURN_TO_SERVICE.value
    released = released_at(node, now)
    rows = map(_bounded, told[:MOST_RUNS])
    return History(tuple(replace(one, returned=one.returned or back or _is_before(one, released)) for one in rows))


def _of_last_run(record: RunRecord) -> Iterator[HistoryRow]:
    faults = [one for one in record.findings or () if one.severity is not None and one.severity >= Severity.RESET]
    names = tuple(dict.fromkeys(f"{one.reason} {one.subject}" for one in faults))
    if names:
        yield HistoryRow(record.timestamp or "", record.recommendation or "", names, returned=False)


def _bounded(row: HistoryRow) -> HistoryRow:
    """Of what somebody else may have written."""
    return HistoryRow(
        (row.at or "")[:_LONGEST_NAME],
        (row.recommendation or "")[:_LONGEST_NAME],
        tuple(name[:_LONGEST_NAME] for name in (row.findings or ())[:MOST_FINDINGS]),
        returned=row.returned is True,
    )


def _is_before(row: HistoryRow, released: datetime | None) -> bool:
    at = moment_or_none(row.at)
    return at is not None and released is not None and at <= released
