"""NVSwitch errors: the word in the line decides, and the lines after it are no new error."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.sxid import CLASSES, sxid_table
from gpu_healthcheck.healthcheck.checks.examine import with_policy
from gpu_healthcheck.healthcheck.checks.sxid import read_sxid
from gpu_healthcheck.healthcheck.model import Finding, KernelEvent, Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import Record

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "


def read(text: str, policy: Policy | None = None) -> KernelEvent | None:
    event = read_sxid(Record(7, 12.5, 0, text))
    return with_policy(event, policy or Policy()) if event else None


def severity(text: str, policy: Policy | None = None) -> Severity:
    seen = read(text, policy)
    assert seen
    return seen.finding.severity if seen.finding else PASS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", RESET),
        ("20034, Non-fatal, Link 30 LTSSM Fault Up", MONITOR),
        ("20034, Correctable, Link 30 LTSSM Fault Up", MONITOR),
        ("11004, Fatal, Link 30 Ingress invalid ACL", RESET),
        ("11004, Non-fatal, Link 30 Ingress invalid ACL (First)", MONITOR),
        ("12020, Non-fatal, Link 02 egress sequence ID error", MONITOR),
        ("12020, Fatal, Link 02 egress sequence ID error", RESET),
        ("10003, Fatal, unhandled interrupt", RESET),
        ("10001, Non-fatal, x, instance=0, chiplet=1", MONITOR),
        ("99999, Fatal, something new", RESET),
        ("99999, Non-fatal, something new", MONITOR),
        ("20034, FATAL, shouted", RESET),
    ],
)
def test_text_of_the_line_outranks_its_number(text: str, expected: Severity) -> None:
    assert severity(SWITCH + text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("26006, SOE HALTED", RESET),
        ("26007, SOE EXTERR", MONITOR),
        ("26008, SOE Watchdog error", RESET),
        ("10006, NVSWITCH Temperature 120C", RESET),
        ("10004, NVSWITCH Temperature 90C", MONITOR),
        ("20034, Fatality is no word of the driver", RESET),
        ("12020, no word", RESET),
        ("12014, no word", MONITOR),
        ("11004", MONITOR),
        ("99999, something new", MONITOR),
    ],
)
def test_a_line_without_a_word_goes_by_its_number(text: str, expected: Severity) -> None:
    assert severity(SWITCH + text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        "20034, Data {0x50610002, 0x50610002, 0x00000000, 0x00000000}",
        "20034, Data {0x50610002",
    ],
)
def test_consequence_of_an_error_is_no_new_one(text: str) -> None:
    assert read(SWITCH + text) is None


@pytest.mark.parametrize(
    "text",
    [
        f"kernel: {SWITCH}20034, Fatal",
        "NVRM: SXid (PCI:0000:05:00.0): 20034, Fatal",
        "nvidia-nvswitch3: SXid (PCI:0000:05): 20034, Fatal",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): Fatal",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034 Fatal",
        "nvidia-nvswitch3: using MSI",
        "nvidia-nvswitch: Probing device 0000:08:00.0, Vendor Id = 0x10de, Device Id = 0x22a3, Class = 0x68000",
        "nvidia-nvswitchXY: SXid (PCI:0000:05:00.0): 20034, Fatal",
    ],
)
def test_a_line_of_another_form_is_no_sxid(text: str) -> None:
    assert read(text) is None


def test_finding_names_switch_row_and_time() -> None:
    seen = read(SWITCH + "20034, Fatal, Link 30 LTSSM Fault Up")

    assert seen
    assert seen.finding == Finding(
        "SXid20034",
        RESET,
        "nvswitch/0000:05:00.0",
        "DLPL_LTSSM_FAULT_UP: Fatal, Link 30 LTSSM Fault Up",
        rule="sxid.csv:20034",
        seq=7,
        at=12.5,
    )


def test_an_unknown_number_is_counted_as_such() -> None:
    seen = read(SWITCH + "99999, Fatal, something new")

    assert seen
    assert (seen.known, seen.finding and seen.finding.rule) == (False, "sxid.csv: no such code")
    assert seen.detail == "not in the catalogue: Fatal, something new"


@pytest.mark.parametrize(("severity_here", "rule"), [(MONITOR, "severity-overrides"), (ISOLATE, "severity-overrides")])
def test_a_cluster_overrides_any_number(severity_here: Severity, rule: str) -> None:
    seen = read(SWITCH + "20034, Fatal, x", Policy({"SXid20034": severity_here}))

    assert seen
    assert seen.finding
    assert (seen.finding.severity, seen.finding.rule) == (severity_here, rule)


def test_a_number_that_a_cluster_sets_to_pass_is_remembered_at_its_own_severity() -> None:
    seen = read(SWITCH + "20034, Fatal, x", Policy({"SXid20034": PASS}))

    assert seen
    assert seen.finding
    assert (seen.reason, seen.finding.severity, seen.finding.catalogued) == ("SXid20034", PASS, RESET)


def test_row_has_its_source_and_our_reason() -> None:
    table = sxid_table()

    assert [code for code, row in table.items() if not (row.source and row.mnemonic and row.kind in CLASSES)] == []
    assert sorted(code for code, row in table.items() if row.why) == [10006, 26006, 26007, 26008]


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        ("fatal", [19004, 19083, 20004, 20008, 20034, 22003, 23001, 23017, 25007, 25009]),
        ("fatal-unless-contained", [11001, 11030, 12047, 14018, 15019, 18020, 24010, 29005, 30005]),
        ("either", [12014, 12029, 19048, 19049, 19056, 19058]),
        ("non-fatal", [11004, 11012, 12028, 14007, 15002, 20001, 20012, 22013, 25006]),
    ],
)
def test_a_number_has_the_class_that_the_drivers_source_gives_it(kind: str, some: list[int]) -> None:
    assert {sxid_table()[code].kind for code in some} == {kind}
