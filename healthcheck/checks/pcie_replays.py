"""Check: the rate of packets that each GPU's PCIe link has to resend."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import answering, earlier_gpus, found, same, silent
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

MOST_PER_MINUTE = 62.0
"""Limit for the widest and fastest link: one wrong bit in 10^12 on 16 lanes of PCIe 6, 64 Gb/s each, gives 61.4.

The PCI Express specification allows that bit error rate, and DCGM's health watch has used it since version 4
(GetExpectedPcieReplayRate). Its earlier fixed limit of 8 a minute reported healthy P5 nodes (NVIDIA/DCGM#184).
"""

RATE = Reason(
    "PcieReplayRate",
    Severity.MONITOR,
    "A GPU's PCIe link has a bad signal: it resends packets more often than the specification allows.",
    "Watch the GPU; if the rate persists, quarantine the node to measure the link's bandwidth.",
    flickers=True,
    threshold=f"more than {MOST_PER_MINUTE:g} replays a minute",
    source="PCI Express specification's bit error rate, as in DCGM's health watch (NVIDIA/DCGM#184)",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    for gpu in gpus:
        if "pcie_replays" in gpu.errors:
            yield silent(gpu, gpu.errors["pcie_replays"], "PCIe replays")
    counting = [gpu for gpu in gpus if gpu.pcie_replays is not None]
    if counting:
        yield from _judge_rates(counting, evidence)
        summary = f"PCIe replays of {counted(len(counting), 'GPU')} read"
        yield Observation(summary, f"at most {MOST_PER_MINUTE:g} a minute each", "PCI Express specification")
    elif gpus and not any("pcie_replays" in gpu.errors for gpu in gpus):
        yield NotConfigured("no GPU counts PCIe replays")


def _judge_rates(gpus: list[nvml.Gpu], evidence: Evidence) -> Iterator[Judgement]:
    earlier = earlier_gpus(evidence)
    if earlier is None:
        yield TooEarly("a rate needs an earlier check cycle")
        return
    for gpu in gpus:
        before, now = same(gpu, earlier[0]), gpu.pcie_replays or 0
        if before is None or before.pcie_replays is None or before.pcie_replays > now:
            yield TooEarly("its counter was not read in the previous check cycle, or was reset", gpu.subject)
        elif (now - before.pcie_replays) * 60 / earlier[1] > MOST_PER_MINUTE:
            yield found(RATE, gpu, f"{RATE.threshold} on its PCIe link")


CHECK = Check("pcie-replays", "3-topology-check", (nvml.NVML,), judge, (RATE,))
