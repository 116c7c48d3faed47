"""Each GPU's PCIe link has all the lanes that GPU and slot can have together.

Its generation is never judged: an idle GPU lowers it to save power (nvidia-smi's manual, pcie.link.gen.current).
"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks.expectation import Expectation
from healthcheck.checks.per_gpu import answering, found
from healthcheck.model import Check, Evidence, Judgement, NotConfigured, Reason, Seen, Severity, counted
from healthcheck.probes.nvml import gpus as nvml

WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""The lanes that a PCI Express link can have; whatever else a virtual machine is told means nothing."""

WIDTH_LOW = Reason(
    "PcieWidthLow",
    Severity.RESET,
    "A GPU's PCIe link runs on fewer lanes than GPU and slot have: every copy to and from the host is slower.",
    "Drain the node and reset the GPU, or reboot: that trains the link anew; replace the node when it comes back.",
    flickers=True,
    threshold="fewer lanes than the most that GPU and slot can do together",
    source="nvmlDeviceGetMaxPcieLinkWidth (nvml.h); docs/rules.md 19 (DCGM 46, PCIE_WIDTH)",
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(seen, "pcie")
    links = [(gpu, gpu.pcie) for gpu in gpus if gpu.pcie and _makes_sense(gpu.pcie)]
    for gpu, link in links:
        if link.width < link.max_width:
            yield found(WIDTH_LOW, gpu, f"x{link.width}, GPU and slot can do x{link.max_width}")
    if links:
        full = sum(link.width >= link.max_width for _, link in links)
        yield Seen(f"full width on {full} of {counted(len(links), 'GPU')}", "all", "NVML's maximum of GPU and slot")
    elif gpus:
        yield NotConfigured("no GPU tells a PCIe width that makes sense")


def _makes_sense(link: nvml.PcieLink) -> bool:
    return link.width in WIDTHS and link.max_width in WIDTHS


CHECK = Check("pcie-link", "3-topology-check", (nvml.NVML,), judge, (WIDTH_LOW,))
