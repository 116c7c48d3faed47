"""EFA devices: those that PCI shows have a driver, and as many are there as the instance type can have."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, NotConfigured, Reason, Severity
from healthcheck.probes import infiniband, pci

COUNT_LOW = Reason(
    "EfaCountLow",
    Severity.REBOOT,
    "The EFA driver runs, and an EFA device on PCI has no RDMA device: it failed to come up.",
    "Drain and reboot the node; replace it when the device is still missing.",
    flickers=True,
)
BELOW_PROFILE = Reason(
    "EfaBelowProfile",
    Severity.MONITOR,
    "Fewer EFA devices than the instance type can have: one is gone from PCI, or the launch template attaches fewer.",
    "Compare with the launch template; write the number that it attaches into instance-profiles.conf.",
    flickers=True,
)
NOT_LOADED = Reason(
    "EfaDriverNotLoaded",
    Severity.MONITOR,
    "EFA devices are on PCI and the efa kernel module is not loaded.",
    "Install or load the EFA driver on the node's image.",
    flickers=True,
)


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    on_pci = sum(function.is_efa for function in seen[pci.FUNCTIONS])
    rdma = seen[infiniband.RDMA]
    present = len(rdma.efa)
    profiled = expected.profile.efa if expected.profile else 0
    if not on_pci and not present and not profiled:
        yield NotConfigured("no EFA device on PCI and none expected")
    elif present < on_pci and not rdma.efa_driver_loaded:
        yield _finding(NOT_LOADED, f"PCI shows {on_pci} EFA devices, /sys/module/efa is missing")
    elif present < on_pci:
        yield _finding(COUNT_LOW, f"PCI shows {on_pci} EFA devices, {present} have an RDMA device")
    elif present < profiled:
        yield _finding(BELOW_PROFILE, f"{present} EFA devices, {expected.instance_type} can have {profiled}")


def _finding(reason: Reason, detail: str) -> Finding:
    return Finding(reason.name, reason.severity, "node", detail, flickers=reason.flickers)


CHECK = Check(
    "efa-count",
    "2-efa-enumeration",
    (pci.FUNCTIONS, infiniband.RDMA),
    judge,
    (COUNT_LOW, BELOW_PROFILE, NOT_LOADED),
)
