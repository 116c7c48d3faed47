"""The agent in its pod with a real kubelet and containerd: recognised runtime, and loaded configuration."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from gpu_healthcheck.sim.real_node.arguments import CONTAINERD_CONFIGURATION, CONTAINERD_SOCKET
from gpu_healthcheck.sim.real_node.nvidia_runtime import PROGRAM
from gpu_healthcheck.sim.real_node.running import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.world import NodeView
    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

FILE = "/etc/containerd/config.toml"
EDITED = f"""{CONTAINERD_CONFIGURATION}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-legacy]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-legacy.options]
      BinaryName = "{PROGRAM}"
"""


@pytest.fixture
def edited(agent: Stage) -> Iterator[Stage]:
    """A handler was put into its file, and it runs on as it is; the agent looks every ten seconds."""
    agent.configure(CHECK_INTERVAL="10")
    _write(agent, EDITED)
    yield agent
    _write(agent, CONTAINERD_CONFIGURATION)
    _restart_containerd(agent)
    agent.wait(lambda node: _row(node) == "pass")


def _row(node: NodeView) -> str:
    """Return the record's row of the container runtime; other findings of the story may be active."""
    found = [entry["status"] for entry in node.record["checks"] if entry["check"] == "7-container-runtime"]
    return str(found[0])


def _write(stage: Stage, text: str) -> None:
    stage.node.run("sh", "-c", f"cat >{FILE}", input=text)


def _restart_containerd(stage: Stage) -> None:
    stage.node.stop("containerd")
    stage.node.start_containerd()
    stage.node.wait_until(stage.node.is_ready, "the Node is Ready")


def _check(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    return stage.in_pod("gpu-healthcheck", "check", "7", *words, check=False)


def _version(stage: Stage) -> str:
    """Return the version that the running one reports, without the name of its build."""
    message: str = stage.view().object["status"]["nodeInfo"]["containerRuntimeVersion"]
    return message.removeprefix("containerd://")


def test_the_kubelets_own_is_named_with_what_it_has_loaded(agent: Stage) -> None:
    lines = {line.split()[1]: line for line in _check(agent).stdout.splitlines() if line.startswith("7 ")}

    for line in (lines["container-runtime"], lines["runtime-loaded"]):
        assert f" containerd {_version(agent)}" in line
    assert f" at {CONTAINERD_SOCKET}, {FILE}: nvidia, runc (default) " in lines["container-runtime"]
    assert f"(containerRuntimeEndpoint in {FOLDER / 'kubelet.json'})" in lines["container-runtime"]
    assert lines["runtime-loaded"].endswith(" answers with nvidia, runc")
    assert lines["runtime-binary"].endswith(PROGRAM)


def test_the_processes_by_which_it_is_known_are_the_nodes_own(agent: Stage) -> None:
    pids = agent.on_node("pidof containerd; pidof kubelet").split()

    evidence = "".join(_check(agent, "-v").stdout.split())

    assert f"pid={pids[0]}," in evidence
    assert f"Kubelet(name='kubelet',pid={pids[1]}," in evidence


def test_its_row_is_in_the_record(agent: Stage) -> None:
    record: dict[str, Any] = json.loads(_check(agent, "--json").stdout)

    assert record["checks"] == [{"check": "7-container-runtime", "status": "pass", "severity": "PASS"}]
    assert agent.wait(lambda node: _row(node) == "pass")


def test_an_edit_without_a_restart_is_reported_and_ends_with_the_restart(edited: Stage) -> None:
    found = edited.wait(lambda node: "RuntimeConfigNotLoaded" in node.findings).findings["RuntimeConfigNotLoaded"]
    assert (found["subject"], found["severity"]) == ("runtime/containerd", "MONITOR")
    assert "nvidia-legacy is defined, but the running containerd does not know it" in found["detail"]
    assert _row(edited.view()) == "warn"

    _restart_containerd(edited)

    assert "RuntimeConfigNotLoaded" not in edited.wait(lambda node: _row(node) == "pass").findings


def test_a_file_that_stops_containerd_is_reported_with_its_line_until_it_is_fixed(agent: Stage) -> None:
    agent.configure(CHECK_INTERVAL="10")
    _write(agent, f"{CONTAINERD_CONFIGURATION}[plugins\n")
    line = CONTAINERD_CONFIGURATION.count("\n") + 1

    found = agent.wait(lambda node: "RuntimeConfigMalformed" in node.findings).findings["RuntimeConfigMalformed"]
    refused = agent.node.run("containerd", "config", "dump", check=False)
    _write(agent, CONTAINERD_CONFIGURATION)
    node = agent.wait(lambda node: _row(node) == "pass")

    assert f"{FILE}, line {line}, column " in found["detail"]
    assert (refused.returncode, f"({line}, " in refused.stderr) == (1, True), refused.stderr
    assert "RuntimeConfigMalformed" not in node.findings
