"""EFA's driver reaches the memory of NVIDIA's GPUs without a detour through the host's."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, NotConfigured, Observation, Reason, Severity
from healthcheck.probes import pci
from healthcheck.probes.efa import infiniband

FAMILIES = ("p4", "p5", "p6")
"""Whose EFA devices can do it; those of p3dn and of the g types can't."""
_NVIDIA = "NVIDIA"
"""How the driver's word begins: `NVIDIA`, or `NVIDIA peermem` by way of efa_nv_peermem."""

OFF = Reason(
    "EfaGpudirectOff",
    Severity.MONITOR,
    "The EFA driver can't reach NVIDIA's memory: without dma-buf, what GPUs send goes through the host's memory.",
    "Install efa_nv_peermem for NVIDIA's open driver, as EFA's installer does; after a driver upgrade, load it anew.",
    flickers=True,
    source="the efa driver's p2p (amzn-drivers, efa_sysfs.c)",
)


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    devices = seen[infiniband.RDMA].efa
    words = {device.p2p for device in devices if device.p2p is not None}
    if not devices:
        yield NotConfigured("no EFA device")
    elif not expected.instance_type.removeprefix("ml.").startswith(FAMILIES):
        yield NotConfigured(f"EFA reaches GPUs on {', '.join(FAMILIES)} only")
    elif not any(function.is_gpu and function.driver == "nvidia" for function in seen[pci.FUNCTIONS]):
        yield NotConfigured("the NVIDIA driver has no GPU")
    elif not words:
        yield NotConfigured("the EFA driver does not say: the kernel's own relies on dma-buf")
    else:
        others = sorted(word for word in words if not word.startswith(_NVIDIA))
        if others:
            message = f"the EFA driver's p2p is {others[0] or 'empty'}, not {_NVIDIA}"
            yield Finding(OFF.name, OFF.severity, "node", message, flickers=OFF.flickers)
        yield Observation(f"p2p: {', '.join(sorted(words)) or 'empty'}", _NVIDIA, "the efa driver")


CHECK = Check("efa-gpudirect", "2-efa-enumeration", (pci.FUNCTIONS, infiniband.RDMA), judge, (OFF,))
