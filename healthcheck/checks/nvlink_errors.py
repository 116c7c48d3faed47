"""Check: the rate of errors, replays and recoveries of each NVLink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import answering, earlier_gpus, found, same, silent
from gpu_healthcheck.healthcheck.model import (
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
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

LEAST_CRC_PER_SECOND = 100.0
"""DCGM_LIMIT_MAX_NVLINK_CRC_ERROR (DcgmGPUHardwareLimits.h): below this rate the link's retries correct the errors."""
LEAST_PER_MINUTE = 1.0
"""DCGM_LIMIT_MAX_NVLINK_ERROR: DCGM's health watch fails a GPU for one error of another kind in a minute."""
LEAST_PER_SECOND: Mapping[str, float] = {
    "crc_errors": LEAST_CRC_PER_SECOND,
    "crc_data_errors": LEAST_CRC_PER_SECOND,
    "replays": LEAST_PER_MINUTE / 60,
    "recoveries": LEAST_PER_MINUTE / 60,
    "recovery_failures": LEAST_PER_MINUTE / 60,
    "symbol_errors": LEAST_PER_MINUTE / 60,
}
"""Limits by counter. Recovery failures and symbol errors are counted from NVLink 5 on, the other errors before."""
_READINGS = {"nvlinks": "NVLinks", "nvlink_counters": "NVLink counters"}

RATE = Reason(
    "NvLinkErrorRate",
    Severity.MONITOR,
    "A GPU has an NVLink with too many errors: it continuously recovers, resends data or receives wrong symbols. It "
    "may soon go down.",
    "Watch the GPU, and quarantine the node when it is free; check for Xid 74 or 144-150 at the same time.",
    flickers=True,
    threshold=f"from {LEAST_CRC_PER_SECOND:g} CRC errors a second, or {LEAST_PER_MINUTE:g} replay, recovery or symbol "
    "error a minute, on a link",
    source="DCGM's health watch (DcgmGPUHardwareLimits.h, MonitorNVLink4Fields, MonitorNVLink5Fields)",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    unread = [(gpu, name) for gpu in gpus for name in _READINGS if name in gpu.errors]
    for gpu, name in unread:
        yield silent(gpu, gpu.errors[name], _READINGS[name])
    counting = [gpu for gpu in gpus if any(link.counters for link in gpu.nvlinks or ())]
    if counting:
        yield from _judge_rates(counting, evidence)
        limits = f"below {LEAST_CRC_PER_SECOND:g} CRC errors/s and {LEAST_PER_MINUTE:g} other a minute on each link"
        yield Observation(f"NVLink errors of {counted(len(counting), 'GPU')} read", limits, "DCGM's health watch")
    elif gpus and not unread:
        yield NotConfigured("no GPU counts NVLink errors")


def _judge_rates(gpus: list[nvml.Gpu], evidence: Evidence) -> Iterator[Judgement]:
    earlier = earlier_gpus(evidence)
    if earlier is None:
        yield TooEarly("a rate needs an earlier check cycle")
        return
    for gpu in gpus:
        before = same(gpu, earlier[0])
        if before is not None and before.nvlinks == gpu.nvlinks:
            continue  # no counter rose
        grown = _grown(before.nvlinks or () if before else (), gpu.nvlinks or ())
        if not grown or min(grown.values()) < 0:
            yield TooEarly("its counters were not read in the previous check cycle, or were reset", gpu.subject)
            continue
        too_fast = _summary(grown, earlier[1])
        if too_fast:
            yield found(RATE, gpu, f"NVLinks with too many errors: {too_fast}")


def _summary(grown: dict[tuple[str, int], int], seconds: float) -> str:
    """Return the counters that grew too fast, each with its links, or an empty string."""
    links: dict[str, list[str]] = {}
    for (name, link), growth in grown.items():
        if growth / seconds >= LEAST_PER_SECOND[name]:
            links.setdefault(name, []).append(str(link))
    return "; ".join(f"{name.replace('_', ' ')} on {', '.join(link_numbers)}" for name, link_numbers in links.items())


def _grown(before: tuple[nvml.NvLink, ...], now: tuple[nvml.NvLink, ...]) -> dict[tuple[str, int], int]:
    """Return the increase by counter and link, for the links that both check cycles read."""
    old = {(name, link.link): count for link in before for name, count in link.counters.items()}
    return {
        (name, link.link): count - old[name, link.link]
        for name in LEAST_PER_SECOND
        for link in now
        for count in [link.counters.get(name)]
        if count is not None and (name, link.link) in old
    }


CHECK = Check("nvlink-errors", "3-topology-check", (nvml.NVML,), judge, (RATE,))
