"""Observations that the load of a deep diagnostic may have caused."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.model.node_facts import AFTERMATH_SECONDS, DeepDiagnostic

RUNNING = DeepDiagnostic("l2", since=100.0, processes={7: 150.0})
ENDED = DeepDiagnostic("l2", since=100.0, until=200.0, processes={7: 150.0})


@pytest.mark.parametrize(
    ("run", "at", "covered"),
    [
        (RUNNING, 99.9, False),
        (RUNNING, 100.0, True),
        (RUNNING, 1e6, True),
        (ENDED, 200.0 + AFTERMATH_SECONDS, True),
        (ENDED, 200.1 + AFTERMATH_SECONDS, False),
    ],
)
def test_a_run_covers_its_time_and_a_minute_after_it(run: DeepDiagnostic, at: float, *, covered: bool) -> None:
    assert run.covers(at) is covered


@pytest.mark.parametrize(
    ("pid", "at", "is_test"),
    [
        (7, 120.0, True),
        (7, 155.0, True),
        (7, 155.1, False),  # another process may have the number by then
        (7, 99.0, False),
        (8, 120.0, False),
    ],
)
def test_a_process_is_the_tests_until_shortly_after_its_last_observation(pid: int, at: float, *, is_test: bool) -> None:
    assert RUNNING.is_by_a_test(pid, at) is is_test
