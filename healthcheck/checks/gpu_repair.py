"""Check: a GPU has no pending repair, and no memory that can't be repaired (newest GPUs and drivers)."""

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

CHANNEL = Reason(
    "ChannelRepairPending",
    Severity.RESET,
    "A GPU's memory has a faulty channel: a spare one replaces it at the next reset of the GPU.",
    "Drain the node, let its work end, and reset the GPU, or reboot.",
    source="nvml.h, nvmlRepairStatus_t.bChannelRepairPending",
)
TPC = Reason(
    "TpcRepairPending",
    Severity.RESET,
    "A GPU has a faulty processing unit (TPC): a spare one replaces it at the next reset of the GPU.",
    "Drain the node, let its work end, and reset the GPU, or reboot.",
    source="nvml.h, nvmlRepairStatus_t.bTpcRepairPending",
)
UNREPAIRABLE = Reason(
    "MemoryUnrepairable",
    Severity.ISOLATE,
    "A GPU has faulty memory that can't be repaired: no spare part can replace it (Hopper and later).",
    "Keep work away from the node and replace the GPU.",
    source="NVML, nvmlDeviceGetUnrepairableMemoryFlag_v1 (R590 and later); DCGM's field 1507",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    for gpu in gpus:
        if gpu.repair is not None and gpu.repair.channel_pending:
            yield found(CHANNEL, gpu, "the next GPU reset remaps a memory channel to a spare")
        if gpu.repair is not None and gpu.repair.tpc_pending:
            yield found(TPC, gpu, "the next GPU reset replaces a TPC by a spare")
        if gpu.unrepairable_memory:
            yield found(UNREPAIRABLE, gpu, "it reports memory that can't be repaired")
        yield from unread(gpu, "repair")
        yield from unknown_yet(gpu, "unrepairable_memory", UNREPAIRABLE)
    if all_lack(gpus, "repair", "unrepairable_memory"):
        yield NotConfigured("no GPU here reports repairs")
    elif summary := ", ".join(_summary(gpus)):
        yield Observation(summary, "none", "nvml.h")


def _summary(gpus: tuple[nvml.Gpu, ...]) -> Iterator[str]:
    repairs = [repair for gpu in gpus if (repair := gpu.repair) is not None]
    if repairs:
        waiting = sum(repair.channel_pending + repair.tpc_pending for repair in repairs)
        yield f"{counted(waiting, 'repair')} waiting for a reset"
    flags = [flag for gpu in gpus if (flag := gpu.unrepairable_memory) is not None]
    if flags:
        yield f"unrepairable memory on {counted(sum(flags), 'GPU')}"


CHECK = Check("gpu-repair", "0-nvidia-smi", (nvml.NVML,), judge, (CHANNEL, TPC, UNREPAIRABLE))
