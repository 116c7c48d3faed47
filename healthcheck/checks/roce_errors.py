"""Check: the rate at which the error counters of the GPU fabric's mlx5 ports rise."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.roce_fabric import GROUP, NEEDS, fabric_ports, why_not
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
from gpu_healthcheck.healthcheck.probes.mlx5 import CARRIER_CHANGES, MLX5, Mlx5Device

MOST_PER_SECOND = {
    "symbol_error": 10.0,
    "link_error_recovery": 5 / 60,
    "port_rcv_errors": 10.0,
    "port_xmit_discards": 100.0,
    "local_link_integrity_errors": 0.0,
    "excessive_buffer_overrun_errors": 0.0,
    "local_ack_timeout_err": 1.0,
    "rnr_nak_retry_err": 0.0,
    "roce_slow_restart": 10.0,
}
"""Limits by counter (NVSentinel, nic-health-monitor). 0: it must not rise at all."""
MOST_CARRIER_CHANGES = 2
"""Most changes of a net device's link between two check cycles (NVSentinel, nic-health-monitor)."""
_SOURCE = "NVSentinel, nic-health-monitor"


def _rate(limit: float) -> str:
    return f"{limit:g}" if limit >= 1 else f"{limit:.2g}"


ERRORS = Reason(
    "RdmaLinkErrors",
    Severity.MONITOR,
    "A port of the GPU fabric has too many errors: jobs over several nodes are slow or fail.",
    "Compare the nodes of the job: for a single port, check its cable and transceiver; many point to the network or a"
    " dead peer.",
    flickers=True,
    threshold=(
        ", ".join(f"{name} {_rate(limit)}/s" if limit else f"{name} any" for name, limit in MOST_PER_SECOND.items())
        + f", {CARRIER_CHANGES} {MOST_CARRIER_CHANGES}"
    ),
    source=_SOURCE,
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    if reason := why_not(evidence, expected):
        yield NotConfigured(reason)
        return
    devices = [port.device for port in fabric_ports(evidence, expected) if port.device and port.device.counters]
    if not devices:
        yield NotConfigured("no port of an mlx5 device has counters")
        return
    earlier = evidence.earlier(MLX5)
    if earlier is None:
        yield TooEarly("a rate needs an earlier check cycle")
        yield Observation(f"error counters of {counted(len(devices), 'port')} read", "none above its limit", _SOURCE)
        return
    before, seconds = {device.address: device for device in earlier[0].devices}, earlier[1]
    words = [word for device in devices for word in _rates(device, before.get(device.address), seconds)]
    yield from words
    fast = sum(isinstance(word, Finding) for word in words)
    yield Observation(f"errors above the limit on {fast} of {counted(len(devices), 'port')}", "none", _SOURCE)


def _rates(device: Mlx5Device, before: Mlx5Device | None, seconds: float) -> Iterator[Judgement]:
    subject = f"rdma/{device.name}"
    if before is None or not before.counters or before.error or device.error:
        yield TooEarly("its counters were not read in both check cycles", subject)
        return
    rises = {name: count - before.counters[name] for name, count in device.counters.items() if name in before.counters}
    if any(rise < 0 for rise in rises.values()):
        yield TooEarly("its counters were reset", subject)
        return
    fast = [name for name, limit in MOST_PER_SECOND.items() if rises.get(name, 0) / seconds > limit]
    fast += [CARRIER_CHANGES] if rises.get(CARRIER_CHANGES, 0) > MOST_CARRIER_CHANGES else []
    if fast:
        yield ERRORS.on(subject, f"rises: {', '.join(map(_limit, fast))}")


def _limit(name: str) -> str:
    if name == CARRIER_CHANGES:
        return f"{name} by more than {MOST_CARRIER_CHANGES} since the last check cycle"
    limit = MOST_PER_SECOND[name]
    return f"{name} by more than {_rate(limit)} a second" if limit else name


CHECK = Check("roce-errors", GROUP, NEEDS, judge, (ERRORS,))
