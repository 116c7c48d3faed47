"""Check: each EFA device sends data to itself completely, unchanged, and at the configured bandwidth.

A device that fails or is slow is REBOOT. A reset is for GPUs and affects no network device, but the driver
reinitialises the device at boot. A permanent fault fails the next quarantine too. Changed data is ISOLATE, because no
reboot proves that the fault is gone.
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
from gpu_healthcheck.healthcheck.probes.efa.loopback import EFA_LOOPBACK
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, Measured

SETTING = "EFA_MIN_BW"
FAILED = Reason(
    "EfaLoopbackFailed",
    Severity.REBOOT,
    "An EFA device can't send messages to itself: they are lost, rejected, or never arrive.",
    "Reboot the node and quarantine it again; replace it if the device fails again.",
    threshold="fi_pingpong reports an error of the device, loses messages, or does not end within EFA_TEST_TIMEOUT",
    source="libfabric, util/pingpong.c; amzn-drivers, efa_com.c",
)
CORRUPT = Reason(
    "EfaLoopbackCorrupt",
    Severity.ISOLATE,
    "An EFA device changes data in transit: the received data differs from the sent data.",
    "Keep work away from the node and replace it.",
    threshold="one byte that differs (fi_pingpong -c)",
    source="libfabric, util/pingpong.c",
)
SLOW = Reason(
    "EfaLoopbackSlow",
    Severity.REBOOT,
    "An EFA device is too slow: its bandwidth to itself is lower than this cluster requires.",
    "Reboot the node and quarantine it again; replace it if the device is slow again.",
    threshold=f"below {SETTING} at the largest message; not judged if {SETTING} is 0",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    reading = evidence[EFA_LOOPBACK]
    if reading.absent:
        yield NotConfigured(reading.absent)
        return
    for loopback in reading.loopbacks:
        yield from _judge_device(loopback, expected.efa_min_bandwidth)
    speeds = [loopback.answer.bandwidth for loopback in reading.loopbacks if isinstance(loopback.answer, Measured)]
    if speeds:
        asked = f"at least {expected.efa_min_bandwidth} MB/s" if expected.efa_min_bandwidth else ""
        devices = f"{len(speeds)} of {counted(len(reading.loopbacks), 'EFA device')}"
        yield Observation(
            f"{devices} carry data, at {min(speeds):.0f} to {max(speeds):.0f} MB/s", asked, asked and SETTING
        )


def _judge_device(loopback: Loopback, least: int) -> Iterator[Judgement]:
    subject = f"efa/{loopback.device}"
    match loopback.answer:
        case Unobserved(cause, detail):
            yield Unobserved(cause, f"{subject}: {detail}", subject)
        case Broken(message, corrupt):
            reason = CORRUPT if corrupt else FAILED
            yield reason.on(subject, message)
        case Measured(bandwidth, size) if bandwidth < least:
            detail = f"{bandwidth:.2f} MB/s with messages of {size} bytes; {SETTING} is {least}"
            yield SLOW.on(subject, detail)


CHECK = Check("efa-loopback", "6-efa-loopback", (EFA_LOOPBACK,), judge, (FAILED, CORRUPT, SLOW), Nature.EVENT)
