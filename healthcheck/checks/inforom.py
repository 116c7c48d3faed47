"""Check: the InfoROM of each GPU, which stores its configuration and faults, is valid."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import all_lack, found, placed, silent, unread
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

CORRUPTED = Reason(
    "InforomCorrupted",
    Severity.RESET,
    "A GPU's InfoROM is corrupted: its checksum is wrong, so the GPU's settings and its list of retired memory are "
    "unreliable.",
    "Drain the node and reset the GPU, or reboot; replace the node if the fault persists.",
    source="nvml.h, error 14; DCGM 9, DCGM_FR_CORRUPT_INFOROM",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    answer = evidence[nvml.NVML].answer
    if isinstance(answer, Unobserved):
        yield answer
        return
    functions = evidence[pci.FUNCTIONS]
    checked = [gpu.inforom_valid for gpu in answer.gpus if gpu.inforom_valid is not None]
    if all_lack(answer.gpus, "inforom_valid"):
        yield NotConfigured("no GPU here supports a test of its InfoROM")
    elif checked:
        yield Observation(f"valid on {sum(checked)} of {counted(len(checked), 'GPU')}", "all")
    # For this fault NVML may return no handle for the GPU, and then the address is unknown.
    for gpu in placed(answer, functions):
        if _is_corrupted(gpu):
            yield found(CORRUPTED, gpu, "the InfoROM is corrupted")
        elif gpu.error != nvml.SUCCESS:
            yield silent(gpu, gpu.error)
        else:
            yield from unread(gpu, "inforom_valid")


def _is_corrupted(gpu: nvml.Gpu) -> bool:
    """Whether the InfoROM is corrupted, by the driver's test or by the error code of another call.

    Errors of a call about two GPUs do not count, because they do not name the GPU at fault.
    """
    own = (error for name, error in gpu.errors.items() if name != "p2p")
    return gpu.inforom_valid is False or nvml.CORRUPTED_INFOROM in (gpu.error, gpu.recovery_error, *own)


CHECK = Check("inforom", "0-nvidia-smi", (nvml.NVML, pci.FUNCTIONS), judge, (CORRUPTED,))
