"""Check: each GPU's PCIe link has as many lanes as the GPU and the slot both support.

The generation itself is never judged. An idle GPU may lower both generation and width ("the current link generation and
width. These may be reduced when the GPU is not in use", nvidia-smi's manual, GPU Link information). A narrow link
therefore counts only at its highest generation, or on a GPU that a process uses.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import answering, found
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

WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""Numbers of lanes of a PCI Express link. A virtual machine may report any other number, which has no meaning."""

WIDTH_LOW = Reason(
    "PcieWidthLow",
    Severity.RESET,
    "A GPU's PCIe link runs on too few lanes: GPU and slot support more. Every copy to and from the host is slower.",
    "Drain the node and reset the GPU, or reboot, which retrains the link; replace the node if the fault recurs.",
    flickers=True,
    threshold="fewer lanes than GPU and slot both support, at the highest generation or in use",
    source="nvmlDeviceGetMaxPcieLinkWidth (nvml.h); nvidia-smi's manual, GPU Link information; "
    "docs/rules.md 19 (DCGM 46, PCIE_WIDTH)",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence, "pcie")
    links = [(gpu, gpu.pcie) for gpu in gpus if gpu.pcie and {gpu.pcie.width, gpu.pcie.max_width} <= WIDTHS]
    narrow = [(gpu, link) for gpu, link in links if link.width < link.max_width]
    for gpu, link in narrow:
        lanes = f"x{link.width}, GPU and slot support x{link.max_width}"
        if link.at_highest_generation or gpu.processes:
            yield found(WIDTH_LOW, gpu, lanes)
        else:
            yield TooEarly(f"{gpu.subject}: {lanes}; an idle GPU may lower its width", gpu.subject, (WIDTH_LOW.name,))
    if links:
        summary = f"full width on {len(links) - len(narrow)} of {counted(len(links), 'GPU')}"
        yield Observation(summary, "all", "NVML's maximum of GPU and slot")
    elif gpus:
        yield NotConfigured("no GPU reports a plausible PCIe width")


CHECK = Check("pcie-link", "3-topology-check", (nvml.NVML,), judge, (WIDTH_LOW,))
