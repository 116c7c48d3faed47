"""Check: ECC does not correct errors of a GPU's memory at a rate that slows the GPU down."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import answering, earlier_gpus, earlier_reads, found, is_loaded, same
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

LEAST_PER_SECOND = 100.0
"""A GB200 that blocked DCGM for 45 s at a time corrected 4,647 and later 17,657 errors a second under load.

It corrected none while idle, and the other GPUs of its node none at any time (NVIDIA/NVSentinel#1748).
"""
MOST_DRAM, MOST_SRAM = 20_000_000, 10_000
"""Limits since the driver was loaded, of Azure's health checks (azurehpc-health-checks, check_gpu_ecc)."""

STORM = Reason(
    "EccCorrectedStorm",
    Severity.MONITOR,
    "A GPU's memory needs constant error correction: no data is lost, but the GPU and its monitoring slow down.",
    "Quarantine the node when it is free, then reset the GPU. Replace the GPU if the errors recur.",
    flickers=True,
    threshold=f"from {LEAST_PER_SECOND:g} corrected DRAM errors a second, or more than {MOST_DRAM:,} in DRAM or "
    f"{MOST_SRAM:,} in SRAM since the driver was loaded",
    source="NVIDIA/NVSentinel#1748; azurehpc-health-checks",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    counting = [(gpu, errors) for gpu in gpus if (errors := gpu.memory_errors) is not None]
    if counting:
        rates = {gpu.subject: _rate(gpu, evidence) for gpu, _ in counting}
        for gpu, errors in counting:
            yield from _judge_gpu(gpu, errors, rates, evidence)
        limits = f"below {LEAST_PER_SECOND:g} a second in DRAM, {MOST_DRAM:,} in DRAM and {MOST_SRAM:,} in SRAM in all"
        yield Observation(f"corrected ECC errors of {counted(len(counting), 'GPU')} read", limits, "NVSentinel; Azure")
    elif gpus:
        yield NotConfigured("no GPU counts corrected ECC errors by memory")


def _judge_gpu(
    gpu: nvml.Gpu, errors: nvml.MemoryErrors, rates: dict[str, float | None], evidence: Evidence
) -> Iterator[Judgement]:
    rate = rates[gpu.subject]
    for count, most, memory in ((errors.dram_corrected, MOST_DRAM, "DRAM"), (errors.sram_corrected, MOST_SRAM, "SRAM")):
        if count is not None and count > most:
            detail = f"more than {most:,} corrected {memory} errors since the driver was loaded"
            yield replace(_found(gpu, detail, rates, evidence), flickers=False)
            return
    if rate is None:
        yield TooEarly("a rate needs the DRAM errors of two check cycles", gpu.subject)
    elif rate >= LEAST_PER_SECOND:
        yield _found(gpu, f"{_coarse(rate)} corrected DRAM errors a second", rates, evidence)
    elif (errors.dram_corrected or 0) >= LEAST_PER_SECOND and not is_loaded(gpu):
        yield TooEarly("an idle GPU hardly uses its memory", gpu.subject)


def _found(gpu: nvml.Gpu, detail: str, rates: dict[str, float | None], evidence: Evidence) -> Finding:
    other_rates = [rate for subject, rate in rates.items() if subject != gpu.subject and rate is not None]
    if other_rates:
        detail += f"; the other {counted(len(other_rates), 'GPU')} of the node: {_coarse(max(other_rates))}"
    if _remaps_rise(gpu, evidence):
        detail += "; its rows were recently remapped for correctable errors"
    return found(STORM, gpu, detail)


def _rate(gpu: nvml.Gpu, evidence: Evidence) -> float | None:
    """Return the corrected DRAM errors a second since the previous check cycle; None if unknown."""
    earlier = earlier_gpus(evidence)
    before = same(gpu, earlier[0]) if earlier is not None else None
    if earlier is None or before is None or before.memory_errors is None or gpu.memory_errors is None:
        return None
    then, now = before.memory_errors.dram_corrected, gpu.memory_errors.dram_corrected
    return None if then is None or now is None or now < then else (now - then) / earlier[1]


def _remaps_rise(gpu: nvml.Gpu, evidence: Evidence) -> bool:
    counts = [
        earlier.row_remap.corrected for earlier, _ in earlier_reads(gpu, evidence) if earlier.row_remap is not None
    ]
    return gpu.row_remap is not None and bool(counts) and gpu.row_remap.corrected > min(counts)


def _coarse(rate: float) -> str:
    """Return the power of ten below a rate: the exact rate would change the finding in each check cycle."""
    return "less than 1" if rate < 1 else f"{10 ** (len(str(int(rate))) - 1):,} or more"


CHECK = Check("ecc-storm", "0-nvidia-smi", (nvml.NVML,), judge, (STORM,))
