"""Xid 74's registers and the words of 144-150, by NVIDIA's sheets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.catalog.nvlink import (
    Nvlink5Row,
    matching_rows,
    nvlink4_table,
    nvlink5_table,
    rule_nvlink4,
    rule_nvlink5,
    rule_words,
)
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.xid import rule_xid
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from tests.examples import finding_in

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
FATAL_LINK = "NVLink: fatal error detected on link 14({})"


def registers(*values: int) -> str:
    padded = [*values, *[0] * (7 - len(values))]
    return FATAL_LINK.format(", ".join(f"{number:#x}" for number in padded))


def line(unit: str, *words: int, grade: str = "Fatal", link: str = "01") -> str:
    message = " ".join(f"0x{word:08x}" for word in words)
    return f"{unit}  {grade}   XC0 i0 Link {link} ({message})"


@pytest.mark.parametrize(
    ("text", "severity", "rule"),
    [
        # A GB200's link down: reason 0x21, reported by the peer.
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000)", RESET, "100001"),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6, 0x00000000)", RESET, "100001"),
        ("pid=7, name=x, NETIR_LINK_EVT  Fatal   XC0 i0 Link -1 (0x021425c6 0x0 0x0 0x0 0x0 0x0 0x0)", RESET, "100001"),
        ("NETIR_LINK_DOWN  Fatal   XC0 i0 Link 17 (0x02100011 0x00000000)", RESET, "100001"),
        ("NETIR_LINK_DOWN  Fatal   XC0 i0 Link 17 (0x02600011 0x00000000)", PASS, "100110"),
        ("NETIR_LINK_DOWN  Fatal   XC0 i0 Link 17 (0x02800011 0x00000000)", PASS, "101000"),
        ("NETIR_BER_EVENT  Nonfatal   XC0 i0 Link 17 (0x00000013 0x00000002)", PASS, "10011"),
        ("NETIR_BER_EVENT  Nonfatal   XC0 i0 Link 17 (0x00000226 0x00000003)", PASS, "10011"),
        ("NETIR_MFDE_EVENT  Fatal   XC0 i0 Link 17 (0x00000014 0x00000004)", RESET, "10100"),
        ("NETIR_MFDE_EVENT  Nonfatal   XC0 i0 Link 17 (0x00000014 0x00000003)", PASS, "10100"),
    ],
)
def test_an_xid_149_is_decoded_in_both_layouts(text: str, severity: Severity, rule: str) -> None:
    ruling = rule_xid(149, text, Policy())

    assert (ruling.severity, ruling.rule.partition(":")[0]) == (severity, "nvlink5_decode.csv")
    (row,) = [row for row in nvlink5_table() if row.rule == ruling.rule]
    assert rule in f"{row.masks[0][1]:032b}{row.masks[1][1]:032b}"


@pytest.mark.parametrize(
    ("code", "unit", "words", "severity"),
    [
        (144, "SAW_MVB", (0x21, 0x2), RESET),
        (144, "SAW_MVB", (0x1, 0x10), RESET),
        (144, "SAW_MVB", (0x1, 0x1), PASS),
        (145, "RLW_REMAP", (0x82, 0x1), MONITOR),
        (145, "RLW_REMAP", (0x4, 0x40), RESET),
        (145, "RLW_SRC_TRACK", (0x7, 0x4), MONITOR),
        (146, "TLW_RX", (0x143, 0x4), RESET),
        (146, "TLW_RX_PIPE1", (0xB, 0x4), RESET),
        (147, "TREX", (0xE, 0x1), PASS),
        (148, "NVLPW", (0xF, 0x80000000), PASS),
        (150, "MSE Degraded", (0x0, 0x0), RESET),
        (150, "MSE_WATCHDOG", (0x0, 0xFFFFFFFF), RESET),
    ],
)
def test_the_other_codes_are_decoded_too(code: int, unit: str, words: tuple[int, ...], severity: Severity) -> None:
    ruling = rule_xid(code, line(unit, *words), Policy())

    assert (ruling.severity, ruling.rule.partition(":")[0]) == (severity, "nvlink5_decode.csv")


@pytest.mark.parametrize("status", [1, 2, 4])
@pytest.mark.parametrize(
    ("intr_info", "severity"), [(0b00011000010, PASS), (0b10011000010, RESET), (0b00000110, PASS), (0b10000110, RESET)]
)
def test_an_rxpipe_error_is_a_reset_once_its_promoting_bit_is_set(
    intr_info: int, severity: Severity, status: int
) -> None:
    assert rule_nvlink5(145, line("RLW_RXPIPE", intr_info, status), MONITOR).severity is severity


def test_the_worst_of_several_status_bits_counts() -> None:
    assert rule_nvlink5(144, line("SAW_MVB", 0x21, 0x1 | 0x2 | 0x4), MONITOR).severity is RESET


def test_a_status_bit_that_no_row_knows_is_never_ignored() -> None:
    ruling = rule_nvlink5(144, line("SAW_MVB", 0x21, 0x1 | 0x40000000), MONITOR)

    assert (ruling.severity, ruling.rule) == (MONITOR, "NVLINK5_DEFAULT")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "something new",
        "SAW_MVB Fatal XC0 i0 Link 01",
        "SAW_MVB Fatal XC0 i0 Link 01 ()",
        "SAW_MVB Fatal XC0 i0 Link 01 (0x21)",
        "SAW_MVB Fatal XC0 i0 Link 01 (0x21 0x40000000)",
        "SAW_MVB Fatal XC0 i0 Link 01 (0x03f00021 0x00000002)",
        "SAW_MVB Fatal XC0 i0 Link 01 (zz zz)",
        "SAW_MVB Fatal XC0 i0 Link 01 (0x123456789 0x2)",
    ],
)
@pytest.mark.parametrize("default", [MONITOR, RESET])
def test_only_a_line_that_no_row_matches_goes_by_the_default(text: str, default: Severity) -> None:
    ruling = rule_xid(144, text, Policy(nvlink5_default=default))

    assert (ruling.severity, ruling.rule) == (default, "NVLINK5_DEFAULT")


@pytest.mark.parametrize("count", range(2, 9))
def test_the_words_are_never_counted(count: int) -> None:
    words = (0x021425C6, *[0] * (count - 1))

    assert rule_nvlink5(149, line("NETIR_LINK_EVT", *words), MONITOR).severity is RESET


@pytest.mark.parametrize("unit", ["NETIR_LINK_EVT", "NETIR_LINK_DOWN", "SOMETHING_ELSE"])
def test_a_unit_of_another_name_does_not_hide_what_the_words_say(unit: str) -> None:
    assert rule_words(149, unit, (0x021425C6, 0), MONITOR).severity is RESET


def words_of(row: Nvlink5Row, layout: int, noise: int) -> tuple[int, int]:
    mask, value = row.masks[layout]
    return value | (noise & ~mask & 0xFFFFFFFF), row.statuses[0] if row.statuses else noise


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("row", nvlink5_table(), ids=lambda row: str(row.line))
@given(noise=st.integers(0, 0xFFFFFFFF))
def test_every_row_is_found_by_its_own_words(row: Nvlink5Row, layout: int, noise: int) -> None:
    intr_info, status = words_of(row, layout, noise)

    assert row in matching_rows(row.code, row.units[layout], intr_info, status)


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.integers(144, 150))
def test_the_two_layouts_never_claim_one_word_for_two_units(intr_info: int, status: int, code: int) -> None:
    claims = {
        (layout, row.units[1])
        for row in matching_rows(code, "", intr_info, status)
        for layout in row.layouts_of(intr_info)
    }
    by_layout = [{unit for number, unit in claims if number == layout} for layout in (0, 1)]

    assert not by_layout[0] or not by_layout[1] or by_layout[0] == by_layout[1]


@given(st.sampled_from(nvlink5_table()), st.sampled_from([0, 1]), st.integers(0, 0xFFFFFFFF))
def test_a_word_of_one_layout_is_never_another_unit_in_the_other(row: Nvlink5Row, layout: int, noise: int) -> None:
    intr_info, _ = words_of(row, layout, noise)
    other = [
        nvlink5_row
        for nvlink5_row in nvlink5_table()
        if nvlink5_row.code == row.code and (1 - layout) in nvlink5_row.layouts_of(intr_info)
    ]

    assert {nvlink5_row.units for nvlink5_row in other} <= {row.units, ("MSE Degraded",) * 2, ("MSE_WATCHDOG",) * 2}


@pytest.mark.parametrize(
    ("text", "severity", "rule"),
    [
        (registers(0, 0, 0x10000), RESET, "NVLINK_DEFAULT"),
        (registers(1 << 4), RESET, "NVLINK_DEFAULT"),
        (registers(1 << 0), PASS, "nvlink4_decode.csv:1.0"),
        (registers(1 << 23 | 1 << 30), PASS, "nvlink4_decode.csv:1.23"),
        (registers(1 << 0 | 1 << 4), RESET, "NVLINK_DEFAULT"),
        (registers(0, 0, 0, 1 << 18), RESET, "nvlink4_decode.csv:4.18"),
        (registers(0, 0, 0, 0, 1 << 20), MONITOR, "nvlink4_decode.csv:5.20"),
        (registers(1, 0, 0, 0, 1 << 20), MONITOR, "nvlink4_decode.csv:5.20"),
        (registers(0, 1), RESET, "NVLINK_DEFAULT"),
        (registers(1 << 2), RESET, "NVLINK_DEFAULT"),
        (registers(0), RESET, "NVLINK_DEFAULT"),
        ("NVLink: Failed to train link 3 to remote PCI:0000:05:00", RESET, "NVLINK_DEFAULT"),
        ("", RESET, "NVLINK_DEFAULT"),
    ],
)
def test_an_xid_74_goes_by_its_registers(text: str, severity: Severity, rule: str) -> None:
    ruling = rule_xid(74, text, Policy())

    assert (ruling.severity, ruling.rule) == (severity, rule)


@pytest.mark.parametrize("severity", [MONITOR, REBOOT])
def test_the_clusters_default_stands_for_bits_without_an_immediate_action(severity: Severity) -> None:
    assert rule_nvlink4(registers(1 << 4), severity).severity is severity
    assert rule_nvlink4(registers(0, 0, 0, 1 << 18), severity).severity is RESET


@pytest.mark.parametrize(
    ("register", "bits"),
    [
        (1, {0, 1, 4, 5, 8, 9, 12, 16, 17, 20, 21, 22, 23, 24, 27, 28, 29, 30}),
        (3, {0, 1, 2, 6, 13, 16, 17, 18, 19}),
        (4, {16, 17, 18}),
        (5, set(range(18, 30))),
    ],
)
def test_the_registers_have_the_bits_of_nvidias_table(register: int, bits: set[int]) -> None:
    assert {bit for number, bit in nvlink4_table() if number == register} == bits


def test_a_cluster_overrides_what_is_decoded() -> None:
    policy = Policy({"Xid149": ISOLATE})

    assert rule_xid(149, line("NETIR_BER_EVENT", 0x13, 0x2), policy).rule == "severity-overrides"
    assert rule_xid(149, line("NETIR_BER_EVENT", 0x13, 0x2), policy).severity is ISOLATE


def test_a_decoded_line_gives_its_finding_or_none() -> None:
    head = "NVRM: Xid (PCI:0008:01:00): 149, "
    down = finding_in(Record(1, 2.0, 0, head + line("NETIR_LINK_EVT", 0x021425C6, 0)), Expectation())
    noise = finding_in(Record(1, 2.0, 0, head + line("NETIR_BER_EVENT", 0x13, 0x2)), Expectation())

    assert down
    assert (down.reason, down.severity, noise) == ("Xid149", RESET, None)
