"""What a person released: a word on the Node, read there, and what of the Node's records it leaves standing. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from healthcheck.memory.findings import Acknowledgement, Release
from healthcheck.memory.rows import AcknowledgementRow, acknowledgement_row
from healthcheck.model import Nature, Severity, Status
from healthcheck.node.state import (
    FIELD_MANAGER,
    QUARANTINE_RESULT,
    RELEASE,
    RESULTS,
    STATUS,
    SWEEP_RESULT,
    FieldManager,
    NodeState,
)
from healthcheck.text.json_rows import as_json, row_in
from healthcheck.text.moments import EARLIEST, moment, moment_or_none, timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RecordError
from healthcheck.verdict.verdict import worst

DEEP = {SWEEP_RESULT: "sweep-result", QUARANTINE_RESULT: "quarantine-result"}
"""The annotations of deep runs, and their names in a record."""
_LONGEST_WORD, _LONGEST_REASON = 253, 1024
_WORSE = (Status.WARN.value, Status.FAIL.value, Status.UNKNOWN.value)
GESTURE = f"set the label {STATUS} to {Status.PASS.value}"
_SOMEBODY = "a person"
"""Where nothing on the Node tells who."""
UNTOLD = "DeepDiagnosticFailed"
"""The reason of what a deep record's severity says and none of its findings does."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding of one record on a Node, as far as a release has to know it. `seen` None: nobody can tell when."""

    reason: str
    subject: str
    severity: Severity
    nature: Nature
    boot_id: str
    cursor: int | None
    seq: int
    seen: datetime | None
    row: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """As it stands in the record."""

    def is_covered(self, acknowledged: Iterable[Acknowledgement]) -> bool:
        seen = self.seen
        return self.nature is Nature.EVENT and any(
            seen is not None and one.key == (self.reason, self.subject) and one.covers(self.boot_id, self.seq, seen)
            for one in acknowledged
        )


def read_release(node: NodeState, *, gestures: bool) -> tuple[Release | None, tuple[str, ...]]:
    """The release that waits on this Node, and what of it nobody can read. All is judged on this one object.

    `gestures` False: a label is none of ours, so that nobody says anything by it.
    """
    text = node.annotations.get(RELEASE)
    complaints: tuple[str, ...] = ()
    if text is not None:
        try:
            return parse_release(text), ()
        except RecordError as error:
            complaints = (f"annotation {RELEASE}: {error}; it is removed",)
    return (_gesture(node) if gestures else None), complaints


def release_of(node: NodeState, by: str, reason: str, at: datetime) -> Release:
    """A person's release of every event finding that the Node's records show. Raises RecordError."""
    return Release(by, reason, at, acknowledgements(faults_on(node)))


def acknowledgements(faults: Iterable[Fault]) -> tuple[Acknowledgement, ...]:
    """What a release says of these: the events among them whose time is known."""
    return tuple(
        Acknowledgement(one.reason, one.subject, one.boot_id, one.cursor, one.seen)
        for one in faults
        if one.nature is Nature.EVENT and one.seen is not None
    )


def dump_release(release: Release) -> str:
    """The annotation's text."""
    rows = [as_json(acknowledgement_row(one)) for one in release.findings]
    word = {"by": release.by, "reason": release.reason, "at": timestamp(release.at), "findings": rows}
    return json.dumps(word, separators=(",", ":"), ensure_ascii=False)


def parse_release(text: str) -> Release:
    """Raises RecordError when it is none."""
    content = records.load(text)
    try:
        rows = content["findings"]
        if not isinstance(rows, list):
            raise RecordError(f"findings: a list is wanted, not {type(rows).__name__}")
        by, reason = str(content["by"])[:_LONGEST_WORD], str(content["reason"])[:_LONGEST_REASON]
        findings = tuple(_whole_second(row_in(AcknowledgementRow, row).acknowledgement()) for row in rows)
        return Release(by, reason, moment(content["at"]), findings)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise RecordError(f"no release ({{by, reason, at, findings}}): {error!r}") from None


def other_severities(
    node: NodeState, acknowledged: Iterable[Acknowledgement], taken: Mapping[str, str] | None = None
) -> tuple[list[Severity], tuple[str, ...]]:
    """What the deep records still say, less what people released; and those that nobody can read.

    A record that the agent has taken says nothing by itself any more: `taken` is what the agent knows of that, None
    what its record on the Node says.
    """
    severities, complaints = [], []
    known = tuple(acknowledged)
    taken = taken_on(node) if taken is None else taken
    for key in DEEP:
        try:
            record = _record(node, key)
            if record is None or is_taken(record, key, taken):
                continue
            if is_counted := counts(record, node):
                standing = [one.severity for one in deep_faults(record) if not one.is_covered(known)]
                severities.append(min(records.severity_in(record), worst(standing)))
            if why := _why_undated(record):
                does = "counts until it is taken off the Node" if is_counted else "is passed over"
                complaints.append(f"annotation {key}: {why}; it {does}")
        except RecordError as error:
            complaints.append(f"annotation {key}: {error}; it is passed over")
    return severities, tuple(complaints)


