"""Steps of a reset, as its record names them, and what the record says about it. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum

from healthcheck.model import Status
from healthcheck.node.state import RESET_COMMAND, RESET_RESULT, NodeState
from healthcheck.text.moments import timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.node_events import NodeEvent, cut, event_name
from healthcheck.verdict.record import RunRecord


class Step(StrEnum):
    """A step of a reset. The command runs the first and the last ones, the Job the others."""

    CLAIM = "claim"
    PLAN = "plan"
    FREE = "free the GPUs"
    OPERANDS = "operands"
    RESET = "reset"
    DRAIN = "drain the node"
    REBOOT = "reboot"
    VERIFY = "verify"
    LEVEL_2 = "level 2"
    LOAD = "load"


_BEFORE = (Step.CLAIM.value, Step.PLAN.value, Step.FREE.value, Step.OPERANDS.value, Step.DRAIN.value)
_RESULTS = (Status.PASS.value, Status.FAIL.value)
_NAMES = frozenset(Step)
_KEPT = timedelta(hours=1)
"""Time for which the API server keeps Events by default: an Event is not created twice within it."""


def may_have_begun(record: RunRecord) -> bool:
    """Whether the GPUs may have been touched: from then on the run must end, and can't be undone."""
    is_at_work = record.running not in (None, *_BEFORE)
    return is_at_work or record.reset_at is not None or record.status in _RESULTS


def awaits_reboot(record: RunRecord, boot_id: str) -> bool:
    """Whether the record requests a reboot of this boot, which has not happened yet."""
    return record.running == Step.REBOOT.value and bool(boot_id) and record.boot_id == boot_id


def drained(record: RunRecord) -> str:
    """Return the detail of the ended drain; '' if it has not ended."""
    return next((row.detail or "" for row in record.steps or () if row.step == Step.DRAIN.value), "")


def step_events(node: NodeState, now: datetime) -> Iterator[NodeEvent]:
    """Yield an Event for each step in the Node's record, and one for its end once the node is returned.

    The same step always has the same name. Steps older than an hour are left out: they have been reported.
    """
    record = records.on_node(RunRecord, node, RESET_RESULT)
    for row in record.steps or ():
        if row.step in _NAMES and row.at is not None and now - row.at < _KEPT:
            message = cut(": ".join(filter(None, (row.step, row.detail))))
            yield NodeEvent(
                event_name(node.name, "reset", row.step or "", timestamp(row.at)), "Normal", "GpuResetStep", message
            )
    ended = records.time_of(record)
    if record.running or RESET_COMMAND in node.annotations or ended is None or now - ended >= _KEPT:
        return
    name, why = event_name(node.name, "reset", "end", timestamp(ended)), "; ".join(record.reasons or ())
    if record.status == Status.PASS and not why:
        yield NodeEvent(name, "Normal", "GpuResetDone", "the GPUs work again")
    else:
        default = "a GPU does not work" if record.status == Status.FAIL else "no GPU was reset"
        yield NodeEvent(name, "Warning", "GpuResetFailed", cut(why or default))
