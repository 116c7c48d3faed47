"""Completions that a shell and kubectl are offered for the current word."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import pytest
import yaml

from gpu_healthcheck.cli import __main__ as started
from gpu_healthcheck.cli import app as commands
from gpu_healthcheck.cli.completion import Shell
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.cli.test_exit_codes import unreachable
from tests.console import typed
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
P = "gpu-healthcheck.aws-samples.io"


def offered(capsys: pytest.CaptureFixture[str], *words: str, **variables: str) -> tuple[list[str], str]:
    """Return the words without their descriptions, and the directive."""
    environment = {"HOME": "/nowhere", "PATH": os.environ["PATH"], **variables}
    with mock.patch.dict(os.environ, environment, clear=True), mock.patch.object(commands, "end_with_whoever_reads"):
        commands.complete(list(words))
    *messages, directive = capsys.readouterr().out.splitlines()
    return [line.partition("\t")[0] for line in messages], directive


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (("rel",), ["release"]),
        (("status", "-o", ""), ["table", "wide", "json", "yaml", "name", "html"]),
        (("status", "-o", "y"), ["yaml"]),
        (("status", "--no"), ["--no-headers"]),
        (("diagnose", "sta"), ["statefulset"]),
        (("explain", "GpuCountL"), ["GpuCountLow"]),
        (("explain", "CHECK_INT"), ["CHECK_INTERVAL"]),
        (("explain", "cudaErrorSystemNot"), ["cudaErrorSystemNotReady"]),
        (("replay", "--as", "b"), ["bug-report"]),
        (("completion", ""), list(Shell)),
    ],
)
def test_completion_offers_our_words(
    words: tuple[str, ...], messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(capsys, *words) == (messages, ":4")


def test_commands_are_listed_with_their_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    commands_offered, directive = offered(capsys, "")

    assert {"status", "quarantine", "completion"} <= set(commands_offered)
    assert not {"sweep-run", "__complete"} & set(commands_offered)
    assert directive == ":4"


@pytest.mark.parametrize("words", [("replay", ""), ("status", "--kubeconfig", ""), ("nonsense", "")])
def test_completion_leaves_unknown_values_to_the_shell(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(capsys, *words)[1] in (":0", ":4")
    assert "Traceback" not in capsys.readouterr().err


def test_completion_keeps_a_description_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words, _ = offered(capsys, "status", "--")

    assert [word for word in words if not word.startswith("--")] == []


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with ApiStandIn("gpu-node-1", "gpu-node-2", "cpu-node") as api:
        for name in ("gpu-node-1", "gpu-node-2"):
            api.edit_node(name, {"metadata": {"labels": {f"{P}/status": "pass"}}})
        yield {"KUBECONFIG": str(api.kubeconfig(tmp_path / "config"))}


def test_completion_offers_the_clusters_nodes(
    kubeconfig: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(capsys, "release", "", **kubeconfig) == (["gpu-node-1", "gpu-node-2"], ":4")
    assert offered(capsys, "quarantine", "gpu-node-2", "gpu", **kubeconfig) == (["gpu-node-1"], ":4")
    assert offered(capsys, "diagnose", "node", "", **kubeconfig) == (["gpu-node-1", "gpu-node-2"], ":4")


def test_completion_uses_the_cluster_of_the_typed_options(
    kubeconfig: Mapping[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    named = ("--kubeconfig", kubeconfig["KUBECONFIG"])

    assert offered(capsys, "release", *named, "")[0] == ["gpu-node-1", "gpu-node-2"]
    assert offered(capsys, "release", "--kubeconfig", unreachable(tmp_path), "", **kubeconfig)[0] == []


def test_completion_offers_only_names_as_contexts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """zsh evaluates completions."""
    names = ["arn:aws:eks:us-west-2:1:cluster/a", "$(touch pwned)", "`id`", "it's", "a b", "plain", "\x1b[2J"]
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({"contexts": [{"name": name, "context": {}} for name in names]}))

    assert offered(capsys, "status", "--context", "", KUBECONFIG=str(path))[0] == [names[0], "plain"]


@pytest.mark.parametrize(
    "plugin",
    [
        "echo $$ >>pids; trap '' TERM INT HUP; sleep 1000 & echo $! >>pids; echo who are you >&2; wait",
        "echo who are you >&2; read -r name </dev/tty; exit 1",
        "echo no JSON",
    ],
)
def test_completion_limits_the_time_of_a_login_program(tmp_path: Path, plugin: str) -> None:
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", plugin]}
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"exec": {**run, "interactiveMode": "Never"}}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(tmp_path / "config"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "cli", "__complete", "release", ""]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, ":0\n", "")
    pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize("shell", [text for text in Shell if text is not Shell.KUBECTL])
def test_a_shell_gets_its_completion_script(shell: str) -> None:
    message = typed(["completion", shell], {}).stdout.decode()

    assert "gpu-healthcheck" in message
    assert f"_GPU_HEALTHCHECK_COMPLETE=complete_{shell}" in message


def test_bash_completes_with_the_offered_words() -> None:
    """The command receives the variables of bash's own completion."""
    environment = {"_GPU_HEALTHCHECK_COMPLETE": "complete_bash", "COMP_WORDS": "gpu-healthcheck rel", "COMP_CWORD": "1"}

    assert typed([], environment).stdout.decode().split() == ["release"]


ARN = "arn:aws:eks:us-west-2:1:cluster/a"


@pytest.mark.parametrize(
    ("line", "words", "replies"),
    [
        ("--context ar", ["--context", "ar"], [ARN]),
        ("--context arn:aws:e", ["--context", "arn", ":", "aws", ":", "e"], [ARN.removeprefix("arn:aws:")]),
        ("--context arn:", ["--context", "arn", ":"], [ARN.removeprefix("arn:")]),
        ("--context=arn:a", ["--context", "=", "arn", ":", "a"], [ARN.removeprefix("arn:")]),
        ("--reason 'a b' --context ", ["--reason", "'a b'", "--context", ""], [ARN, "plain"]),
    ],
)
def test_bash_completes_a_context_behind_its_colons(
    line: str, words: list[str], replies: list[str], tmp_path: Path
) -> None:
    """bash breaks words at colons and equals signs, and replaces only the text behind the last one."""
    contexts = [{"name": name, "context": {}} for name in (ARN, "plain")]
    (tmp_path / "config").write_text(yaml.safe_dump({"contexts": contexts}))
    program, line = tmp_path / "gpu-healthcheck", f"gpu-healthcheck release {line}"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    program.chmod(0o755)
    split = " ".join(f'"{word}"' for word in ("gpu-healthcheck", "release", *words))
    script = typed(["completion", "bash"], {}).stdout.decode()
    script += f"""
        COMP_WORDS=({split}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE="{line}" COMP_POINT={len(line)}
        _gpu_healthcheck_completion '{program}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(tmp_path / "config"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)

    assert (done.stdout.split(), done.stderr) == (replies, "")


def test_the_script_for_kubectl_is_one_of_a_shell() -> None:
    script = typed(["completion", "kubectl"], {}).stdout
    assert subprocess.run(["sh", "-n"], input=script, check=False).returncode == 0


def test_kubectl_runs_the_file_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    textses: list[list[str]] = []
    monkeypatch.setattr("sys.argv", ["kubectl_complete-gpu_healthcheck", "release", ""])
    monkeypatch.setattr(commands, "complete", textses.append)
    started.main_for_kubectl()

    assert textses == [["release", ""]]
