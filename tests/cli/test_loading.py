"""Imports of the console script: the file of the called command, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import COMMANDS, PROGRAMS, app, command_of

ROOT = Path(__file__).parents[2]
LOADED = """
import sys
from gpu_healthcheck.cli.app import app
app({words!r}, standalone_mode=False)
print()
print(*sys.modules)
"""
CHECKS = "gpu_healthcheck.healthcheck.checks"


def loaded(*words: str) -> set[str]:
    program = LOADED.format(words=list(words))
    return set(subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).splitlines()[-1].split())


def test_version_loads_no_other_command_and_no_client() -> None:
    modules = loaded("version")

    assert "gpu_healthcheck.cli.app" in modules
    assert {f"gpu_healthcheck.cli.{name}" for name in COMMANDS} & modules == {"gpu_healthcheck.cli.version"}
    assert not {"kubernetes", "pydantic", "rich", "structlog", CHECKS} & modules


def test_explain_loads_no_other_command_and_no_client() -> None:
    modules = loaded("explain", "79")

    assert {f"gpu_healthcheck.cli.{name}" for name in COMMANDS} & modules == {"gpu_healthcheck.cli.explain"}
    assert not {"kubernetes", "urllib3", "pydantic", CHECKS} & modules


def test_replay_of_a_log_loads_few_checks_and_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFIG_DIR", str(tmp_path / "none"))
    log = tmp_path / "dmesg.txt"
    log.write_text("[ 1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20\n")
    modules = loaded("replay", str(log))

    assert f"{CHECKS}.xid" in modules
    assert (
        not {
            "pydantic",
            "gpu_healthcheck.healthcheck.settings",
            f"{CHECKS}.listed",
            "kubernetes",
        }
        & modules
    )


def test_check_without_settings_loads_no_pydantic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFIG_DIR", str(tmp_path / "none"))

    assert not {"pydantic", "kubernetes"} & loaded("check", "memlock", "--root", str(tmp_path))


def test_diagnose_of_a_saved_state_loads_no_client(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text('{"apiVersion": "v1", "kind": "List", "items": []}')

    assert not {"kubernetes", "jinja2", "pydantic", f"{CHECKS}.listed"} & loaded("diagnose", "--from", str(state))


@pytest.mark.parametrize("words", [("-h",), ("__complete", "")], ids=" ".join)
def test_command_list_loads_no_command(words: tuple[str, ...]) -> None:
    program = f"import sys; sys.argv[1:] = {[*words]!r}; import atexit; atexit.register(lambda: print(*sys.modules))"
    shown = subprocess.check_output(
        [sys.executable, "-c", f"{program}\nfrom gpu_healthcheck.cli.__main__ import main; main()"], cwd=ROOT, text=True
    )

    assert not {f"gpu_healthcheck.cli.{name}" for name in COMMANDS if name != "completion"} & {
        *shown.splitlines()[-1].split()
    }
    assert [name for name in COMMANDS if name not in shown] == []


@pytest.mark.parametrize(("name", "line"), (COMMANDS | PROGRAMS).items(), ids=COMMANDS | PROGRAMS)
def test_command_help_begins_with_its_line_in_the_list(name: str, line: str) -> None:
    assert (command_of(name).help or "").partition("\n")[0] == line
    assert CliRunner().invoke(app, [name, "-h"]).output.startswith(f"Usage: gpu-healthcheck {name} ")


def test_misspelled_command_is_answered_with_a_similar_one() -> None:
    assert "Did you mean 'status'?" in CliRunner().invoke(app, ["statu"]).output
