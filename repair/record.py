"""Record of a reset at any moment: ended steps, pods to evict, result. Pure."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from healthcheck.deep.deep_record import by_reason
from healthcheck.deep.reset_steps import Step
from healthcheck.memory.rows import row_of
from healthcheck.model import Finding, Nature, Passed, Status, Unobserved
from healthcheck.node.state import RESET_RESULT, NodeState
from healthcheck.text.moments import timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.record import CauseRow, ResetGpuRow, ResetStepRow, RunRecord
from healthcheck.verdict.verdict import worst

_BY_COMMAND = {Step.CLAIM.value, Step.DRAIN.value}
"""Steps that the command writes into the record of the Job."""
_LONGEST_DETAIL, _LONGEST_REASON, _MOST_REASONS, _MOST_PODS, _MOST_STEPS = 300, 300, 8, 32, 16


class ResetStart(Struct, frozen=True):
    """Facts at the start of a run. `machine` and `boot_id` are '' if unknown."""

    node: str
    holder: str
    started: datetime
    machine: str = ""
    boot_id: str = ""


class ResetProgress(Struct, frozen=True):
    """State of a run. `running` None: it has ended, with `status`."""

    running: Step | None = Step.PLAN
    status: Status = Status.UNKNOWN
    """PASS: the GPUs were reset and work. FAIL: a GPU does not. UNKNOWN: no GPU was touched."""
    steps: tuple[tuple[Step, datetime, str], ...] = ()
    gpus: tuple[ResetGpuRow, ...] = ()
    scope: str = ""
    pods: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    found: tuple[Finding, ...] = ()
    passed: tuple[Passed, ...] = ()
    unobserved: tuple[tuple[str, Unobserved], ...] = ()
    reset_at: float | None = None
    bug_report: str = ""


def render(begun: ResetStart, progress: ResetProgress, node: NodeState, at: datetime) -> RunRecord:
    """Return the record, with the steps that the command has written."""
    before = records.on_node(RunRecord, node, RESET_RESULT)
    ours = before if before.holder == begun.holder else RunRecord()
    own = {step.value for step, _, _ in progress.steps}
    earlier = [row for row in ours.steps or () if row.step in _BY_COMMAND - own]
    steps = [ResetStepRow(step=step, at=when, detail=detail[:_LONGEST_DETAIL]) for step, when, detail in progress.steps]
    return records.within_limit(
        RunRecord(
            schema=records.SCHEMA,
            timestamp=timestamp(at),
            started=begun.started,
            node=begun.node,
            suite="reset",
            by="reset",
            holder=begun.holder,
            status=progress.status.value,
            severity=worst(finding.severity for finding in progress.found).name,
            reasons=tuple(reason[:_LONGEST_REASON] for reason in progress.reasons[:_MOST_REASONS]),
            checks=(),
            findings=tuple(row_of(finding, Nature.EVENT) for finding in progress.found),
            unobserved=tuple(
                CauseRow(check=group, cause=cause.cause.name, detail=cause.detail[:_LONGEST_DETAIL])
                for group, cause in progress.unobserved
            ),
            passed=by_reason(progress.passed),
            machine=begun.machine,
            boot_id=begun.boot_id,
            running=progress.running.value if progress.running else None,
            bug_report=progress.bug_report or None,
            scope=progress.scope or None,
            gpus=progress.gpus or None,
            pods=progress.pods[:_MOST_PODS] or None,
            steps=tuple([*earlier, *steps][:_MOST_STEPS]) or None,
            reset_at=progress.reset_at,
        )
    )
