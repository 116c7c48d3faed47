"""Check: no replacement of a faulty memory row by a spare one failed or is pending (Ampere and later)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import all_lack, answering, found, unknown_yet, unread
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

MOST_EXHAUSTED_BANKS = 0
MOST_REMAPPED_ROWS = 511
"""A GPU can remap 512 rows, all banks together: then the next remap fails (NVIDIA's RMA policy)."""

FAILED = Reason(
    "RowRemapFailed",
    Severity.ISOLATE,
    "A GPU's memory has a faulty row that can't be replaced: no spare row took its place, and it stays in use. No "
    "reset clears this.",
    "Keep work away from the node and replace the GPU.",
    source="nvml.h, nvmlDeviceGetRemappedRows; NVIDIA's GPU memory error management guide: the criterion for an RMA",
)
PENDING = Reason(
    "RowRemapPending",
    Severity.RESET,
    "A GPU's memory has faulty rows: spare ones replace them at the next reset of the GPU.",
    "Drain the node, let its work end, and reset the GPU, or reboot.",
    source="nvml.h, nvmlDeviceGetRemappedRows; DCGM's error 85, PENDING_ROW_REMAP",
)
EXHAUSTED = Reason(
    "RowBanksExhausted",
    Severity.MONITOR,
    "A GPU's memory is short of spare rows: one of its banks, or all of them, has none left. The next faulty row "
    "can't be replaced.",
    "Plan to replace the GPU; the next faulty row of that bank causes RowRemapFailed.",
    threshold=f"more than {MOST_EXHAUSTED_BANKS} banks without a spare row, or {MOST_REMAPPED_ROWS} rows replaced",
    source="nvml.h, nvmlRowRemapperHistogramValues_t.none; NVIDIA's RMA policy",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    for gpu in gpus:
        if gpu.row_remap is not None and gpu.row_remap.failed:
            yield found(FAILED, gpu, "a faulty row could not be remapped")
        if gpu.row_remap is not None and gpu.row_remap.pending:
            yield found(PENDING, gpu, "rows are remapped at the next reset of the GPU")
        if gpu.exhausted_banks is not None and gpu.exhausted_banks > MOST_EXHAUSTED_BANKS:
            yield found(EXHAUSTED, gpu, f"banks of memory without a spare row: {gpu.exhausted_banks}")
        elif gpu.row_remap is not None and gpu.row_remap.corrected + gpu.row_remap.uncorrected > MOST_REMAPPED_ROWS:
            yield found(EXHAUSTED, gpu, f"more than {MOST_REMAPPED_ROWS} rows are replaced, as many as a GPU can")
        yield from unread(gpu, "row_remap", "exhausted_banks")
        # NVML reports neither state while a GPU in MIG mode has instances (nvml.h, nvmlDeviceGetRemappedRows).
        yield from unknown_yet(gpu, "row_remap", FAILED)
        yield from unknown_yet(gpu, "exhausted_banks", EXHAUSTED)
    if all_lack(gpus, "row_remap", "exhausted_banks"):
        yield NotConfigured("no GPU here reports remapped rows")
    elif summary := ", ".join(_summary(gpus)):
        yield Observation(summary, "none failed, none pending, a spare row in every bank", "nvml.h")


def _summary(gpus: tuple[nvml.Gpu, ...]) -> Iterator[str]:
    """Yield the totals over all GPUs.

    A replaced row is not a fault, because a spare row takes its place.
    """
    remaps = [gpu.row_remap for gpu in gpus if gpu.row_remap is not None]
    if remaps:
        corrected, uncorrected = sum(remap.corrected for remap in remaps), sum(remap.uncorrected for remap in remaps)
        failed, pending = sum(remap.failed for remap in remaps), sum(remap.pending for remap in remaps)
        yield f"remaps failed on {failed} and pending on {counted(pending, 'GPU')}"
        yield f"done for {uncorrected} uncorrectable and {corrected} correctable errors"
        if inactive := sum(remap.inactive or 0 for remap in remaps):
            yield f"{counted(inactive, 'replaced row')} not in use"
    banks = [gpu.exhausted_banks for gpu in gpus if gpu.exhausted_banks is not None]
    if banks:
        yield f"{counted(sum(banks), 'bank')} without a spare row"


CHECK = Check("row-remap", "0-nvidia-smi", (nvml.NVML,), judge, (FAILED, PENDING, EXHAUSTED))
