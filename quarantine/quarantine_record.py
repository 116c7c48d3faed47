"""Record of a quarantine run at any moment: ended tests, findings and recommendation. Pure.

It is written at the start and at each result, so that it is correct if the run is killed. Until the last test has
ended, it recommends another run, or the action for a fault that was found already. It keeps the findings of earlier
runs: a node is replaced if the same fault recurs after its return to service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog import dcgm
from gpu_healthcheck.healthcheck.checks import dcgm_diag, efa_loopback, gpu_load, nccl_allreduce, rdma_loopback
from gpu_healthcheck.healthcheck.deep import causes
from gpu_healthcheck.healthcheck.deep.deep_record import by_reason
from gpu_healthcheck.healthcheck.memory import exits
from gpu_healthcheck.healthcheck.memory.exits import ESCALATE_WITHIN
from gpu_healthcheck.healthcheck.memory.findings import Memory, gpu_identity
from gpu_healthcheck.healthcheck.memory.reason_names import SLOW
from gpu_healthcheck.healthcheck.memory.rows import FindingRow, row_of
from gpu_healthcheck.healthcheck.model import Check, Finding, Nature, Outcome, Passed, Severity, Status, Unobserved
from gpu_healthcheck.healthcheck.node.state import QUARANTINE_RESULT, RESULTS, NodeState
from gpu_healthcheck.healthcheck.text.moments import moment_or_none, timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import (
    Fault,
    adopted_records_on,
    counts,
    deep_faults,
    is_adopted,
    released_at,
)
from gpu_healthcheck.healthcheck.verdict.record import (
    DEEP,
    AgentRecord,
    CauseRow,
    CheckRow,
    HistoryRow,
    RecordError,
    RunRecord,
)
from gpu_healthcheck.healthcheck.verdict.verdict import status_of, worst
from gpu_healthcheck.quarantine.recommendation import (
    Advice,
    GroupResult,
    Recommendation,
    Returned,
    RunResult,
    recommend,
)

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


KIND = "quarantine-result"
TESTS: tuple[Check, ...] = (
    *(dcgm_diag.LEVEL_4, efa_loopback.CHECK, rdma_loopback.CHECK),
    *(gpu_load.CHECK, nccl_allreduce.CHECK),
)
"""Order of the groups: tests that end most findings first, tests that a stuck GPU may block last."""
_LONGEST_DETAIL, _LONGEST_REASON, _MOST_REASONS = 300, 240, 6


class QuarantineTestResult(Struct, frozen=True):
    """Current result of one test; `ended`: it is final."""

    outcome: Outcome
    ended: bool = True


class RunStart(Struct, frozen=True):
    """Facts at the start of a run. `machine` and `boot_id` are '' if unknown."""

    node: str
    holder: str
    started: datetime
    machine: str = ""
    boot_id: str = ""
    carried: tuple[FindingRow, ...] = ()
    """Findings of the previous record that the agent has not adopted; this record keeps them."""
    history: History = field(default_factory=History)


class QuarantineProgress(Struct, frozen=True):
    """State of a run. `results` by group of the test; `stopped`: why the run ended early, or ''."""

    results: Mapping[str, QuarantineTestResult] = field(default_factory=dict)
    running: str = ""
    stopped: str = ""
    bug_report: str = ""
    """Path of NVIDIA's report on the host."""

    @property
    def found(self) -> tuple[Finding, ...]:
        return tuple(finding for result in self.results.values() for finding in result.outcome.findings)

    @property
    def tests_passed(self) -> tuple[Passed, ...]:
        return tuple(passed for result in self.results.values() for passed in result.outcome.passed)

    @property
    def unobserved(self) -> tuple[tuple[str, Unobserved], ...]:
        """Return the unobserved parts with the group of their test; an unfinished test is unobserved."""
        entries = [
            (group, cause) for group, test_result in self.results.items() for cause in test_result.outcome.unobserved
        ]
        for check in TESTS:
            result = self.results.get(check.group)
            if result is None or not result.ended:
                entries.append((check.group, self._why_unfinished(check.group)))
            elif check is dcgm_diag.LEVEL_4 and not result.outcome.configured:
                why = " ".join(observation.what for observation in result.outcome.seen)
                entries.append((check.group, Unobserved(dcgm.ABSENT, why or "there is no DCGM to run it")))
        return tuple(entries)

    @property
    def passed(self) -> bool:
        """Whether all tests of the run have ended without any finding."""
        return not self.found and not self.unobserved

    def _why_unfinished(self, group: str) -> Unobserved:
        if self.stopped:
            return Unobserved(causes.RUN_STOPPED, self.stopped)
        if group == self.running:
            return Unobserved(causes.NOT_FINISHED, "it was running when this was written")
        return Unobserved(causes.NOT_FINISHED, "it had not begun when this was written")


def carried_by(node: NodeState, machine: str, boot_id: str) -> tuple[FindingRow, ...]:
    """Return the faults of the record on the Node that the agent has not adopted.

    Faults that a person released, that a reboot ended, or that another machine had are left out.
    """
    try:
        record = records.parse(RunRecord, node.annotations.get(QUARANTINE_RESULT, "{}"))
        is_void = is_adopted(record, QUARANTINE_RESULT, adopted_records_on(node)) or not counts(record, node)
        faults = () if is_void else deep_faults(record, DEEP[QUARANTINE_RESULT])
    except RecordError:
        return ()
    if machine and record.machine not in (None, "", machine):
        return ()
    released = _remembered(node).acknowledged
    still = [fault for fault in faults if fault.severity > Severity.PASS and not fault.is_covered(released)]
    at = records.time_of(record)
    return tuple(
        _carried(fault, at)
        for fault in still
        if fault.severity is Severity.ISOLATE
        or fault.reason in SLOW
        or "" in (fault.boot_id, boot_id)
        or fault.boot_id == boot_id
    )


