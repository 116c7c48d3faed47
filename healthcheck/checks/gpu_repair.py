"""Check: a GPU has no pending repair, which it would do at its next reset (newest GPUs and drivers)."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks.expectation import Expectation
from healthcheck.checks.per_gpu import all_lack, answering, found, unread
from healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity, counted
from healthcheck.probes.nvml import gpus as nvml

CHANNEL = Reason(
    "ChannelRepairPending",
    Severity.RESET,
    "A memory channel of a GPU is faulty; a spare one replaces it at the next reset of the GPU.",
    "Drain the node, let its work end, and reset the GPU, or reboot.",
    source="nvml.h, nvmlRepairStatus_t.bChannelRepairPending",
)
TPC = Reason(
    "TpcRepairPending",
    Severity.RESET,
    "A processing unit (TPC) of a GPU is faulty; a spare one replaces it at the next reset of the GPU.",
    "Drain the node, let its work end, and reset the GPU, or reboot.",
    source="nvml.h, nvmlRepairStatus_t.bTpcRepairPending",
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(seen)
    for gpu in gpus:
        if gpu.repair is not None and gpu.repair.channel_pending:
            yield found(CHANNEL, gpu, "the next GPU reset remaps a memory channel to a spare")
        if gpu.repair is not None and gpu.repair.tpc_pending:
            yield found(TPC, gpu, "the next GPU reset replaces a TPC by a spare")
        yield from unread(gpu, "repair")
    if all_lack(gpus, "repair"):
        yield NotConfigured("no GPU here reports repairs")
    elif repairs := [repair for gpu in gpus if (repair := gpu.repair) is not None]:
        waiting = sum(repair.channel_pending + repair.tpc_pending for repair in repairs)
        yield Observation(f"{counted(waiting, 'repair')} waiting for a reset", "none", "nvml.h")


CHECK = Check("gpu-repair", "0-nvidia-smi", (nvml.NVML,), judge, (CHANNEL, TPC))
