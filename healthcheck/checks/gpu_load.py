"""Check: each GPU calculates and copies correctly under load, and as fast as the others of its node.

All GPUs of a node under the same load are the best control group: they share power, cooling and driver. A figure of the
product is an additional limit where one is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.hardware import gpu_speed_table
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    Nature,
    NotConfigured,
    Observation,
    Passed,
    Reason,
    Severity,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes.gpu_load.speeds import (
    BF16,
    FP32,
    FROM_GPU,
    GPU_LOAD,
    NOT_RUN,
    TO_GPU,
    TO_PEER,
    GpuSpeeds,
)

OF_BEST, OF_FIGURE = 0.9, 0.85
"""Required shares of the fastest GPU of the node, and of the product's published figure."""
_SOURCE = "huggingface/gpu-fryer: a GPU more than 10 % below the fastest one fails; gpu_speeds.csv"
_LIMIT = (
    f"below {OF_BEST:.0%} of the fastest GPU of the same product in the node, or below {OF_FIGURE:.0%} of the "
    "product's figure in gpu_speeds.csv"
)
COMPUTE_SLOW = Reason(
    "GpuComputeSlow",
    Severity.MONITOR,
    "A GPU calculates too slowly: slower than the other GPUs of its node, or than is published for its product.",
    "Check its clocks, power and cooling, then quarantine the node again; replace the GPU if it is slow again.",
    threshold=f"FP32 or BF16 {_LIMIT}",
    source=_SOURCE,
)
COPY_SLOW = Reason(
    "GpuCopySlow",
    Severity.MONITOR,
    "A GPU copies too slowly: slower than the other GPUs of its node, or than is published for its product.",
    "Check its PCIe link and NVLinks, then quarantine the node again; replace the GPU if it is slow again.",
    threshold=f"copies from or to the machine's memory, or to other GPUs over NVLink, {_LIMIT}",
    source=_SOURCE,
)
FAILED = Reason(
    "GpuLoadFailed",
    Severity.RESET,
    "A GPU fails under load: it gives wrong results, or an error that only faulty hardware gives a correct program.",
    "Reset the GPU and quarantine the node again; replace it if it fails again.",
    threshold="one wrong sum or changed byte; a CUDA error of memory, of an NVLink or of the GPU's execution",
    source="cuda.h, CUresult",
)
_HARDWARE_ERRORS = frozenset({214, 220, 226, 700, 714, 715, 716, 717, 718, 719})
"""Codes of CUresult in cuda.h that a correct program does not get from a healthy GPU.

Uncorrectable ECC and NVLink errors, a contained error, illegal address, hardware stack, illegal instruction, misaligned
address, invalid address space, invalid program counter, launch failed. Others have other possible causes.
"""
_UNITS = {
    FP32: ("FP32", "TFLOPS"),
    BF16: ("BF16", "TFLOPS"),
    TO_GPU: ("from the machine's memory", "GB/s"),
    FROM_GPU: ("to the machine's memory", "GB/s"),
    TO_PEER: ("to other GPUs", "GB/s"),
}
_QUANTITIES = {COMPUTE_SLOW: (FP32, BF16), COPY_SLOW: (TO_GPU, FROM_GPU, TO_PEER)}
_MIG = " MIG "


class _Limit(Struct, frozen=True):
    """Least speed of one quantity. `source` explains it; `figure` None: no figure is published."""

    least: float
    source: str


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    load = evidence[GPU_LOAD]
    if load.absent:
        yield NotConfigured(load.absent)
    elif load.failed is not None:
        yield load.failed
    elif any(_MIG in gpu.name for gpu in load.gpus):
        yield NotConfigured("the GPUs are in MIG mode: one process cannot use a whole GPU")
    elif len(load.gpus) > 1 and all(gpu.wrong for gpu in load.gpus):
        what = load.gpus[0].wrong[0]
        yield Unobserved(NOT_RUN, f"all GPUs give wrong results, so the test itself may be wrong: {what}")
    else:
        yield from _judge_all(load.gpus)


def _judge_all(gpus: Sequence[GpuSpeeds]) -> Iterator[Judgement]:
    for gpu in gpus:
        yield from _judge_result(gpu)
    valid = [gpu for gpu in gpus if not gpu.error and not gpu.wrong]
    for gpu in valid:
        siblings = [other for other in valid if other.name == gpu.name]
        for reason, quantities in _QUANTITIES.items():
            yield from _judge_speed(reason, quantities, gpu, siblings)
    measured = {quantity: [gpu.speeds[quantity] for gpu in valid if quantity in gpu.speeds] for quantity in _UNITS}
    ranges = [
        f"{_UNITS[quantity][0]} {min(speeds):.1f} to {max(speeds):.1f} {_UNITS[quantity][1]}"
        for quantity, speeds in measured.items()
        if speeds
    ]
    yield Observation(f"{len(valid)} of {counted(len(gpus), 'GPU')}: {', '.join(ranges) or 'not measured'}")


def _judge_result(gpu: GpuSpeeds) -> Iterator[Judgement]:
    subject = f"gpu/{gpu.address}"
    if gpu.wrong:
        yield _found(FAILED, gpu, "; ".join(gpu.wrong))
    elif gpu.code in _HARDWARE_ERRORS:
        yield _found(FAILED, gpu, gpu.error)
    if gpu.error and gpu.code not in _HARDWARE_ERRORS:
        yield Unobserved(NOT_RUN, f"{subject}: {gpu.error}", subject)


def _judge_speed(
    reason: Reason, quantities: Sequence[str], gpu: GpuSpeeds, siblings: Sequence[GpuSpeeds]
) -> Iterator[Judgement]:
    """Yield a finding if one of the quantities is too slow; a pass if all that its siblings have were compared."""
    slow, compared = [], set()
    for quantity in quantities:
        speed = gpu.speeds.get(quantity)
        limits = list(_limits(quantity, gpu, siblings))
        if speed is None or not limits:
            continue
        compared.add(quantity)
        broken = [limit.source for limit in limits if speed < limit.least]
        if broken:
            name, unit = _UNITS[quantity]
            slow.append(f"{name} {speed:.1f} {unit}, {' and '.join(broken)}")
    if slow:
        yield _found(reason, gpu, "; ".join(slow))
    elif (
        compared
        and {quantity for sibling in siblings for quantity in sibling.speeds if quantity in quantities} <= compared
    ):
        yield Passed(reason.name, f"gpu/{gpu.address}")


def _limits(quantity: str, gpu: GpuSpeeds, siblings: Sequence[GpuSpeeds]) -> Iterator[_Limit]:
    best = max(
        (sibling for sibling in siblings if sibling is not gpu),
        key=lambda sibling: sibling.speeds.get(quantity, 0.0),
        default=None,
    )
    if best is not None and (speed := best.speeds.get(quantity)):
        yield _Limit(OF_BEST * speed, f"GPU {best.address} has {speed:.1f}")
    figure = gpu_speed_table().get((gpu.name, quantity))
    if figure is not None:
        yield _Limit(OF_FIGURE * figure, f"published are {figure:g}")


def _found(reason: Reason, gpu: GpuSpeeds, detail: str) -> Finding:
    about = {"uuid": gpu.uuid} if gpu.uuid else {}
    return Finding(reason.name, reason.severity, f"gpu/{gpu.address}", detail, about)


CHECK = Check("gpu-load", "10-gpu-load", (GPU_LOAD,), judge, (COMPUTE_SLOW, COPY_SLOW, FAILED), Nature.EVENT)
