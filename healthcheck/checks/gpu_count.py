"""Every GPU that PCI and the instance type's profile promise answers NVML."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, NotConfigured, Reason, Severity, Unobserved
from healthcheck.per_gpu import silent
from healthcheck.probes import nvml, pci

GRACE_SECONDS = 120.0
"""Contract, section 2 rule 11: GPUs come up one after another when the driver is loaded."""

LOST = Reason(
    "GpuLost",
    Severity.REBOOT,
    "NVML answers GPU_IS_LOST for a GPU: it fell off the bus (nvml.h, error 15).",
    "Drain and reboot the node; replace it when the GPU is lost again.",
)
RESET_REQUIRED = Reason(
    "GpuResetRequired",
    Severity.RESET,
    "NVML answers RESET_REQUIRED for a GPU (nvml.h, error 16).",
    "Drain the node and reset the GPU, or reboot.",
)
COUNT_LOW = Reason(
    "GpuCountLow",
    Severity.REBOOT,
    "NVML lists fewer GPUs than PCI or the instance type's profile.",
    "Drain and reboot the node; replace it when a GPU is still missing.",
    flickers=True,
)
_FAULTS = {nvml.GPU_IS_LOST: LOST, nvml.RESET_REQUIRED: RESET_REQUIRED}
_AWAY_FROM_NVIDIA = ("vfio-pci", "pci-stub")
"""Functions handed to a virtual machine are not the driver's to count (contract, section 2 rule 11)."""


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    answer = seen[nvml.NVML].answer
    functions = [function for function in seen[pci.FUNCTIONS] if function.is_gpu]
    if isinstance(answer, Unobserved):
        yield answer
        return
    if not functions and not answer.gpus and (expected.profile is None or expected.profile.gpus == 0):
        yield NotConfigured("no GPU on PCI, none in NVML, none expected")
        return
    ours = [function for function in functions if function.driver not in _AWAY_FROM_NVIDIA]
    yield from _silent_gpus(answer, ours)
    yield from _count(answer, ours, len(functions) - len(ours), expected)


def _silent_gpus(answer: nvml.Gpus, functions: list[pci.PciFunction]) -> Iterator[Judgement]:
    known = {gpu.address for gpu in answer.gpus}
    left = [function for function in functions if function.address not in known]
    # A function without a driver was never NVML's to count.
    unclaimed = iter([one.address for one in sorted(left, key=lambda one: one.driver != "nvidia")])
    for gpu in answer.gpus:
        if gpu.error == nvml.SUCCESS:
            continue
        # A lost GPU has no handle to ask its address; NVML counts in PCI order, so the ones left over line up.
        address = gpu.address or next(unclaimed, None)
        name = address or f"index-{gpu.index}"
        reason = _FAULTS.get(gpu.error)
        if reason is None:
            yield silent(gpu, gpu.error)
        else:
            yield Finding(reason.name, reason.severity, f"gpu/{name}", f"NVML error {gpu.error}", gpu.about)


def _count(
    answer: nvml.Gpus, functions: list[pci.PciFunction], away: int, expected: Expectation
) -> Iterator[Judgement]:
    profiled = max(expected.profile.gpus - away, 0) if expected.profile else 0
    wanted = max(profiled, len(functions))
    if len(answer.gpus) >= wanted:
        return
    told = f"NVML lists {len(answer.gpus)}, PCI {len(functions)}"
    if expected.profile:
        told += f", {expected.instance_type} has {expected.profile.gpus}"
    if expected.driver_age_seconds < GRACE_SECONDS:
        yield Unobserved(
            "DriverJustLoaded", f"{told}; counts are judged {GRACE_SECONDS:.0f} s after the driver was loaded"
        )
        return
    yield Finding(COUNT_LOW.name, COUNT_LOW.severity, "node", told, flickers=COUNT_LOW.flickers)


CHECK = Check("gpu-count", "0-nvidia-smi", (nvml.NVML, pci.FUNCTIONS), judge, (LOST, RESET_REQUIRED, COUNT_LOW))
