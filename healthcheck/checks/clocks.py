"""Check: no GPU's clocks are slowed down by its hardware, due to heat, power or an unnamed cause, or long by heat."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import all_lack, answering, earlier_read, found, is_loaded
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

_HARDWARE_SLOWDOWN, _THERMAL_SLOWDOWN, _POWER_BRAKE = 0x8, 0x40, 0x80
"""nvmlClocksEventReasons (nvml.h). All other reasons are settings, or normal on a busy or idle GPU."""
MOST_HARDWARE_SHARE = 0.05
"""Share of two windows in a row, each of at least `nvml.SNAPSHOT_SECONDS`, in which hardware holds the clocks down.

A reading of the bits misses short pulses: nine nodes were braked for 36 hours unnoticed (NVIDIA/NVSentinel#1666).
"""
MOST_SOFTWARE_SHARE, SOFTWARE_SECONDS = 0.2, 600.0
"""Share of a window in which the driver reduces the clocks because of heat, and the least length of the window."""
_SHARES = (0.9, 0.75, 0.5, 0.25, 0.1)
"""Shares that a detail names: the exact share would change the finding in each check cycle."""
_MOST_SHARE = 1.1
"""A counter that grows faster than time is not in nanoseconds, or was read late."""

# The driver sets the first bit briefly whenever clocks change (nvml.h): one check cycle is not evidence.
HARDWARE = Reason(
    "ClocksHardwareSlowdown",
    Severity.MONITOR,
    "A GPU is slowed down by its hardware: its clocks are held at half or less, and it reports neither heat nor "
    "power brake as the cause.",
    "Check power draw and temperature; move work away, and replace the node if the slowdown persists.",
    flickers=True,
    threshold=f"bit {_HARDWARE_SLOWDOWN:#x}, alone",
    source="nvml.h, nvmlClocksEventReasonHwSlowdown",
)
THERMAL = Reason(
    "ClocksThermalSlowdown",
    Severity.MONITOR,
    "A GPU is too hot: its hardware holds its clocks at half or less.",
    "Check temperature and fans; move work away, and replace the node if the slowdown persists.",
    flickers=True,
    threshold=f"bit {_THERMAL_SLOWDOWN:#x}, or over {MOST_HARDWARE_SHARE:.0%} of two measurements of at least "
    f"{nvml.SNAPSHOT_SECONDS:.0f} s under load",
    source="nvml.h, nvmlClocksEventReasonHwThermalSlowdown and its counter",
)
POWER_BRAKE = Reason(
    "PowerBrake",
    Severity.MONITOR,
    "A GPU is slowed down by the power supply: the machine makes it hold its clocks at half or less.",
    "Move work away; replace the node if the slowdown persists: its power supply is at fault, not the GPU.",
    flickers=True,
    threshold=f"bit {_POWER_BRAKE:#x}, or over {MOST_HARDWARE_SHARE:.0%} of two measurements of at least "
    f"{nvml.SNAPSHOT_SECONDS:.0f} s under load",
    source="nvml.h, nvmlClocksEventReasonHwPowerBrakeSlowdown and its counter",
)
THROTTLING = Reason(
    "ThermalThrottling",
    Severity.MONITOR,
    "A GPU is slowed down by heat: the driver reduces its clocks for a large part of the time.",
    "Compare the temperatures of the other GPUs; check fans and airflow, and replace the node if it persists.",
    threshold=f"over {MOST_SOFTWARE_SHARE:.0%} of at least {SOFTWARE_SECONDS:.0f} s under load",
    source="NVML's counter of software thermal slowdown, else violation policy THERMAL",
)
_REASONS = {_HARDWARE_SLOWDOWN: HARDWARE, _THERMAL_SLOWDOWN: THERMAL, _POWER_BRAKE: POWER_BRAKE}
_COUNTERS = {THERMAL: "hardware_thermal", POWER_BRAKE: "power_brake"}
_BITS = {reason: bit for bit, reason in _REASONS.items()}
_CAUSES = {_HARDWARE_SLOWDOWN: "the hardware", _THERMAL_SLOWDOWN: "heat", _POWER_BRAKE: "the power supply"}


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence, "clock_reasons")
    entries = [(gpu, _held_down(gpu.clock_reasons)) for gpu in gpus if gpu.clock_reasons is not None]
    if all_lack(gpus, "clock_reasons"):
        yield NotConfigured("no GPU here reports why its clocks are slowed down")
    elif entries:
        held = sum(bool(bits) for _, bits in entries)
        yield Observation(f"slowed down by hardware on {held} of {counted(len(entries), 'GPU')}", "none")
    run = expected.deep_run
    is_tested = run is not None and run.covers(evidence.at)
    for gpu, bits in entries:
        if bits and is_tested:
            # A test draws more power and heat than any workload: a slowdown during a test is caused by the test.
            yield TooEarly("a deep test loads the GPU", gpu.subject, tuple(_REASONS[bit].name for bit in bits))
            continue
        for bit in bits:
            share = _newest_share(_REASONS[bit], gpu, evidence) or 0.0
            how_long = f"{_over(share, MOST_HARDWARE_SHARE)}: " if share > MOST_HARDWARE_SHARE else ""
            detail = f"{how_long}clocks slowed down by {_CAUSES[bit]} (event reason {bit:#x})"
            yield found(_REASONS[bit], gpu, detail)
    shown = {(_REASONS[bit], gpu.subject) for gpu, bits in entries for bit in bits}
    for gpu in gpus:
        for reason in (THERMAL, POWER_BRAKE):
            if (reason, gpu.subject) not in shown:
                yield from _judge_hardware(reason, gpu, evidence, expected)
        yield from _judge_software(gpu, evidence, expected)


def _judge_hardware(reason: Reason, gpu: nvml.Gpu, evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    """Judge two windows in a row. Without a counter of the driver, only the bits are judged."""
    counter = _COUNTERS[reason]
    if not _time(counter, gpu):
        return
    first = earlier_read(gpu, evidence, nvml.SNAPSHOT_SECONDS)
    second = None if first is None else earlier_read(gpu, evidence, first[1] + nvml.SNAPSHOT_SECONDS)
    newest = None if first is None else _share(counter, gpu, first[0], first[1])
    if newest is not None and (newest <= MOST_HARDWARE_SHARE or not is_loaded(gpu)):
        return
    before = None if first is None or second is None else _share(counter, first[0], second[0], second[1] - first[1])
    if newest is None or second is None or before is None:
        yield TooEarly("its slowdown was not measured twice yet", gpu.subject, (reason.name,))
    elif before > MOST_HARDWARE_SHARE:
        detail = f"{_over(newest, MOST_HARDWARE_SHARE)}: clocks slowed down by {_CAUSES[_BITS[reason]]}"
        yield _unless_tested(replace(found(reason, gpu, detail), flickers=False), second[1], evidence, expected)


def _judge_software(gpu: nvml.Gpu, evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    if not _time("software_thermal", gpu):
        return
    before = earlier_read(gpu, evidence, SOFTWARE_SECONDS)
    share = None if before is None else _share("software_thermal", gpu, *before)
    if before is None or share is None:
        yield TooEarly("its slowdown is not measured for long enough", gpu.subject, (THROTTLING.name,))
    elif share > MOST_SOFTWARE_SHARE and is_loaded(gpu):
        detail = f"{_over(share, MOST_SOFTWARE_SHARE)}: clocks reduced because of heat"
        yield _unless_tested(found(THROTTLING, gpu, detail), before[1], evidence, expected)


def _newest_share(reason: Reason, gpu: nvml.Gpu, evidence: Evidence) -> float | None:
    """Return the share of the newest window; None without a counter of this reason, or before the window has ended."""
    before = earlier_read(gpu, evidence, nvml.SNAPSHOT_SECONDS) if reason in _COUNTERS else None
    return None if before is None else _share(_COUNTERS[reason], gpu, *before)


def _over(share: float, limit: float) -> str:
    """Return the measured share as text, at the beginning of a detail: the rest may be cut in a long record."""
    return f"over {next((step for step in _SHARES if limit < step < share), limit):.0%} of the time"


def _unless_tested(finding: Finding, seconds: float, evidence: Evidence, expected: Expectation) -> Judgement:
    """Return the finding, or TooEarly if a deep test ran in the last seconds: the test causes such slowdowns."""
    run = expected.deep_run
    if run is None or not run.overlaps(evidence.at - seconds, evidence.at):
        return finding
    return TooEarly("a deep test loaded the GPU", finding.subject, (finding.reason,))


def _share(counter: str, now: nvml.Gpu, before: nvml.Gpu, seconds: float) -> float | None:
    """Return the part of the time that a counter grew by; None if it is unknown, was reset or is implausible."""
    count, earlier = _time(counter, now), _time(counter, before)
    if count is None or earlier is None or count < earlier:
        return None
    share = (count - earlier) / 1e9 / seconds
    return share if share <= _MOST_SHARE else None


def _time(counter: str, gpu: nvml.Gpu) -> int | None:
    """Return the nanoseconds that a counter shows; None if the GPU or its driver has no such counter."""
    time: int | None = None if gpu.throttled is None else getattr(gpu.throttled, counter)
    return time


def _held_down(reasons: int) -> tuple[int, ...]:
    """Return the bits that give the cause.

    The general bit is also set together with the bits of specific causes, and then adds no information.
    """
    causes = tuple(bit for bit in (_THERMAL_SLOWDOWN, _POWER_BRAKE) if reasons & bit)
    return causes or ((_HARDWARE_SLOWDOWN,) if reasons & _HARDWARE_SLOWDOWN else ())


CHECK = Check("clocks", "0-nvidia-smi", (nvml.NVML,), judge, (HARDWARE, THERMAL, POWER_BRAKE, THROTTLING))
