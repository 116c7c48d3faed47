"""The command as a person or the CronJob starts it, before there is any cluster to speak to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": "/nowhere", **variables}
    command = [sys.executable, "-m", "cli", "sweep", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_command_is_the_sweepers_own_program() -> None:
    done = run("--help")
    assert (done.returncode, "--dry-run" in done.stdout) == (0, True)


def test_missing_cluster_is_reported() -> None:
    done = run("--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpu-healthcheck sweep: can't connect to a cluster" in done.stderr


@pytest.mark.parametrize(("words", "variables", "code"), [(["--now"], {}, 3), ([], {"LOG_LEVEL": "loud"}, 3)])
def test_wrong_usage_is_no_failure_of_the_cluster(words: list[str], variables: dict[str, str], code: int) -> None:
    assert run(*words, **variables).returncode == code


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("MAX_NODES_PER_SWEEP", "ten", b"MAX_NODES_PER_SWEEP = 'ten': a whole number, 1 to 5000"),
        (
            "SWEEP_IMAGE",
            "registry.example.com/x:1",
            b"the image of a sweep is set in the CronJob gpu-healthcheck-sweep-node",
        ),
    ],
)
def test_an_ignored_setting_is_reported(tmp_path: Path, key: str, value: str, words: bytes) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / key).write_text(value)
    (tmp_path / "server.yaml").write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        "clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: x, user: {token: x}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n"
    )
    environment = {"KUBECONFIG": str(tmp_path / "server.yaml"), "CONFIG_DIR": str(tmp_path / "config")}
    command = [sys.executable, "-m", "sweeper", "--dry-run"]
    with subprocess.Popen(command, env=environment | {"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        raw = process.stderr.readline()  # while it still asks for the cluster
        process.terminate()

    assert key.encode() in raw
    assert words in raw
