"""Steps of a reset, as its record names them, and what the record says about it. Pure functions, no I/O."""

from __future__ import annotations

from enum import StrEnum

from healthcheck.model import Status
from healthcheck.verdict.record import RunRecord


class Step(StrEnum):
    """A step of a reset. The command runs the first and the last ones, the Job the others."""

    CLAIM = "claim"
    PLAN = "plan"
    FREE = "free the GPUs"
    RESET = "reset"
    DRAIN = "drain the node"
    REBOOT = "reboot"
    VERIFY = "verify"
    LEVEL_2 = "level 2"
    LOAD = "load"
    OPERANDS = "operands"
    RETURN = "return"


_BEFORE = (Step.CLAIM.value, Step.PLAN.value, Step.FREE.value, Step.DRAIN.value)
_RESULTS = (Status.PASS.value, Status.FAIL.value)


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
