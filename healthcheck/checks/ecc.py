"""Check: a GPU's memory has no uncorrectable ECC errors, and its SRAM is below the error threshold."""

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

MOST_UNCORRECTED = 0
"""Errors since the driver was loaded. A contained error counts too: the faulty memory also needs a reset."""
MOST_PARITY, MOST_SECDED = 4, 2
"""Most addresses of one bank of the SRAM with uncorrectable errors, by its protection."""

UNCORRECTED = Reason(
    "EccUncorrected",
    Severity.RESET,
    "A GPU's memory lost data: since the driver was loaded, it had an error that ECC could not correct.",
    "Drain the node and reset the GPU, or reboot; replace the GPU if the error recurs.",
    threshold=f"more than {MOST_UNCORRECTED} since the driver was loaded",
    source="nvml.h, NVML_VOLATILE_ECC; DCGM's error 4, VOLATILE_DBE_DETECTED",
)
SRAM_THRESHOLD = Reason(
    "SramThresholdExceeded",
    Severity.ISOLATE,
    "A GPU's on-chip memory (SRAM) has too many errors: more uncorrectable ones than NVIDIA's limit (Ampere and "
    "later).",
    "Keep work away from the node and replace the GPU.",
    threshold=f"NVML's flag, or a bank with parity errors at over {MOST_PARITY} addresses, or SEC-DED errors at over "
    f"{MOST_SECDED}",
    source="nvml.h, nvmlEccSramErrorStatus_t.bThresholdExceeded; DCGM's error 118, SRAM_THRESHOLD; NVIDIA's RMA policy",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    for gpu in gpus:
        if gpu.ecc is not None and gpu.ecc.uncorrected_volatile > MOST_UNCORRECTED:
            # The detail has no count, because a count that rises would change the finding in each check cycle.
            yield found(UNCORRECTED, gpu, "uncorrected ECC errors since the driver was loaded")
        if gpu.sram_threshold_exceeded:
            yield found(SRAM_THRESHOLD, gpu, "its SRAM had more uncorrectable errors than NVIDIA's limit")
        elif gpu.sram_unique is not None and _is_worn(gpu.sram_unique):
            yield found(SRAM_THRESHOLD, gpu, _worn_bank(gpu.sram_unique))
        yield from unread(gpu, "ecc", "sram_threshold_exceeded")
        yield from unknown_yet(gpu, "sram_threshold_exceeded", SRAM_THRESHOLD)
        if gpu.sram_threshold_exceeded is False:
            yield from unknown_yet(gpu, "sram_unique", SRAM_THRESHOLD)
    if all_lack(gpus, "ecc", "sram_threshold_exceeded"):
        yield NotConfigured("no GPU here counts ECC errors")
    elif summary := ", ".join(_summary(gpus)):
        yield Observation(
            summary, f"{MOST_UNCORRECTED} since the driver was loaded, no GPU over the threshold", "nvml.h"
        )


def _is_worn(unique: nvml.SramUnique) -> bool:
    return unique.parity > MOST_PARITY or unique.secded > MOST_SECDED


def _worn_bank(unique: nvml.SramUnique) -> str:
    counts = (("parity", unique.parity, MOST_PARITY), ("SEC-DED", unique.secded, MOST_SECDED))
    over = " and ".join(
        f"{kind} errors at {count} addresses (NVIDIA's limit: {most})" for kind, count, most in counts if count > most
    )
    return f"one bank of its SRAM had uncorrectable {over}"


def _summary(gpus: tuple[nvml.Gpu, ...]) -> Iterator[str]:
    """Yield the counts of all GPUs together.

    The lifetime counts are shown but not judged: no reset clears them, and repaired memory keeps them. NVML reports the
    faults among them separately (row remapping, the SRAM threshold).
    """
    counts = [gpu.ecc for gpu in gpus if gpu.ecc is not None]
    if counts:
        now = counted(sum(count.uncorrected_volatile for count in counts), "uncorrected ECC error")
        uncorrected = sum(count.uncorrected_aggregate for count in counts)
        corrected = sum(count.corrected_aggregate for count in counts)
        yield f"{now} since the driver was loaded (ever: {uncorrected}, corrected: {corrected})"
    over = [gpu.sram_threshold_exceeded for gpu in gpus if gpu.sram_threshold_exceeded is not None]
    if over:
        yield f"{counted(sum(over), 'GPU')} over the SRAM threshold"


CHECK = Check("ecc", "0-nvidia-smi", (nvml.NVML,), judge, (UNCORRECTED, SRAM_THRESHOLD))
