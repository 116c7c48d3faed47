"""Check: EFA devices send keep-alive messages to their driver."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
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
from gpu_healthcheck.healthcheck.probes.efa.infiniband import KEEP_ALIVES, RDMA

ENOUGH = 3
"""Keep-alives of another device without which no stall is proven. Their interval is not published, so the devices of
one machine are compared. They send at the same rate: by chance a device can send one message less, but not three."""

STALLED = Reason(
    "EfaKeepAliveStalled",
    Severity.MONITOR,
    "An EFA device sends no keep-alive: others of the machine do, so the device or its interrupt is dead.",
    "Read the kernel log for efa; test the node with a quarantine run, reboot it, and replace it if the fault recurs.",
    # The reason has no `flickers`: two check cycles 10 s apart may be too close together to show anything.
    threshold=f"{KEEP_ALIVES} does not rise, while it rises by at least {ENOUGH} on another device",
    source="the efa driver's hw_counters (amzn-drivers, efa_verbs.c)",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    devices = evidence[RDMA].efa
    now = {device.name: device.counters[KEEP_ALIVES] for device in devices if KEEP_ALIVES in device.counters}
    if not now:
        yield NotConfigured("no EFA device counts its keep-alives" if devices else "no EFA device")
        return
    earlier = evidence.earlier(RDMA)
    if earlier is None:
        yield TooEarly("a comparison needs an earlier check cycle")
        yield Observation(f"keep-alives of {counted(len(now), 'EFA device')} read")
        return
    before = {device.name: device.counters.get(KEEP_ALIVES) for device in earlier[0].efa}
    rises = {name: count - old for name, count in now.items() if (old := before.get(name)) is not None}
    pace = max(rises.values(), default=0)
    for name in now:
        yield from _rise(f"efa/{name}", rises.get(name), pace)
    alive = sum(rise > 0 for rise in rises.values())
    yield Observation(
        f"keep-alives from {alive} of {counted(len(now), 'EFA device')}", "all", "the machine's other devices"
    )


def _rise(subject: str, rise: int | None, pace: int) -> Iterator[Judgement]:
    if rise is None:
        yield TooEarly("it did not exist in the previous check cycle", subject)
    elif rise < 0:
        yield TooEarly("its counters were reset", subject)
    elif rise == 0 and pace >= ENOUGH:
        detail = f"{KEEP_ALIVES} does not rise, while another device's rises by {ENOUGH} or more"
        yield STALLED.on(subject, detail)
    elif rise == 0:
        yield TooEarly("no device sent enough keep-alives for a comparison", subject)


CHECK = Check("efa-keep-alive", "2-efa-enumeration", (RDMA,), judge, (STALLED,))
