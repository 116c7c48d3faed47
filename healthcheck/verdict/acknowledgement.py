"""Releases by a person, read from the Node, and the remaining findings of the Node's records.

Pure functions, no I/O.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Release
from gpu_healthcheck.healthcheck.memory.rows import AcknowledgementRow, FindingRow, acknowledgement_row
from gpu_healthcheck.healthcheck.model import Nature, Severity, Status
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD
from gpu_healthcheck.healthcheck.node.state import (
    FIELD_MANAGER,
    RELEASE,
    RESULTS,
    STATUS,
    FieldManager,
    NodeState,
)
from gpu_healthcheck.healthcheck.text.boundary import JsonObject, as_json, only, read_row
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, is_future, moment
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import DEEP, AgentRecord, Record, RecordError, RunRecord
from gpu_healthcheck.healthcheck.verdict.verdict import worst

_LONGEST_WORD, _LONGEST_REASON, _LONGEST_TIME = 253, 1024, 40
_WORSE = (Status.WARN.value, Status.FAIL.value, Status.UNKNOWN.value)
LABEL_RELEASE = f"set the label {STATUS} to {Status.PASS.value}"
_UNKNOWN_AUTHOR = "a person"
"""Author of a release if the Node does not record one."""
UNEXPLAINED = "DeepDiagnosticFailed"
"""Reason of the finding that is added if no finding of a deep record explains the record's severity."""


class _PendingReleaseRow(JsonObject, frozen=True):
    """Fields of the annotation with a release that the agent has not applied yet."""

    by: str | None = None
    reason: str | None = None
    at: datetime | None = None
    findings: Annotated[tuple[AcknowledgementRow, ...] | None, only(AcknowledgementRow)] = None


class Fault(Struct, frozen=True):
    """One finding of one record on a Node, with the fields that a release needs.

    `seen` is None if the time is unknown.
    """

    reason: str
    subject: str
    severity: Severity
    nature: Nature
    boot_id: str
    cursor: int | None
    seq: int
    seen: datetime | None
    row: FindingRow = field(default_factory=FindingRow)
    """The row in the record."""

    @property
    def is_releasable(self) -> bool:
        """Whether a person's release ends the finding: an event, or a level based on the machine's earlier devices."""
        return self.nature is Nature.EVENT or self.row.source == ONCE_HAD

    def is_covered(self, acknowledged: Iterable[Acknowledgement]) -> bool:
        seen = self.seen
        return self.is_releasable and any(
            seen is not None
            and acknowledgement.key == (self.reason, self.subject)
            and acknowledgement.covers(self.boot_id, self.seq, seen)
            for acknowledgement in acknowledged
        )


def read_release(node: NodeState, *, by_label: bool) -> tuple[Release | None, tuple[str, ...]]:
    """Return the pending release on this Node, and complaints about unreadable parts.

    Both come from the same Node object. `by_label` False: the label is not managed by this project, so its value is not
    a release.
    """
    text = node.annotations.get(RELEASE)
    complaints: tuple[str, ...] = ()
    if text is not None:
        try:
            return parse_release(text), ()
        except RecordError as error:
            complaints = (f"annotation {RELEASE}: {error}; it is removed",)
    return (_release_by_label(node) if by_label else None), complaints


def release_of(node: NodeState, by: str, reason: str, at: datetime) -> Release:
    """Return a person's release of every event finding in the Node's records. Raises RecordError."""
    return Release(by, reason, at, acknowledgements(faults_on(node)))


def acknowledgements(faults: Iterable[Fault]) -> tuple[Acknowledgement, ...]:
    """Return one acknowledgement for each finding that a release can end and that has a time."""
    return tuple(
        Acknowledgement(fault.reason, fault.subject, fault.boot_id, fault.cursor, fault.seen)
        for fault in faults
        if fault.is_releasable and fault.seen is not None
    )


def dump_release(release: Release) -> str:
    """Return the annotation's text."""
    rows = tuple(map(acknowledgement_row, release.findings))
    row = _PendingReleaseRow(release.by, release.reason, release.at, rows)
    return json.dumps(as_json(row), separators=(",", ":"), ensure_ascii=False)


