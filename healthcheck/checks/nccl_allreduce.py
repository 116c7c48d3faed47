"""Check: an all-reduce over all GPUs of the node gives correct values, at the required speed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.hardware import all_reduce_of
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    Nature,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nccl import ALL_REDUCE, Failed, Reduced

SETTING = "NCCL_MIN_BUS_BW"
SHARE = 0.8
"""Required share of the published bandwidth, a best result: driver and NCCL versions can lower it."""
WRONG = Reason(
    "NcclWrongResults",
    Severity.ISOLATE,
    "An all-reduce over the node's GPUs gave wrong values: a GPU or a link corrupts data without an error.",
    "Keep work away from the node and replace it.",
    threshold="one wrong value, at any speed",
    source="nccl-tests, README: each result is compared; DCGM's MEMORY_MISMATCH and NAN_VALUE are ISOLATE",
)
FAILED = Reason(
    "NcclFailed",
    Severity.RESET,
    "An all-reduce over the node's GPUs failed: a GPU or a link had an error, or it did not end.",
    "Reset the GPUs and quarantine the node again; replace it if that fails again.",
    threshold="a CUDA error that a correct program gets only on faulty hardware, or no end within NCCL_TIMEOUT",
    source="CUDA runtime, cudaError; DCGM's NCCL_ERROR is RESET",
)
SLOW = Reason(
    "NcclSlow",
    Severity.RESET,
    "An all-reduce over the node's GPUs is too slow: slower than the cluster requires, or than usual for the "
    "instance type.",
    "Check the NVLinks and the fabric manager, reset the GPUs and quarantine the node again; replace it if still slow.",
    threshold=f"below {SETTING}; if that is 0, below {SHARE:.0%} of the type's figure in all_reduce.csv",
    source="all_reduce.csv; DCGM's LOW_BANDWIDTH is TRIAGE, RESET on our ladder",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    reading = evidence[ALL_REDUCE]
    match reading.answer:
        case None if reading.absent:
            yield NotConfigured(reading.absent)
        case None:
            yield TooEarly("all_reduce_perf has not answered yet")
        case Unobserved():
            yield reading.answer
        case Failed(message):
            yield FAILED.on("node", message)
        case Reduced():
            yield from _judge_run(reading.answer, _least(reading.answer, expected))


class _Requirement(Struct, frozen=True):
    """Required bandwidth in GB/s, and the source of the requirement."""

    bandwidth: float
    asked_by: str
    rule: str
    source: str


def _least(run: Reduced, expected: Expectation) -> _Requirement | None:
    asked = expected.nccl_min_bus_bandwidth
    if asked:
        return _Requirement(asked, f"; {SETTING} is {asked}", SETTING, SETTING)
    row = all_reduce_of(expected.instance_type)
    if row is None or row.gpus != run.gpus:
        return None
    least, name = SHARE * row.bus_bandwidth, row.instance_type
    return _Requirement(
        least, f"; at least {least:.0f} expected of a {name}", f"all_reduce.csv:{name}", "all_reduce.csv"
    )


def _judge_run(run: Reduced, least: _Requirement | None) -> Iterator[Judgement]:
    if run.wrong:
        yield WRONG.on("node", f"{counted(run.wrong, 'wrong value')} over {run.gpus} GPUs")
    summary = f"{run.bandwidth:.1f} GB/s bus bandwidth over {run.gpus} GPUs"
    if least is None:
        yield Observation(summary, "no figure for this type and number of GPUs")
        return
    if run.bandwidth < least.bandwidth:
        yield Finding(SLOW.name, SLOW.severity, "node", summary + least.asked_by, rule=least.rule)
    yield Observation(summary, f"at least {least.bandwidth:.0f} GB/s", least.source)


CHECK = Check("nccl-allreduce", "5-nccl-allreduce", (ALL_REDUCE,), judge, (WRONG, FAILED, SLOW), Nature.EVENT)
