"""What earlier quarantine runs found on a node, kept in the record of the last one. Pure.

The same fault again, after the node had gone back to work, is why a node is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from healthcheck.model import Severity
from healthcheck.node.state import QUARANTINE_RESULT, RELEASE, RESULTS, NodeState
from healthcheck.text.moments import is_future, moment_or_none
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RecordError
from quarantine.recommendation import Recommendation

MOST_RUNS, MOST_FINDINGS = 5, 6
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class History:
    """Newest first: the runs that found a fault of RESET or worse."""

    rows: tuple[Mapping[str, Any], ...] = ()
    """`at`, `recommendation`, `findings` (reason and subject), and `returned`: the node went back to work after it."""

    @property
    def returned_with(self) -> frozenset[tuple[str, str]]:
        names = (name.partition(" ") for row in self.rows if row["returned"] for name in row["findings"])
        return frozenset((reason, subject) for reason, _, subject in names)


def history_of(node: NodeState, now: datetime) -> History:
    """What the record on the Node tells to the next run. Of another machine it tells nothing."""
    record = _record(node, QUARANTINE_RESULT)
    if node.machine and record.get("machine", "") not in ("", node.machine):
        return History()
    rows = [*_of_last_run(record), *_rows(record)]
    back = record.get("recommendation") == Recommendation.RETURN_TO_SERVICE.value
    released = _released(node, now)
    seen = ({**row, "returned": row["returned"] or back or _before(row, released)} for row in rows[:MOST_RUNS])
    return History(tuple(seen))


def _of_last_run(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    faults = [row for row in records.findings_in(record) if _is_fault(row)]
    names = list(dict.fromkeys(f"{row.get('reason')} {row.get('subject')}"[:_LONGEST_NAME] for row in faults))
    if names:
        yield {
            "at": str(record.get("timestamp", ""))[:_LONGEST_NAME],
            "recommendation": str(record.get("recommendation", ""))[:_LONGEST_NAME],
            "findings": names[:MOST_FINDINGS],
            "returned": False,
        }


def _rows(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rows = record.get("history")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("findings"), list):
            yield {
                "at": str(row.get("at", ""))[:_LONGEST_NAME],
                "recommendation": str(row.get("recommendation", ""))[:_LONGEST_NAME],
                "findings": [str(name)[:_LONGEST_NAME] for name in row["findings"][:MOST_FINDINGS]],
                "returned": row.get("returned") is True,
            }


def _is_fault(row: Mapping[str, Any]) -> bool:
    severity = row.get("severity")
    return isinstance(severity, str) and Severity.__members__.get(severity, Severity.PASS) >= Severity.RESET


def _released(node: NodeState, now: datetime) -> datetime | None:
    """When a person last released the node, whether the agent has heard of it yet or not; nobody has in the future."""
    told = _record(node, RESULTS).get("released")
    times = [moment_or_none(one.get("at")) for one in (told, _record(node, RELEASE)) if isinstance(one, dict)]
    return max((at for at in times if at is not None and not is_future(at, now)), default=None)


def _before(row: Mapping[str, Any], released: datetime | None) -> bool:
    at = moment_or_none(row["at"])
    return at is not None and released is not None and at <= released


def _record(node: NodeState, key: str) -> dict[str, Any]:
    try:
        return records.load(node.annotations.get(key, "{}"))
    except RecordError:
        return {}
