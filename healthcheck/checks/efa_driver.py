"""Check: EFA devices on PCI have their driver, and programs can open them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
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
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.efa import infiniband

NOT_LOADED = Reason(
    "EfaDriverNotLoaded",
    Severity.MONITOR,
    "The EFA driver is not loaded: PCI shows EFA devices, but the efa kernel module is missing.",
    "Install the EFA driver in the node's image, or load it.",
    flickers=True,
)
NO_UVERBS = Reason(
    "EfaVerbsMissing",
    Severity.MONITOR,
    "An EFA device can't be opened by programs: it has no uverbs device.",
    "Load the kernel module ib_uverbs; if it is loaded, read the kernel log for efa and reboot.",
    flickers=True,
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    on_pci = sum(function.is_efa_here for function in evidence[pci.FUNCTIONS])
    rdma = evidence[infiniband.RDMA]
    if not on_pci and not rdma.efa:
        yield NotConfigured("no EFA device")
        return
    closed = sum(not device.uverbs for device in rdma.efa)
    if len(rdma.efa) < on_pci and not rdma.efa_driver_loaded:
        yield NOT_LOADED.on("node", f"PCI shows {counted(on_pci, 'EFA device')}, /sys/module/efa is missing")
    if closed:
        yield NO_UVERBS.on("node", f"{closed} of {counted(len(rdma.efa), 'EFA device')} have no uverbs device")
    version = rdma.efa_driver_version or ("built into the kernel" if rdma.efa else "missing")
    yield Observation(
        f"driver {version}; {counted(len(rdma.efa) - closed, 'EFA device')} can be opened", f"{on_pci}", "PCI"
    )


CHECK = Check("efa-driver", "2-efa-enumeration", (pci.FUNCTIONS, infiniband.RDMA), judge, (NOT_LOADED, NO_UVERBS))
