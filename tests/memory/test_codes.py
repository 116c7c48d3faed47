"""Rules of single codes, from the kernel's lines to the active findings."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.exits import gpus_answered
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.severity_changes import in_force
from gpu_healthcheck.healthcheck.model import Evidence, Nature, Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from tests.examples import MONOTONIC, NOW, later, memory_with

EVENT_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
IMEX = "GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)"
IMEX_OVER = "GPU recovery action changed from 0x5 (Recover IMEX Domain) to 0x0 (None)"
POLICY = Policy()
ADDRESSES = ("0000:53:00.0", "0000:64:00.0")


def xid(code: int, text: str = "x", bus: str = "53") -> str:
    return f"NVRM: Xid (PCI:0000:{bus}:00): {code}, pid='<unknown>', name=<unknown>, {text}"


def reads(*texts: str, memory: Memory | None = None, policy: Policy = POLICY) -> Memory:
    """After these lines, a second apart, the last one now."""
    ring = tuple(Record(seq, MONOTONIC + 1 + seq - len(texts), 0, text) for seq, text in enumerate(texts))
    outcomes = judge(EVENT_CHECKS, Evidence({RING: ring}), Expectation(policy=policy))
    return after_kernel_log(memory or memory_with(), outcomes, NOW)


def active(memory: Memory) -> list[str]:
    return [
        f"{finding.finding.reason} {finding.finding.severity.name} {finding.finding.subject}"
        for finding in memory.active
    ]


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
    memory_left = looks(memory, 0, 5)

    assert active(memory_left) == ["Xid154 MONITOR node"]
    assert active(looks(memory_left, 0, 0)) == []


def test_finding_ends_with_the_lines_that_withdraw_it() -> None:
    memory = looks(reads(xid(154, IMEX), xid(154, IMEX, "64")), 5, 5)

    assert active(reads(xid(154, IMEX_OVER), memory=memory)) == ["Xid154 MONITOR node"]
    assert active(reads(xid(154, IMEX_OVER), xid(154, IMEX_OVER, "64"), memory=memory)) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((xid(163),), ["Xid163 MONITOR gpu/0000:53:00.0"]),
        ((xid(162),), []),
        ((xid(163), xid(162)), []),
        ((xid(162), xid(163)), ["Xid163 MONITOR gpu/0000:53:00.0"]),
        ((xid(163), xid(162, bus="64")), ["Xid163 MONITOR gpu/0000:53:00.0"]),
        ((xid(164), xid(162)), ["Xid164 MONITOR gpu/0000:53:00.0"]),
    ],
)
def test_power_smoothing_that_works_again_ends_its_being_off(lines: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(active(reads(*lines))) == sorted(expected)


RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
REBOOT = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
UNKNOWN = "GPU recovery action changed from 0x0 (None) to 0x8 (Unknown)"
FELL_OFF = "NVRM: GPU 0000:53:00.0: GPU has fallen off the bus."
GPU = "gpu/0000:53:00.0"


def at(*lines: tuple[float, str]) -> list[str]:
    """Return the active findings after lines at these seconds, read one by one in the order of the log."""
    memory = memory_with()
    for seq, (second, text) in enumerate(lines):
        ring = (Record(seq, MONOTONIC + second, 0, text),)
        outcomes = judge(EVENT_CHECKS, Evidence({RING: ring}), Expectation())
        memory = after_kernel_log(memory, outcomes, later(second))
    return sorted(active(memory))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            [(0, xid(79)), (1, xid(154, RESET))], ["Xid154 RESET", "Xid79 RESET"], id="79, then a reset is enough"
        ),
        pytest.param([(0, xid(154, RESET)), (1, xid(79))], ["Xid154 RESET", "Xid79 RESET"], id="the other way round"),
        pytest.param(
            [(0, xid(79)), (0, FELL_OFF), (1, xid(154, RESET))],
            ["Xid154 RESET", "Xid79 RESET"],
            id="79 with its line without a number",
        ),
        pytest.param([(0, xid(79)), (60, xid(154, RESET))], ["Xid154 RESET", "Xid79 RESET"], id="at the window's end"),
        pytest.param([(0, xid(79)), (61, xid(154, RESET))], ["Xid154 RESET", "Xid79 REBOOT"], id="beyond it"),
        pytest.param([(0, xid(154, RESET)), (61, xid(79))], ["Xid154 RESET", "Xid79 REBOOT"], id="beyond it, reversed"),
        pytest.param(
            [(0, xid(79)), (50, xid(79)), (100, xid(154, RESET))],
            ["Xid154 RESET", "Xid79 REBOOT"],
            id="its first line beyond it",
        ),
        pytest.param(
            [(0, xid(79)), (1, xid(154, RESET)), (2, xid(79))], ["Xid154 RESET", "Xid79 RESET"], id="again within it"
        ),
        pytest.param(
            [(0, xid(79)), (1, xid(154, RESET)), (90, xid(79))], ["Xid154 RESET", "Xid79 REBOOT"], id="again beyond it"
        ),
        pytest.param(
            [(0, xid(95)), (1, xid(154, REBOOT))], ["Xid154 REBOOT", "Xid95 REBOOT"], id="an action that raises"
        ),
        pytest.param(
            [(0, xid(154, REBOOT)), (1, xid(31))], ["Xid154 REBOOT", "Xid31 REBOOT"], id="raises what follows"
        ),
        pytest.param([(0, xid(31)), (90, xid(154, REBOOT))], ["Xid154 REBOOT", "Xid31 MONITOR"], id="not beyond it"),
        pytest.param([(0, xid(54)), (1, xid(154, RESET))], ["Xid154 RESET", "Xid54 ISOLATE"], id="ISOLATE stays"),
        pytest.param([(0, xid(154, RESET)), (1, xid(54))], ["Xid154 RESET", "Xid54 ISOLATE"], id="ISOLATE comes"),
        pytest.param([(0, xid(79)), (1, xid(154, UNKNOWN))], ["Xid154 MONITOR", "Xid79 REBOOT"], id="unknown action"),
        pytest.param([(0, xid(79)), (1, xid(154, "cut of"))], ["Xid154 MONITOR", "Xid79 REBOOT"], id="unread action"),
        pytest.param([(0, xid(45)), (1, xid(154, RESET))], ["Xid154 RESET"], id="45 is withdrawn"),
        pytest.param([(0, xid(154, RESET)), (1, xid(45))], ["Xid154 RESET"], id="45 does not count"),
        pytest.param([(0, xid(63)), (1, xid(154, RESET))], ["Xid154 RESET"], id="what NVIDIA ignores is no finding"),
        pytest.param(
            [(0, xid(79)), (1, xid(154, RESET)), (2, xid(154, REBOOT))],
            ["Xid154 REBOOT", "Xid79 REBOOT"],
            id="the action worsens",
        ),
    ],
)
def test_xid_154_replaces_the_tier_of_its_gpus_events_within_the_window(
    lines: list[tuple[float, str]], expected: list[str]
) -> None:
    assert at(*lines) == [f"{text} {GPU}" for text in expected]


@pytest.mark.parametrize("first", [0, 1])
def test_xid_154_leaves_the_other_gpus_alone(first: int) -> None:
    lines = [xid(79, bus="64"), xid(154, RESET)]

    assert at((0, lines[first]), (1, lines[1 - first])) == [f"Xid154 RESET {GPU}", "Xid79 REBOOT gpu/0000:64:00.0"]


def test_an_imex_domain_to_recover_lowers_no_tier() -> None:
    assert at((0, xid(79)), (1, xid(154, IMEX))) == ["Xid154 MONITOR node", f"Xid79 REBOOT {GPU}"]


def test_a_reboot_finding_that_became_reset_ends_with_the_reset() -> None:
    back = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"

    assert at((0, xid(79)), (0, FELL_OFF), (1, xid(154, RESET)), (300, xid(154, back))) == []


@pytest.mark.parametrize("lines", [(xid(79), xid(154, RESET)), (xid(154, RESET), xid(79))])
def test_the_clusters_own_severity_outranks_the_action(lines: tuple[str, str]) -> None:
    own = Policy({"Xid79": Severity.ISOLATE})
    memory = reads(*lines, policy=own)

    assert active(memory) == [f"Xid79 ISOLATE {GPU}", f"Xid154 RESET {GPU}"]
    assert sorted(active(in_force(memory, Policy()))) == [f"Xid154 RESET {GPU}", f"Xid79 RESET {GPU}"]
    assert active(in_force(in_force(memory, Policy()), own)) == active(memory)


def test_the_tables_in_force_leave_the_tier_of_an_action() -> None:
    memory = reads(xid(79), xid(154, RESET))

    assert in_force(memory, Policy()) == memory
