"""The Job by hand, on the real control plane: placed by its scheduler, run with its own token under our policies."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.node import EFA_PROGRAMS
from tests.agent.deep.test_deep import answer
from tests.agent.world import UNHEALTHY, P, RealCluster, World
from tests.probes.dcgm.documents import FAULTY
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
JOBS = "/apis/batch/v1/namespaces/gpu-healthcheck/jobs"
RESULT = f"{P}/quarantine-result"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
ROOT = Path(__file__).parents[2]


@dataclass
class Ward:
    """A node with its agent, and a person who starts quarantine Jobs on it by hand."""

    plane: ControlPlane
    world: World
    name: str
    folder: Path

    @property
    def job(self) -> str:
        return f"gpu-quarantine-{self.name}"

    def start(self) -> None:
        """Run the commands of docs/quarantine.md."""
        text = (MANIFESTS / "quarantine/05-job-quarantine.yaml").read_text().replace("TARGET_NODE_NAME", self.name)
        manifest = self.folder / "job.yaml"
        manifest.write_text(text)
        self.plane.kubectl("delete", "job", "-n", "gpu-healthcheck", self.job, "--ignore-not-found")
        self.plane.kubectl("apply", "-f", str(manifest))

    def ended(self) -> str:
        """`Complete` or `Failed`, once it has."""
        return eventually(self._outcome, lambda: (self.node_object, self.plane.request("GET", JOBS).body))

    def _outcome(self) -> str | None:
        job = self.plane.request("GET", f"{JOBS}/{self.job}").body
        conditions = {
            entry["type"] for entry in job.get("status", {}).get("conditions", ()) if entry["status"] == "True"
        }
        return next(iter(conditions & {"Complete", "Failed"}), None)

    @property
    def node_object(self) -> Mapping[str, Any]:
        return self.world.node().object

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.node_object["metadata"]["annotations"].get(RESULT, "{}"))
        return record

    @property
    def marks(self) -> tuple[bool, bool, bool]:
        """Whether the annotation `run`, the label `mode` and the taint `maintenance` stand."""
        metadata, taints = self.node_object["metadata"], self.node_object["spec"].get("taints", [])
        is_tainted = any(taint["key"] == f"{P}/maintenance" for taint in taints)
        return f"{P}/run" in metadata["annotations"], f"{P}/mode" in metadata["labels"], is_tainted


@pytest.fixture
def ward(scheduled: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ward]:
    name = f"ward-{zlib.crc32(request.node.name.encode())}"
    # It advertises no GPU, and accepts only pods with the toleration.
    cluster = RealCluster(scheduled, name, taints=[GPU_TAINT])
    with World(tmp_path / "world", cluster) as world:
        host = world.host
        for device in range(len(host.efa_names)):
            host.remove_efa(device)
        host.install_dcgmi()
        host.install_nccl_tests()
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100", DCGM_L2_INTERVAL="0")
        programs = [host.root / folder for folder in ("usr/bin", "opt/nccl-tests/build", EFA_PROGRAMS)]
        path = ":".join(map(str, (*programs, Path(sys.executable).parent, "/usr/bin", "/bin")))
        environment = {
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "CONFIG_DIR": str(world.config),
            "REPORT_DIR": str(tmp_path / "reports"),
        }
        pods = tmp_path / "pods"
        pods.mkdir()
        with Kubelets(scheduled, pods, {name: host.root}, environment):
            ward = Ward(scheduled, world, name, tmp_path)
            yield ward
            scheduled.request("DELETE", f"{JOBS}/{ward.job}?propagationPolicy=Background")


def failed_with_79(ward: Ward) -> None:
    """Make the agent find the fault, and act as an operator."""
    ward.world.start()
    ward.world.wait_for_status("pass")
    ward.world.host.xid(3, 79, "GPU has fallen off the bus.")
    ward.world.wait(lambda node: node.tainted)
    ward.world.cluster.edit({"spec": {"unschedulable": True}})


def test_from_a_fault_over_a_run_that_passes_back_into_service(ward: Ward) -> None:
    failed_with_79(ward)
    ward.start()

    assert ward.ended() == "Complete"
    assert (ward.record["status"], ward.record["recommendation"]) == ("pass", "return-to-service")
    node = ward.world.wait_for_status("pass")
    assert (node.tainted, node.severity, ward.marks) == (False, "PASS", (False, False, False))
    # A person's own cordon stays, and so does a taint that is not ours.
    assert node.object["spec"]["unschedulable"] is True
    assert GPU_TAINT in node.taints


def test_from_a_fault_over_a_run_that_fails_to_a_node_that_is_replaced(ward: Ward) -> None:
    failed_with_79(ward)
    ward.world.host.write_value("dcgm/answer", answer(("memory", 1), FAULTY))
    ward.start()

    assert ward.ended() == "Failed"
    assert (ward.record["severity"], ward.record["recommendation"]) == ("ISOLATE", "replace")
    node = ward.world.wait(lambda node: "DcgmDiagMemory" in node.findings)
    assert (node.severity, node.tainted, ward.marks) == ("ISOLATE", True, (False, False, False))
    gpu = ward.world.host.gpus[1]
    assert node.findings["DcgmDiagMemory"]["subject"] == f"gpu/{gpu.address}"


def test_a_job_that_is_deleted_in_its_middle_says_so_and_the_next_one_passes(ward: Ward) -> None:
    ward.world.host.write_value("dcgm/hang", "")
    failed_with_79(ward)
    ward.start()
    eventually(lambda: (ward.world.host.root / "dcgm/sleeper").exists() and ward.record)
    assert (ward.record["recommendation"], ward.marks) == ("rerun", (True, True, True))

    ward.plane.kubectl("delete", "job", "-n", "gpu-healthcheck", ward.job)
    eventually(lambda: "running" not in ward.record)
    assert "RunStopped" in {entry["cause"] for entry in ward.record["unobserved"]}
    assert (ward.record["recommendation"], ward.marks) == ("rerun", (False, False, False))
    assert UNHEALTHY in ward.world.node().taints

    (ward.world.host.root / "dcgm/hang").unlink()
    ward.start()
    assert ward.ended() == "Complete"
    ward.world.wait_for_status("pass")


def restarted(ward: Ward) -> None:
    ward.world.restart()


def killed(ward: Ward) -> None:
    ward.world.agent.kill()
    ward.world.start()


@pytest.mark.parametrize("interrupt", [restarted, killed])
def test_an_agent_that_is_away_during_the_run_takes_its_result(ward: Ward, interrupt: Callable[[Ward], None]) -> None:
    ward.world.host.write_value("dcgm/seconds", "5")
    failed_with_79(ward)
    ward.start()
    eventually(lambda: ward.record)
    interrupt(ward)

    assert ward.ended() == "Complete"
    node = ward.world.wait_for_status("pass")
    assert (node.tainted, ward.marks) == (False, (False, False, False))
