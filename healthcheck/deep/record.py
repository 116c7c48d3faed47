"""The record of a deep run: how it is written, and how the agent takes it into its own memory. Pure.

What was taken is the agent's own finding, which every written exit ends.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from healthcheck.checks.dcgm_diag import LEVEL_2, LEVEL_4
from healthcheck.memory.deep_tests import DeepFinding, DeepResult, after_deep_test
from healthcheck.memory.findings import Memory
from healthcheck.memory.rows import row_of
from healthcheck.model import Finding, Nature, Now, Outcome, Passed, Severity, Status
from healthcheck.node.state import QUARANTINE_RESULT, NodeState, is_of_another_machine
from healthcheck.text.moments import held, moment, timestamp
from healthcheck.text.printable import printable
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import UNTOLD, Fault, counts, deep_faults, is_taken
from healthcheck.verdict.events import Event, cut, event_name
from healthcheck.verdict.record import DEEP, CauseRow, CheckRow, RunRecord
from healthcheck.verdict.verdict import status_of, worst

_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,62}\Z", re.ASCII)
_SUBJECT = re.compile(r"[a-z]+(/.+)?\Z", re.ASCII)
_LONGEST_SUBJECT, _LONGEST_DETAIL, _LONGEST_NAME = 253, 500, 80
_LONGEST_CAUSE = 300
_NAMES = ("index", "uuid", "serial")
_CHECKS = {"sweep-result": LEVEL_2.name, "quarantine-result": LEVEL_4.name}
"""By whose exits the findings of each kind of record leave."""


class DeepRecord(Struct, frozen=True):
    """What one deep run says. `kind` is its annotation's name; `timestamp` tells it from others of that kind."""

    kind: str
    timestamp: str
    result: DeepResult
    machine: str = ""
    """'' where the run did not say."""
    void: str = ""
    """What it says, where it counts for nothing: the bash suite wrote it, and its taint does not stand any more."""


class Ran(Struct, frozen=True):
    """One deep run of level 2 that came to its end: where, by whom (`agent`, `sweep`), on which machine and boot."""

    node: str
    by: str
    started: datetime
    ended: datetime
    machine: str = ""
    boot_id: str = ""


class PassedRun(Struct, frozen=True):
    """A quarantine run, level 4 in it, that passed. `name` tells it from others."""

    name: str
    began: datetime


def void_record(node: NodeState, deep: DeepRecord) -> Event:
    """A deep record that counts for nothing. The same one has the same name, whenever it is told."""
    message = f"{deep.kind} of {deep.timestamp} says {deep.void}: it counts for nothing, for it is another suite's"
    name = event_name(node.name, "void", deep.kind, deep.timestamp)
    return Event(name, "Normal", "OldRecord", cut(f"{printable(message)}, and its taint does not stand"))


def passed_run(node: NodeState) -> PassedRun | None:
    """The run whose record on the Node says so; None where it says anything else, or speaks of another machine."""
    text = node.annotations.get(QUARANTINE_RESULT, "{}")
    record = records.on_node(RunRecord, node, QUARANTINE_RESULT)  # whoever plans the change complains of a bad one
    began = records.passed_since(record)
    if began is None or is_of_another_machine(record.machine, node):
        return None
    return PassedRun(hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=12).hexdigest(), began)


def render(outcome: Outcome, ran: Ran) -> RunRecord:
    """The record of a run, at most LONGEST bytes long."""
    severity = worst(one.severity for one in outcome.findings)
    status = status_of(severity, could_not_look=not outcome.observed).value
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
                row_of(one, Nature.EVENT) for one in sorted(outcome.findings, key=lambda one: -one.severity)
            ),
            unobserved=tuple(
                CauseRow(outcome.group, one.cause.name, one.detail[:_LONGEST_CAUSE]) for one in outcome.unobserved
            ),
            passed=by_reason(outcome.passed),
            machine=ran.machine,
            boot_id=ran.boot_id,
        )
    )


def by_reason(passed: Iterable[Passed]) -> dict[str, tuple[str, ...]]:
    """The tests that passed, and where."""
    told: dict[str, tuple[str, ...]] = {}
    for one in passed:
        told[one.reason] = (*told.get(one.reason, ()), one.subject)
    return told


def deep_record(record: RunRecord, kind: str) -> DeepRecord:
    """What a record says. Raises RecordError or ValueError."""
    at = moment(record.timestamp)
    severity = records.severity_of(record)
    faults = [one for one in deep_faults(record) if min(one.severity, severity) is not Severity.PASS]
    saw_all = not record.unobserved and "unobserved" not in record.odd
    return DeepRecord(
        kind,
        str(record.timestamp),
        DeepResult(
            min(record.started or at, at),
            at,
            tuple(_found(one, severity, kind) for one in faults),
            tuple(Passed(reason, one) for reason, subjects in (record.passed or {}).items() for one in subjects),
            record.status == Status.PASS.value and bool(record.checks) and saw_all and not faults,
        ),
        (record.machine or "")[:_LONGEST_NAME],
    )


def untaken(node: NodeState, taken: Mapping[str, str]) -> Iterator[DeepRecord]:
    """The deep records on the Node that the agent has not taken, those of level 2 first.

    One that nobody can read, or whose time nobody can tell, is left to count by itself.
    """
    for annotation, kind in DEEP.items():
        record = records.on_node(RunRecord, node, annotation)
        if is_taken(record, annotation, taken):
            continue
        try:
            yield deep_record(record, kind) if counts(record, node) else _void(record, kind)
        except ValueError:
            continue


def _void(record: RunRecord, kind: str) -> DeepRecord:
    """One of the bash suite's, as far as a person wants to know of it. Raises ValueError."""
    at = moment(record.timestamp)
    words = ", ".join(
        f"{name} {told}"[:_LONGEST_NAME]
        for name in ("status", "severity", "recommendation", "suite")
        if (told := getattr(record, name))
    )
    return DeepRecord(kind, str(record.timestamp), DeepResult(at, at), void=words or "nothing")


def after_deep_record(memory: Memory, deep: DeepRecord, now: Now, escalate_after: int) -> Memory:
    """The memory with what a deep record says as its own. The same record a second time changes nothing."""
    if memory.taken.get(deep.kind) == deep.timestamp:
        return memory
    # What was found on the machine that was here before is none of ours.
    is_ours = not (deep.machine and memory.machine) or deep.machine.lower() == memory.machine.lower()
    after = after_deep_test(memory, deep.result, now, escalate_after) if is_ours and not deep.void else memory
    return replace(after, taken={**memory.taken, deep.kind: deep.timestamp})


def _found(fault: Fault, stated: Severity, kind: str) -> DeepFinding:
    """One row, bounded. Never worse than what its own run says of the node, as the merge of the records has it."""
    finding = Finding(
        # What nobody here would name so is a fault all the same.
        fault.reason if _REASON.match(fault.reason) else UNTOLD,
        min(fault.severity, stated),
        fault.subject[:_LONGEST_SUBJECT] if _SUBJECT.match(fault.subject) else "node",
        (fault.row.detail or f"a deep diagnostic's record says {fault.severity.name}")[:_LONGEST_DETAIL],
        {name: told[:_LONGEST_NAME] for name in _NAMES if (told := (fault.row.about or {}).get(name))},
        rule=(fault.row.rule or "")[:_LONGEST_NAME],
        source=kind,
    )
    named = (fault.reason, fault.subject)
    return DeepFinding(finding, _CHECKS[kind], fault.seen, named, fault.boot_id, fault.seq)


def _second(at: datetime) -> datetime:
    return held(at).replace(microsecond=0)