def parse_release(text: str) -> Release:
    """Return the release in the text. Raises RecordError if the text is not a release."""
    row = read_row(_PendingReleaseRow, records.load(text))
    try:
        row.must_have("by", "reason", "at", "findings")
        findings = tuple(_whole_second(finding.acknowledgement()) for finding in row.findings or ())
    except ValueError as error:
        raise RecordError(f"not a release ({{by, reason, at, findings}}): {error}") from None
    assert row.at is not None
    return Release((row.by or "")[:_LONGEST_WORD], (row.reason or "")[:_LONGEST_REASON], row.at, findings)


def released_at(node: NodeState, now: datetime) -> datetime | None:
    """Return the time of the last release of the node, even if the agent has not read it yet.

    A time in the future is ignored.
    """
    row = records.on_node(AgentRecord, node, RESULTS).released
    try:
        pending_at = read_row(_PendingReleaseRow, records.load(node.annotations.get(RELEASE, "{}"))).at
    except RecordError:
        pending_at = None
    times = (row.at if row else None, pending_at)
    return max((at for at in times if at is not None and not is_future(at, now)), default=None)


def other_severities(
    node: NodeState, acknowledged: Iterable[Acknowledgement], adopted_records: Mapping[str, str] | None = None
) -> tuple[list[Severity], tuple[str, ...]]:
    """Return the severities of deep records without released findings, and errors of unreadable records.

    A record that the agent has adopted does not count separately. `adopted_records` lists the adopted records; None
    means that the agent's record on the Node lists them.
    """
    severities, complaints = [], []
    releases = tuple(acknowledged)
    adopted_records = adopted_records_on(node) if adopted_records is None else adopted_records
    for annotation in DEEP:
        try:
            if annotation not in node.annotations:
                continue
            record = records.parse(RunRecord, node.annotations[annotation])
            if is_adopted(record, annotation, adopted_records):
                continue
            if is_counted := counts(record, node):
                active_severities = [
                    fault.severity for fault in deep_faults(record, DEEP[annotation]) if not fault.is_covered(releases)
                ]
                severities.append(min(records.severity_of(record), worst(active_severities)))
            if why := _why_undated(record):
                effect = "counts until it is removed from the Node" if is_counted else "is ignored"
                complaints.append(f"annotation {annotation}: {why}; it {effect}")
        except RecordError as error:
            complaints.append(f"annotation {annotation}: {error}; it is ignored")
    return severities, tuple(complaints)


def undescribed_records(node: NodeState, adopted_records: Mapping[str, str]) -> Iterator[str]:
    """Yield annotation, time and severity of each counting deep record whose findings the agent has not adopted."""
    for annotation, kind in DEEP.items():
        record = records.on_node(RunRecord, node, annotation)
        if (
            annotation in node.annotations
            and not is_adopted(record, annotation, adopted_records)
            and counts(record, node)
        ):
            yield severity_message(kind, record.timestamp, record.severity)


def severity_message(kind: str, at: str | None, severity: str | None) -> str:
    """Return the message of a deep record's severity without a finding for it."""
    return f"{kind} of {printable(at or 'an unknown time', _LONGEST_TIME)} has severity {severity}"


def counts(record: RunRecord, node: NodeState) -> bool:
    """Whether a deep record describes the node's present state.

    A record of the bash suite does so while the taint is set.
    """
    return records.is_ours(record) or (records.time_of(record) is not None and node.tainted())


def _why_undated(record: RunRecord) -> str:
    """Return why a record has no usable time.

    A record without a time can't be adopted, and a release can't distinguish it from a later record.
    """
    if record.timestamp is None and "timestamp" not in record.invalid and records.is_ours(record):
        return ""
    try:
        moment(record.timestamp)
    except ValueError as error:
        return f"timestamp: {error}"
    return ""


def faults_on(node: NodeState) -> tuple[Fault, ...]:
    """Return the findings of all records on the Node, worst first. Unreadable records are skipped."""
    faults = [*_deep_faults_on(node), *_own_faults(node)]
    return tuple(sorted(faults, key=lambda fault: -fault.severity))


