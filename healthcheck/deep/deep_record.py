"""Record of a deep diagnostic: its format, and its transfer into the agent's memory. No side effects.

After the transfer, the agent owns the findings, and any of their documented exits can end them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import gpu_load
from gpu_healthcheck.healthcheck.checks.dcgm_diag import LEVEL_2, LEVEL_4
from gpu_healthcheck.healthcheck.memory.deep_tests import DeepFinding, DeepResult, after_deep_test
from gpu_healthcheck.healthcheck.memory.exits import recovered
from gpu_healthcheck.healthcheck.memory.findings import MOST_GPUS, Memory
from gpu_healthcheck.healthcheck.memory.reason_names import SLOW
from gpu_healthcheck.healthcheck.memory.rows import row_of
from gpu_healthcheck.healthcheck.model import Finding, Nature, Now, Outcome, Passed, Severity, Status
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, RESET_RESULT, NodeState, is_of_another_machine
from gpu_healthcheck.healthcheck.text.moments import held, moment, timestamp
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import (
    UNEXPLAINED,
    Fault,
    counts,
    deep_faults,
    is_adopted,
    severity_message,
)
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent, cut, event_name
from gpu_healthcheck.healthcheck.verdict.record import DEEP, CauseRow, CheckRow, RunRecord
from gpu_healthcheck.healthcheck.verdict.verdict import status_of, worst

_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,62}\Z", re.ASCII)
_SUBJECT = re.compile(r"[a-z]+(/.+)?\Z", re.ASCII)
_LONGEST_SUBJECT, _LONGEST_DETAIL, _LONGEST_NAME = 253, 500, 80
_LONGEST_CAUSE = 300
_NAMES = ("index", "uuid", "serial")
_CHECKS = {"sweep-result": LEVEL_2.name, "quarantine-result": LEVEL_4.name, "reset-result": LEVEL_2.name}
"""Check that defines the exits of findings, for each kind of record."""
_UNDER_LOAD = frozenset(reason.name for reason in gpu_load.CHECK.reasons)
"""Reasons of the load test, which is part of a quarantine run and of a reset."""


class GpuReset(Struct, frozen=True):
    """A successful reset of the GPU that answers NVML with this UUID. `at` is monotonic, of the boot `boot_id`."""

    uuid: str
    boot_id: str
    at: float


class DeepRecord(Struct, frozen=True):
    """Result of one deep diagnostic, quarantine or reset.

    `kind` is the name of its annotation; `timestamp` distinguishes it from others of the same kind.
    """

    kind: str
    timestamp: str
    result: DeepResult
    machine: str = ""
    """'' if the run did not record it."""
    resets: tuple[GpuReset, ...] = ()
    void: str = ""
    """Summary of a record without effect: the bash suite wrote it, and its taint is gone."""


class CompletedRun(Struct, frozen=True):
    """One completed level 2 run: its node, origin (`agent`, `sweep`), times, machine and boot."""

    node: str
    by: str
    started: datetime
    ended: datetime
    machine: str = ""
    boot_id: str = ""


class PassedRun(Struct, frozen=True):
    """A quarantine run that passed, including level 4. `name` identifies it."""

    name: str
    began: datetime


def void_record(node: NodeState, deep: DeepRecord) -> NodeEvent:
    """Return the Event for a record that does not count. The same record always gives the same Event name."""
    message = f"{deep.kind} of {deep.timestamp} has {deep.void}: it has no effect because another suite wrote it"
    name = event_name(node.name, "void", deep.kind, deep.timestamp)
    return NodeEvent(name, "Normal", "OldRecord", cut(f"{printable(message)}, and its taint is not set"))


def passed_run(node: NodeState) -> PassedRun | None:
    """Return the passed quarantine run from the record on the Node.

    None if the record shows another result or belongs to another machine.
    """
    text = node.annotations.get(QUARANTINE_RESULT, "{}")
    record = records.on_node(RunRecord, node, QUARANTINE_RESULT)  # `plan` reports an invalid record
    began = records.passed_since(record)
    if began is None or is_of_another_machine(record.machine, node):
        return None
    return PassedRun(hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=12).hexdigest(), began)


def render(outcome: Outcome, ran: CompletedRun) -> RunRecord:
    """Return the record of a run, at most LONGEST bytes long."""
    severity = worst(finding.severity for finding in outcome.findings)
    status = status_of(severity, could_not_check=not outcome.observed).value
    return records.within_limit(
        RunRecord(
            schema=records.SCHEMA,
            timestamp=timestamp(ran.ended),
            started=_second(ran.started),
            node=ran.node,
            suite="level-2",
            by=ran.by,
            status=status,
            severity=severity.name,
            checks=(CheckRow(outcome.group, status, severity.name),),
            findings=tuple(
                row_of(finding, Nature.EVENT)
                for finding in sorted(outcome.findings, key=lambda finding: -finding.severity)
            ),
            unobserved=tuple(
                CauseRow(outcome.group, unobserved.cause.name, unobserved.detail[:_LONGEST_CAUSE])
                for unobserved in outcome.unobserved
            ),
            passed=by_reason(outcome.passed),
            machine=ran.machine,
            boot_id=ran.boot_id,
        )
    )


def by_reason(passed: Iterable[Passed]) -> dict[str, tuple[str, ...]]:
    """Return the tests that passed, with their subjects."""
    subjects: dict[str, tuple[str, ...]] = {}
    for test in passed:
        subjects[test.reason] = (*subjects.get(test.reason, ()), test.subject)
    return subjects


def deep_record(record: RunRecord, kind: str) -> DeepRecord:
    """Parse the record of a deep diagnostic. Raises RecordError or ValueError."""
    at = moment(record.timestamp)
    severity = records.severity_of(record)
    faults = [fault for fault in deep_faults(record, kind) if min(fault.severity, severity) is not Severity.PASS]
    saw_all = not record.unobserved and "unobserved" not in record.invalid
    return DeepRecord(
        kind,
        str(record.timestamp),
        DeepResult(
            min(record.started or at, at),
            at,
            tuple(_found(fault, severity, kind, record.timestamp) for fault in faults),
            tuple(
                Passed(reason, subject)
                for reason, subjects in (record.passed or {}).items()
                for subject in subjects
                if reason not in SLOW or kind == DEEP[QUARANTINE_RESULT]
            ),
            record.status == Status.PASS.value and bool(record.checks) and saw_all and not faults,
        ),
        (record.machine or "")[:_LONGEST_NAME],
        tuple(_resets(record)) if kind == DEEP[RESET_RESULT] else (),
    )


def _resets(record: RunRecord) -> Iterator[GpuReset]:
    if record.reset_at is not None and record.boot_id:
        for gpu in (record.gpus or ())[:MOST_GPUS]:
            if gpu.uuid:
                yield GpuReset(gpu.uuid, record.boot_id, record.reset_at)


def records_to_adopt(node: NodeState, adopted_records: Mapping[str, str]) -> Iterator[DeepRecord]:
    """Yield the records on the Node that the agent has not transferred yet, those of level 2 first.

    A record that is unreadable, or has an unreadable time, is skipped and takes effect without a transfer.
    """
    for annotation, kind in DEEP.items():
        record = records.on_node(RunRecord, node, annotation)
        if is_adopted(record, annotation, adopted_records):
            continue
        try:
            yield deep_record(record, kind) if counts(record, node) else _void(record, kind)
        except ValueError:
            continue


def _void(record: RunRecord, kind: str) -> DeepRecord:
    """Summarise a record of the bash suite for people. Raises ValueError."""
    at = moment(record.timestamp)
    words = ", ".join(
        f"{name} {value}"[:_LONGEST_NAME]
        for name in ("status", "severity", "recommendation", "suite")
        if (value := getattr(record, name))
    )
    return DeepRecord(kind, str(record.timestamp), DeepResult(at, at), void=words or "nothing")


def after_deep_record(memory: Memory, deep: DeepRecord, now: Now, escalate_after: int) -> Memory:
    """Add the result of a deep diagnostic to the memory. The same record a second time changes nothing."""
    if memory.adopted_records.get(deep.kind) == deep.timestamp:
        return memory
    # Findings of the previous machine with this Node name do not belong to this machine.
    is_ours = not (deep.machine and memory.machine) or deep.machine.lower() == memory.machine.lower()
    after = memory
    if is_ours and not deep.void:
        for reset in deep.resets:
            after = _after_reset(after, reset, now)
        after = after_deep_test(after, deep.result, now, escalate_after)
    return replace(after, adopted_records={**memory.adopted_records, deep.kind: deep.timestamp})


def _after_reset(memory: Memory, reset: GpuReset, now: Now) -> Memory:
    """End the findings that the reset ended. A reset in another boot, or in the future, is no evidence."""
    if reset.boot_id != memory.boot_id or reset.at > now.monotonic:
        return memory
    addresses = [address for address, about in memory.gpus.items() if about.get("uuid") == reset.uuid]
    return recovered(memory, addresses[0], reset.at, now) if len(addresses) == 1 else memory


def _found(fault: Fault, stated: Severity, kind: str, at: str | None) -> DeepFinding:
    """Convert one finding of a record, with limits on its lengths.

    It is never more severe than the run's severity, as in the merge of the records.
    """
    finding = Finding(
        # An unknown reason name still counts as a fault.
        fault.reason if _REASON.match(fault.reason) else UNEXPLAINED,
        min(fault.severity, stated),
        fault.subject[:_LONGEST_SUBJECT] if _SUBJECT.match(fault.subject) else "node",
        (fault.row.detail or severity_message(kind, at, fault.severity.name))[:_LONGEST_DETAIL],
        {name: name_text[:_LONGEST_NAME] for name in _NAMES if (name_text := (fault.row.about or {}).get(name))},
        rule=(fault.row.rule or "")[:_LONGEST_NAME],
        source=kind,
    )
    named = (fault.reason, fault.subject)
    check = gpu_load.CHECK.name if fault.reason in _UNDER_LOAD else _CHECKS[kind]
    return DeepFinding(finding, check, fault.seen, named, fault.boot_id, fault.seq)


def _second(at: datetime) -> datetime:
    return held(at).replace(microsecond=0)
