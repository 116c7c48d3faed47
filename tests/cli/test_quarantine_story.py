"""`gpu-healthcheck quarantine` with the real program in its Job's pod, by its own template, account and policies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck.operations.quarantine_job import CRON_JOB
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.kubelet_logs import KubeletLogs
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode
from tests.cli.cluster import ROOT
from tests.cli.quarantine_world import Hospital

pytestmark = pytest.mark.cluster
NODE = "tested"
TESTS = ("4-dcgm-diag-l4", "6-efa-loopback", "9-roce", "10-gpu-load", "5-nccl-allreduce")


@pytest.fixture
def host(make_node: Callable[[str], SimulatedNode]) -> SimulatedNode:
    host = make_node("p4d.24xlarge")
    for device in range(2, len(host.efa_names)):
        host.remove_efa(device)
    host.install_dcgmi()
    host.install_nccl_tests()
    for folder in ("nccl", "fi_pingpong"):
        (host.root / folder).mkdir(exist_ok=True)
    return host


@pytest.fixture
def hospital(scheduled: ControlPlane, host: SimulatedNode, tmp_path: Path) -> Iterator[Hospital]:
    folder = tmp_path / "pods"
    folder.mkdir()
    programs = f"{host.root}/usr/bin:{host.root}/opt/nccl-tests/build:{host.root}/{EFA_PROGRAMS}"
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "CONFIG_DIR": str(tmp_path / "config"),
        "REPORT_DIR": str(tmp_path / "reports"),
    }
    kubelets = Kubelets(scheduled, folder, {NODE: host.root}, environment)
    with kubelets, KubeletLogs(scheduled, folder) as logs:
        hospital = Hospital(scheduled, folder, kubelets, logs)
        hospital.use(_template())
        hospital.admit(NODE, instance_type="p4d.24xlarge")
        yield hospital
        hospital.close()


def _template() -> dict[str, Any]:
    """The CronJob of the manifests. Its image's program and paths of the host are those of this machine."""
    documents = yaml.safe_load_all((MANIFESTS / "10-quarantine.yaml").read_text())
    (template,) = (document for document in documents if document["metadata"]["name"] == CRON_JOB)
    (container,) = template["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    container["command"] = [sys.executable, "-m", "quarantine"]
    container["env"] = [entry for entry in container["env"] if entry["name"] == "NODE_NAME"]
    spec: dict[str, Any] = template["spec"]
    return spec


def test_quarantine_story_of_a_node_that_passes(hospital: Hospital) -> None:
    code, out, err = hospital.quarantine(NODE, "--release-on-pass")

    assert (code, err, hospital.cordon(NODE)) == (0, "", (False, None)), out
    assert [f"test: started (test {name})" in out for name in TESTS] == [True] * len(TESTS)
    assert "recommendation: return-to-service" in out


def test_quarantine_story_of_a_node_that_fails(hospital: Hospital, host: SimulatedNode) -> None:
    (host.root / "nccl/fails").write_text("nvlink")

    code, out, _ = hospital.quarantine(NODE, "--release-on-pass")

    assert (code, hospital.cordon(NODE)) == (1, (True, f"gpu-quarantine-{NODE}")), out
    assert "NcclFailed" in out
    assert "recommendation: reset" in out


def test_quarantine_story_of_a_killed_run(hospital: Hospital, host: SimulatedNode) -> None:
    host.write_value("dcgm/hang", "60")
    process = hospital.start(NODE)
    assert process.stdout is not None
    while "test: started" not in process.stdout.readline():
        assert process.poll() is None
    hospital.kubelets.kill(NODE)
    out, _ = process.communicate()
    assert (process.returncode, "recommendation: rerun" in out) == (1, True), out
    assert f"  $ gpu-healthcheck quarantine {NODE}\n" in out
    (host.root / "dcgm/hang").unlink()

    code, out, _ = hospital.quarantine(NODE, "--release-on-pass")

    assert (code, hospital.cordon(NODE)) == (0, (False, None)), out
