"""Check: nouveau, the kernel's own driver for NVIDIA GPUs, is not loaded. It can bind GPUs before NVIDIA's driver."""

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
from gpu_healthcheck.healthcheck.probes import driver_files, pci

LOADED = Reason(
    "NouveauLoaded",
    Severity.MONITOR,
    "The nouveau kernel module is loaded: CUDA can't use a GPU that is bound to it.",
    "Blacklist nouveau in the node's image, rebuild its initramfs and reboot.",
    source="NVIDIA driver installation guide: nouveau must be disabled",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = [function for function in evidence[pci.FUNCTIONS] if function.is_gpu]
    if not gpus:
        yield NotConfigured("no GPU on PCI")
        return
    loaded = evidence[driver_files.MODULES].nouveau
    if loaded:
        bound = sum(function.driver == "nouveau" for function in gpus)
        detail = f"the nouveau module is loaded; {bound} of {counted(len(gpus), 'GPU')} bound to it"
        yield LOADED.on("driver", detail)
    yield Observation("nouveau is loaded" if loaded else "nouveau is not loaded", "not loaded")


CHECK = Check("nouveau", "3-topology-check", (driver_files.MODULES, pci.FUNCTIONS), judge, (LOADED,))
