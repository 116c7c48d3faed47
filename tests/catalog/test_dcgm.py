"""DCGM's errors on our ladder. The expectation is written out here and computed from no table."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.dcgm import WORDS, dcgm_table, rule_dcgm
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.model import Severity

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity


@pytest.mark.parametrize(
    ("stated", "severity"),
    [
        ("ISOLATE", ISOLATE),
        ("isolate", ISOLATE),
        (2, ISOLATE),
        ("2", ISOLATE),
        ("RESET", RESET),
        (6, RESET),
        ("TRIAGE", RESET),
        (4, RESET),
        ("CONFIG", MONITOR),
        (5, MONITOR),
        ("MONITOR", MONITOR),
        (1, MONITOR),
        ("UNKNOWN", MONITOR),
        (3, MONITOR),
        ("NONE", MONITOR),
        (0, MONITOR),
    ],
)
def test_a_stated_severity_has_its_place_on_the_ladder(stated: str | int, severity: Severity) -> None:
    assert rule_dcgm(44, stated, Policy()).severity is severity


@pytest.mark.parametrize("stated", [None, "", "SKIP", 7, -1, 99, "7", "22"])
def test_without_a_severity_that_anybody_knows_the_table_decides(stated: str | int | None) -> None:
    assert [rule_dcgm(error_id, stated, Policy()).severity for error_id in (52, 14, 29, 85)] == [
        ISOLATE,
        RESET,
        MONITOR,
        RESET,
    ]


@pytest.mark.parametrize(
    ("ids", "severity"),
    [([126], REBOOT), ([46, 108, 112], RESET), ([24, 25, 89, 90, 91, 92, 93, 94], MONITOR)],
)
@pytest.mark.parametrize("stated", [None, "ISOLATE", "CONFIG", 6])
def test_our_own_severities_stand_whatever_is_stated(ids: list[int], severity: Severity, stated: str | None) -> None:
    rulings = [rule_dcgm(error_id, stated, Policy()) for error_id in ids]

    assert {ruling.severity for ruling in rulings} == {severity}
    assert [ruling.rule for ruling in rulings] == [f"dcgm_overrides.csv:{error_id}" for error_id in ids]


@pytest.mark.parametrize(("error_id", "stated"), [(80, "RESET"), (80, "ISOLATE")])
def test_the_output_knows_its_own_version_better_than_the_table(error_id: int, stated: str) -> None:
    assert rule_dcgm(error_id, stated, Policy()).severity is Severity[stated]


def test_an_unknown_id_is_only_watched_unless_the_output_says_more() -> None:
    assert rule_dcgm(999, None, Policy()).severity is MONITOR
    assert rule_dcgm(999, None, Policy()).rule == "dcgm_errors.csv: no such id"
    assert rule_dcgm(999, "ISOLATE", Policy()).severity is ISOLATE


def test_a_cluster_overrides_any_id() -> None:
    policy = Policy({"Dcgm126": MONITOR, "Dcgm52": PASS})

    assert rule_dcgm(126, "ISOLATE", policy).severity is MONITOR
    assert rule_dcgm(52, 2, policy).severity is PASS
    assert rule_dcgm(52, 2, policy).rule == "severity-overrides"


def test_the_table_is_whole_and_every_departure_has_its_reason() -> None:
    table = dcgm_table()

    assert list(table) == list(range(133))
    assert [row.id for row in table.values() if not row.source or row.severity not in WORDS] == []
    assert sorted(row.id for row in table.values() if row.override is not None) == [
        24,
        25,
        46,
        *range(89, 95),
        108,
        112,
        126,
    ]
    assert [row.id for row in table.values() if (row.override is not None) != bool(row.why)] == []


def test_what_could_not_run_is_marked() -> None:
    assert [row.id for row in dcgm_table().values() if row.could_not_run] == [18, 22, 47, 48, 82, 96, 117, 124]
