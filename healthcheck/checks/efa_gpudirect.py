"""Check: the EFA driver can access the memory of NVIDIA GPUs directly, not through host memory."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.efa import infiniband

FAMILIES = ("p4", "p5", "p6")
"""Instance families whose EFA devices support GPUDirect; p3dn and the g types do not."""
_NVIDIA = "NVIDIA"
"""Prefix of the driver's value: `NVIDIA`, or `NVIDIA peermem` with efa_nv_peermem."""

OFF = Reason(
    "EfaGpudirectOff",
    Severity.MONITOR,
    "The EFA driver can't access the memory of NVIDIA GPUs: without dma-buf, GPU traffic goes through host memory.",
    "Install efa_nv_peermem for NVIDIA's open driver, as the EFA installer does; reload it after a driver upgrade.",
    flickers=True,
    source="the efa driver's p2p (amzn-drivers, efa_sysfs.c)",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    devices = evidence[infiniband.RDMA].efa
    modes = {device.p2p for device in devices if device.p2p is not None}
    if not devices:
        yield NotConfigured("no EFA device")
    elif not expected.instance_type.removeprefix("ml.").startswith(FAMILIES):
        yield NotConfigured(f"EFA can access GPU memory on {', '.join(FAMILIES)} only")
    elif not any(function.is_gpu and function.driver == "nvidia" for function in evidence[pci.FUNCTIONS]):
        yield NotConfigured("no GPU is bound to the NVIDIA driver")
    elif not modes:
        yield NotConfigured("the EFA driver does not report it: the kernel's own EFA driver relies on dma-buf")
    else:
        other_modes = sorted(mode for mode in modes if not mode.startswith(_NVIDIA))
        if other_modes:
            detail = f"the EFA driver's p2p is {other_modes[0] or 'empty'}, not {_NVIDIA}"
            yield OFF.on("node", detail)
        yield Observation(f"p2p: {', '.join(sorted(modes)) or 'empty'}", _NVIDIA, "the efa driver")


CHECK = Check("efa-gpudirect", "2-efa-enumeration", (pci.FUNCTIONS, infiniband.RDMA), judge, (OFF,))
