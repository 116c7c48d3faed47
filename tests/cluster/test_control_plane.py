"""The test control plane: its audit log, its end without leftovers, and its messages without programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpu_healthcheck.sim.control_plane import ControlPlane, binaries
from tests.waiting import eventually
from tools.go_programs.build import NoProgramError


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.cluster
def test_the_audit_log_counts_the_requests_of_each_agent(installed: ControlPlane) -> None:
    installed.create_node("audited")
    kubeconfig = installed.agent_kubeconfig("audited")
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    start = datetime.now(UTC)

    for _ in range(3):
        assert installed.request("GET", "/api/v1/nodes/audited", token=token).status == 200

    claim = "authentication.kubernetes.io/node-name"

    def asked() -> list[str]:
        ours = (e for e in installed.audit(start) if e["user"].get("extra", {}).get(claim) == ["audited"])
        return [event["verb"] for event in ours]

    eventually(lambda: len(asked()) >= 3)  # the log may be written a moment after the answer was sent
    assert asked() == ["get", "get", "get"]


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind_however_it_ends(control_plane: ControlPlane, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "sim.control_plane", "up"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as up:
        assert up.stdout is not None
        folder = Path(up.stdout.readline().strip().removeprefix("export KUBECONFIG=")).parent
        pids = [int(file.read_text()) for file in folder.glob("*.pid")]
        up.send_signal(number)

    assert len(pids) == 2
    eventually(lambda: not folder.exists() and not any(map(is_alive, pids)))


def test_assets_that_lack_a_program_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    with pytest.raises(NoProgramError, match="has no kube-apiserver, kubectl"):
        binaries()


def test_without_assets_cache_and_go_the_message_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(
        NoProgramError, match=r"control-plane is missing, and there is no Go .*, and KUBEBUILDER_ASSETS is not set"
    ):
        binaries()
