"""Check: the rate at which the error counters of the EFA hardware rise."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
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
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.probes.efa.infiniband import NOT_ANSWERING, RDMA, RdmaDevice

MOST_ERRORS_PER_SECOND = 100.0
MOST_RETRANSMITTED_PACKETS_PER_SECOND = 1_000.0
MOST_RETRANSMITTED_BYTES_PER_SECOND = 1_000_000.0
MOST_PER_SECOND = {
    "rx_drops": MOST_ERRORS_PER_SECOND,
    "rdma_read_wr_err": MOST_ERRORS_PER_SECOND,
    "rdma_write_wr_err": MOST_ERRORS_PER_SECOND,
    "retrans_timeout_events": MOST_ERRORS_PER_SECOND,
    "unresponsive_remote_events": MOST_ERRORS_PER_SECOND,
    "impaired_remote_conn_events": MOST_ERRORS_PER_SECOND,
    "retrans_pkts": MOST_RETRANSMITTED_PACKETS_PER_SECOND,
    "retrans_bytes": MOST_RETRANSMITTED_BYTES_PER_SECOND,
}
"""Limits by counter, from EKS's node monitoring agent (monitors/networking/efa/efa.go). That agent ignores bursts up to
these numbers. Such a rate between two check cycles shows that the errors continue."""

_SOURCE = "EKS node monitoring agent"
RATE = Reason(
    "EfaErrorRate",
    Severity.MONITOR,
    "An EFA device has too many errors: it drops or retransmits so many packets, or has so many failed operations, "
    "that jobs are slow or fail.",
    "Compare the nodes of the job: a single device points to this machine, many devices to the network or a dead peer.",
    flickers=True,
    threshold=(
        f"more than {MOST_ERRORS_PER_SECOND:g}/s; {MOST_RETRANSMITTED_PACKETS_PER_SECOND:g}/s of retrans_pkts, "
        f"{MOST_RETRANSMITTED_BYTES_PER_SECOND:.0f}/s of retrans_bytes"
    ),
    source=f"{_SOURCE}, monitors/networking/efa/efa.go",
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    devices = evidence[RDMA].efa
    if not devices:
        yield NotConfigured("no EFA device")
        return
    for device in devices:
        if device.error:
            yield Unobserved(NOT_ANSWERING, f"efa/{device.name}: {device.error}", f"efa/{device.name}")
    earlier = evidence.earlier(RDMA)
    if earlier is None:
        yield TooEarly("a rate needs an earlier check cycle")
        yield Observation(
            f"error counters of {counted(len(devices), 'EFA device')} read", "no counter above the threshold", _SOURCE
        )
        return
    before, seconds = {device.name: device for device in earlier[0].efa}, earlier[1]
    findings = [
        word
        for rdma_device in devices
        if not rdma_device.error
        for word in _rates(rdma_device, before.get(rdma_device.name), seconds)
    ]
    yield from findings
    fast = sum(isinstance(word, Finding) for word in findings)
    yield Observation(f"errors above the threshold on {fast} of {counted(len(devices), 'EFA device')}", "none", _SOURCE)


def _rates(device: RdmaDevice, before: RdmaDevice | None, seconds: float) -> Iterator[Judgement]:
    subject = f"efa/{device.name}"
    if before is None or before.error:
        yield TooEarly("its counters were not read in the previous check cycle", subject)
        return
    both = [name for name in MOST_PER_SECOND if name in device.counters and name in before.counters]
    rises = {name: device.counters[name] - before.counters[name] for name in both}
    if any(rise < 0 for rise in rises.values()):
        yield TooEarly("its counters were reset", subject)
    elif too_fast := [name for name, rise in rises.items() if rise / seconds > MOST_PER_SECOND[name]]:
        rates = ", ".join(f"{name} by more than {MOST_PER_SECOND[name]:.0f} a second" for name in too_fast)
        yield RATE.on(subject, f"rises: {rates}")


CHECK = Check("efa-errors", "2-efa-enumeration", (RDMA,), judge, (RATE,))
