"""Judge the kernel's lines of a text by the rules of `replay`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot.nodes import RecordFinding
from gpu_healthcheck.healthcheck.captures.blocks import CaptureError
from gpu_healthcheck.healthcheck.captures.kernel_logs import KernelLogReader, PassedOver
from gpu_healthcheck.healthcheck.captures.replay import KERNEL_CHECKS, Replay
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.text.printable import printable

_LASTS = float("inf")
_OF_DRIVER = re.compile(r"NVRM|nvidia|pcieport|mlx5")
_BARE = re.compile(r"\A\s*(NVRM: |nvidia-nvswitch\d{0,3}: )")


class CopiedKernelLog(Struct, frozen=True):
    """Result of the kernel's lines: their number, the host that they name, and the findings."""

    lines: int = 0
    host: str = ""
    findings: tuple[RecordFinding, ...] = ()


def read_kernel_log(name: str, lines: Sequence[str]) -> CopiedKernelLog:
    """Judge the lines of the kernel; if none has the prefix of a log, those of the driver without it."""
    if not any(_OF_DRIVER.search(line) for line in lines):
        return CopiedKernelLog()
    log = _judged(name, lines)
    return log if log.lines else _judged(name, [_BARE.sub(r"[    0.000000] \1", line) for line in lines])


def _judged(name: str, lines: Sequence[str]) -> CopiedKernelLog:
    reader = KernelLogReader(datetime.now(UTC), 1, PassedOver())
    replay = Replay(KERNEL_CHECKS, Expectation(), _LASTS)
    raw, count = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"), 0
    try:
        for batch in reader.read(name, (raw,)):
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
            detail=printable(one.finding.detail or replay.line_of(one)),
        )
        for one in active
    )
    return CopiedKernelLog(count, printable(reader.host), tuple(findings))
