"""An all-reduce over all GPUs of the node gives right values, at the speed that the instance type is known for."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.catalog.all_reduce import AllReduceRow, all_reduce_of
from healthcheck.expectation import Expectation
from healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    Nature,
    NotConfigured,
    Reason,
    Seen,
    Severity,
    TooEarly,
    Unobserved,
    counted,
)
from healthcheck.probes.nccl import ALL_REDUCE, Failed, Reduced

SHARE = 0.8
"""Of the published figure: it is a good machine's best, without what a driver or a version of NCCL costs."""
WRONG = Reason(
    "NcclWrongResults",
    Severity.ISOLATE,
    "An all-reduce over the node's GPUs gave wrong values: a GPU or a link changes data without saying so.",
    "Keep work away from the node and replace it.",
    threshold="one value out of bounds, whatever the speed",
    source="nccl-tests, README: each result is compared; DCGM's MEMORY_MISMATCH and NAN_VALUE are ISOLATE",
)
FAILED = Reason(
    "NcclFailed",
    Severity.RESET,
    "An all-reduce over the node's GPUs met an error of a GPU or of a link, or never ended.",
    "Reset the GPUs and quarantine the node again; replace it when that fails again.",
    threshold="a CUDA error that a right program meets only on faulty hardware, or no end within 10 minutes",
    source="CUDA runtime, cudaError; DCGM's NCCL_ERROR is RESET",
)
SLOW = Reason(
    "NcclSlow",
    Severity.RESET,
    "An all-reduce over the node's GPUs is slower than the instance type is known for.",
    "Look at the NVLinks and the fabric manager, reset the GPUs and quarantine the node again; replace it if it stays.",
    threshold=f"below {SHARE:.0%} of the type's figure in all_reduce.csv; a type without one is not judged",
    source="all_reduce.csv; DCGM's LOW_BANDWIDTH is TRIAGE, RESET on our ladder",
)


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    look = seen[ALL_REDUCE]
    match look.answer:
        case None if look.absent:
            yield NotConfigured(look.absent)
        case None:
            yield TooEarly("all_reduce_perf has not answered yet")
        case Unobserved():
            yield look.answer
        case Failed(says):
            yield Finding(FAILED.name, FAILED.severity, "node", says)
        case Reduced():
            yield from _judge_run(look.answer, all_reduce_of(expected.instance_type))


def _judge_run(run: Reduced, row: AllReduceRow | None) -> Iterator[Judgement]:
    if run.wrong:
        yield Finding(WRONG.name, WRONG.severity, "node", f"{counted(run.wrong, 'wrong value')} over {run.gpus} GPUs")
    told = f"{run.bandwidth:.1f} GB/s bus bandwidth over {run.gpus} GPUs"
    if row is None or row.gpus != run.gpus:
        yield Seen(told, "no figure for this type and number of GPUs")
        return
    least = SHARE * row.bus_bandwidth
    if run.bandwidth < least:
        detail = f"{told}; at least {least:.0f} expected of a {row.instance_type}"
        yield Finding(SLOW.name, SLOW.severity, "node", detail, rule=f"all_reduce.csv:{row.instance_type}")
    yield Seen(told, f"at least {least:.0f} GB/s", "all_reduce.csv")


CHECK = Check("nccl-allreduce", "5-nccl-allreduce", (ALL_REDUCE,), judge, (WRONG, FAILED, SLOW), Nature.EVENT)
