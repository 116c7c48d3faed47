"""Rules of single codes, from the kernel's lines to what is active after them."""

from __future__ import annotations

import pytest

from healthcheck.checks import CHECKS
from healthcheck.checks.examine import judge
from healthcheck.checks.expectation import Expectation
from healthcheck.memory.exits import gpus_answered
from healthcheck.memory.findings import Memory
from healthcheck.memory.kernel_log import after_kernel_log
from healthcheck.model import Evidence, Nature
from healthcheck.probes.kernel_log import RING, Record
from healthcheck.probes.nvml.gpus import Gpu
from tests.examples import MONOTONIC, NOW, later, remembers

EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
IMEX = "GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)"
IMEX_OVER = "GPU recovery action changed from 0x5 (Recover IMEX Domain) to 0x0 (None)"
ADDRESSES = ("0000:53:00.0", "0000:64:00.0")


def xid(code: int, text: str = "x", bus: str = "53") -> str:
    return f"NVRM: Xid (PCI:0000:{bus}:00): {code}, pid='<unknown>', name=<unknown>, {text}"


def reads(*texts: str, memory: Memory | None = None) -> Memory:
    """After these lines, a second apart, the last one now."""
    ring = tuple(Record(seq, MONOTONIC + 1 + seq - len(texts), 0, text) for seq, text in enumerate(texts))
    outcomes = judge(EVENT_CHECKS, Evidence({RING: ring}), Expectation())
    return after_kernel_log(memory or remembers(), outcomes, NOW)


def active(memory: Memory) -> list[str]:
    return [f"{one.finding.reason} {one.finding.severity.name} {one.finding.subject}" for one in memory.standing]


def looks(memory: Memory, *actions: int) -> Memory:
    """NVML answers with these recovery actions."""
    gpus = [
        Gpu(index, address=address, uuid=f"GPU-{index}", recovery_action=action)
        for index, (address, action) in enumerate(zip(ADDRESSES, actions, strict=True))
    ]
    return gpus_answered(memory, gpus, MONOTONIC + 1, later(1))


def test_an_imex_domain_to_recover_is_one_event_of_the_node() -> None:
    assert active(reads(xid(154, IMEX), xid(154, IMEX, "64"))) == ["Xid154 MONITOR node"]


def test_it_ends_when_no_gpu_asks_for_it_any_more() -> None:
    memory = looks(reads(xid(154, IMEX), xid(154, IMEX, "64")), 5, 5)
    one_left = looks(memory, 0, 5)

    assert active(one_left) == ["Xid154 MONITOR node"]
    assert active(looks(one_left, 0, 0)) == []


def test_it_ends_with_the_lines_that_take_it_back() -> None:
    memory = looks(reads(xid(154, IMEX), xid(154, IMEX, "64")), 5, 5)

    assert active(reads(xid(154, IMEX_OVER), memory=memory)) == ["Xid154 MONITOR node"]
    assert active(reads(xid(154, IMEX_OVER), xid(154, IMEX_OVER, "64"), memory=memory)) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((xid(163),), ["Xid163 MONITOR gpu/0000:53:00.0"]),
        ((xid(163), xid(162)), ["Xid162 MONITOR gpu/0000:53:00.0"]),
        ((xid(162), xid(163)), ["Xid162 MONITOR gpu/0000:53:00.0", "Xid163 MONITOR gpu/0000:53:00.0"]),
        ((xid(163), xid(162, bus="64")), ["Xid163 MONITOR gpu/0000:53:00.0", "Xid162 MONITOR gpu/0000:64:00.0"]),
        ((xid(164), xid(162)), ["Xid164 MONITOR gpu/0000:53:00.0", "Xid162 MONITOR gpu/0000:53:00.0"]),
    ],
)
def test_power_smoothing_that_works_again_ends_its_being_off(lines: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(active(reads(*lines))) == sorted(expected)
