"""The agent's settings: the environment of its manifest, and the mounted ConfigMap with the values in force."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pytest_mock import MockerFixture

from gpu_healthcheck.agent.process import settings
from gpu_healthcheck.agent.process.settings import MountedConfiguration
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.model import Shortage
from gpu_healthcheck.healthcheck.settings.reading import BadValue, SettingsError
from tests.agent.parts import Reports, agent_settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


def write(folder: Path, **values: str) -> None:
    for key, value in values.items():
        (folder / key).write_text(value)


class Loaded:
    """The configuration of an agent."""

    def __init__(self, config: Path) -> None:
        self.state = AgentState("n")
        self.telemetry = Telemetry()
        self.reports = Reports(self.state)
        own = agent_settings("n", config, STATE_DIR=config.parent / "state")
        ledger = Ledger(self.state, None, self.telemetry)
        self.configuration = MountedConfiguration(own, self.state, ledger, self.reports, self.telemetry)

    def interval(self) -> int:
        """Return the interval that is in force after one more read of the files."""
        self.configuration.reload()
        return self.state.settings.values.check_interval_seconds


@pytest.fixture
def loaded(config: Path) -> Loaded:
    return Loaded(config)


@pytest.fixture
def reads(mocker: MockerFixture) -> MagicMock:
    """Spy on the reads of the files."""
    return mocker.spy(settings, "read_settings")


@pytest.fixture
def settled(mocker: MockerFixture) -> None:
    """Treat all present files as if they were written long ago."""
    mocker.patch("time.time_ns", return_value=0)


def test_invalid_variables_are_named_with_their_values(config: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        agent_settings("", config, LOG_LEVEL="loud")

    assert wrong.value.bad == (
        BadValue("NODE_NAME", "", "the name of a Node, of 1 to 253 characters", "environment"),
        BadValue("LOG_LEVEL", "loud", "allowed are debug, info, warning, error", "environment"),
    )


def test_a_shortage_keeps_the_settings_and_is_no_invalid_value(
    loaded: Loaded, config: Path, mocker: MockerFixture
) -> None:
    write(config, CHECK_INTERVAL="77")
    assert loaded.interval() == 77
    write(config, CHECK_INTERVAL="78", MONITOR_TTL="never")
    short = mocker.patch.object(settings, "read_settings", side_effect=Shortage("no descriptor is free"))

    assert loaded.interval() == 77
    assert (loaded.state.settings.bad, loaded.reports.warnings) == ((), [])
    mocker.stop(short)
    assert loaded.interval() == 78
    assert [value.key for value in loaded.state.settings.bad] == ["MONITOR_TTL"]
    write(config, MONITOR_TTL="120")
    assert loaded.interval() == 78


@pytest.mark.usefixtures("settled")
def test_unchanged_files_are_not_read_again(loaded: Loaded, config: Path, reads: MagicMock) -> None:
    write(config, CHECK_INTERVAL="77")

    assert [loaded.interval() for _ in range(3)] == [77, 77, 77]
    assert reads.call_count == 1
    write(config, CHECK_INTERVAL="78")
    assert [loaded.interval() for _ in range(3)] == [78, 78, 78]
    assert reads.call_count == 2


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("CHECK_INTERVAL", b"soon"),
        ("CHECKS_LIGHTWEIGHT", b"99"),
        ("MONITOR_TTL", b"\xff"),
        ("instance-profiles.conf", b"p5|8"),
    ],
)
def test_an_invalid_value_is_read_and_reported_once(
    loaded: Loaded, config: Path, reads: MagicMock, key: str, value: bytes
) -> None:
    write(config, CHECK_INTERVAL="77")
    assert loaded.interval() == 77

    (config / key).write_bytes(value)

    assert [loaded.interval() for _ in range(3)] == [77, 77, 77]
    assert reads.call_count == 2
    assert [bad_value.key for bad_value in loaded.state.settings.bad] == [key]
    assert len(loaded.reports.warnings) == 1


@pytest.mark.usefixtures("settled")
def test_an_unreadable_file_is_read_again_in_each_cycle(
    loaded: Loaded, config: Path, reads: MagicMock, mocker: MockerFixture
) -> None:
    assert loaded.interval() == 300
    write(config, CHECK_INTERVAL="77")
    broken = mocker.patch("pathlib.Path.read_text", side_effect=OSError(errno.EIO, "Input/output error"))

    assert [loaded.interval() for _ in range(3)] == [300, 300, 300]
    assert [(value.key, value.passing) for value in loaded.state.settings.bad] == [("CHECK_INTERVAL", True)]
    mocker.stop(broken)
    assert loaded.interval() == 77
    assert (reads.call_count, len(loaded.reports.warnings)) == (5, 1)


def test_a_file_written_just_now_is_read_again_in_the_next_cycle(
    loaded: Loaded, config: Path, reads: MagicMock, mocker: MockerFixture
) -> None:
    write(config, CHECK_INTERVAL="77")
    mocker.patch("time.time_ns", return_value=(config / "CHECK_INTERVAL").stat().st_ctime_ns)

    assert [loaded.interval(), loaded.interval()] == [77, 77]
    assert reads.call_count == 2
