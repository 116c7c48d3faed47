"""Check: each active RDMA port sends data to itself completely.

A port is at fault only if another port of the node passes: if none does, GIDs, virtual functions or perftest may
be the reason. The bandwidth is shown and not judged: the PCIe link, which carries the data both ways, limits it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    Nature,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes.ib_loopback import NOT_RUN, RDMA_LOOPBACK
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, Measured

FAILED = Reason(
    "RdmaLoopbackFailed",
    Severity.REBOOT,
    "An RDMA port can't write to itself: it is active, and another port of the node can.",
    "Reboot the node and quarantine it again; replace it if the port fails again.",
    threshold="ib_write_bw reports a completion with an error, or does not end within EFA_TEST_TIMEOUT",
    source="perftest, src/perftest_resources.c (NOTIFY_COMP_ERROR_SEND), run_perftest_loopback",
)
_GBITS_PER_MB = 0.008


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    reading = evidence[RDMA_LOOPBACK]
    if reading.absent:
        yield NotConfigured(reading.absent)
        return
    speeds = [
        loopback.answer.bandwidth * _GBITS_PER_MB
        for loopback in reading.loopbacks
        if isinstance(loopback.answer, Measured)
    ]
    for loopback in reading.loopbacks:
        yield from _judge_port(loopback, another_passes=bool(speeds))
    if speeds:
        ports = f"{len(speeds)} of {counted(len(reading.loopbacks), 'RDMA port')}"
        yield Observation(f"{ports} carry data, at {min(speeds):.0f} to {max(speeds):.0f} Gb/s")


def _judge_port(loopback: Loopback, *, another_passes: bool) -> Iterator[Judgement]:
    subject = f"rdma/{loopback.device}"
    match loopback.answer:
        case Unobserved(cause, detail):
            yield Unobserved(cause, f"{subject}: {detail}", subject)
        case Broken(message) if another_passes:
            yield FAILED.on(subject, message)
        case Broken(message):
            yield Unobserved(NOT_RUN, f"{subject}: no port of the node sends to itself: {message}", subject)


CHECK = Check("rdma-loopback", "9-roce", (RDMA_LOOPBACK,), judge, (FAILED,), Nature.EVENT)
