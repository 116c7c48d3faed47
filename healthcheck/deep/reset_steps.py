"""Steps of a reset, as its record names them, and what the record says about it. Pure functions, no I/O."""

from __future__ import annotations

from enum import StrEnum

from healthcheck.verdict.record import RunRecord


class Step(StrEnum):
    """A step of a reset. The command runs the first and the last ones, the Job the others."""

    CLAIM = "claim"
    PLAN = "plan"
    FREE = "free the GPUs"
    RESET = "reset"
    VERIFY = "verify"
    LEVEL_2 = "level 2"
    LOAD = "load"
    OPERANDS = "operands"
    RETURN = "return"


_BEFORE = (Step.CLAIM.value, Step.PLAN.value, Step.FREE.value)


def may_have_begun(record: RunRecord) -> bool:
    """Whether the GPUs may have been touched: from then on the run must end, and can't be undone."""
    return record.running not in (None, *_BEFORE) or record.reset_at is not None
