"""Check: each GPU has the requested MIG mode, and the mode fits the other GPUs of the node."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import all_lack, answering, found, unread
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
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

# Both reasons flicker: MIG manager changes the mode of one GPU after the other, and creates the instances last.
PENDING = Reason(
    "MigModePending",
    Severity.MONITOR,
    "A GPU does not have the requested MIG mode: the change needs a reset.",
    "Drain the node and reset the GPU, or reboot; or revert the change.",
    flickers=True,
)
# GPUs with and without MIG on one node are legal (MIG manager's configurations name single GPUs). A GPU with MIG on and
# no instance is a fault: it cannot be used as a whole, and it is not divided either.
INCONSISTENT = Reason(
    "MigModeInconsistent",
    Severity.MONITOR,
    "A GPU can't run anything: MIG is on for it and off for others of the node, but it has no instance.",
    "Apply the MIG configuration again (label nvidia.com/mig.config), or turn MIG off for this GPU.",
    flickers=True,
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence, "mig_mode")
    modes = [(gpu, gpu.mig_mode) for gpu in gpus if gpu.mig_mode is not None]
    divided = sum(mode.current for _, mode in modes)
    if all_lack(gpus, "mig_mode"):
        yield NotConfigured("no GPU here supports MIG")
    elif modes:
        yield Observation(f"on for {divided} of {counted(len(modes), 'GPU')}")
    for gpu, mode in modes:
        if mode.current != mode.pending:
            now, then = ("on", "off") if mode.current else ("off", "on")
            yield found(PENDING, gpu, f"MIG is {now}, but {then} after the next reset")
        elif mode.current and divided < len(modes):
            if gpu.instances == ():
                yield found(INCONSISTENT, gpu, "MIG is on but no instance exists, while MIG is off for other GPUs")
            yield from unread(gpu, "instances")


CHECK = Check("mig-mode", "0-nvidia-smi", (nvml.NVML,), judge, (PENDING, INCONSISTENT))
