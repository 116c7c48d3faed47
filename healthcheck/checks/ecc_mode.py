"""Check: ECC is on for each GPU that supports it, if the instance type's GPUs have ECC on by default."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import all_lack, answering, found
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

# A change that waits for a reset needs no separate reason: ECC is still on until the reset, and off afterwards.
OFF = Reason(
    "EccModeOff",
    Severity.MONITOR,
    "A GPU runs without ECC: for this instance type it is on by default. Memory errors corrupt results undetected.",
    "Drain the node, run `nvidia-smi -e 1`, then reset the GPU or reboot.",
    source="DCGM 55, DCGM_FR_ECC_DISABLED",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence, "ecc_mode")
    modes = [(gpu, gpu.ecc_mode) for gpu in gpus if gpu.ecc_mode is not None]
    profile = expected.profile
    if all_lack(gpus, "ecc_mode"):
        yield NotConfigured("no GPU here supports ECC")
    elif modes:
        summary = f"on for {sum(mode.current for _, mode in modes)} of {counted(len(modes), 'GPU')}"
        changing = sum(mode.current != mode.pending for _, mode in modes)
        if changing:
            summary += f", to change for {changing} at the next reset"
        yield (
            Observation(summary, "all", f"{expected.instance_type} in instance-profiles.conf")
            if profile
            else Observation(summary)
        )
    for gpu, mode in modes:
        if profile and not mode.current:
            yield found(OFF, gpu, f"ECC is off, {'on' if mode.pending else 'and stays off'} after the next reset")


CHECK = Check("ecc-mode", "0-nvidia-smi", (nvml.NVML,), judge, (OFF,))
