"""docs/holmesgpt-toolset.yaml: its commands, run as HolmesGPT runs them.

HolmesGPT 0.45 (holmes/core/tools.py) quotes each parameter for a shell, except an empty one, fills them into the
command as a Jinja template, and runs that with a shell. A parameter that a model gives as null becomes the text "None".
The command line must know the result, and no parameter may escape.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Template

from gpu_healthcheck.cli.app import COMMANDS, command_of
from tests.cli.cluster import ROOT

FILE = ROOT / "docs/holmesgpt-toolset.yaml"
TOOLSET = yaml.safe_load(FILE.read_text())["toolsets"]["gpu-healthcheck"]
TOOLS = {tool["name"]: tool for tool in TOOLSET["tools"]}
XID_79 = "[   12.345678] NVRM: Xid (PCI:0000:53:00): 79, pid=1, GPU has fallen off the bus."
HOSTILE = (
    "; touch escaped",
    "$(touch escaped)",
    "`touch escaped`",
    "' || touch escaped '",
    "--kubeconfig=/x",
    "a\nb",
    "*",
)
READ_ONLY = {"status", "diagnose", "explain", "replay", "version"}


def rendered(tool: dict[str, Any], parameters: Mapping[str, str | None]) -> str:
    """Return the command as HolmesGPT fills it."""
    quoted = {name: shlex.quote(str(text)) if text != "" else "" for name, text in parameters.items()}
    command: str = Template(os.path.expandvars(tool["command"])).render(quoted)
    return command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a `gpu-healthcheck` that records its arguments, and exits as the file `code` says."""
    record = f"import json, sys; json.dump(sys.argv[1:], open({str(tmp_path / 'words')!r}, 'w'))"
    program = tmp_path / "gpu-healthcheck"
    program.write_text(f'#!/bin/sh\n{sys.executable} -c "{record}" "$@"\nexit $(cat {tmp_path}/code)\n')
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    return tmp_path


def words_of(command: str, folder: Path, code: int = 0) -> list[str]:
    """Run the command, and return the arguments that `gpu-healthcheck` gets."""
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        shell=True,
        executable="/bin/bash",
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, b"")
    words: list[str] = json.loads((folder / "words").read_text())
    return words


def test_toolset_has_the_keys_of_holmesgpt() -> None:
    assert TOOLSET["enabled"] is True
    assert {*TOOLSET} == {"description", "enabled", "prerequisites", "tools"}
    assert [{*tool} - {"name", "description", "command", "parameters"} for tool in TOOLSET["tools"]] == [set()] * 5
    assert all(tool["description"] for tool in TOOLSET["tools"])


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize("text", ["", "word", *HOSTILE])
def test_commands_are_known_and_no_parameter_escapes(tool: dict[str, Any], text: str, folder: Path) -> None:
    name, *words = words_of(rendered(tool, dict.fromkeys(tool["parameters"], text)), folder)

    assert name in READ_ONLY & {*COMMANDS}
    command = command_of(name)
    options = command.make_parser(command.context_class(command)).parse_args([*words])[0]
    assert options["output"] == "json"
    assert "kubeconfig" not in options
    assert {path.name for path in folder.iterdir()} == {"gpu-healthcheck", "code", "words"}


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("status", {}, ["status", "-o", "json", "--selector="]),
        ("status", {"selector": None}, ["status", "-o", "json", "--selector="]),
        ("status", {"selector": "rack in (7, 8)"}, ["status", "-o", "json", "--selector=rack in (7, 8)"]),
        ("status_of_node", {"node": "gpu-1"}, ["status", "-o", "json", "--", "gpu-1"]),
        ("diagnose", {}, ["diagnose", "-o", "json", "--namespace=", "--"]),
        (
            "diagnose",
            {"kind": None, "name": None, "in_namespace": None},
            ["diagnose", "-o", "json", "--namespace=", "--"],
        ),
        (
            "diagnose",
            {"kind": "pod", "name": "train-0", "in_namespace": "ml"},
            ["diagnose", "-o", "json", "--namespace=ml", "--", "pod", "train-0"],
        ),
        ("explain", {"word": "cuda 802"}, ["explain", "-o", "json", "--", "cuda 802"]),
        ("replay", {"log": XID_79}, ["replay", "-o", "json", "-"]),
    ],
)
def test_parameters_are_arguments(name: str, parameters: dict[str, str | None], words: list[str], folder: Path) -> None:
    assert words_of(rendered(TOOLS[f"gpu_healthcheck_{name}"], parameters), folder) == words


@pytest.mark.parametrize(("code", "counted"), [(0, 0), (1, 0), (2, 1), (3, 1)])
@pytest.mark.parametrize("name", ["diagnose", "replay"])
def test_causes_and_faults_are_no_failure_of_the_tool(name: str, code: int, counted: int, folder: Path) -> None:
    (folder / "code").write_text(str(code))

    words_of(rendered(TOOLS[f"gpu_healthcheck_{name}"], {"log": XID_79}), folder, counted)


def test_replayed_log_is_the_parameter(tmp_path: Path) -> None:
    program = tmp_path / "gpu-healthcheck"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    program.chmod(0o755)
    command = rendered(TOOLS["gpu_healthcheck_replay"], {"log": f"{XID_79}\n{XID_79}"})
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "CONFIG_DIR": "/nowhere"}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert [row["reason"] for row in json.loads(done.stdout)["findings"]] == ["Xid79"]
