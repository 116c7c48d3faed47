"""Check cycles and deep diagnostics never wait for each other.

A deep diagnostic starts at the time that it requested.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.agent.process.schedule import Schedule
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings
from tests.waiting import GIVE_UP_SECONDS


class Work:
    """Counts, and may be made to hang."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self) -> float:
        self.begun.release()
        assert self.goes_on.wait(GIVE_UP_SECONDS)
        return 0.05

    def comes(self, times: int) -> bool:
        return all(self.begun.acquire(timeout=GIVE_UP_SECONDS) for _ in range(times))


def every(seconds: int) -> AgentState:
    """Return a state with a check cycle every `seconds` seconds."""
    state = AgentState("n")
    state.configure(Settings(NodeSettings(check_interval_seconds=seconds)), state.memory)
    return state


def nothing() -> None:
    return


@pytest.fixture
def light() -> Work:
    return Work()


@pytest.fixture
def deep() -> Work:
    return Work()


@pytest.fixture
def schedule(tmp_path: Path, light: Work, deep: Work) -> Iterator[Schedule]:
    schedule = Schedule(every(10), tmp_path)
    yield schedule
    schedule.end()
    for work in (light, deep):
        work.goes_on.set()


def test_hanging_deep_run_delays_no_light_cycle(schedule: Schedule, light: Work, deep: Work) -> None:
    deep.goes_on.clear()
    schedule.start(light, nothing, deep)

    assert deep.comes(1)
    assert light.comes(3)


def test_hanging_observer_delays_no_light_cycle_and_runs_after_later_ones(schedule: Schedule, light: Work) -> None:
    observer = Work()
    observer.goes_on.clear()

    def observe() -> None:
        observer()

    schedule.start(light, nothing, observe=observe)
    assert observer.comes(1)
    assert light.comes(3)

    observer.goes_on.set()
    assert observer.comes(2)


def test_hanging_light_cycle_delays_no_deep_run(schedule: Schedule, light: Work, deep: Work) -> None:
    light.goes_on.clear()
    schedule.start(light, nothing, deep)

    assert light.comes(1)
    assert deep.comes(3)


def test_failed_deep_diagnostic_ends_neither(schedule: Schedule, light: Work) -> None:
    failed = threading.Event()

    def fails() -> float:
        failed.set()
        raise ValueError("a fault of ours")

    schedule.start(light, nothing, fails)

    assert failed.wait(GIVE_UP_SECONDS)
    assert light.comes(3)


def test_cycle_after_a_failed_one_does_not_wait_for_the_interval(
    tmp_path: Path, light: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_healthcheck.agent.process.schedule._FAILED_AGAIN_SECONDS", 0.05)

    def fails() -> float:
        light()
        raise ValueError("a fault of ours")

    schedule = Schedule(every(86400), tmp_path)
    schedule.start(fails, nothing)
    came = light.comes(3)
    schedule.end()

    assert came
