"""Saved logs in which the driver gives up a GPU without an Xid: the status of each kind, beside its healthy twin."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.healthcheck.captures.blocks import InputFile
from gpu_healthcheck.healthcheck.captures.bug_report import BugReportReader
from gpu_healthcheck.healthcheck.captures.kernel_logs import KernelLogReader, PassedOver
from gpu_healthcheck.healthcheck.captures.replay import KERNEL_CHECKS, Replay
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide
from gpu_healthcheck.sim.scenarios import Scenario, scenarios
from tests.captures.renderings import FORMS, ONE_OF_EACH_KIND, capture, records

SAVED = datetime(2026, 11, 21, tzinfo=UTC)
BANNER = "Linux version 6.1.0-13-cloud-amd64 (debian-kernel@lists.debian.org)"
CHATTER = "usb 1-1: new high-speed USB device number 4 using xhci_hcd"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
ADDRESS = "0000:41:00.0"
LOST_BY_NAME = (
    "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned"
    " from status @ kern_mem.c:1"
)
LOST_BY_NUMBER = "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 10!"
NOT_SUPPORTED = "NVRM: nvCheckOkFailedNoLog: Check failed: Call not supported [NV_ERR_NOT_SUPPORTED] (0x00000056)"
AT_UNLOAD = "NVRM: nvCheckOkFailedNoLog: Check failed: Generic Error: Invalid state [NV_ERR_INVALID_STATE] (0x00000040)"
WATCHDOG = "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7"
HEARTBEAT = (
    "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 7 heartbeat 1 heartbeatWithOffsetMs 1 diff"
    " 6070 timeout 5200"
)
BANNER_OF_GSP = "NVRM: GPU6 _kgspLogXid119: ********************** GSP Timeout ***********************"
ALL_CHANNELS = "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79."
DUMP = (
    "NVRM: A GPU crash dump has been created. If possible, please run\nNVRM: nvidia-bug-report.sh as root to collect"
    " this data before\nNVRM: the NVIDIA kernel module is unloaded."
)
BOUND = f"NVRM: GPU {ADDRESS} is already bound to {{}}."
NOT_CALLED = "NVRM: The NVIDIA probe routine was not called for 1 device(s)."
NO_DEVICES = "NVRM: No NVIDIA devices probed."
DISCOVERY = "NVRM: knvlinkDiscoverPostRxDetLinks_GB100: Getting peer2 postRxDetLinkMask failed!"
TRAINING = "NVRM: GPU0 knvlinkTrainFabricLinksToActive_IMPL: Failed to train links"
WAIT = "nvidia-modeset: ERROR: GPU:6: Error while waiting for GPU progress: 0x0000c77d:0 2:0:4048:4044"
FATAL = "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:00:02.0"
NOT_RECOVERED = f"nvidia {ADDRESS}: AER: can't recover (no error_detected callback)"
OPEN = (
    f"NVRM: The NVIDIA GPU {ADDRESS} (PCI ID: 10de:2bb5)\nNVRM: installed in this system requires use of the NVIDIA"
    " open kernel modules."
)
RELEASE = (
    f"NVRM: The NVIDIA GPU {ADDRESS} (PCI ID: 10de:1b38)\nNVRM: installed in this system is not supported by the\nNVRM:"
    " NVIDIA 610.43.03 driver release."
)
RM_FAILED = f"NVRM: GPU {ADDRESS}: RmInitAdapter failed! (0x22:0x56:897)"
CORRECTED = f"nvidia {ADDRESS}: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"
UNCORRECTED = f"nvidia {ADDRESS}: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer"
STATUS = f"nvidia {ADDRESS}:   device [10de:2331] error status/mask=00001000/0000a000"
TIMEOUT_BIT = f"nvidia {ADDRESS}:    [12] Timeout"
FIRST = f"nvidia {ADDRESS}: AER:   Error of this Agent is reported first"
NO_SCREEN = f"nvidia {ADDRESS}: [drm] Cannot find any crtc or sizes"
NO_LTR = "NVRM: clCheckUpstreamLtrSupport_IMPL: PCIE config space is inaccessible!"
PEERMEM = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"
NO_P2P = "nvidia-fs:nvfs_pin_gpu_pages:1292 Error ret -22 invoking nvidia_p2p_get_pages"
EFA_READY = "efa 0000:10:1b.0: Setup irq:224 name:efa-mgmnt@pci:0000:10:1b.0"
OF_OTHER_MODULES = {
    "nvidia-fs": "nvidia-fs:nvfs_pin_gpu_pages:1383 Incompatible page table version 0x00020000",
    "vGPU": "[nvidia-vgpu-vfio] a581675d-19eb-4f50-aa64-6aeb378c58c3: start failed. status: 0x0 Timeout Occured",
    "core dump": "NVRM: kflcnCoreDumpNondestructive_IMPL: TRACE: 08 = 0x0000000004d4b1a0",
    "EFA polls": "infiniband rdmap16s27: Wait for completion (polling) timeout",
    "EFA's command": "infiniband efa_0: The device didn't send any completion for admin cmd CREATE_QP(1) status 0",
    "EFA's queue": "infiniband rdmap16s27: Admin queue is closed",
    "EFA's reset": "efa 0000:10:1b.0: Reset indication didn't turn on",
    "EFA's start": "efa 0000:10:1b.0: Device isn't ready, abort com init",
}
SXID = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt"
SXID_DATA = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002c, 0x0000002c, 0x00000000}"
NO_FIRMWARE = f"nvidia {ADDRESS}: Direct firmware load for nvidia/550.76/gsp_ga10x.bin failed with error -2"
OTHERS_FIRMWARE = NO_FIRMWARE.replace(ADDRESS, "0000:42:00.0")
PROBE_FAILED = "NVRM: The NVIDIA probe routine failed for 1 device(s)."
UNKNOWN_ERROR = "NVRM: GPU0 kfspPollForResponse_IMPL: FSP command timed out"

Log = tuple[tuple[float, str], ...]
HARMLESS: dict[str, Log] = {
    "vfio-pci": ((9, BOUND.format("vfio-pci")), (9, NOT_CALLED), (9, NO_DEVICES)),
    "harmless codes": ((9, NOT_SUPPORTED), (9, AT_UNLOAD)),
    "corrected PCIe error": ((9, CORRECTED), (9, STATUS), (9, TIMEOUT_BIT), (9, FIRST)),
    "no screen": ((9, NO_SCREEN),),
    "chipset without LTR": ((9, NO_LTR),),
    "other modules": ((9, PEERMEM), (9, NO_P2P), (9, EFA_READY), (9, "infiniband efa_0: IB device registered")),
    "one link retry at start": ((9, DISCOVERY), (80, CHATTER)),
    "two waits that are over": ((9, WAIT), (14, WAIT), (80, CHATTER)),
}
"""Errors that the driver reports on a healthy node."""


def judged(content: bytes, reader: type[KernelLogReader | BugReportReader] = KernelLogReader) -> Verdict:
    replay = Replay(KERNEL_CHECKS, Expectation(), 86400.0)
    for batch in reader(SAVED, 1, PassedOver()).read("log", InputFile(io.BytesIO(content)).blocks()):
        replay.take(batch)
    return decide(replay.ended("", timedelta()), replay.outcomes())


def answer(log: Log, form: str = "dmesg") -> tuple[str, list[str]]:
    verdict = judged(capture(FORMS[form], records((0.0, BANNER), (1.0, LOADED), *log)))
    return verdict.status.value, [one.finding.reason for one in verdict.active]


@pytest.mark.parametrize("form", ONE_OF_EACH_KIND)
@pytest.mark.parametrize(
    ("log", "status", "reasons"),
    [
        pytest.param([(9, LOST_BY_NAME)], "fail", ["GpuFellOffBus"], id="lost, by name"),
        pytest.param([(9, LOST_BY_NUMBER)], "fail", ["GpuFellOffBus"], id="lost, by number"),
        pytest.param([(9, ALL_CHANNELS)], "fail", ["GpuFellOffBus"], id="all channels"),
        pytest.param([(9, DUMP)], "fail", ["GpuFellOffBus"], id="crash dump"),
        pytest.param([(9, WATCHDOG)], "warn", ["GpuNotResponding"], id="watchdog"),
        pytest.param([(9, HEARTBEAT)], "warn", ["GpuNotResponding"], id="heartbeat"),
        pytest.param([(9, BANNER_OF_GSP)], "warn", ["GpuNotResponding"], id="GSP timeout"),
        pytest.param([(9, FATAL), (9.1, NOT_RECOVERED)], "fail", ["GpuPcieError"], id="PCIe"),
        pytest.param(
            [(9, BOUND.format("nova_core")), (9, NOT_CALLED), (9, NO_DEVICES)],
            "warn",
            ["GpuBoundToOtherDriver"],
            id="nova_core",
        ),
        pytest.param([(9, BOUND.format("nouveau"))], "warn", ["GpuBoundToOtherDriver"], id="nouveau"),
        pytest.param(HARMLESS["vfio-pci"], "pass", [], id="vfio-pci"),
        pytest.param(HARMLESS["corrected PCIe error"], "pass", [], id="corrected PCIe error"),
        pytest.param([(9, OPEN), (9, RM_FAILED)], "warn", ["GpuInitFailed"], id="open modules, by the adapter"),
        pytest.param([(9, OPEN), (9, PROBE_FAILED)], "warn", ["GpuInitFailed"], id="open modules, by the probe"),
        pytest.param([(9, RELEASE), (9, PROBE_FAILED)], "warn", ["GpuInitFailed"], id="release"),
        pytest.param([(9, NO_FIRMWARE), (9, RM_FAILED)], "warn", ["GpuInitFailed"], id="no firmware"),
        pytest.param([(9, OTHERS_FIRMWARE), (9, RM_FAILED)], "fail", ["GpuInitFailed"], id="another's firmware"),
        pytest.param([(9, DISCOVERY)], "unknown", [], id="link discovery, once, at the end"),
        pytest.param([(9, TRAINING)], "unknown", [], id="link training, once, at the end"),
        pytest.param([(9, DISCOVERY)] * 3, "warn", ["NvLinkTrainingFailed"], id="link discovery in each try"),
        pytest.param([(9, WAIT), (14, WAIT)], "unknown", [], id="two waits at the end"),
        pytest.param(HARMLESS["harmless codes"], "pass", [], id="harmless codes"),
        pytest.param([(9, UNKNOWN_ERROR)], "unknown", [], id="an error that no rule judges"),
        pytest.param([(9, RM_FAILED), (9, UNKNOWN_ERROR)], "fail", ["GpuInitFailed"], id="an error beside a fault"),
        pytest.param([(9, OPEN), (9, UNKNOWN_ERROR)], "warn", ["GpuInitFailed"], id="an error of a judged fault"),
    ],
)
def test_driver_error_has_its_status_in_each_kind_of_form(log: Log, status: str, reasons: list[str], form: str) -> None:
    assert answer(tuple(log), form) == (status, reasons)


@pytest.mark.parametrize(
    ("log", "status", "reasons"),
    [
        *(pytest.param(log, "pass", [], id=name) for name, log in HARMLESS.items()),
        pytest.param([(9, UNCORRECTED), (9, STATUS)], "unknown", [], id="uncorrected PCIe error"),
        *(pytest.param([(9, text)], "unknown", [], id=name) for name, text in OF_OTHER_MODULES.items()),
        pytest.param([(9, SXID_DATA)], "unknown", [], id="data of an SXid without its first line"),
        pytest.param([(9, SXID), (9, SXID_DATA)], "warn", ["SXid22013"], id="data of an SXid"),
        pytest.param([(5.0 * one, WAIT) for one in range(2, 20)], "warn", ["GpuNotResponding"], id="waits for minutes"),
        pytest.param([(9, UNKNOWN_ERROR), (9000, CHATTER)], "unknown", [], id="an error, and nothing for hours"),
        pytest.param([(9, UNKNOWN_ERROR), (99, WATCHDOG)], "unknown", ["GpuNotResponding"], id="an error long before"),
    ],
)
def test_recurring_error_counts_by_the_rest_of_the_log(log: Log, status: str, reasons: list[str]) -> None:
    assert answer(tuple(log)) == (status, reasons)


def test_first_unjudged_error_is_shown_with_the_count() -> None:
    hostile = f"{UNKNOWN_ERROR} \x07{'x' * 500}"
    log = capture(FORMS["dmesg"], records((0.0, BANNER), (1.0, hostile), (2.0, UNKNOWN_ERROR)))
    (row,) = {one.cause for one in judged(log).unobserved}

    assert row.cause.name == "LinesNotRead"
    assert row.detail.startswith(
        "2 lines of the driver reporting an error that no rule judges, the first at log:2: NVRM: GPU0 kfsp"
    )
    assert (row.detail.isprintable(), len(row.detail) < 300) == (True, True)


def test_unsupported_gpu_has_the_line_with_the_reason_as_source() -> None:
    replay = Replay(KERNEL_CHECKS, Expectation(), 86400.0)
    log = capture(FORMS["dmesg"], records((0.0, BANNER), (9.0, OPEN), (9.0, RM_FAILED)))
    for batch in KernelLogReader(SAVED, 1, PassedOver()).read("log", InputFile(io.BytesIO(log)).blocks()):
        replay.take(batch)
    (active,) = replay.ended("", timedelta()).active

    assert active.finding.source == "log:2"
    assert "The NVIDIA GPU" in replay.line_of(active)


def test_boot_ends_the_unjudged_errors_before_it() -> None:
    log = capture(FORMS["dmesg"], records((0.0, BANNER), (50.0, UNKNOWN_ERROR)))
    rebooted = log + capture(FORMS["dmesg"], records((0.0, BANNER), (5.0, CHATTER)))

    assert [judged(text).status.value for text in (log, rebooted)] == ["unknown", "pass"]


def test_bug_report_with_an_unjudged_error_is_unknown() -> None:
    head = "Start of NVIDIA bug report log file.\nDate: Sat Nov 21 10:00:00 AM UTC 2026\n"
    section = f"____________________\ndmesg:\n\n[    5.000000] {LOADED}\n[    9.000000] "

    def status(text: str) -> str:
        return judged(f"{head}{section}{text}\n".encode(), BugReportReader).status.value

    assert [status(text) for text in (NOT_SUPPORTED, UNKNOWN_ERROR, LOST_BY_NUMBER)] == ["pass", "unknown", "fail"]


@pytest.mark.parametrize("scenario", [one for one in scenarios() if one.kernel_log], ids=lambda one: one.name)
def test_scenario_has_no_unjudged_error(scenario: Scenario) -> None:
    lines = [(10.0 + at, text) for at, text in enumerate(scenario.kernel_log)]
    log = capture(FORMS["kmsg"], records((0.0, BANNER), *lines, (900.0, CHATTER)))
    causes = [one.cause.detail for one in judged(log).unobserved if "no rule judges" in one.cause.detail]

    assert causes == []
