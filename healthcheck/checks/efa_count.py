"""Check: all EFA devices on PCI work, and their number matches this machine's earlier number and the instance type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from gpu_healthcheck.healthcheck.text.naming import named

COUNT_LOW = Reason(
    "EfaCountLow",
    Severity.REBOOT,
    "An EFA device of this machine can't be used: it has no RDMA device although the driver runs, or is gone from PCI.",
    "Drain and reboot the node; replace it if the device is still missing.",
    flickers=True,
    threshold="fewer than on PCI, than the Node offers to pods, or than this machine had before",
)
BELOW_PROFILE = Reason(
    "EfaBelowProfile",
    Severity.MONITOR,
    "The node has fewer EFA devices than its instance type: since the first check cycle, so the launch template "
    "attaches fewer, or a device was lost before.",
    "Compare with the launch template; enter the number that it attaches in instance-profiles.conf.",
    flickers=True,
    threshold="some, and fewer than in instance-profiles.conf",
    source="EC2's limit per instance type",
)
_MOST_NAMED = 4
"""Most devices named by address in a detail; the others are only counted."""


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    functions = [function for function in evidence[pci.FUNCTIONS] if function.is_efa]
    addresses = [function.address for function in functions if function.is_efa_here]
    rdma = evidence[infiniband.RDMA]
    present = max(len(functions), len(rdma.efa))
    known_count, source = _known_count(expected)
    if not present and not known_count:
        yield NotConfigured("no EFA device")
        return
    # Without a driver no EFA device gets an RDMA device; the check `efa-driver` reports a missing driver.
    if len(rdma.efa) < len(addresses) and rdma.efa_driver_loaded:
        yield COUNT_LOW.on("node", _without_rdma_device(addresses, rdma))
    elif present < known_count:
        yield COUNT_LOW.on("node", f"{counted(present, 'EFA device')}, {source} {known_count}")
    elif expected.profile and present < expected.profile.efa:
        detail = f"{counted(present, 'EFA device')}, {expected.instance_type} can have {expected.profile.efa}"
        yield BELOW_PROFILE.on("node", detail)
    yield Observation(
        f"{counted(len(rdma.efa), 'EFA device')}, {len(functions)} on PCI", *_expectation(known_count, source, expected)
    )


def _known_count(expected: Expectation) -> tuple[int, str]:
    """Return the number of EFA devices that this machine is known to have, and the source of this number.

    The profile limits it: a user who enters a smaller number there has removed the devices on purpose.
    """
    once = expected.first.efa or 0
    if expected.profile:
        once = min(once, expected.profile.efa)
    allocatable = expected.efa_allocatable or 0
    return (allocatable, "the Node offers") if allocatable > once else (once, "this machine had")


def _without_rdma_device(addresses: Sequence[str], rdma: infiniband.Rdma) -> str:
    missing = sorted(set(addresses) - {device.address for device in rdma.efa})
    names = named(missing, _MOST_NAMED)
    return f"PCI shows {len(addresses)} EFA devices, {len(rdma.efa)} have an RDMA device; no RDMA device: {names}"


def _expectation(known_count: int, source: str, expected: Expectation) -> tuple[str, str]:
    if known_count:
        return f"{known_count}", source
    if expected.profile and expected.profile.efa:
        return f"{expected.profile.efa}", f"{expected.instance_type} in instance-profiles.conf"
    return "", ""


CHECK = Check("efa-count", "2-efa-enumeration", (pci.FUNCTIONS, infiniband.RDMA), judge, (COUNT_LOW, BELOW_PROFILE))
