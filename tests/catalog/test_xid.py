"""Severity of every Xid in NVIDIA's catalogue.

The expected values are written out here and computed from no table.
"""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.xid import severity_of, xid_table
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from tests.examples import finding_in

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity


def span(*numbers: int | tuple[int, int]) -> list[int]:
    return [
        code
        for number in numbers
        for code in ([number] if isinstance(number, int) else range(number[0], number[1] + 1))
    ]


# NVIDIA's immediate action, and the codes that have it.
CODES_OF_ACTION = {
    "RESTART_APP": span(
        *(8, 11, 13, 25, 31, 32, (39, 41), 60, (68, 72), (75, 77), 80, (82, 86), 88, 89, 94, (96, 105)),
        *((126, 135), 139),
    ),
    "IGNORE": span(*(14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161)),
    "RESET_GPU": span(46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "RESTART_BM": [79],
    "RESTART_VM": [151],
    "CHECK_MECHANICALS": [54],
    "UPDATE_SWFW": [78],
    "WORKFLOW_XID_45": [45],
    "WORKFLOW_XID_48": [48],
    "WORKFLOW_NVLINK_ERR": [74],
    "WORKFLOW_NVLINK5_ERR": span((144, 150)),
    "XID_154": [154],
    "CHECK_UVM": [159],
    "CONTACT_SUPPORT": span(
        *((1, 7), 9, 10, 12, (15, 24), (26, 30), (33, 36), 42, 47, (49, 53), (55, 59), 61, 65, 73, 81, 87, 90, 91),
        *((111, 118), (122, 125), 138, 142),
    ),
    "": span((162, 177), 179, 185),
}
# docs/rules.md 15.
SEVERITY_OF_ACTION = {
    "RESTART_APP": MONITOR,
    "IGNORE": PASS,
    "RESET_GPU": RESET,
    "RESTART_BM": REBOOT,
    "RESTART_VM": REBOOT,
    "CHECK_MECHANICALS": ISOLATE,
    "UPDATE_SWFW": MONITOR,
    "WORKFLOW_XID_45": MONITOR,  # alone it is RESTART_FM
    "WORKFLOW_XID_48": RESET,  # alone RESET_GPU, with 63 or 64 DRAIN_AND_RESET
    "WORKFLOW_NVLINK_ERR": RESET,  # NVLINK_DEFAULT
    "WORKFLOW_NVLINK5_ERR": MONITOR,  # NVLINK5_DEFAULT
    "XID_154": MONITOR,  # a line that names no action we know
    "CHECK_UVM": MONITOR,
    "CONTACT_SUPPORT": MONITOR,  # unused
    "": MONITOR,
}
DEPARTURES = {142: RESET, 162: PASS, 167: REBOOT}
EXPECTED = {
    code: DEPARTURES.get(code, SEVERITY_OF_ACTION[action])
    for action, codes in CODES_OF_ACTION.items()
    for code in codes
}
RECOVERY_ACTIONS = [
    ("0x0 (None)", PASS),
    ("0x1 (GPU Reset Required)", RESET),
    ("0x2 (Node Reboot Required)", REBOOT),
    ("0x3 (Drain P2P)", RESET),
    ("0x4 (Drain and Reset)", RESET),
    ("0x5 (Recover IMEX Domain)", MONITOR),
    ("0x5 (GPU Reset Bus)", RESET),
    ("0x5 (Unknown)", MONITOR),
    ("0x5 (", MONITOR),
    ("0x6 (Bus Reset)", RESET),
    ("0x7 (System Reboot)", REBOOT),
    ("0x1 (PF FLR)", RESET),
    ("0x2 (OS Reboot)", REBOOT),
    ("0x8 (Unknown)", MONITOR),
    ("0xffffffff (Unknown)", MONITOR),
]


def line(code: int, text: str = "") -> Record:
    return Record(1, 2.0, 0, f"NVRM: Xid (PCI:0000:53:00): {code}{text and ', '}{text}")


def test_the_expectation_of_this_test_covers_every_code_once() -> None:
    written = sorted(code for codes in CODES_OF_ACTION.values() for code in codes)

    assert written == [*range(1, 178), 179, 185]
    assert sorted(xid_table()) == written


@pytest.mark.parametrize("code", sorted(EXPECTED))
def test_each_code_is_a_finding_unless_nvidia_says_to_ignore_it(code: int) -> None:
    finding = finding_in(line(code), Expectation())

    found = (finding.reason, finding.severity) if finding else None
    expected = (f"Xid{code}", EXPECTED[code]) if EXPECTED[code] else None
    assert found == expected


@pytest.mark.parametrize("code", [0, 178, *range(180, 185), 186, 999, 99999])
def test_an_unknown_code_is_only_watched(code: int) -> None:
    finding = finding_in(line(code, "something new"), Expectation())

    assert finding
    assert (finding.reason, finding.severity) == (f"Xid{code}", MONITOR)
    assert finding.detail == "not in the catalogue: something new"
    assert finding.rule == "xid.csv: no such code"


@pytest.mark.parametrize(("action", "severity"), RECOVERY_ACTIONS)
@pytest.mark.parametrize("before", ["", "pid='<unknown>', name=<unknown>, ", "pid=17, name=a (b, c) to 0x2, "])
def test_xid_154_means_what_its_own_text_says(before: str, action: str, severity: Severity) -> None:
    text = f"{before}GPU recovery action changed from 0x0 (None) to {action}"

    assert severity_of(154, text, Policy()) is severity


def test_an_xid_154_that_was_wrapped_where_it_was_saved_means_the_same() -> None:
    text = "GPU recovery action changed from 0x0 (None)\n to 0x2 (Node Reboot Required)"

    assert severity_of(154, text, Policy()) is REBOOT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU recovery action changed",
        "GPU recovery action changed from 0x0 (None) to",
        "GPU recovery action changed from 0x0 (None) to 0xzz (None)",
        "GPU recovery action changed from 0x0 (None) to 0x123456789 (None)",
        "NONE",
    ],
)
def test_an_xid_154_with_an_unreadable_action_is_monitor(text: str) -> None:
    assert severity_of(154, text, Policy()) is MONITOR


