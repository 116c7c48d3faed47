"""`node-overrides`: the values in force on a node, and the messages of invalid lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, settings_of
from gpu_healthcheck.healthcheck.settings.node_overrides import (
    PER_NODE,
    ValueInForce,
    parse_lines,
    selected_labels,
    values_in_force,
)
from gpu_healthcheck.healthcheck.settings.reading import read_settings

RESEARCH = {"team": "research", "pool": "a", "spot": ""}
GRAMMAR = "; write `SELECTOR: KEY=VALUE ...`, as in `team=research,pool in (a, b): TAINT_SEVERITY=REBOOT`"
KEYS = f"; allowed are {', '.join(PER_NODE)}, each with =VALUE"
LINES = """
# for a while
team=research: TAINT_SEVERITY=REBOOT  EVICT_SEVERITY=ISOLATE EVICT_DELAY=0 # by the owner
team in (research, vision), !pool: GATE_SEVERITY=ISOLATE CHECKS_LIGHTWEIGHT=0,2,3
spot: ENABLE_TAINT=false
team=research,pool=a:EVICT_SEVERITY= DCGM_L2_INTERVAL=0
"""


def of_node(text: str, labels: Mapping[str, str], **values: Any) -> dict[str, object]:
    """Return the values that differ on a node with these labels."""
    cluster = NodeSettings(node_overrides=text, **values)
    node = cluster.for_labels(labels)
    return {
        key: getattr(node, setting.name)
        for key, setting in settings_of(NodeSettings).items()
        if getattr(node, setting.name) != getattr(cluster, setting.name)
    }


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, {}),
        ({"team": "vision", "pool": "a"}, {}),
        ({"team": "vision"}, {"GATE_SEVERITY": Severity.ISOLATE, "CHECKS_LIGHTWEIGHT": "0 2 3"}),
        (
            {"team": "research"},
            {
                "TAINT_SEVERITY": Severity.REBOOT,
                "EVICT_SEVERITY": Severity.ISOLATE,
                "EVICT_DELAY": 0,
                "GATE_SEVERITY": Severity.ISOLATE,
                "CHECKS_LIGHTWEIGHT": "0 2 3",
            },
        ),
        (RESEARCH, {"TAINT_SEVERITY": Severity.REBOOT, "EVICT_DELAY": 0, "ENABLE_TAINT": False, "DCGM_L2_INTERVAL": 0}),
    ],
)
def test_a_node_has_the_values_of_the_lines_that_select_it(labels: dict[str, str], expected: dict[str, object]) -> None:
    assert of_node(LINES, labels) == expected


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "team=vision: TAINT_SEVERITY=REBOOT"])
def test_a_node_that_no_line_selects_has_the_settings_of_the_cluster(text: str) -> None:
    values = NodeSettings(node_overrides=text, taint_severity=Severity.ISOLATE)

    assert values.for_labels(RESEARCH) is values


def test_an_empty_value_switches_evictions_off_for_a_node_group() -> None:
    text = "team=research: EVICT_SEVERITY="

    assert of_node(text, RESEARCH, evict_severity=Severity.REBOOT) == {"EVICT_SEVERITY": None}
    assert of_node(text, {}, evict_severity=Severity.REBOOT) == {}


def test_checks_and_rules_follow_the_values_of_the_node() -> None:
    values = NodeSettings(node_overrides="spot: CHECKS_LIGHTWEIGHT=2 TAINT_SEVERITY=REBOOT ENABLE_TAINT=0")
    every = len(values.checks)

    node = values.for_labels({"spot": "yes"})

    assert {check.group for check in node.checks} == {"2-efa-enumeration"}
    assert (node.rules.taint_severity, node.rules.enable_taint) == (Severity.REBOOT, False)
    assert (len(values.checks), values.rules.enable_taint) == (every, True)


def test_values_in_force_name_the_line_that_sets_them() -> None:
    values = NodeSettings(node_overrides=LINES, gate_severity=Severity.REBOOT)

    assert list(values_in_force(values, RESEARCH)) == [
        ValueInForce("TAINT_SEVERITY", "REBOOT", 3, "team=research"),
        ValueInForce("EVICT_SEVERITY", "", 6, "team=research,pool=a"),
        ValueInForce("EVICT_DELAY", "0", 3, "team=research"),
        ValueInForce("GATE_SEVERITY", "REBOOT"),
        ValueInForce("DCGM_L2_INTERVAL", "0", 6, "team=research,pool=a"),
        ValueInForce("ENABLE_TAINT", "false", 5, "spot"),
    ]
    assert list(values_in_force(values, {})) == [ValueInForce("GATE_SEVERITY", "REBOOT")]
    assert list(values_in_force(NodeSettings(node_overrides=LINES), {})) == []


def test_only_labels_that_a_selector_names_are_read() -> None:
    values = NodeSettings(node_overrides=LINES)

    assert selected_labels(values, {**RESEARCH, "kubernetes.io/hostname": "n"}) == RESEARCH
    assert selected_labels(NodeSettings(), RESEARCH) == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("team=research", f"'team=research'{GRAMMAR}"),
        ("team=research:", f"'team=research:'{GRAMMAR}"),
        (": TAINT_SEVERITY=REBOOT", f"'' is no label selector{GRAMMAR}"),
        ("a b: TAINT_SEVERITY=REBOOT", f"'a b' is no label selector{GRAMMAR}"),
        ("a, b>1: TAINT_SEVERITY=REBOOT", f"'b>1' is no label selector{GRAMMAR}"),
        ("a\x1b[2J: ENABLE_TAINT=0", f"'a\\x1b[2J' is no label selector{GRAMMAR}"),
        ("a: CHECK_INTERVAL=60", f"'CHECK_INTERVAL=60'{KEYS}"),
        ("a: taint_severity=REBOOT", f"'taint_severity=REBOOT'{KEYS}"),
        ("a: TAINT_SEVERITY", f"'TAINT_SEVERITY'{KEYS}"),
        ("a: TAINT_SEVERITY = REBOOT", f"'TAINT_SEVERITY'{KEYS}"),
        ("a: b: TAINT_SEVERITY=REBOOT", f"'b:'{KEYS}"),
        ("a: TAINT_SEVERITY=reboot", "TAINT_SEVERITY = 'reboot': allowed are MONITOR, RESET, REBOOT or ISOLATE"),
        ("a: TAINT_SEVERITY=", "TAINT_SEVERITY = '': allowed are MONITOR, RESET, REBOOT or ISOLATE"),
        ("a: EVICT_SEVERITY=RESET", "EVICT_SEVERITY = 'RESET': allowed are REBOOT or ISOLATE, or nothing"),
        ("a: EVICT_DELAY=", "EVICT_DELAY = '': a whole number of seconds, 0 to 86400"),
        ("a: EVICT_DELAY=1m", "EVICT_DELAY = '1m': a whole number of seconds, 0 to 86400"),
        ("a: DCGM_L2_INTERVAL=-1", "DCGM_L2_INTERVAL = '-1': a whole number of seconds, 0 to 31536000"),
        ("a: ENABLE_TAINT=perhaps", "ENABLE_TAINT = 'perhaps': allowed are true and false, or 1 and 0"),
        ("a: CHECKS_LIGHTWEIGHT=,", "CHECKS_LIGHTWEIGHT = '': names no check of the light check cycle; groups 0, 2,"),
        ("a: CHECKS_LIGHTWEIGHT=0,4", "CHECKS_LIGHTWEIGHT = '0 4': 4 is not a light check: it needs exclusive use of"),
        ("a: CHECKS_LIGHTWEIGHT=0 2", f"'2'{KEYS}"),
        (f"{'a' * 2001}: ENABLE_TAINT=0", "allowed are 200 lines with a selector, of 2000 characters each"),
    ],
)
def test_an_invalid_line_is_named_with_its_file_number_and_what_is_allowed(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "node-overrides").write_text(f"\n# ok\nb: ENABLE_TAINT=false\n{line}\n")

    settings = read_settings(tmp_path, {"node-overrides": "b: ENABLE_TAINT=false"})

    (bad,) = settings.bad
    assert (bad.where, bad.key) == (str(tmp_path / "node-overrides"), "node-overrides")
    assert bad.allowed.startswith(f"line 4: {message}")
    assert settings.values.for_labels({"b": ""}).enable_taint is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: EVICT_DELAY=1\n" * 10_000, "line 201: allowed are 200 lines"),
        ("x" * (1 << 20), "line 1: allowed are 200 lines"),
        (":" * (1 << 20), "line 1: allowed are 200 lines"),
        ("\n" * ((1 << 20) - 1) + "x", f"line {1 << 20}: 'x'; write"),
        ("a:" + " EVICT_DELAY=1" * 140 + " b", "line 1: 'b'; allowed are"),
    ],
)
def test_a_hostile_text_is_refused_with_a_short_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "node-overrides").write_text(text)

    (bad,) = read_settings(tmp_path).bad

    assert bad.allowed.startswith(message)
    assert len(str(bad)) < len(str(tmp_path)) + 400


def test_200_lines_and_a_megabyte_of_comments_are_valid(tmp_path: Path) -> None:
    lines = "".join(f"pool=p{number}: EVICT_DELAY={number}\n" for number in range(200))
    (tmp_path / "node-overrides").write_text("# why\n" * 100_000 + lines)

    settings = read_settings(tmp_path)

    assert (settings.bad, len(parse_lines(settings.values.node_overrides))) == ((), 200)
    assert settings.values.for_labels({"pool": "p199"}).evict_delay_seconds == 199
