"""Results of earlier attempts to end the active faults of a node by a reset or a reboot, from its records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from msgspec import Struct

from gpu_healthcheck.healthcheck.deep.reset_plan import (
    ResetTarget,
    Step,
    drained,
    ends_by_reset,
    known_failure,
    needs_reboot,
)
from gpu_healthcheck.healthcheck.memory.reason_names import OF_THE_NETWORK
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.model import Nature, Severity, Status
from gpu_healthcheck.healthcheck.node.state import RESET_RESULT, RESULTS, NodeState, is_of_another_machine
from gpu_healthcheck.healthcheck.text.moments import EARLIEST
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RunRecord, StandingRecord

_NEVER = datetime.min.replace(tzinfo=UTC)
_LONGEST_WHY = 300
_IN_USE = f"step '{Step.FREE}':"
"""Beginning of the reason of a reset that waited in vain for the users of its GPUs."""
INTERRUPTED = "undone: interrupted"
"""Reason of a reset that a person ended before it touched a GPU."""
_CLOCK_ERROR = timedelta(minutes=5)
"""Largest change of the clock within a boot that is no earlier boot."""


class Tried(Enum):
    """Strongest attempt that has not ended the faults."""

    NOTHING = auto()
    REFUSED = auto()
    """The last reset ended before it touched a GPU, for another reason than its users."""
    RESET = auto()
    NOT_REBOOTED = auto()
    """The node was drained for a reboot, which was refused or did not happen."""
    REBOOT = auto()


class Attempt(Struct, frozen=True):
    """The attempt, and the reasons why it failed, as text. NOTHING with a reason: the GPUs were in use."""

    tried: Tried = Tried.NOTHING
    why: str = ""


def came(row: FindingRow) -> datetime:
    """Return the time when the finding was new: first observation of a level, last observation of an event."""
    return (row.last_seen if row.nature is Nature.EVENT else row.first_seen) or EARLIEST


def run_on(node: NodeState, annotation: str) -> tuple[RunRecord, datetime]:
    """Return the last run of this kind on this machine with its time; an empty record without one."""
    run = records.on_node(RunRecord, node, annotation)
    at = records.time_of(run)
    is_known = at is not None and not is_of_another_machine(run.machine, node)
    return (run, at) if is_known and at is not None else (RunRecord(), _NEVER)


def last_attempt(node: NodeState) -> Attempt:
    """Return the attempt that the active faults of RESET and REBOOT have outlasted. A newer fault is untried."""
    faults = [
        row
        for row in records.on_node(StandingRecord, node, RESULTS).findings or ()
        if row.severity in (Severity.RESET, Severity.REBOOT) and row.reason not in OF_THE_NETWORK
    ]
    if any(map(_has_outlasted_a_boot, faults)):
        return Attempt(Tried.REBOOT)
    reset, at = run_on(node, RESET_RESULT)
    if INTERRUPTED in (reset.reasons or ()):
        return Attempt()
    older = [row for row in faults if came(row) <= at]
    return Attempt(_tried(reset, older), "; ".join(reset.reasons or ())[:_LONGEST_WHY]) if older else Attempt()


def _has_outlasted_a_boot(row: FindingRow) -> bool:
    """Whether the fault was observed before this boot of the machine, and in it."""
    if row.boot_id is not None or row.at is None or row.first_seen is None or row.last_seen is None:
        return False
    return row.first_seen + _CLOCK_ERROR < row.last_seen - timedelta(seconds=row.at)


def _tried(reset: RunRecord, older: list[FindingRow]) -> Tried:
    """Return what the last reset tried for these faults, which it has not ended."""
    if any(row.step == Step.REBOOT for row in reset.steps or ()):
        return Tried.REBOOT
    if reset.running == Step.REBOOT or (drained(reset) and reset.running is None):
        return Tried.NOT_REBOOTED
    if reset.running is not None:
        return Tried.NOTHING  # it was interrupted, and the same command continues it
    if reset.status == Status.UNKNOWN:
        return Tried.NOTHING if (reset.reasons or ("",))[0].startswith(_IN_USE) else Tried.REFUSED
    addresses = {gpu.address for gpu in reset.gpus or ()}
    return Tried.RESET if any((ends_by_reset(row) or None) in addresses for row in older) else Tried.NOTHING


def is_rebooted_at_once(node: NodeState, targets: Sequence[ResetTarget], *, force: bool) -> bool:
    """Whether no reset is tried before a reboot.

    There is no GPU to reset, only a reboot ends a finding, resets are known to fail, or the last one has ended nothing.
    """
    is_futile = known_failure(node.provider_id) is not None or last_attempt(node).tried is Tried.RESET
    return not targets or bool(needs_reboot(node)) or (is_futile and not force)
