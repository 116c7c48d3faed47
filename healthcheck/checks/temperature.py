"""Check: no GPU is at or above the temperature at which it slows itself down."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import answering, found
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

LOWEST_LIMIT_CELSIUS = 50
"""No data-centre GPU slows down below this temperature. A lower limit is implausible: 0 for no limit, or a margin that
does not match the temperature, as some H100s report (gpud ignores those too)."""

TOO_HOT = Reason(
    "GpuTooHot",
    Severity.MONITOR,
    "The GPU is so hot that it slows itself down.",
    "Compare the other GPUs' temperatures and the clocks; move work away, and replace the node if it stays hot.",
    flickers=True,
    threshold="the GPU's own slowdown limit",
    source="nvmlDeviceGetTemperatureThreshold; from Hopper on nvmlDeviceGetMarginTemperature and field 194",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence, "temperature")
    readings = [(gpu, gpu.temperature) for gpu in gpus if gpu.temperature is not None]
    celsius = [temperature.celsius for _, temperature in readings if temperature.celsius is not None]
    if celsius:
        limits = [limit for _, temperature in readings if (limit := slowdown_celsius(temperature)) is not None]
        expected = f"below the GPU's own limit, {_range(limits)} °C" if limits else ""
        yield Observation(f"{_range(celsius)} °C", expected, "NVML" if limits else "")
    elif gpus:
        yield NotConfigured("no GPU here reports its temperature")
    for gpu, temperature in readings:
        limit = slowdown_celsius(temperature)
        if limit is not None and temperature.celsius is not None and temperature.celsius >= limit:
            yield found(TOO_HOT, gpu, _detail(temperature))


def slowdown_celsius(temperature: nvml.Temperature) -> int | None:
    """Return the temperature at which this GPU slows itself down, or None if it is unknown or implausible.

    From Hopper on a GPU reports its margin to the limit, and the margin at which it slows down, which is 0 or below.
    """
    celsius, margin, slowdown = temperature.celsius, temperature.margin_celsius, temperature.slowdown_margin_celsius
    if celsius is not None and margin is not None and slowdown is not None:
        limit: int | None = celsius + margin - slowdown
    else:
        limit = temperature.slowdown_celsius
    return limit if limit is not None and limit >= LOWEST_LIMIT_CELSIUS else None


def _detail(temperature: nvml.Temperature) -> str:
    """Return the limit as the GPU reports it.

    A limit computed from temperature and margin would vary by a degree between check cycles.
    """
    if temperature.margin_celsius is not None and temperature.slowdown_margin_celsius is not None:
        return f"its margin is at or below {temperature.slowdown_margin_celsius} °C, where it slows itself down"
    return f"at or above {temperature.slowdown_celsius} °C, where it slows itself down"


def _range(values: list[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"


CHECK = Check("temperature", "0-nvidia-smi", (nvml.NVML,), judge, (TOO_HOT,))
