"""Record of a reset at any moment: ended steps, pods to evict, result. Pure.

The GPUs of the reset, and whether they work again, follow from NVML before and after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from gpu_healthcheck.healthcheck.deep.deep_record import by_reason
from gpu_healthcheck.healthcheck.deep.reset_plan import ResetScope, ScopeRow, Step, scope_of
from gpu_healthcheck.healthcheck.memory.rows import row_of
from gpu_healthcheck.healthcheck.model import Finding, Nature, Passed, Status, Unobserved
from gpu_healthcheck.healthcheck.node.state import RESET_RESULT, NodeState
from gpu_healthcheck.healthcheck.probes.nvml.gpus import SUCCESS, Gpu
from gpu_healthcheck.healthcheck.probes.pci import PciFunction
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import CauseRow, ResetGpuRow, ResetStepRow, RunRecord
from gpu_healthcheck.healthcheck.verdict.verdict import worst


class Selection(Struct, frozen=True):
    """GPUs of a reset.

    `missing` are requested GPUs that neither NVML nor PCI has, `handed_away` those of virtual machines.
    """

    gpus: tuple[ResetGpuRow, ...]
    row: ScopeRow
    minors: frozenset[int]
    """Minor numbers of their device files; empty if one is unknown, so that every GPU's counts."""
    missing: tuple[str, ...] = ()
    handed_away: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names for nvidia-smi; `()` means all GPUs of the node."""
        return () if self.row.scope is ResetScope.ALL else tuple(gpu.uuid or gpu.address or "" for gpu in self.gpus)


def select(
    asked: Sequence[str], gpus: Sequence[Gpu], functions: Collection[PciFunction], persistent: Collection[str] = ()
) -> Selection:
    """Return the requested GPUs, together with those that must be reset with them.

    `persistent` are the UUIDs of GPUs whose persistence mode an earlier run has not restored.
    """
    on_pci = {function.address: function for function in functions if function.is_gpu}
    chosen = {gpu.index: gpu for gpu in gpus if not {gpu.uuid, gpu.address, str(gpu.index)}.isdisjoint(asked)}
    known = {name for gpu in chosen.values() for name in (gpu.uuid, gpu.address, str(gpu.index))}
    silent = [name for name in asked if name not in known]
    unnamed = [address for address in silent if address in on_pci]
    row = scope_of(
        (link.version for gpu in gpus for link in gpu.nvlinks or ()),
        has_nvswitch=any(function.is_nvswitch for function in functions),
    )
    if row.scope is ResetScope.ALL:
        chosen = {gpu.index: gpu for gpu in gpus}
    elif row.scope is ResetScope.LINKED:
        chosen |= {gpu.index: gpu for gpu in gpus if gpu.nvlinks}
    minors = [gpu.minor for gpu in chosen.values()]
    return Selection(
        (
            *(
                ResetGpuRow(
                    address=gpu.address,
                    uuid=gpu.uuid,
                    index=str(gpu.index),
                    persistence=gpu.persistence or gpu.uuid in persistent or None,
                )
                for gpu in chosen.values()
            ),
            *(ResetGpuRow(address=address, uuid="", index="") for address in unnamed),
        ),
        row,
        frozenset() if unnamed or None in minors else frozenset(minor for minor in minors if minor is not None),
        tuple(name for name in silent if name not in on_pci),
        tuple(name for name in unnamed if on_pci[name].is_handed_away),
    )


def why_not_working(selection: Selection, gpus: Iterable[Gpu]) -> Iterator[str]:
    """Yield why a GPU of the reset does not work yet: silent, a pending recovery action, or pending rows."""
    answering = {gpu.address: gpu for gpu in gpus if gpu.address}
    for row in selection.gpus:
        gpu = answering.get(row.address or "")
        if gpu is None or gpu.error != SUCCESS:
            yield f"GPU {row.address} does not answer NVML" + (f" (error {gpu.error})" if gpu else "")
        elif gpu.recovery_action:
            yield f"the driver still recommends recovery action {gpu.recovery_action} for GPU {row.address}"
        elif gpu.row_remap is not None and gpu.row_remap.pending:
            yield f"GPU {row.address} still has rows to be remapped"


def after_reset(selection: Selection, gpus: Iterable[Gpu]) -> tuple[ResetGpuRow, ...]:
    """Return the GPUs of the reset with the names that NVML reports now."""
    answering = {gpu.address: gpu for gpu in gpus}
    return tuple(
        ResetGpuRow(address=gpu.address, uuid=gpu.uuid, index=str(gpu.index))
        for row in selection.gpus
        if (gpu := answering.get(row.address or "")) is not None
    )


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