def counts(record: Mapping[str, Any], node: NodeState) -> bool:
    """Whether a deep record speaks of the node as it is: one of the bash suite does while its taint stands there."""
    is_dated = moment_or_none(record.get("timestamp")) is not None
    return records.has_schema(record) or (is_dated and node.tainted())


def _why_undated(record: Mapping[str, Any]) -> str:
    """Nothing can take in a record without a time, and no release can tell it from a later one."""
    if "timestamp" not in record and records.has_schema(record):
        return ""
    try:
        moment(record.get("timestamp"))
    except ValueError as error:
        return f"timestamp: {error}"
    return ""


def faults_on(node: NodeState) -> tuple[Fault, ...]:
    """The findings of all records on the Node, worst first. A record that nobody can read is passed over."""
    every = [*_deep_faults_on(node), *_own_faults(node)]
    return tuple(sorted(every, key=lambda one: -one.severity))


def _gesture(node: NodeState) -> Release | None:
    """`status=pass` beside our own record that says worse: we write both at once, so that a person has made it so.

    What a deep run has written by itself, and nobody has taken yet, is not meant. Who it was is told where the API
    server has noted it; that it is a gesture does not depend on it.
    """
    record = _own_record(node)
    if node.labels.get(STATUS) != Status.PASS.value or record.get("status") not in _WORSE:
        return None
    findings = acknowledgements(_own_faults(node))
    others = [one for one in node.status_managers if one.name != FIELD_MANAGER]
    told = moment_or_none(record.get("timestamp")) or EARLIEST
    person = max(others, key=lambda one: one.at, default=FieldManager(_SOMEBODY, told))
    at = max(person.at, told)
    return Release(person.name, GESTURE, at, tuple(map(_whole_second, findings))) if findings else None


def is_taken(record: Mapping[str, Any], key: str, taken: Mapping[str, str]) -> bool:
    """Whether the agent has made this deep record's findings its own."""
    at = record.get("timestamp")
    return at is not None and taken.get(DEEP[key]) == at


def taken_on(node: NodeState) -> dict[str, str]:
    """By kind of record: the timestamp of the deep record that the agent's own says it has taken."""
    return records.taken_in(_own_record(node))


def _own_record(node: NodeState) -> dict[str, Any]:
    """The agent's; {} where there is none, or nobody can read it, or the bash suite wrote it."""
    try:
        record = _record(node, RESULTS) or {}
    except RecordError:
        return {}
    return record if records.has_schema(record) else {}


def _own_faults(node: NodeState) -> list[Fault]:
    record = _own_record(node)
    rows = records.findings_in(record)
    return [one for row in rows if (one := _fault(row, record, row.get("nature"))) is not None]


def _deep_faults_on(node: NodeState) -> Iterator[Fault]:
    taken = taken_on(node)
    for key in DEEP:
        try:
            record = _record(node, key)
            if record is not None and not is_taken(record, key, taken) and counts(record, node):
                yield from deep_faults(record)
        except RecordError:
            continue


def deep_faults(record: Mapping[str, Any]) -> list[Fault]:
    """What a deep run found is an event, whatever shows later; so is a severity that none of its findings explains.

    Raises RecordError.
    """
    rows = records.findings_in(record)
    faults = [one for row in rows if (one := _fault(row, record, row.get("nature", Nature.EVENT.value))) is not None]
    stated = records.severity_in(record)
    if stated > worst(one.severity for one in faults):
        untold = {"reason": UNTOLD, "subject": "node", "severity": stated.name}
        faults += [one for one in (_fault(untold, record, Nature.EVENT.value),) if one is not None]
    return faults


def _fault(row: Mapping[str, Any], record: Mapping[str, Any], nature: Any) -> Fault | None:
    """A row of a record that may come from anybody; None for what is no finding."""
    boot_id, seq = record.get("boot_id", ""), row.get("seq")
    seq = seq if isinstance(seq, int) and not isinstance(seq, bool) else -1
    # The cursor is a place in the log of the record's own boot; an earlier boot's log ended long ago.
    cursor = record.get("cursor") if row.get("boot_id", boot_id) == boot_id else seq
    try:
        return Fault(
            str(row["reason"]),
            str(row["subject"]),
            Severity[str(row["severity"])],
            Nature(nature),
            str(row.get("boot_id", boot_id)),
            cursor if isinstance(cursor, int) and seq >= 0 else None,
            seq,
            moment_or_none(row.get("last_seen", record.get("timestamp"))),
            row,
        )
    except (KeyError, ValueError):
        return None


def _record(node: NodeState, key: str) -> dict[str, Any] | None:
    text = node.annotations.get(key)
    return None if text is None else records.load(text)


def _whole_second(one: Acknowledgement) -> Acknowledgement:
    """A record's times are cut to the second, the memory's are not."""
    last_seen = one.last_seen.replace(microsecond=999_999)
    return Acknowledgement(one.reason, one.subject, one.boot_id, one.cursor, last_seen)