def _carried(fault: Fault, at: datetime | None) -> FindingRow:
    detail = (fault.row.detail or "an earlier quarantine run found it")[:_LONGEST_DETAIL]
    return replace(
        fault.row,
        last_seen=fault.seen or at,
        reason=fault.reason,
        severity=fault.severity,
        subject=fault.subject,
        detail=detail,
        boot_id=fault.boot_id,
        nature=Nature.EVENT,
        invalid=frozenset(),
    )


def advise(begun: RunStart, progress: QuarantineProgress, node: NodeState) -> Advice:
    """Return the recommendation for the node, from this run and the agent's present record."""
    memory = _remembered(node)
    memory = exits.retested(memory, progress.tests_passed, begun.started)
    if progress.passed:
        memory = exits.passed(memory, begun.started)
    carried = [_finding(row) for row in _still_carried(begun, progress)]
    now = [finding.finding for finding in memory.active if finding.nature is Nature.LEVEL]
    ours = [
        finding for finding in memory.active if finding.finding.source == KIND and finding.last_seen >= begun.started
    ]
    active_events = [
        finding.finding for finding in memory.active if finding.nature is Nature.EVENT and finding not in ours
    ]
    return recommend(
        RunResult(
            tests=tuple(GroupResult(check.group, _status(progress, check)) for check in TESTS),
            found=(*progress.found, *now),
            active_events=(*active_events, *carried),
            returned_with=begun.history.returned_with,
        )
    )


def render(begun: RunStart, progress: QuarantineProgress, node: NodeState, at: datetime) -> RunRecord:
    """Return the record, at most LONGEST bytes long."""
    advice = advise(begun, progress, node)
    carried = _still_carried(begun, progress)
    rows = (*(row_of(finding, Nature.EVENT) for finding in progress.found), *carried)
    severity = worst(row.severity for row in rows if row.severity is not None)
    status = status_of(severity, could_not_check=bool(progress.unobserved))
    return records.within_limit(
        RunRecord(
            schema=records.SCHEMA,
            timestamp=timestamp(at),
            started=begun.started,
            node=begun.node,
            suite="level-4",
            by="quarantine",
            holder=begun.holder,
            status=status.value,
            severity=severity.name,
            recommendation=advice.recommendation.value,
            reasons=tuple(reason[:_LONGEST_REASON] for reason in advice.reasons[:_MOST_REASONS]),
            checks=tuple(_check_row(progress, check) for check in TESTS),
            findings=tuple(sorted(rows, key=lambda row: -(row.severity or Severity.PASS))),
            unobserved=tuple(
                CauseRow(group, cause.cause.name, cause.detail[:_LONGEST_DETAIL])
                for group, cause in progress.unobserved
            ),
            passed=by_reason(progress.tests_passed),
            machine=begun.machine,
            boot_id=begun.boot_id,
            history=begun.history.rows,
            running=progress.running or None,
            bug_report=progress.bug_report or None,
        )
    )


def _still_carried(begun: RunStart, progress: QuarantineProgress) -> tuple[FindingRow, ...]:
    """Return the carried findings that this run has not ended."""
    fit = {(passed.reason, passed.subject) for passed in progress.tests_passed}
    return tuple(
        row
        for row in begun.carried
        if ((row.reason, row.subject) not in fit if row.reason in SLOW else not progress.passed)
    )


def _remembered(node: NodeState) -> Memory:
    """Return the findings of the agent's record. Without a record, only the tests count."""
    try:
        return records.remembered(records.parse(AgentRecord, node.annotations.get(RESULTS, "{}")))
    except RecordError:
        return Memory()


def _status(progress: QuarantineProgress, check: Check) -> Status | None:
    """Return the result for the recommendation; its status is None until the test has ended."""
    result = progress.results.get(check.group)
    return outcome_status(result.outcome) if result is not None and result.ended else None


def outcome_status(outcome: Outcome) -> Status:
    """Return the status of one test from its results."""
    if not outcome.configured and not outcome.findings:
        return Status.NOT_CONFIGURED
    return status_of(worst(finding.severity for finding in outcome.findings), could_not_check=not outcome.observed)


def _check_row(progress: QuarantineProgress, check: Check) -> CheckRow:
    result = progress.results.get(check.group)
    findings = result.outcome.findings if result else ()
    severity = worst(finding.severity for finding in findings)
    status = _status(progress, check) or status_of(severity, could_not_check=True)
    seen = result.outcome.seen[0].what[:_LONGEST_DETAIL] if result and result.outcome.seen else None
    return CheckRow(check.group, status.value, severity.name, seen)


def _finding(row: FindingRow) -> Finding:
    return Finding(str(row.reason), row.severity or Severity.PASS, str(row.subject), str(row.detail))


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return the finding as text for a log: `DcgmDiagMemory ISOLATE gpu/0`."""
    return [f"{finding.reason} {finding.severity.name} {finding.subject}" for finding in findings]
