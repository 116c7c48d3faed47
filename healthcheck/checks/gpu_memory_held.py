"""Check: no GPU memory is in use without a process, as a crashed program may leave it."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import all_lack, answering, found
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

_GIB = 1 << 30
MOST_WITHOUT_A_PROCESS = _GIB
"""Limit in bytes. A driver before R510 includes its reserve in `used`: several hundred MiB on the largest GPUs."""

HELD = Reason(
    "GpuMemoryHeld",
    Severity.MONITOR,
    "A GPU's memory is in use without a process: none has a context on the GPU, and the next job gets less memory "
    "than it expects.",
    "Find containers that do not end and processes in state D; drain the node and reset the GPU.",
    # NVML stops listing an ending process before its memory is free.
    flickers=True,
    threshold=f"more than {MOST_WITHOUT_A_PROCESS // _GIB} GiB",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    if not evidence[nvml.NVML].sees_every_process:
        yield NotConfigured("this PID namespace does not show the processes of the node")
        return
    gpus = yield from answering(evidence, "memory", "processes", "mig_mode")
    idle = [(gpu, gpu.memory.used) for gpu in gpus if gpu.memory is not None and _is_unused(gpu)]
    if all_lack(gpus, "memory") or all_lack(gpus, "processes"):
        yield NotConfigured("no GPU here reports both its memory and its processes")
    elif idle:
        most = max(used for _, used in idle) >> 20
        yield Observation(
            f"up to {most} MiB in use on a GPU without a process", f"at most {MOST_WITHOUT_A_PROCESS >> 20} MiB"
        )
    elif gpus:
        yield Observation("every GPU has a process, or MIG on")
    for gpu, used in idle:
        if used > MOST_WITHOUT_A_PROCESS:
            yield found(HELD, gpu, f"{used // _GIB} GiB in use, and no process")


def _is_unused(gpu: nvml.Gpu) -> bool:
    """Whether no process uses the GPU.

    With MIG on this is unknown: the processes belong to instances, which are not probed.
    """
    return gpu.processes == 0 and (gpu.mig_mode is None or not gpu.mig_mode.current)


CHECK = Check("gpu-memory-held", "0-nvidia-smi", (nvml.NVML,), judge, (HELD,))
