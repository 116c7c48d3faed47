"""Help text of each command: names as they are typed, and no types."""

from __future__ import annotations

import re
import sys

import pytest
from typer.testing import CliRunner

from gpu_healthcheck.agent.process import agent_program
from gpu_healthcheck.cli import __main__ as started
from gpu_healthcheck.cli import app as commands
from gpu_healthcheck.cli import gate as gate_program
from gpu_healthcheck.cli.app import COMMANDS, app
from gpu_healthcheck.quarantine import __main__ as quarantine_program
from gpu_healthcheck.sweeper import __main__ as sweeper_program
from tests.console import typed

PROGRAMS = {
    "agent": agent_program,
    "sweep": sweeper_program,
    "quarantine-run": quarantine_program,
    "gate": gate_program,
}


def helped(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "-h"], env={"COLUMNS": "80"})
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", [*COMMANDS, *PROGRAMS])
def test_help_has_no_types_and_no_frames(name: str) -> None:
    message = helped(name)

    assert re.findall(r"<|>|\[\[|\{|…\]|─|range", message) == []
    assert max(map(len, message.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_the_usage(name: str) -> None:
    first, *_ = helped(name).splitlines()

    assert re.fullmatch(rf"Usage: gpu-healthcheck {name}( \[?[A-Z ]+(\.\.\.)?\]?)* \[options\]", first)


def test_help_of_the_plugin_names_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-gpu_healthcheck"])

    assert commands.called() == "kubectl gpu-healthcheck"


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_of_a_program_lists_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        vars(PROGRAMS[name])["_options"](["-h"])
    own = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))

    assert set(re.findall(r"^  .*?(--[a-z-]+)", helped(name), re.MULTILINE)) == own


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_of_a_program_starts_no_program(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu-healthcheck", "sweep", word])
    monkeypatch.setattr(commands, "run", lambda: None)

    started.main()


def test_help_describes_shared_options_alike() -> None:
    meanings: dict[str, set[str]] = {}
    for name in COMMANDS:
        for line in re.findall(r"^  ((?:-\w, )?--.*?)(?:$|  )(.*)", _unwrapped(name), re.MULTILINE):
            meanings.setdefault(line[0].split()[-1] if " " not in line[0] else line[0], set()).add(line[1].strip())

    shared = (
        "--context NAME",
        "--kubeconfig FILE",
        "--request-timeout TIME",
        "--instance-type TYPE",
        "--prometheus URL",
    )
    assert {name: len(meanings[name]) for name in shared} == dict.fromkeys(shared, 1)


def _unwrapped(name: str) -> str:
    done = typed([name, "-h"], {"COLUMNS": "400"})
    return re.sub(r"\n {6,}", " ", done.stdout.decode())
