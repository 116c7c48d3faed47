"""Check: if the host is set up for GDRCopy, its kernel module is loaded and programs can open its device."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.gdrcopy import GDRCOPY, MODULE

NOT_READY = Reason(
    "GdrcopyNotReady",
    Severity.MONITOR,
    "GDRCopy does not work: it is set up on the host, but small messages from GPU memory use a slower path.",
    f"Run `modprobe {MODULE}` on the node; after an upgrade of the driver or the kernel, rebuild the module.",
    flickers=True,
    source="NVIDIA/gdrcopy, README and insmod.sh; the bash suite's check 2",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    copy = evidence[GDRCOPY]
    if not copy.set_up_by:
        yield NotConfigured("GDRCopy is not set up on this host")
    elif not any(function.is_gpu and function.driver == "nvidia" for function in evidence[pci.FUNCTIONS]):
        # The module can't be loaded before NVIDIA's modules.
        yield NotConfigured("no GPU is bound to the NVIDIA driver")
    else:
        lacks = "" if copy.loaded else f"the module {MODULE} is not loaded"
        lacks = lacks or ("" if copy.device else f"{MODULE} is loaded, but /dev/{MODULE} is missing")
        if lacks:
            detail = f"{lacks}; {copy.set_up_by} sets it up"
            yield NOT_READY.on("node", detail)
        yield Observation(lacks or f"{MODULE} is loaded and has its device", "loaded, with its device", copy.set_up_by)


CHECK = Check("gdrcopy", "2-efa-enumeration", (GDRCOPY, pci.FUNCTIONS), judge, (NOT_READY,))
