"""Lines in which the driver gives up a GPU, joined with the Xid or the line that names the GPU."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin, expired
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory, Release
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.memory.reason_names import LOCKED
from gpu_healthcheck.healthcheck.model import Evidence, Nature
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from tests.examples import MACHINE, MONOTONIC, WALL, later, memory_with

EVENT_CHECKS = tuple(one for one in CHECKS if one.nature is Nature.EVENT)
LOST = "NVRM: GPU3 _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 76!"
NAMED = "NVRM: GPU 0000:53:00.0: GPU has fallen off the bus."
RC = "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error {}."
DUMP = "NVRM: A GPU crash dump has been created. If possible, please run"
WATCHDOG = "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7"
BANNER = "NVRM: GPU6 _kgspLogXid119: ********************* GSP Timeout **********************"
LINK = "NVRM: knvlinkDiscoverPostRxDetLinks_GB100: Getting peer2 postRxDetLinkMask failed!"
WAIT = "nvidia-modeset: ERROR: GPU:6: Error while waiting for GPU progress: 0x0000c77d:0 2:0:4048:4044"
FATAL = "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:00:02.0"
NOT_RECOVERED = "nvidia 0000:53:00.0: AER: can't recover (no error_detected callback)"
RECOVERED = "pcieport 0000:00:02.0: AER: device recovery successful"
OPEN = (
    "NVRM: The NVIDIA GPU 0000:{}:00.0 (PCI ID: 10de:2bb5)\nNVRM: installed in this system requires use of the NVIDIA"
    " open kernel modules."
)
RM_FAILED = "NVRM: GPU 0000:{}:00.0: RmInitAdapter failed! (0x22:0x56:897)"
PROBE = "NVRM: The NVIDIA probe routine failed for {} device(s)."
NONE = "NVRM: None of the NVIDIA devices were initialized."


def xid(code: int, bus: str = "53") -> str:
    return f"NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=7, name=python3, text"


def heard(memory: Memory, *lines: tuple[float, str]) -> Memory:
    """Return the memory after lines at these seconds, read one by one, as a live log is."""
    for second, text in lines:
        ring = (Record(round(second * 10), MONOTONIC + second, 0, text),)
        outcomes = judge(EVENT_CHECKS, Evidence({RING: ring}), Expectation())
        memory = after_kernel_log(memory, outcomes, later(second))
    return memory


def found(memory: Memory) -> list[str]:
    return sorted(
        f"{one.finding.reason} {one.finding.severity.name} {one.finding.subject.removeprefix('gpu/0000:')}"
        for one in memory.active
    )


OFF_BUS, OFF_BUS_NAMED = "GpuFellOffBus REBOOT driver", "GpuFellOffBus REBOOT 53:00.0"
XID_79 = "Xid79 REBOOT 53:00.0"
SILENT = "GpuNotResponding MONITOR driver"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([(0, LOST), (1, DUMP), (2, RC.format(79)), (900, LOST)], [OFF_BUS], id="lost in several lines"),
        pytest.param([(0, LOST), (1, xid(79))], [XID_79], id="before its Xid"),
        pytest.param([(0, xid(79)), (1, NAMED), (2, RC.format(79)), (3, DUMP)], [XID_79], id="after its Xid"),
        pytest.param([(0, xid(79)), (7200, LOST)], [XID_79], id="hours after its Xid: the GPU is still lost"),
        pytest.param([(0, NAMED), (1, xid(79))], [XID_79], id="its line without a number"),
        pytest.param([(0, LOST), (1, NAMED)], [OFF_BUS_NAMED], id="before the line that names the GPU"),
        pytest.param(
            [(0, xid(79)), (1, NAMED.replace("53", "64"))],
            ["GpuFellOffBus REBOOT 64:00.0", XID_79],
            id="another GPU is lost, too",
        ),
        pytest.param([(0, LOST), (1, xid(31))], [OFF_BUS, "Xid31 MONITOR 53:00.0"], id="an Xid that explains nothing"),
        pytest.param([(0, BANNER), (1, xid(119))], ["Xid119 RESET 53:00.0"], id="GSP timeout with its Xid"),
        pytest.param([(0, xid(120)), (5, BANNER)], ["Xid120 RESET 53:00.0"], id="GSP timeout after its Xid"),
        pytest.param([(0, BANNER), (61, xid(119))], [SILENT, "Xid119 RESET 53:00.0"], id="GSP timeout of another time"),
        pytest.param([(0, WATCHDOG), (1, xid(8))], ["Xid8 MONITOR 53:00.0"], id="watchdog with its Xid"),
        pytest.param([(0, xid(8)), (1, WATCHDOG)], ["Xid8 MONITOR 53:00.0"], id="watchdog after its Xid"),
        pytest.param(
            [(0, WATCHDOG), (1, xid(13))], [SILENT, "Xid13 MONITOR 53:00.0"], id="watchdog, and a program's Xid"
        ),
        pytest.param([(0, WATCHDOG), (1, xid(79))], [XID_79], id="watchdog of a lost GPU"),
        pytest.param([(0, RC.format(46)), (1, xid(46))], ["Xid46 RESET 53:00.0"], id="all channels end with their Xid"),
        pytest.param([(0, RC.format(119))], [SILENT], id="all channels end without their Xid"),
        pytest.param([(0, LINK)], [], id="one link retry"),
        pytest.param([(0, LINK), (0.1, LINK)], [], id="two link retries"),
        pytest.param(
            [(0, LINK), (60, LINK), (120, LINK)], ["NvLinkTrainingFailed MONITOR driver"], id="each try fails"
        ),
        pytest.param([(0, WAIT), (5, WAIT)], [], id="two waits"),
        pytest.param([(5.0 * one, WAIT) for one in range(12)], [], id="waits for less than a minute"),
        pytest.param([(5.0 * one, WAIT) for one in range(14)], [SILENT], id="waits for minutes"),
        pytest.param([(1.0 * one, WAIT) for one in range(70)], [SILENT], id="many waits for minutes"),
        pytest.param([(100.0 * one, WAIT) for one in range(5)], [], id="single waits"),
        pytest.param([(0, FATAL), (0.1, NOT_RECOVERED)], ["GpuPcieError REBOOT 53:00.0"], id="fatal PCIe error"),
        pytest.param([(0, NOT_RECOVERED)], [], id="PCIe error that is not fatal"),
        pytest.param([(0, FATAL), (30, NOT_RECOVERED)], [], id="PCIe error long after a fatal one"),
        pytest.param(
            [(0, FATAL), (0.1, NOT_RECOVERED), (2, RECOVERED)], [], id="PCIe error from which the port recovers"
        ),
        pytest.param([(0, FATAL), (0.1, NOT_RECOVERED), (1, xid(79))], [XID_79], id="PCIe error of a lost GPU"),
        pytest.param(
            [(0, FATAL), (0.1, NOT_RECOVERED), (1, xid(31))],
            ["GpuPcieError REBOOT 53:00.0", "Xid31 MONITOR 53:00.0"],
            id="PCIe error with a program's Xid",
        ),
    ],
)
def test_one_fault_is_one_finding(lines: list[tuple[float, str]], expected: list[str]) -> None:
    assert found(heard(memory_with(), *lines)) == expected


UNSUPPORTED = "GpuInitFailed MONITOR 53:00.0"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([(0, OPEN.format(53)), (0.1, RM_FAILED.format(53)), (0.2, PROBE.format(1)), (0.3, NONE)], [UNSUPPORTED]),
        ([(0, OPEN.format(53)), (0.1, "nvidia: probe of 0000:53:00.0 failed with error -1")], [UNSUPPORTED]),
        (
            [(0, OPEN.format(53)), (0.1, RM_FAILED.format(64)), (0.2, PROBE.format(2))],
            ["GpuInitFailed RESET 64:00.0", "GpuInitFailed RESET driver", UNSUPPORTED],
        ),
        (
            [(0, OPEN.format(53)), (0.1, OPEN.format(64)), (0.2, PROBE.format(2)), (0.3, NONE)],
            [UNSUPPORTED, "GpuInitFailed MONITOR 64:00.0"],
        ),
        ([(0, OPEN.format(53)), (300, RM_FAILED.format(53))], ["GpuInitFailed RESET 53:00.0"]),
        (
            [(0, "NVRM: Open nvidia.ko is only ready for use on Data Center GPUs."), (0.1, RM_FAILED.format(53))],
            ["GpuInitFailed MONITOR driver"],
        ),
    ],
)
def test_a_sound_gpu_that_the_driver_does_not_support_needs_no_reset(
    lines: list[tuple[float, str]], expected: list[str]
) -> None:
    assert found(heard(memory_with(), *lines)) == sorted(expected)


@pytest.mark.parametrize("lines", [[(0, WATCHDOG), (1, xid(8))], [(0, xid(8)), (1, WATCHDOG)]])
def test_an_xid_8_of_the_watchdog_names_a_reboot(lines: list[tuple[float, str]]) -> None:
    (active,) = heard(memory_with(), *lines).active

    assert LOCKED in active.finding.detail
    assert len(active.finding.detail) <= 200


def test_symptom_ends_as_its_record_states() -> None:
    lines = [(0.0, WATCHDOG), (1.0, LINK), (2.0, LINK), (3.0, LINK), (4.0, FATAL), (4.1, NOT_RECOVERED)]
    memory = heard(memory_with(), *lines)
    assert len(memory.active) == 3

    assert found(expired(memory, later(90_000), 86400.0)) == ["GpuPcieError REBOOT 53:00.0"]
    assert begin(memory, MACHINE, "boot-2", later(200)).active == ()


def test_a_released_symptom_stays_ended_when_it_is_read_again() -> None:
    memory = heard(memory_with(), (0, LOST))
    (active,) = memory.active
    rows = (Acknowledgement(active.finding.reason, active.finding.subject, active.boot_id, 1, WALL),)
    memory = after_release(memory, Release("ops", "checked", WALL, rows), later(300))

    assert found(heard(memory, (0, LOST))) == []


def test_a_new_boot_begins_its_recurrence_anew() -> None:
    memory = heard(memory_with(), (0, LINK), (1, LINK))

    assert found(heard(begin(memory, MACHINE, "boot-2", later(2)), (3, LINK))) == []
