"""Lines of the driver without a number."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks.driver_messages import CHECK, unread
from gpu_healthcheck.healthcheck.checks.driver_reasons import LIBRARY_MISMATCH
from gpu_healthcheck.healthcheck.checks.examine import judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.xid import CHECK as XID
from gpu_healthcheck.healthcheck.model import Evidence, KernelEvent, Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from tests.checks.evidence import judgements

UUID = "GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7"
API_MISMATCH = "NVRM: API mismatch: the client 'nvidia-smi' (pid 4711)"
MONITOR, RESET, REBOOT = Severity.MONITOR, Severity.RESET, Severity.REBOOT
FAULTS = [
    ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", "GpuFellOffBus", REBOOT, "gpu/0000:18:00.0"),
    ("NVRM: GPU 00000000:5D:00.0: GPU has fallen off the bus.", "GpuFellOffBus", REBOOT, "gpu/0000:5d:00.0"),
    (
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands."
        ),
        "GpuFellOffBus",
        REBOOT,
        "gpu/0000:b3:00.0",
    ),
    (
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands."
        ),
        "GpuFellOffBus",
        REBOOT,
        "gpu/0000:b3:00.0",
    ),
    (
        (
            "NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:2203) installed in this system has\n"
            "               NVRM: fallen off the bus and is not responding to commands."
        ),
        "GpuFellOffBus",
        REBOOT,
        "gpu/0000:05:00.0",
    ),
    ("NVRM: fallen off the bus and is not responding to commands.", "GpuFellOffBus", REBOOT, "driver"),
    ("NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)", "GpuInitFailed", RESET, "gpu/0000:0a:00.0"),
    ("NVRM: RmInitAdapter failed! (0x62:0x65:2028)", "GpuInitFailed", RESET, "driver"),
    (
        "NVRM: GPU 0000:d8:00.0: rm_init_adapter failed, device minor number 3",
        "GpuInitFailed",
        RESET,
        "gpu/0000:d8:00.0",
    ),
    ("NVRM: rm_init_adapter failed, device minor number 5", "GpuInitFailed", RESET, "driver"),
    (
        (
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) "
            "returned from status @ kernel_channel.c:2874"
        ),
        "DriverResetRequired",
        RESET,
        "driver",
    ),
    (
        "NVRM: nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
        "DriverResetRequired",
        RESET,
        "driver",
    ),
    (
        "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: NV_ERR_RESET_REQUIRED (0x00000062)",
        "DriverResetRequired",
        RESET,
        "driver",
    ),
    (
        (
            "NVRM: API mismatch: the client has the version 545.23.08, but\n"
            "NVRM: this kernel module has the version 550.54.14.  Please"
        ),
        "DriverLibraryMismatch",
        MONITOR,
        "driver",
    ),
    ("NVRM: GPU at 0000:18:00.0 has fallen off the bus.", "GpuFellOffBus", REBOOT, "gpu/0000:18:00.0"),
    ("NVRM: rm_init_adapter failed for device bearing minor number 0", "GpuInitFailed", RESET, "driver"),
    (API_MISMATCH, "DriverLibraryMismatch", MONITOR, "driver"),
]
TAKES_NONE = [
    ("NVRM: The NVIDIA probe routine failed for 1 device(s).", "driver"),
    ("NVRM: The NVIDIA probe routine failed for 1 device(s)", "driver"),
    ("NVRM: None of the NVIDIA graphics adapters were initialized!", "driver"),
    ("NVRM: None of the NVIDIA devices were initialized.", "driver"),
    ("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:05:00.0)", "gpu/0000:05:00.0"),
    (
        (
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
            "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:05:00.0)"
        ),
        "gpu/0000:05:00.0",
    ),
    ("NVRM: BAR1 is 0M @ 0x00000000 (PCI:0001:00.0)", "driver"),
]
"""nvidia_init_module in nv.c and nv_pci_validate_bars in nv-pci.c, and as older drivers wrote them."""
FAULTS += [(text, "GpuInitFailed", RESET, subject) for text, subject in TAKES_NONE]
UVM = "uvm encountered global fatal error 0x60, requiring os reboot to recover."
FAULTS += [
    (f"NVRM: {who}{UVM}", "DriverRebootRequired", REBOOT, "driver")
    for who in ("nvGpuOpsReportFatalError: ", "GPU0 nvGpuOpsReportFatalError: ", "")
]


def read(*texts: str) -> list[KernelEvent]:
    ring = tuple(Record(seq, float(seq), 0, text) for seq, text in enumerate(texts))
    return [event for event in judgements(CHECK, Expectation(), {RING: ring}) if isinstance(event, KernelEvent)]


@pytest.mark.parametrize(("text", "reason", "severity", "subject"), FAULTS)
def test_each_documented_line_is_one_fault(text: str, reason: str, severity: Severity, subject: str) -> None:
    (seen,) = read(text)

    assert seen.finding
    assert (seen.finding.reason, seen.finding.severity, seen.finding.subject) == (reason, severity, subject)
    assert (seen.finding.rule.partition(":")[0], seen.finding.seq, seen.known) == (reason, 0, True)
    assert "\n" not in seen.finding.detail


@pytest.mark.parametrize("text", [text for text, *_ in FAULTS])
@pytest.mark.parametrize("quote", ["x: {}", " {}", "NVRM: {}", "python[17]: {}", "NVRM: Xid (x): 13, name={}"])
def test_text_that_only_quotes_a_line_is_no_fault(quote: str, text: str) -> None:
    assert read(quote.format(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: ",
        "NVRM: GPU 0000:18:00.0: GPU serial number is 1653723052734.",
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus, said somebody",
        "NVRM: GPU zz: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:18:00.0 has fallen off the bus, said somebody",
        "NVRM: GPU at PCI:0000:18:00: has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:5d:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: The NVIDIA probe routine was not called for 8 device(s).",
        "NVRM: No NVIDIA devices probed.",
        "NVRM: No NVIDIA GPU found.",
        "NVRM: None of the NVIDIA devices were initialized, said somebody",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "NVRM: RmInitAdapter failed!",
        "NVRM: RmInitAdapter: osInitNvMapping failed, bailing out of RmInitAdapter",
        "NVRM: GPU Board Serial Number: 1653723052734",
        "NVRM: GPU at PCI:0000:9b:00: somebody",
    ],
)
def test_other_driver_line_gives_no_finding(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize("mark", ["", ">", "…", "..."])
@pytest.mark.parametrize(
    ("text", "letters", "reason"),
    [
        (FAULTS[0][0], 1, "GpuFellOffBus"),
        (FAULTS[0][0], 16, "GpuFellOffBus"),
        ("NVRM: fallen off the bus and is not responding to commands.", 20, "GpuFellOffBus"),
        ("NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)", 5, "GpuInitFailed"),
        ("NVRM: GPU 0000:0a:00.0: rm_init_adapter failed, device minor number 5", 8, "GpuInitFailed"),
        (TAKES_NONE[0][0], 6, "GpuInitFailed"),
        (TAKES_NONE[3][0], 3, "GpuInitFailed"),
        (f"NVRM: {UVM}", 25, "DriverRebootRequired"),
    ],
)
def test_a_line_that_a_pager_cut_at_its_end_is_read(text: str, letters: int, reason: str, mark: str) -> None:
    assert [event.reason for event in read(text[:-letters] + mark)] == [reason]


def test_functions_that_another_driver_has_were_not_probed_and_are_no_fault() -> None:
    not_called, failed, none = (
        "NVRM: The NVIDIA probe routine was not called for 8 device(s).",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "NVRM: None of the NVIDIA devices were initialized.",
    )
    assert read(not_called, none) == []
    assert [event.seq for event in read(not_called, failed, none)] == [1, 2]
    assert [event.seq for event in read(not_called, "NVRM: a", "NVRM: b", "NVRM: c", none)] == [4]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid [79] on GPU 0000:3b:00.0: GPU has fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00): 79>",
        "NVRM: Xid (PCI:0000:3b:00",
        "NVRM: GPU0 nvReport: Xid 79 was raised",
        "NVRM: GPU 0000:18:00.0: the GPU dropped off the bus",
    ],
)
def test_a_line_about_an_xid_or_a_gpu_off_the_bus_that_matches_no_rule_counts_as_unread(text: str) -> None:
    assert unread_of(text) == [0]


@pytest.mark.parametrize(
    "text",
    [
        *(text for text, *_ in FAULTS),
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=python",
        "NVRM: GPU Board Serial Number: 1653723052734",
        "NVRM: A GPU crash dump has been created. If possible, please run",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        # A process may be called so, and the kernel begins some records with its name.
        "NVRM: Xid 79a[4711]: segfault at 7ffd00 ip 000055 sp 00007f error 4",
        "python[17]: NVRM: Xid [79] on GPU 0000:3b:00.0",
        "kgspLogXid119: GSP Timeout",
    ],
)
def test_read_or_harmless_line_does_not_count_as_unread(text: str) -> None:
    assert unread_of(text) == []


def unread_of(*texts: str) -> list[int]:
    ring = tuple(Record(seq, float(seq), 0, text) for seq, text in enumerate(texts))
    return [record.seq for record in unread(ring, judge((CHECK, XID), Evidence({RING: ring}), Expectation()))[0]]


def test_driver_load_is_observed_and_no_fault() -> None:
    (seen,) = read("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30 12:00:00 UTC 2025")

    assert (seen.reason, seen.subject, seen.driver_loaded, seen.finding) == ("DriverLoaded", "driver", True, None)
    assert "570.133.20" in seen.detail


@pytest.mark.parametrize("address", ["PCI:0000:9b:00", "0000:9b:00", "PCI:00000000:9B:00.0"])
def test_named_gpu_gets_its_uuid(address: str) -> None:
    (seen,) = read(f"NVRM: GPU at {address}: {UUID}")

    assert (seen.reason, seen.subject, seen.uuid, seen.finding) == ("GpuNamed", "gpu/0000:9b:00.0", UUID, None)


def test_every_line_of_a_ring_is_judged_for_itself() -> None:
    seen = read(FAULTS[0][0], "nvidia 0000:18:00.0: x", FAULTS[6][0], FAULTS[8][0])

    assert [(event.reason, event.seq) for event in seen] == [
        ("GpuFellOffBus", 0),
        ("GpuInitFailed", 2),
        ("GpuInitFailed", 3),
    ]


def test_a_cluster_overrides_a_reason() -> None:
    expected = Expectation(policy=Policy({LIBRARY_MISMATCH.name: RESET}))
    ring = (Record(0, 0.0, 0, API_MISMATCH),)

    (outcome,) = judge((CHECK,), Evidence({RING: ring}), expected)
    (seen,) = outcome.events
    assert seen.finding
    assert (seen.finding.severity, seen.finding.rule) == (RESET, "severity-overrides")
