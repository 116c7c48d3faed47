"""The agent's settings by a child process: answers, times of its calls, and the values in force without it."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from pytest_mock import MockerFixture

from agent.process import settings_reader
from agent.process.mounted_configuration import MountedConfiguration
from agent.process.settings_reader import SettingsReader, SettingsReading
from agent.state.agent_state import AgentState
from agent.state.ledger import Ledger
from agent.telemetry import Telemetry
from healthcheck.model import Severity, Shortage
from healthcheck.settings.reading import BadValue, SettingsError
from tests.agent.parts import Reports, reader

SECONDS = "a whole number of seconds, "
FAILING = {
    "No such file or directory": ("/nowhere",),
    "ended with exit code 1: out of luck": (sys.executable, "-c", "import sys; sys.exit('out of luck')"),
    "was ended by SIGKILL": (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"),
    "no end within": (sys.executable, "-c", "import time; time.sleep(3600)"),
    "its output is longer than": (sys.executable, "-c", "while True: print('x' * 1000)"),
    "returned an invalid answer": (sys.executable, "-c", 'print(\'{"own": {"METRICS_PORT": 70000}}\')'),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


def write(folder: Path, **values: str) -> None:
    for key, value in values.items():
        (folder / key).write_text(value)


class Here(SettingsReader):
    """Reader without a process per call; it counts the calls."""

    def __init__(self) -> None:
        self.asked = 0
        super().__init__()

    def _ask(self) -> SettingsReading:
        self.asked += 1
        return settings_reader.read()


class Loaded:
    """The configuration of an agent."""

    def __init__(self, settings: SettingsReader) -> None:
        self.state = AgentState("n")
        self.telemetry = Telemetry()
        self.reports = Reports(self.state)
        ledger = Ledger(self.state, None, self.telemetry)
        self.configuration = MountedConfiguration(settings, self.state, ledger, self.reports, self.telemetry)

    def interval(self) -> int:
        """Return the interval that is in force after one more read of the files."""
        self.configuration.reload()
        return self.state.settings.values.check_interval_seconds


@pytest.fixture
def here(config: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setenv("NODE_NAME", "n")
    monkeypatch.setenv("CONFIG_DIR", str(config))
    return Here()


@pytest.fixture
def settled(mocker: MockerFixture) -> None:
    """Treat all present files as if they were written long ago."""
    mocker.patch("time.time_ns", return_value=0)


def test_the_child_answers_what_would_be_read_here(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(config, CHECK_INTERVAL="77", TAINT_SEVERITY="REBOOT", DCGM_TIMEOUT="soon", REPAIR_SEVERITY="\x1b[2J")
    (config / "severity-overrides").write_text("\n# all\x00 of it \U0001f525\nxid 13 = RESET\n")
    (config / "MONITOR_TTL").write_bytes(b"\xff")
    monkeypatch.setenv("HOST_ROOT", "/höst")
    read = reader("n", config, HOST_ROOT="/höst")

    for key, value in {"NODE_NAME": "n", "CONFIG_DIR": str(config)}.items():
        monkeypatch.setenv(key, value)
    expected = settings_reader.read()
    assert expected.settings is not None
    settings = replace(expected.settings, seen=None)
    answered = [replace(read.read(), seen=None) for _ in ("the first", "another")]
    assert (read.own(), answered) == (expected.own, [settings, settings])
    assert settings.values.taint_severity is Severity.REBOOT
    assert [bad_value.key for bad_value in settings.bad] == ["MONITOR_TTL", "DCGM_TIMEOUT", "REPAIR_SEVERITY"]


def test_wrong_variables_are_named_as_they_would_be_here(config: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        reader("", config, LOG_LEVEL="loud").own()

    assert wrong.value.bad == (
        BadValue("NODE_NAME", "", "the name of a Node, of 1 to 253 characters", "environment"),
        BadValue("LOG_LEVEL", "loud", "allowed are debug, info, warning, error", "environment"),
    )


def test_what_a_child_says_of_a_file_that_it_leaves_out_is_passed_on(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").write_text("77")
    (config / "CHECK_INTERVAL").symlink_to(tmp_path / "elsewhere")

    assert reader("n", config).read().values.check_interval_seconds == 300
    assert f'"{config}/CHECK_INTERVAL" but it resolves outside of "{config}"' in capfd.readouterr().err


@pytest.mark.parametrize(("message", "program"), FAILING.items(), ids=FAILING)
def test_where_no_child_answers_at_the_start_the_agent_reads_by_itself(
    config: Path,
    message: str,
    program: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    mocker: MockerFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(config, CHECK_INTERVAL="77")
    monkeypatch.setenv("NODE_NAME", "n")
    monkeypatch.setenv("CONFIG_DIR", str(config))
    mocker.patch.object(settings_reader, "isolated", return_value=program)
    if message == "no end within":  # the other programs need their time on a loaded machine
        mocker.patch.object(settings_reader, "LONGEST_SECONDS", 0.5)
    loaded = Loaded(SettingsReader())

    assert loaded.interval() == 77
    text = capsys.readouterr().err
    assert text.startswith("gpu-healthcheck agent: the agent's own process reads the settings: the child that reads")
    assert message in text

    # Later the settings in force stay: they are valid, and no answer contradicts them.
    write(config, CHECK_INTERVAL="78", MONITOR_TTL="never")
    assert loaded.interval() == 77
    assert (loaded.state.settings.bad, loaded.reports.warnings) == ((), [])
    mocker.stopall()
    assert loaded.interval() == 78
    assert [value.key for value in loaded.state.settings.bad] == ["MONITOR_TTL"]
    write(config, MONITOR_TTL="120")
    assert loaded.interval() == 78


def test_a_shortage_is_no_wrong_value(here: Here, config: Path, mocker: MockerFixture) -> None:
    mocker.patch.object(
        settings_reader, "read", return_value=SettingsReading(here.own(), shortage="no descriptor is free")
    )
    here.read()

    with pytest.raises(Shortage, match="no descriptor is free"):
        here.read()


@pytest.mark.usefixtures("settled")
def test_files_that_did_not_change_cost_no_child(here: Here, config: Path) -> None:
    loaded = Loaded(here)
    write(config, CHECK_INTERVAL="77")

    assert [loaded.interval() for _ in range(3)] == [300, 77, 77]
    assert here.asked == 2
    write(config, CHECK_INTERVAL="78")
    assert [loaded.interval() for _ in range(3)] == [78, 78, 78]
    assert here.asked == 3


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
def test_a_wrong_value_is_read_and_reported_once(here: Here, config: Path, key: str, value: bytes) -> None:
    loaded = Loaded(here)
    write(config, CHECK_INTERVAL="77")
    assert loaded.interval() == 300
    assert loaded.interval() == 77

    (config / key).write_bytes(value)

    assert [loaded.interval() for _ in range(3)] == [77, 77, 77]
    assert here.asked == 3
    assert [bad_value.key for bad_value in loaded.state.settings.bad] == [key]
    assert len(loaded.reports.warnings) == 1


@pytest.mark.usefixtures("settled")
def test_a_file_that_can_not_be_read_now_is_tried_again_at_each_look(
    here: Here, config: Path, mocker: MockerFixture
) -> None:
    loaded = Loaded(here)
    loaded.interval()
    write(config, CHECK_INTERVAL="77")
    broken = mocker.patch("pathlib.Path.read_text", side_effect=OSError(errno.EIO, "Input/output error"))

    assert [loaded.interval() for _ in range(3)] == [300, 300, 300]
    assert [(value.key, value.passing) for value in loaded.state.settings.bad] == [("CHECK_INTERVAL", True)]
    mocker.stop(broken)
    assert loaded.interval() == 77
    assert (here.asked, len(loaded.reports.warnings)) == (5, 1)


def test_what_was_just_written_is_read_again_at_the_next_look(here: Here, config: Path, mocker: MockerFixture) -> None:
    loaded = Loaded(here)
    loaded.interval()
    write(config, CHECK_INTERVAL="77")
    mocker.patch("time.time_ns", return_value=(config / "CHECK_INTERVAL").stat().st_ctime_ns)

    assert [loaded.interval(), loaded.interval()] == [77, 77]
    assert here.asked == 3