def test_another_code_that_quotes_a_recovery_action_keeps_its_own_severity() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"

    assert severity_of(94, text, Policy()) is MONITOR


@pytest.mark.parametrize("code", [163, 164, 165])
@pytest.mark.parametrize(("strict", "severity"), [(False, MONITOR), (True, RESET)])
def test_strict_pshc_makes_the_power_smoothing_codes_a_reset(code: int, strict: bool, severity: Severity) -> None:
    assert severity_of(code, "", Policy(strict_pshc=strict)) is severity


@pytest.mark.parametrize("code", [161, 162, 166])
def test_strict_pshc_leaves_its_neighbours_alone(code: int) -> None:
    assert severity_of(code, "", Policy(strict_pshc=True)) is EXPECTED[code]


@pytest.mark.parametrize("severity", [MONITOR, RESET, REBOOT, ISOLATE])
def test_the_nvlink_defaults_are_the_clusters(severity: Severity) -> None:
    nvlink, nvlink5 = Policy(nvlink_default=severity), Policy(nvlink5_default=severity)

    assert severity_of(74, "", nvlink) is severity
    assert [severity_of(code, "", nvlink) for code in range(144, 151)] == [MONITOR] * 7
    assert severity_of(74, "", nvlink5) is RESET
    assert [severity_of(code, "", nvlink5) for code in range(144, 151)] == [severity] * 7


@pytest.mark.parametrize(("code", "severity"), [(13, RESET), (79, MONITOR), (43, ISOLATE), (142, MONITOR), (999, PASS)])
def test_a_cluster_overrides_any_code(code: int, severity: Severity) -> None:
    assert severity_of(code, "", Policy({f"Xid{code}": severity})) is severity


def test_a_code_that_a_cluster_sets_to_pass_is_remembered_at_its_own_severity() -> None:
    expected = Expectation(policy=Policy({"Xid79": PASS}))

    finding = finding_in(line(79, "GPU has fallen off the bus."), expected)
    assert finding
    assert (finding.severity, finding.catalogued, finding.tier) == (PASS, REBOOT, REBOOT)


def test_every_row_has_its_source_and_every_departure_its_reason() -> None:
    table = xid_table()

    assert [code for code, row in table.items() if not (row.source and row.mnemonic)] == []
    assert {code: (row.override, bool(row.why)) for code, row in table.items() if row.override is not None} == {
        142: (RESET, True),
        162: (Severity.PASS, True),
        167: (REBOOT, True),
    }


def test_the_rule_names_the_row_that_fired() -> None:
    assert [xid_table()[code].rule for code in (79, 142)] == ["xid.csv:79", "xid_overrides.csv:142"]


def test_unused_codes_are_the_ones_that_only_say_to_contact_support() -> None:
    rows = csv.DictReader(
        files("gpu_healthcheck.healthcheck.catalog").joinpath("xid.csv").read_text(encoding="utf-8").splitlines()
    )
    contact = {int(row["code"]): row["unused"] for row in rows if row["immediate_action"] == "CONTACT_SUPPORT"}

    assert [code for code, unused in contact.items() if unused != "yes"] == [142]
