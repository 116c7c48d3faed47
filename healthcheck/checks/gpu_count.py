"""Check: each GPU on PCI and in the profile of the instance type answers NVML."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.driver_reasons import INIT_FAILED
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import DRIVER_GRACE, NVIDIA_DRIVER, found, placed, settled, silent
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

LOST = Reason(
    "GpuLost",
    Severity.REBOOT,
    "A GPU fell off the bus: NVML answers GPU_IS_LOST for it.",
    "Drain and reboot the node; replace it if the GPU is lost again.",
    # NVML gives the same answer for some seconds while an administrator resets the GPU. The driver logs a real loss at
    # once: Xid 79, or the line of GpuFellOffBus.
    flickers=True,
    source="nvml.h, error 15",
)
RESET_REQUIRED = Reason(
    "GpuResetRequired",
    Severity.RESET,
    "A GPU needs a reset: NVML answers RESET_REQUIRED for it.",
    "Drain the node and reset the GPU, or reboot.",
    # NVML also gives this answer for some seconds while a GPU is being reset.
    flickers=True,
    source="nvml.h, error 16",
)
POWER_INSUFFICIENT = Reason(
    "GpuPowerInsufficient",
    Severity.ISOLATE,
    "A GPU gets too little power: NVML answers INSUFFICIENT_POWER for it, because its power cable is not attached "
    "correctly.",
    "Keep work away and replace the node: the repair needs physical access to the machine.",
    source="nvml.h, error 8; the same fault as Xid 54, CHECK_MECHANICALS in NVIDIA's catalogue",
)
IRQ_ISSUE = Reason(
    "GpuIrqIssue",
    Severity.REBOOT,
    "A GPU's interrupts are faulty: the kernel found the fault, and NVML answers IRQ_ISSUE.",
    "Drain and reboot the node; replace it if the fault recurs.",
    source="nvml.h, error 11",
)
COUNT_LOW = Reason(
    "GpuCountLow",
    Severity.REBOOT,
    "GPUs are missing: there are fewer than on PCI, than in the instance type's profile, or, without a profile, than "
    "this machine had before.",
    "Drain and reboot the node; replace it if a GPU is still missing. If GPUs were removed on purpose, release the node"
    " (without a profile), or correct the profile.",
    flickers=True,
    threshold="one fewer",
    grace=DRIVER_GRACE,
)
# This is not a missing GPU: either a person detached it, or the driver rejected it and logged the reason. A GPU that
# fell off the bus has a separate finding from the kernel log, with a separate severity.
UNBOUND = Reason(
    "GpuUnbound",
    Severity.MONITOR,
    "A GPU is bound to no driver: PCI shows it, and other GPUs are bound to the NVIDIA driver.",
    "Read in the kernel log why the driver rejected it; bind it, or reboot the node.",
    flickers=True,
    grace=DRIVER_GRACE,
)
_FAULTS = {
    nvml.GPU_IS_LOST: LOST,
    nvml.RESET_REQUIRED: RESET_REQUIRED,
    nvml.INSUFFICIENT_POWER: POWER_INSUFFICIENT,
    nvml.IRQ_ISSUE: IRQ_ISSUE,
}


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    answer = evidence[nvml.NVML].answer
    functions = [function for function in evidence[pci.FUNCTIONS] if function.is_gpu]
    if isinstance(answer, Unobserved):
        yield answer
        # Without a GPU on PCI the driver refuses to load, so NVML can never be queried.
        if expected.first.gpus and not functions and answer.cause == error_causes.DRIVER_NOT_LOADED:
            yield _low(f"PCI shows none, this machine had {expected.first.gpus}", by_memory=True)
        return
    if not functions and not answer.gpus and not _promised(expected)[0]:
        yield NotConfigured("no GPU on PCI, none in NVML, none expected")
        return
    yield from _silent_gpus(answer, functions)
    yield from _count(answer, functions, expected)


def _silent_gpus(answer: nvml.Gpus, functions: list[pci.PciFunction]) -> Iterator[Judgement]:
    for gpu in placed(answer, functions):
        reason = _FAULTS.get(gpu.error)
        if reason is not None:
            yield found(reason, gpu, f"NVML error {gpu.error}")
        elif gpu.error == nvml.UNKNOWN and _has_no_handle(gpu):
            # A GPU that is being reset also gives no handle for some seconds.
            yield replace(found(INIT_FAILED, gpu, f"no handle: NVML error {gpu.error}"), flickers=True)
        elif gpu.error not in (nvml.SUCCESS, nvml.CORRUPTED_INFOROM):  # the check `inforom` reports CORRUPTED_INFOROM
            yield silent(gpu, gpu.error)


def _has_no_handle(gpu: nvml.Gpu) -> bool:
    """Whether NVML returned only an error. A GPU with a handle has an answer or an error for each call."""
    return replace(gpu, address="") == nvml.Gpu(gpu.index, gpu.error)


def _count(answer: nvml.Gpus, functions: list[pci.PciFunction], expected: Expectation) -> Iterator[Judgement]:
    known = {gpu.address for gpu in answer.gpus}
    unbound = [function for function in functions if not function.driver and function.address not in known]
    # GPUs of another driver were assigned to other uses (vfio-pci for a virtual machine) and are not counted.
    away = [function for function in functions if function.driver not in (NVIDIA_DRIVER, "")]
    ours = len(functions) - len(away)
    promised, owner = _promised(expected)
    wanted = max(promised - len(away), ours) - len(unbound)
    listed = len(answer.gpus)
    yield _summary(f"{counted(listed, 'GPU')} in NVML, {ours} on PCI", expected)
    for function in unbound:
        yield settled(UNBOUND.on(f"gpu/{function.address}", "bound to no driver"), expected)
    if listed < wanted:
        promise = f", {owner} {promised}" if promised else ""
        by_memory = not expected.profile and listed >= ours - len(unbound)
        yield settled(_low(f"NVML lists {listed}, PCI {ours}{promise}", by_memory=by_memory), expected)


def _promised(expected: Expectation) -> tuple[int, str]:
    """Return the number of GPUs of this machine and its source: the profile, else the earlier count."""
    if expected.profile:
        return expected.profile.gpus, f"{expected.instance_type} has"
    return expected.first.gpus or 0, "this machine had"


def _low(detail: str, *, by_memory: bool) -> Finding:
    return replace(COUNT_LOW.on("node", detail), source=ONCE_HAD if by_memory else "")


def _summary(counts: str, expected: Expectation) -> Observation:
    if expected.profile is None:
        once = expected.first.gpus
        return (
            Observation(counts, f"{once} each", ONCE_HAD) if once else Observation(counts, "as many in NVML as on PCI")
        )
    return Observation(counts, f"{expected.profile.gpus} each", f"{expected.instance_type} in instance-profiles.conf")


CHECK = Check(
    "gpu-count",
    "0-nvidia-smi",
    (nvml.NVML, pci.FUNCTIONS),
    judge,
    (LOST, RESET_REQUIRED, POWER_INSUFFICIENT, IRQ_ISSUE, INIT_FAILED, COUNT_LOW, UNBOUND),
)
