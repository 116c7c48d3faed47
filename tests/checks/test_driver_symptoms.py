"""Lines in which the driver gives up a GPU without an Xid, and lines that report an error and that no rule judges."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.driver_errors import reports_error
from gpu_healthcheck.healthcheck.checks.driver_messages import CHECK, unread
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, KernelEvent, Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from tests.checks.grammar import BY_THE_KERNEL, PACKET

MONITOR, RESET, REBOOT = Severity.MONITOR, Severity.RESET, Severity.REBOOT
ADDRESS = "0000:41:00.0"
GPU = f"gpu/{ADDRESS}"
LOST = [
    (
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)"
        " returned from status @ kern_mem.c:12"
    ),
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned",
    "NVRM nvAssertOkFailedNoLog: Assertion failed: NV_ERR_GPU_IS_LOST (0x0000000F) returned from x @ y.c:1",
    "NVRM: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)",
    "NVRM: nvCheckOkFailedNoLog: Check failed: GPU is lost",
    "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 10!",
    "NVRM: GPU3 _issueRpcAndWait: rpcSendMessage failed with status 0x0000000F for fn 78 sequence 1091!",
    (
        "NVRM: rpcRmApiFree_GSP: GspRmFree failed: hClient=0xc1d00001; hObject=0x5c01; paramsStatus=0x00000000;"
        " status=0x0000000f"
    ),
    "NVRM: GPU1 kgmmuInvalidateTlb_GM107: TLB invalidation failed, status=0xf",
    "NVRM: nvCreatePeerMapping: link training between GPU0 and SWITCH failed with status f",
    "NVRM: GPU2 kgspWaitForRpc: GPU2 sanity check failed 0xf waiting for RPC response from GSP. Expected function 10",
    "NVRM: _threadNodeCheckTimeout: API_GPU_ATTACHED_SANITY_CHECK failed!",
    "NVRM: GPU0 _intrServiceStallCheck: Failed GPU reg read : 0xffffffff. Check whether GPU is present on the bus",
    "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.",
    "NVRM: GPU4 kgspRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.",
    "NVRM: A GPU crash dump has been created. If possible, please run",
    "nvidia-modeset: ERROR: GPU:0: Failed to query display engine channel state: 0x0000c67e:6:0:0x0000000f",
]
SILENT = [
    "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
    "NVRM: GPU0 krcWatchdog_IMPL: RC watchdog: GPU is probably locked!",
    "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 9 heartbeat 1 diff 6070 timeout 5200",
    "NVRM: _kgspIsHeartbeatTimedOut: GSP-RM heartbeat timed out, currentTimeMs 9 heartbeat 1",
    "NVRM: GPU0 _kgspIsHeartbeatTimedOut: LibOS heartbeat timed out, currentTimeMs 9 heartbeat 1",
    "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out",
    "NVRM: GPU3: GSP-RM heartbeat timed out, currentTimeMs 9 heartbeat 1",
    "NVRM: _kgspLogHeartbeatSpecificTimeout: GPU3: GSP ERROR: LibOS Heartbeat Timeout detected.",
    "NVRM: GPU6 _kgspLogXid119: ********************************* GSP Timeout **********************************",
    "NVRM: GPU0 _kgspLogGspTimeout: *** GSP Timeout: GSP heartbeat timeout (origin=HealthCheck) ***",
    "NVRM: kgspHealthCheck_TU102: ****************************** GSP-CrashCat Report ******************************",
    "NVRM: _kgspRpcRecvPoll: Back to back GSP RPC timeout detected! GPU marked for reset",
    "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 119.",
]
WAITS = [
    "nvidia-modeset: ERROR: GPU:6: Error while waiting for GPU progress: 0x0000c77d:0 2:0:4048:4044",
    "nvidia-modeset: ERROR: GPU:0: Idling display engine timed out: 0x0000c67d:0:0:416",
]
LINKS = [
    "NVRM: knvlinkDiscoverPostRxDetLinks_GB100: Getting peer2 postRxDetLinkMask failed!",
    "NVRM: GPU7 knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
    "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
    "NVRM: GPU0 knvlinkTrainFabricLinksToActive_IMPL: Failed to train links",
    "NVRM: nvCreatePeerMapping: link training between GPU2 and SWITCH failed with status 40",
]
UNSUPPORTED = {
    "installed in this system requires use of the NVIDIA open kernel modules.": "install the open kernel modules: ",
    "installed in this system is not supported by the\nNVRM: NVIDIA 610.43.03 driver release.\nNVRM: Please see": (
        "install a driver release that supports it, or the vGPU guest driver in a virtual machine: "
    ),
    "installed in this system is not supported by the 304.116\nNVRM: NVIDIA Linux driver release.  Please see": (
        "install a driver release that supports it, or the vGPU guest driver in a virtual machine: "
    ),
    "installed in this system is not supported by open\nNVRM: nvidia.ko because it does not include the required GPU": (
        "install the proprietary kernel modules: "
    ),
    "installed in this vGPU host system is not supported by\nNVRM: open nvidia.ko.": "install the vGPU driver: ",
}


def event(*texts: str) -> KernelEvent | None:
    ring = tuple(Record(seq, float(seq), 0, text) for seq, text in enumerate(texts))
    (outcome,) = judge((CHECK,), Evidence({RING: ring}), Expectation())
    return outcome.events[-1] if outcome.events else None


@pytest.mark.parametrize(
    ("reason", "severity", "text"),
    [
        *(("GpuFellOffBus", REBOOT, text) for text in LOST),
        *(("GpuNotResponding", MONITOR, text) for text in (*SILENT, *WAITS)),
        *(("NvLinkTrainingFailed", MONITOR, text) for text in LINKS),
    ],
)
def test_a_line_that_gives_up_a_gpu_is_an_event(reason: str, severity: Severity, text: str) -> None:
    found = event(text)

    assert found is not None
    assert found.finding is not None
    assert (found.finding.reason, found.finding.severity, found.finding.subject) == (reason, severity, "driver")
    assert (found.recurs is not None) is (text in (*WAITS, *LINKS))


@pytest.mark.parametrize("text", [*LOST, *SILENT, *LINKS])
@pytest.mark.parametrize("quote", ["x: {}", " {}", "NVRM: {}", "python[17]: {}", "NVRM: Xid (x): 13, name={}"])
def test_a_quoted_line_is_no_event(quote: str, text: str) -> None:
    assert event(quote.format(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Call not supported [NV_ERR_NOT_SUPPORTED] (0x00000056)",
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Invalid state [NV_ERR_INVALID_STATE] (0x00000040) returned",
        "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x00000065 for fn 76!",
        "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x000000f0 for fn 76!",
        "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f0 for fn 76!",
        "NVRM: kgspRpcCheck: RPC sent with status 0x0000000f for fn 76",
        "NVRM: GPU0 knvlinkGetLinks_IMPL: Links aren't fully trained yet!",
        f"NVRM: GPU {ADDRESS} is already bound to vfio-pci.",
        f"NVRM: GPU {ADDRESS} is already bound to nvgrace_gpu_vfio_pci.",
        f"NVRM: GPU {ADDRESS} is already bound to pci-stub.",
        "NVRM: No NVIDIA devices probed.",
    ],
)
def test_a_line_that_gives_up_no_gpu_is_no_event(text: str) -> None:
    assert event(text) is None


@pytest.mark.parametrize("text", [text.replace("{}", "NVRM: GPU lost") for text in BY_THE_KERNEL])
def test_process_line_with_the_drivers_words_is_no_event_and_no_error(text: str) -> None:
    assert event(text) is None
    assert not reports_error(text)


def test_packet_filter_line_with_the_drivers_words_is_no_event_and_no_error() -> None:
    text = PACKET.format(f"{LOST[3]} ")

    assert event(text) is None
    assert not reports_error(text)


def test_a_line_with_the_address_of_its_gpu_is_about_this_gpu() -> None:
    named = event(
        f"NVRM: GPU {ADDRESS}: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST]"
    )
    limited = event(
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:41:00 (printing 1 of every 30).  The GPU likely"
        " needs to be reset."
    )
    dump = event(f"NVRM: GPU {ADDRESS}: GPU is on Board 0.", LOST[-2])

    assert [found.subject if found else "" for found in (named, limited, dump)] == [GPU, GPU, GPU]


@pytest.mark.parametrize("module", ["nouveau", "nova_core", "NovaCore", "nvidiafb"])
def test_a_gpu_that_another_module_holds_names_the_module(module: str) -> None:
    found = event(f"NVRM: GPU {ADDRESS} is already bound to {module}.")

    assert found is not None
    assert found.finding is not None
    assert (found.reason, found.subject, found.finding.severity) == ("GpuBoundToOtherDriver", GPU, MONITOR)
    assert module in found.detail


@pytest.mark.parametrize(("words", "fix"), UNSUPPORTED.items())
@pytest.mark.parametrize("wrap", ["\nNVRM: ", "\n               NVRM: ", " "])
def test_a_gpu_that_the_driver_does_not_support_is_sound_and_names_the_fix(words: str, fix: str, wrap: str) -> None:
    found = event(f"NVRM: The NVIDIA GPU {ADDRESS} (PCI ID: 10de:2bb5)\nNVRM: {words}".replace("\nNVRM: ", wrap))

    assert found is not None
    assert found.finding is not None
    assert (found.reason, found.subject, found.finding.severity) == ("GpuInitFailed", GPU, MONITOR)
    assert found.detail.startswith(fix)
    assert "\n" not in found.detail


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("NVRM: installed in this system requires use of the NVIDIA open kernel modules.", "install the open "),
        ("NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.", "NVreg_OpenRmEnableUnsupportedGpus=1"),
        (
            (
                f"NVRM: The NVIDIA vGPU {ADDRESS} (PCI ID: 10de:2bb5)\nNVRM: installed in this system is not supported"
                " by open\nNVRM: nvidia.ko."
            ),
            "install the vGPU driver",
        ),
        (
            (
                "NVRM: The NVIDIA Tesla K80 GPU installed in this system is\nNVRM:  supported through the NVIDIA"
                " 470.xx Legacy drivers. Please"
            ),
            "install that legacy driver",
        ),
        ("NVRM: vgpuGuestInit: Incompatible Guest/Host drivers: Host VGX version is older", "install the vGPU driver"),
    ],
)
def test_other_forms_name_the_fix_too(text: str, fix: str) -> None:
    found = event(text)

    assert found is not None
    assert found.finding is not None
    assert (found.reason, found.finding.severity) == ("GpuInitFailed", MONITOR)
    assert fix in found.detail


@pytest.mark.parametrize(
    "text",
    [
        f"nvidia: probe of {ADDRESS} failed with error -1",
        f"nvidia {ADDRESS}: probe with driver nvidia failed with error -1",
    ],
)
def test_a_failed_probe_of_the_kernel_is_a_gpu_that_did_not_start(text: str) -> None:
    found = event(text)

    assert found is not None
    assert found.finding is not None
    assert (found.reason, found.subject, found.finding.severity) == ("GpuInitFailed", GPU, RESET)


ERRORS = [
    "NVRM: GPU0 kfspPollForResponse_IMPL: FSP command timed out",
    "NVRM: osInitNvMapping: *** Cannot attach gpu",
    "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Generic Error: Invalid state [NV_ERR_INVALID_STATE] (0x40)",
    "NVRM: Can't find an IRQ for your NVIDIA card!",
    "NVRM osVerifySystemEnvironment: bad access failed",
    "nvidia-modeset: ERROR: GPU:0: Failed to allocate display engine core DMA push buffer",
    "nvidia-uvm: uvm_gpu.c:1 fatal error in channel",
    "nvidia-nvswitch0: failed to initialise the device",
    "nvidia-nvlink: link 3 could not be set up",
    "[drm:nv_drm_load [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100] Failed to allocate NvKmsKapiDevice",
    f"nvidia {ADDRESS}: Unable to change power state from D3cold to D0, device inaccessible",
]


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_that_no_rule_judges_is_counted(text: str) -> None:
    record = Record(1, 1.0, 0, text)
    outcomes = judge((CHECK,), Evidence({RING: (record,)}), Expectation())

    assert unread((record,), outcomes) == ([], [record])


@pytest.mark.parametrize(
    "text",
    [
        *LOST,
        *SILENT,
        *WAITS,
        *LINKS,
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06",
        "NVRM: GPU at PCI:0000:9b:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Call not supported [NV_ERR_NOT_SUPPORTED] (0x00000056)",
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Generic Error: Invalid state [NV_ERR_INVALID_STATE] (0x00000040)",
        "NVRM: objClInitPcieChipset: *** Chipset Setup Function Error!",
        "NVRM: Persistence mode is deprecated and will be removed in a future release.",
        "NVRM: consoles including, but not limited to, vesafb, may result in corruption and stability problems",
        "NVRM: This can occur when another driver was loaded and ",
        "NVRM: dmaAllocMapping_GM107: can't alloc VA space for mapping.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "nvidia: module license 'NVIDIA' taints kernel.",
        "nvidia-uvm: Loaded the UVM driver, major device number 235.",
        "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  580.65.06",
        "nvidia-modeset: WARNING: GPU:0: Unable to read EDID for display device DP-0",
        "nvidia-nvlink: Unregistered Nvlink Core, major device number 511",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Severity 1 Engine instance 44 Sub-engine instance 00",
        "nvidia-gpu 0000:09:00.3: i2c timeout error e0000000",
        "nvidia-persistenced: failed",
        f"nvidia {ADDRESS}: enabling device (0000 -> 0003)",
        "eth0: link failed",
    ],
)
def test_a_judged_or_harmless_line_is_not_counted(text: str) -> None:
    record = Record(1, 1.0, 0, text)
    outcomes = judge((CHECK,), Evidence({RING: (record,)}), Expectation())

    assert unread((record,), outcomes) == ([], [])
