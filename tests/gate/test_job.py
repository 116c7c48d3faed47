"""A Job whose pods have the gate: a GPU that fails between binding and start costs no failure of the Job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.kubelet import Kubelets
from tests.agent.world import RealCluster, World
from tests.overlays import OVERLAYS
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
P = "gpu-healthcheck.aws-samples.io"
FIRST, SECOND = "gate-first", "gate-second"
JOBS, PODS = "/apis/batch/v1/namespaces/gated/jobs", "/api/v1/namespaces/gated/pods"
POLICY = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/gpu-healthcheck-gate"
ERROR = "GPU has fallen off the bus."


@dataclass
class Stage:
    """Two GPU nodes, of which the first has an agent, and a namespace whose pods get the gate."""

    plane: ControlPlane
    kubelets: Kubelets
    world: World

    def submit(self, **spec: Any) -> str:
        """Create a Job while only the first node takes pods, and return it when its pod is bound."""
        self.kubelets.stuck.add(FIRST)
        self.cordon(SECOND, is_cordoned=True)
        limits = {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": "8"}
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        pod = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec}
        rules = [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}}]
        job = {"template": {"spec": pod}, "backoffLimit": 0, "podFailurePolicy": {"rules": rules}}
        assert self.plane.request("POST", JOBS, {"metadata": {"name": "train"}, "spec": job}).status == 201
        eventually(lambda: [pod["spec"].get("nodeName") for pod in self.pods()] == [FIRST])
        self.cordon(SECOND, is_cordoned=False)
        metadata = self.pods()[0]["metadata"]
        (self.world.host.root / "var/lib/kubelet/pods" / metadata["uid"]).mkdir(parents=True)
        return str(metadata["name"])

    def cordon(self, node: str, *, is_cordoned: bool) -> None:
        patch = {"spec": {"unschedulable": is_cordoned}}
        assert self.plane.request("PATCH", f"/api/v1/nodes/{node}", patch).status == 200

    def start(self) -> None:
        """Let the kubelet of the first node start its pods."""
        self.kubelets.stuck.discard(FIRST)

    def pods(self) -> list[Json]:
        listed = self.plane.request("GET", PODS).body["items"]
        return sorted(listed, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def running(self) -> list[str]:
        """Return the nodes of pods that run."""
        return [pod["spec"]["nodeName"] for pod in self.pods() if pod["status"]["phase"] == "Running"]

    def failed(self) -> int:
        return int(self.plane.request("GET", f"{JOBS}/train").body["status"].get("failed", 0))


@pytest.fixture
def stage(scheduled: ControlPlane, tmp_path: Path) -> Iterator[Stage]:
    scheduled.kubectl("apply", "-k", str(OVERLAYS / "gate"))
    namespace = {"metadata": {"name": "gated", "labels": {f"{P}/gate": "enabled"}}}
    assert scheduled.request("POST", "/api/v1/namespaces", namespace).status in (201, 409)
    account = "/api/v1/namespaces/gated/serviceaccounts/default"
    eventually(lambda: scheduled.request("GET", account).status == 200)
    cluster = RealCluster(scheduled, FIRST, devices={"nvidia.com/gpu": "8"})
    scheduled.create_node(SECOND, devices={"nvidia.com/gpu": "8"})
    with World(tmp_path / "world", cluster) as world:
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        agent = world.start()
        world.wait_for_status("pass")
        variables = scheduled.request("GET", POLICY).body["spec"]["variables"]
        ours = [{**one, "expression": f'"{agent.port}"'} if one["name"] == "port" else one for one in variables]
        assert scheduled.request("PATCH", POLICY, {"spec": {"variables": ours}}).status == 200
        eventually(lambda: gate_command(scheduled)[-1] == str(agent.port))
        folder = tmp_path / "pods"
        folder.mkdir()
        environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
        # The second node has no agent: the kernel refuses a connection to a multicast address without sending a packet.
        addresses = {FIRST: "127.0.0.1", SECOND: "224.0.0.1"}
        with Kubelets(scheduled, folder, environment=environment, addresses=addresses) as kubelets:
            yield Stage(scheduled, kubelets, world)
            scheduled.request("DELETE", f"{JOBS}/train?propagationPolicy=Background")
            eventually(lambda: not scheduled.request("GET", PODS).body["items"])
    scheduled.request("DELETE", f"/api/v1/nodes/{SECOND}")


def gate_command(plane: ControlPlane) -> list[str]:
    """Return the command of the gate in a pod that is not stored."""
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    body = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    answer = plane.request("POST", f"{PODS}?dryRun=All", body)
    inits = answer.body.get("spec", {}).get("initContainers", []) if answer.status == 201 else []
    return list(inits[0]["command"]) if inits else [""]


def test_a_fault_between_binding_and_start_moves_the_pod_without_a_failure(stage: Stage) -> None:
    first = stage.submit()
    stage.world.host.xid(3, 79, ERROR)
    stage.world.wait_for_taint()
    stage.start()

    assert eventually(stage.running) == [SECOND]
    assert stage.failed() == 0
    assert "Xid79 (REBOOT) on GPU 3" in stage.kubelets.log(first)
    assert "the gate refused 1 pod (Xid79)" in stage.world.wait_for_event("GateRefused")["message"]


def test_a_fault_during_another_init_container_moves_the_pod_without_a_failure(stage: Stage, tmp_path: Path) -> None:
    begun, prepared = tmp_path / "begun", tmp_path / "prepared"
    command = ["sh", "-c", f"touch {begun}; until [ -e {prepared} ]; do sleep 0.1; done"]
    first = stage.submit(initContainers=[{"name": "prepare", "image": "x", "command": command}])
    stage.start()
    eventually(begun.exists)
    stage.world.host.xid(3, 79, ERROR)
    stage.world.wait_for_taint()
    prepared.touch()

    assert eventually(stage.running) == [SECOND]
    assert stage.failed() == 0
    assert "Xid79 (REBOOT) on GPU 3" in stage.kubelets.log(first)


def test_a_pod_starts_on_the_healthy_node(stage: Stage) -> None:
    first = stage.submit()
    stage.start()

    assert eventually(stage.running) == [FIRST]
    assert (len(stage.pods()), stage.failed()) == (1, 0)
    assert "no finding of RESET or worse" in stage.kubelets.log(first)


def test_a_pod_starts_without_an_agent(stage: Stage) -> None:
    first = stage.submit()
    stage.world.agent.kill()
    stage.start()

    assert eventually(stage.running) == [FIRST]
    assert "the pod starts without a check" in stage.kubelets.log(first)


def test_a_pod_that_tolerates_the_taint_starts_on_the_faulty_node(stage: Stage) -> None:
    first = stage.submit(tolerations=[{"key": f"{P}/unhealthy", "operator": "Exists"}])
    stage.world.host.xid(3, 79, ERROR)
    stage.world.wait_for_taint()
    stage.start()

    assert eventually(stage.running) == [FIRST]
    assert "the pod starts, because it tolerates the taint of gpu-healthcheck" in stage.kubelets.log(first)
