"""Judge the kernel's lines of a text by the rules of `replay`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from diagnosis.snapshot.nodes import RecordFinding
from healthcheck.captures.blocks import CaptureError
from healthcheck.captures.kernel_logs import KernelLogReader, PassedOver
from healthcheck.captures.replay import KERNEL_CHECKS, Replay
from healthcheck.checks.expectation import Expectation
from healthcheck.model import Severity
from healthcheck.text.printable import printable

_LASTS = float("inf")


class CopiedKernelLog(Struct, frozen=True):
    """Result of the kernel's lines: their number, the host that they name, and the findings."""

    lines: int = 0
    host: str = ""
    findings: tuple[RecordFinding, ...] = ()


def read_kernel_log(name: str, lines: bytes) -> CopiedKernelLog:
    """Judge the lines. Lines that are not the kernel's are ignored."""
    reader = KernelLogReader(datetime.now(UTC), 1, PassedOver())
    replay = Replay(KERNEL_CHECKS, Expectation(), _LASTS)
    count = 0
    try:
        for batch in reader.read(name, (lines,)):
            count += len(batch.lines)
            replay.take(batch)
    except CaptureError:
        return CopiedKernelLog()
    active = [one for one in replay.ended("", timedelta()).active if one.finding.severity is not Severity.PASS]
    findings = (
        RecordFinding(
            reason=one.finding.reason,
            severity=one.finding.severity.name,
            subject=printable(one.finding.subject),
            detail=printable(replay.line_of(one) or one.finding.detail),
        )
        for one in active
    )
    return CopiedKernelLog(count, printable(reader.host), tuple(findings))
