"""Every option of every command with an invalid value: the error lists the allowed ones, with exit code 3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec import Struct

from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.cli.app import app
from gpu_healthcheck.healthcheck.settings.job_program import JobSettings
from gpu_healthcheck.healthcheck.settings.reading import SettingsError, complain_of_environment, read_variables
from gpu_healthcheck.sweeper.settings import SweeperSettings, SweepRunSettings
from tests.console import typed

ARGUMENTS = {
    "completion": ("bash",),
    "quarantine": ("a",),
    "release": ("a", "--reason", "x"),
    "replay": ("/nowhere",),
}
TIME = "is not a duration such as 90, 90s, 2m or 1h30m"
PATH = "the path of a file or folder is empty"
WRONG: dict[str, tuple[tuple[str, str], ...]] = {
    "--output": (("nonsense", "'nonsense': allowed are "), ("", "'': allowed are "), ("JSON", "'JSON': allowed are ")),
    "--as": (("nonsense", "'nonsense': allowed are kernel-log, bug-report, dcgm, evidence"),),
    "--request-timeout": (("nonsense", TIME), ("", TIME), ("-5", TIME)),
    "--timeout": (("nonsense", TIME), ("", TIME), ("-5", TIME)),
    "--max-workers": tuple(
        (one, "1 to 64 are allowed") for one in ("nonsense", "", "-5", "65", "1e1", "٣", "9" * 5000)
    ),
    "--allow": tuple(
        (one, "a number of nodes such as 2 is allowed") for one in ("nonsense", "", "-5", "1e1", "٣", "9" * 5000)
    ),
    "--interval": tuple((one, "20 to 600 seconds are allowed") for one in ("nonsense", "", "-5", "19", "601", "1e2")),
    "--prometheus": (("nonsense", "it must start with http:// or https:// and have a host"),),
    "--probe-nodes": (
        ("", "'' is not a valid node name"),
        ("a,,b", "'' is not a valid node name"),
        ("A b", "'A b' is not a valid node name"),
    ),
    "--gpu": (
        ("", "a GPU is named by its UUID, its PCI address or its index"),
        ("GPU-1", "a GPU is named by its UUID, its PCI address or its index"),
    ),
    "--reason": (
        ("", "the reason is empty"),
        ("  ", "the reason is empty"),
    ),
    "--root": (("", PATH),),
    "--save-evidence": (("", PATH),),
    "--from": (("", PATH),),
    "--save": (("", PATH),),
    "--since": (("", PATH),),
    "--would-fit": (("", PATH),),
}
FREE = {
    *("--context", "--kubeconfig", "--namespace", "--probe-namespace", "--selector"),  # the cluster knows the values
    *("--instance-type", "--probe-image", "--by"),
}


PROGRAMS = {"agent", "sweep", "sweep-run", "quarantine-run", "gate"}


def options() -> Iterator[tuple[str, Any]]:
    """Yield the options with values of every command that is no separate program."""
    commands: Any = typer.main.get_command(app)
    for name in commands.list_commands(None):
        _, command, _ = commands.resolve_command(None, [name])
        if not command.hidden and name not in PROGRAMS:
            yield from (
                (name, param) for param in command.params if param.param_type_name == "option" and not param.is_flag
            )


CASES = [
    (command, option.opts[0], value, said)
    for command, option in options()
    for value, said in WRONG.get(option.opts[0], ())
]


def test_each_option_is_tried_or_takes_any_value() -> None:
    assert {option.opts[0] for _, option in options()} == WRONG.keys() | FREE


def said_to(*words: str) -> tuple[int, str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "CONFIG_DIR": "/nowhere"}
    done = typed(words, environment)
    return done.returncode, done.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(("command", "option", "value", "message"), CASES)
def test_invalid_value_is_answered_with_the_allowed_ones(
    command: str, option: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, line = said_to(command, *ARGUMENTS.get(command, ()), option, value)

    assert code == 3
    assert line.startswith(f"Error: Invalid value for '{option}'")
    assert message in line
    assert not any(word in line for word in ("Value error", "Input should"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["release", "quarantine"])
def test_zero_wait_is_refused(command: str) -> None:
    result = said_to(command, *ARGUMENTS[command], "--timeout", "0")
    assert result == (3, "Error: Invalid value for '--timeout': must be more than 0")


@pytest.mark.parametrize("word", ["nonsense", ""])
def test_unknown_shell_is_refused(word: str) -> None:
    expected = f"Error: Invalid value for 'SHELL': '{word}': allowed are bash, zsh, fish, kubectl"
    assert said_to("completion", word) == (3, expected)


def test_typed_text_is_escaped_in_errors() -> None:
    assert said_to("version", "-o", "\x1b[31m\nx") == (
        3,
        r"Error: Invalid value for '--output' / '-o': '\\x1b[31m\\nx': allowed are json, yaml",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("status", "--prometheus", "http://a:1"), "--prometheus needs --allocation"),
        (("status", "-o", "html", "-w"), "without --watch and --allocation"),
        (("status", "-o", "name", "-w"), "without --watch and --allocation"),
        (("status", "--allocation", "-l", "a=b"), "without --watch, -l and --no-headers"),
        (
            ("diagnose", "--from", "x", "--probe-nodes", "a"),
            "--probe-nodes checks nodes now and --from reads a saved state: use one of them",
        ),
        (
            ("diagnose", "--from", "x", "--prometheus", "http://a:1"),
            "--prometheus reads current values and --from reads a saved state: use one of them",
        ),
        (("diagnose", "node", "a", "--would-fit", "x"), "--would-fit allows no KIND NAME"),
        (("diagnose", "--would-fit", "x", "-o", "html"), "--would-fit allows no KIND NAME"),
        (("diagnose", "pod"), "expected pod NAMESPACE/NAME, node NAME, a workload such as job/NAME, or hami"),
        (("check", "--json", "-o", "yaml"), "--json means -o json, but -o yaml was given too"),
        (("replay", "-o", "yaml", "/nowhere", "--json"), "--json means -o json, but -o yaml was given too"),
        (("diagnose", "-o", "terminal", "--json"), "--json means -o json, but -o terminal was given too"),
        (("release", "a"), "Missing option '--reason'"),
        (("release", "--reason", "x"), "give node names or -l SELECTOR"),
        (("release", "a", "-l", "b=c", "--reason", "x"), "give node names or -l SELECTOR"),
        (("quarantine",), "Missing argument 'NODE...'"),
        (("nonsense",), "No such command 'nonsense'"),
    ],
)
def test_conflicting_options_are_refused(words: tuple[str, ...], message: str) -> None:
    code, line = said_to(*words)
    assert (code, message in line) == (3, True), line


@pytest.mark.parametrize("command", [("replay", "/nowhere"), ("diagnose", "--from", "/nowhere")])
def test_json_option_and_output_json_may_be_combined(command: tuple[str, ...]) -> None:
    assert said_to(*command, "--json", "-o", "json") == said_to(*command, "--json")


LEVELS = "allowed are debug, info, warning, error"
NAME = "the name of a Node, of 1 to 253 characters"
PORT = "a whole number, 0 to 65535"
FOLDER = "the path of a folder from the root, beginning with /"


@pytest.mark.parametrize(
    ("settings", "key", "value", "message"),
    [
        *((one, "LOG_LEVEL", "loud", LEVELS) for one in (AgentSettings, SweeperSettings, JobSettings)),
        *((one, "NODE_NAME", "", NAME) for one in (AgentSettings, SweepRunSettings, JobSettings)),
        (AgentSettings, "NODE_NAME", "n" * 254, NAME),
        *((AgentSettings, "METRICS_PORT", text, PORT) for text in ("many", "", "-1", "65536", "1e3", "٣", "9" * 20)),
        *((AgentSettings, key, "", FOLDER) for key in ("HOST_ROOT", "CONFIG_DIR", "STATE_DIR")),
        *((one, "HOST_ROOT", "host", FOLDER) for one in (SweepRunSettings, JobSettings)),
        (JobSettings, "REPORT_DIR", ".", FOLDER),
    ],
)
def test_invalid_variable_of_a_program_is_answered_with_the_allowed_ones(
    settings: type[Struct],
    key: str,
    value: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NODE_NAME", "a")
    monkeypatch.setenv(key, value)
    with pytest.raises(SettingsError) as wrong:
        read_variables(settings)

    assert complain_of_environment("agent", wrong.value) == 3
    assert capsys.readouterr().err == f"gpu-healthcheck agent: {key} = {value!r}: {message}\n"
