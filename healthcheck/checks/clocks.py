"""Check: no GPU's clocks are slowed down by its hardware, due to heat, power or an unnamed cause."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks.expectation import Expectation
from healthcheck.checks.per_gpu import all_lack, answering, found
from healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    counted,
)
from healthcheck.probes.nvml import gpus as nvml

_HARDWARE_SLOWDOWN, _THERMAL_SLOWDOWN, _POWER_BRAKE = 0x8, 0x40, 0x80
"""nvmlClocksEventReasons (nvml.h). All other reasons are settings, or normal on a busy or idle GPU."""

# The driver sets the first bit briefly whenever clocks change (nvml.h): one check cycle is not evidence.
HARDWARE = Reason(
    "ClocksHardwareSlowdown",
    Severity.MONITOR,
    "The GPU's hardware holds its clocks at half or less, and reports neither heat nor power brake as the cause.",
    "Check power draw and temperature; move work away, and replace the node if the slowdown persists.",
    flickers=True,
    threshold=f"bit {_HARDWARE_SLOWDOWN:#x}, alone",
    source="nvml.h, nvmlClocksEventReasonHwSlowdown",
)
THERMAL = Reason(
    "ClocksThermalSlowdown",
    Severity.MONITOR,
    "The GPU's hardware holds its clocks at half or less because it is too hot.",
    "Check temperature and fans; move work away, and replace the node if the slowdown persists.",
    flickers=True,
    threshold=f"bit {_THERMAL_SLOWDOWN:#x}",
    source="nvml.h, nvmlClocksEventReasonHwThermalSlowdown",
)
POWER_BRAKE = Reason(
    "PowerBrake",
    Severity.MONITOR,
    "The machine's power supply makes the GPU hold its clocks at half or less.",
    "Move work away; replace the node if the slowdown persists: its power supply is at fault, not the GPU.",
    flickers=True,
    threshold=f"bit {_POWER_BRAKE:#x}",
    source="nvml.h, nvmlClocksEventReasonHwPowerBrakeSlowdown",
)
_REASONS = {_HARDWARE_SLOWDOWN: HARDWARE, _THERMAL_SLOWDOWN: THERMAL, _POWER_BRAKE: POWER_BRAKE}
_CAUSES = {_HARDWARE_SLOWDOWN: "the hardware", _THERMAL_SLOWDOWN: "heat", _POWER_BRAKE: "the power supply"}


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(seen, "clock_reasons")
    entries = [(gpu, _held_down(gpu.clock_reasons)) for gpu in gpus if gpu.clock_reasons is not None]
    if all_lack(gpus, "clock_reasons"):
        yield NotConfigured("no GPU here reports why its clocks are slowed down")
    elif entries:
        held = sum(bool(bits) for _, bits in entries)
        yield Observation(f"slowed down by hardware on {held} of {counted(len(entries), 'GPU')}", "none")
    run = expected.deep_run
    is_tested = run is not None and run.covers(seen.at)
    for gpu, bits in entries:
        if bits and is_tested:
            # A test draws more power and heat than any workload: a slowdown during a test is caused by the test.
            yield TooEarly("a deep test loads the GPU", gpu.subject, tuple(_REASONS[bit].name for bit in bits))
            continue
        for bit in bits:
            yield found(_REASONS[bit], gpu, f"clocks slowed down by {_CAUSES[bit]} (event reason {bit:#x})")


def _held_down(reasons: int) -> tuple[int, ...]:
    """Return the bits that give the cause.

    The general bit is also set together with the bits of specific causes, and then adds no information.
    """
    causes = tuple(bit for bit in (_THERMAL_SLOWDOWN, _POWER_BRAKE) if reasons & bit)
    return causes or ((_HARDWARE_SLOWDOWN,) if reasons & _HARDWARE_SLOWDOWN else ())


CHECK = Check("clocks", "0-nvidia-smi", (nvml.NVML,), judge, (HARDWARE, THERMAL, POWER_BRAKE))
