"""The data files as a build checks them."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from inspect import signature
from pkgutil import iter_modules

import pytest

from gpu_healthcheck.diagnosis.causes import CAUSES
from gpu_healthcheck.healthcheck import catalog
from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from gpu_healthcheck.healthcheck.catalog.cuda_errors import cuda_errors, library_errors
from gpu_healthcheck.healthcheck.catalog.tables import TABLES
from gpu_healthcheck.healthcheck.catalog.xid import (
    RecoveryAction,
    actions,
    recovery_action,
    recovery_action_in,
    recovery_actions,
    recovery_in,
    xid_table,
)

FILES = sorted(
    file.name for file in files("gpu_healthcheck.healthcheck.catalog").iterdir() if file.name.endswith(".csv")
)
SERIOUS = [
    *(8, 13, 31, 43, 45, 46, 48, 54, 62, 63, 64, 74, 79, 92, 94, 95, 109, 110, 119, 120, 121, 136, 140, 142, 143),
    *(range(144, 152)),
    *range(154, 162),
    167,
]


@pytest.mark.parametrize("name", FILES)
def test_every_row_names_its_source(name: str) -> None:
    assert [line for line, row in read_rows(name) if not row["source"]] == []
    assert list(read_rows(name))


@pytest.mark.parametrize("name", FILES)
def test_no_cell_is_cut_or_spills_over(name: str) -> None:
    rows = [row for _, row in read_rows(name)]

    assert {len(row) for row in rows} == {len(rows[0])}
    assert [row for row in rows if any(cell != cell.strip() for cell in row.values())] == []


@pytest.mark.parametrize("code", SERIOUS)
def test_a_code_that_operators_meet_is_explained_in_a_sentence(code: int) -> None:
    meaning = xid_table()[code].meaning

    assert meaning.endswith(".")
    assert "ROBUST_CHANNEL" not in meaning


def test_a_code_in_use_has_a_meaning() -> None:
    assert [code for code, row in xid_table().items() if not row.unused and not row.meaning] == []


def test_every_bucket_of_nvidia_is_said_in_words() -> None:
    assert {row.immediate_action for row in xid_table().values()} == set(actions())
    assert [action.name for action in actions().values() if not action.meaning] == []


@pytest.mark.parametrize(
    ("driver", "severities"),
    [  # of the numbers 0 to 8
        ("570.133.20", "PASS RESET REBOOT RESET RESET RESET - REBOOT -"),
        ("580.126.09", "PASS RESET REBOOT RESET RESET RESET - REBOOT -"),
        ("590.48.01", "PASS RESET REBOOT RESET RESET - - REBOOT -"),
        ("595.45.04", "PASS RESET REBOOT RESET RESET MONITOR - REBOOT -"),
        ("610.43.02", "PASS RESET REBOOT RESET RESET MONITOR RESET REBOOT -"),
        ("615.71", "PASS RESET REBOOT RESET RESET MONITOR RESET REBOOT -"),
        ("1000.1", "PASS RESET REBOOT RESET RESET MONITOR RESET REBOOT -"),
        ("", "PASS RESET REBOOT RESET RESET - RESET REBOOT -"),
        ("made up", "PASS RESET REBOOT RESET RESET - RESET REBOOT -"),
    ],
)
def test_a_recovery_action_means_what_the_driver_defines(driver: str, severities: str) -> None:
    actions = [recovery_action(number, driver) for number in range(9)]

    assert " ".join(action.severity.name if action else "-" for action in actions) == severities
    assert {action.number for action in actions if action and action.is_of_imex} <= {5}


@pytest.mark.parametrize("action", recovery_actions(), ids=lambda action: f"{action.number} {action.name}")
def test_every_recovery_action_is_read_from_its_line(action: RecoveryAction) -> None:
    line = f"GPU recovery action changed from 0x1 (x) to {action.number:#x} ({action.name})"

    assert (recovery_in(line), recovery_action_in(line)) == (action.number, action)


def test_every_table_is_among_those_that_an_agent_reads_at_its_start() -> None:
    modules = [
        import_module(f"gpu_healthcheck.healthcheck.catalog.{pair.name}") for pair in iter_modules(catalog.__path__)
    ]
    read_later = {
        var
        for module in modules
        for var in vars(module).values()
        if hasattr(var, "cache_info") and not signature(var).parameters
    }

    assert read_later == set(TABLES)


@pytest.mark.parametrize("name", ["cuda_errors.csv", "library_errors.csv", "error_fixes.csv"])
def test_cause_of_an_error_is_one_of_diagnose(name: str) -> None:
    assert {row["cause"] for _, row in read_rows(name)} - {""} <= {cause.name for cause in CAUSES}


def test_every_error_has_one_number_and_name_in_its_library() -> None:
    for errors in (cuda_errors(), library_errors()):
        numbers = [(error.library, error.number) for error in errors if error.number is not None]
        names = [name for error in errors for name in error.names]
        assert len(set(numbers)) == len(numbers)
        assert len(set(names)) == len(names)
