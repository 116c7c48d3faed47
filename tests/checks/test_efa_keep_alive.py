"""Keep-alives: a device is silent when others of its machine are not."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.efa_keep_alive import CHECK, ENOUGH
from gpu_healthcheck.healthcheck.checks.examine import judge as examine
from gpu_healthcheck.healthcheck.checks.examine import read_probes
from gpu_healthcheck.healthcheck.model import Finding, Host, Judgement, NotConfigured, Observation, Severity, TooEarly
from gpu_healthcheck.healthcheck.probes.efa.infiniband import KEEP_ALIVES, RDMA, Rdma
from gpu_healthcheck.sim.node import SimulatedNode
from tests.checks.evidence import P5, efa_device, judgements, rdma, says_later

SILENT = "keep_alive_rcvd does not rise, while another device's rises by 3 or more"
UNTOLD = "no device sent enough keep-alives for a comparison"


def counting(*counts: int | None) -> Rdma:
    """Return one device per count. With None, the device has no such counter."""
    counters: list[dict[str, int]] = [{} if count is None else {KEEP_ALIVES: count} for count in counts]
    return Rdma(
        tuple(efa_device(index, counters=entry) for index, entry in enumerate(counters)), efa_driver_loaded=True
    )


def judge(before: Rdma, now: Rdma) -> list[Judgement]:
    findings = says_later(CHECK, 300.0, {RDMA: before}, {RDMA: now})
    assert sum(isinstance(word, Observation) for word in findings) == 1
    return [word for word in findings if not isinstance(word, Observation)]


def stalled(*names: str) -> list[Finding]:
    return [Finding("EfaKeepAliveStalled", Severity.MONITOR, f"efa/{name}", SILENT) for name in names]


def too_early(*names: str, why: str = UNTOLD) -> list[TooEarly]:
    return [TooEarly(why, f"efa/{name}") for name in names]


@pytest.mark.parametrize(
    ("before", "now", "findings"),
    [
        ((10, 20), (13, 23), []),
        ((10, 20), (11, 20 + ENOUGH), []),
        ((10, 20), (10, 20 + ENOUGH), stalled("rdmap16s0")),
        ((10, 20, 30), (10, 20, 330), stalled("rdmap16s0", "rdmap17s0")),
        # Too short a time for their pace, or all are dead: undecidable.
        ((10, 20), (10, 19 + ENOUGH), too_early("rdmap16s0")),
        ((10, 20), (10, 20), too_early("rdmap16s0", "rdmap17s0")),
        ((10,), (10,), too_early("rdmap16s0")),
        ((10,), (11,), []),
        # The driver was loaded again.
        ((1000, 1000), (3, 3), too_early("rdmap16s0", "rdmap17s0", why="its counters were reset")),
        ((1000, 1000), (1000, 3), [*too_early("rdmap16s0"), *too_early("rdmap17s0", why="its counters were reset")]),
        # It does not count, or did not.
        ((None, 20), (None, 23), []),
        ((None, 20), (10, 23), too_early("rdmap16s0", why="it did not exist in the previous check cycle")),
        (
            (10,),
            (10, 23),
            [*too_early("rdmap16s0"), *too_early("rdmap17s0", why="it did not exist in the previous check cycle")],
        ),
        ((10, 20), (None, 23), []),
    ],
)
def test_a_silent_device_against_its_neighbours(
    before: tuple[int | None, ...], now: tuple[int | None, ...], findings: list[Judgement]
) -> None:
    assert judge(counting(*before), counting(*now)) == findings


def test_a_first_reading_is_too_early() -> None:
    assert judgements(CHECK, P5, {RDMA: counting(0, 500)}) == [
        TooEarly("a comparison needs an earlier check cycle"),
        Observation("keep-alives of 2 EFA devices read"),
    ]


def test_a_person_reads_how_many_are_alive() -> None:
    findings = says_later(CHECK, 300.0, {RDMA: counting(1, 1, 1)}, {RDMA: counting(1, 9, 9)})

    assert findings[-1] == Observation("keep-alives from 2 of 3 EFA devices", "all", "the machine's other devices")


@pytest.mark.parametrize(
    ("seen", "why"),
    [(rdma(0, mlx5=4), "no EFA device"), (rdma(32, counters={}), "no EFA device counts its keep-alives")],
)
def test_missing_counter_gives_no_finding(seen: Rdma, why: str) -> None:
    assert judgements(CHECK, P5, {RDMA: seen}) == [NotConfigured(why)]


def test_two_reads_of_the_counters_show_silent_devices(node: SimulatedNode) -> None:
    host = Host(node.root)
    before = read_probes(host, [CHECK])
    for index in range(1, 32):
        node.efa_counter(index, KEEP_ALIVES, 5)

    (outcome,) = examine([CHECK], read_probes(host, [CHECK], before), P5)

    assert [finding.subject for finding in outcome.findings] == [f"efa/{node.efa_names[0]}"]
    assert outcome.too_early == ()