def _release_by_label(node: NodeState) -> Release | None:
    """Return the release that a person made by setting `status=pass` although our record is worse.

    The agent writes label and record together, so only a person can have changed the label alone. Results of a deep
    diagnostic that the agent has not adopted yet do not count. The person's name is in the Node's managed fields, if
    recorded. The release counts without a name.
    """
    record = _own_record(node)
    if node.labels.get(STATUS) != Status.PASS.value or record.status not in _WORSE:
        return None
    findings = acknowledgements(_own_faults(node))
    managers = [manager for manager in node.status_managers if manager.name != FIELD_MANAGER]
    recorded_at = records.time_of(record) or EARLIEST
    person = max(managers, key=lambda manager: manager.at, default=FieldManager(_UNKNOWN_AUTHOR, recorded_at))
    at = max(person.at, recorded_at)
    has_something = findings or node.tainted()
    return Release(person.name, LABEL_RELEASE, at, tuple(map(_whole_second, findings))) if has_something else None


def is_adopted(record: RunRecord, annotation: str, adopted_records: Mapping[str, str]) -> bool:
    """Whether the agent has adopted the findings of this deep record."""
    return record.timestamp is not None and adopted_records.get(DEEP[annotation]) == record.timestamp


def adopted_records_on(node: NodeState) -> Mapping[str, str]:
    """Return the timestamps of the deep records that the agent's record has adopted, by kind of record."""
    return _own_record(node).taken or {}


def has_adopted(node: NodeState, kind: str, timestamp: str | None) -> bool:
    """Whether the agent's record has adopted that deep record, and any taint that it requests is set.

    The verdict waits only briefly for a slot of the fleet budget, so the taint may follow the record.
    """
    own = _own_record(node)
    return (own.taken or {}).get(kind) == timestamp and (own.taint != "withheld" or node.tainted())


def _own_record(node: NodeState) -> AgentRecord:
    """Return the agent's record; an empty one if it is missing, unreadable or written by the bash suite."""
    record = records.on_node(AgentRecord, node, RESULTS)
    return record if records.is_ours(record) else AgentRecord()


def _own_faults(node: NodeState) -> list[Fault]:
    record = _own_record(node)
    return [
        fault for row in record.findings or () if (fault := _fault(row, record, row.nature, record.cursor)) is not None
    ]


def _deep_faults_on(node: NodeState) -> Iterator[Fault]:
    adopted_records = adopted_records_on(node)
    for annotation in DEEP:
        try:
            record = records.parse(RunRecord, node.annotations.get(annotation, "{}"))
            if not is_adopted(record, annotation, adopted_records) and counts(record, node):
                yield from deep_faults(record, DEEP[annotation])
        except RecordError:
            continue


def deep_faults(record: RunRecord, kind: str) -> list[Fault]:
    """Return the findings of a deep diagnostic, as events. Raises RecordError.

    A severity that none of the findings explains is an event too.
    """
    rows = [row for row in record.findings or () if "nature" not in row.invalid]
    faults = [fault for row in rows if (fault := _fault(row, record, row.nature or Nature.EVENT)) is not None]
    stated = records.severity_of(record)
    if stated > worst(fault.severity for fault in faults):
        detail = severity_message(kind, record.timestamp, stated.name)
        unexplained = FindingRow(UNEXPLAINED, stated, "node", detail=detail)
        faults += [fault for fault in (_fault(unexplained, record, Nature.EVENT),) if fault is not None]
    return faults


def _fault(row: FindingRow, record: Record, nature: Nature | None, cursor: int | None = None) -> Fault | None:
    """Return a row of a record, which any client may have written, as a finding; None if it is invalid."""
    if row.reason is None or row.subject is None or row.severity is None or nature is None:
        return None
    seq = -1 if row.seq is None else row.seq
    boot_id = record.boot_id or "" if row.boot_id is None else row.boot_id
    # The cursor is a position in the log of the record's boot. The log of an earlier boot has ended.
    position = cursor if boot_id == (record.boot_id or "") else seq
    seen = None if "last_seen" in row.invalid else row.last_seen or records.time_of(record)
    return Fault(row.reason, row.subject, row.severity, nature, boot_id, position if seq >= 0 else None, seq, seen, row)


def _whole_second(acknowledgement: Acknowledgement) -> Acknowledgement:
    """Cut the time to the second: times in a record have no fractions, times in the memory do."""
    last_seen = acknowledgement.last_seen.replace(microsecond=999_999)
    return Acknowledgement(
        acknowledgement.reason, acknowledgement.subject, acknowledgement.boot_id, acknowledgement.cursor, last_seen
    )
