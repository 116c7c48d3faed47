"""Pods that Kubernetes evicts from a faulty GPU by the agent's DeviceTaintRule, on the real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints
from gpu_healthcheck.healthcheck.node.device_rules import RuleTaint, rule_name
from gpu_healthcheck.healthcheck.verdict.device_taints import MissingRule
from gpu_healthcheck.sim.control_plane import DEVICE_TAINT_RULES, ControlPlane, install, install_device_taints
from gpu_healthcheck.sim.kubelet import Kubelets
from tests.agent.world import RealCluster, World
from tests.device_taints import DRIVER, WORK, install_driver, publish
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

PODS, CLAIMS = "/api/v1/namespaces/default/pods", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
KEY = "gpu-healthcheck.aws-samples.io/unhealthy"
EVICTED, UNTOUCHED = (True, "DeletionByDeviceTaintManager"), (False, "")
FELL_OFF, GSP = "GPU has fallen off the bus.", "Timeout waiting for RPC from GSP!"


@pytest.fixture
def plane(device_taints: ControlPlane, tmp_path: Path) -> Iterator[ControlPlane]:
    """A plane with a scheduler, the driver, and kubelets."""
    with ControlPlane(controllers=True, scheduler=True) as plane:
        install(plane)
        install_device_taints(plane)
        install_driver(plane)
        with Kubelets(plane, tmp_path):
            yield plane


class Pods:
    """Pods that claim one GPU each. Their finalizer keeps the status of an evicted pod readable."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def start(self, name: str, template: str = "one") -> None:
        claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
        metadata = {"name": name, "finalizers": ["example.com/readable"]}
        answer = self._plane.request("POST", PODS, {"metadata": metadata, "spec": {**WORK, "resourceClaims": claims}})
        assert answer.status == 201, answer.message

    def wait_for_running(self, *names: str) -> None:
        eventually(lambda: all(self.read(name)["status"].get("phase") == "Running" for name in names))

    def read(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = self._plane.request("GET", f"{PODS}/{name}").body
        return pod

    def device(self, name: str) -> str:
        (status,) = self.read(name)["status"]["resourceClaimStatuses"]
        claim = self._plane.request("GET", f"{CLAIMS}/{status['resourceClaimName']}").body
        return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])

    def end(self, name: str) -> tuple[bool, str]:
        """Return whether the pod is being deleted, and the reason of its condition DisruptionTarget."""
        pod = self.read(name)
        reasons = (entry["reason"] for entry in pod["status"]["conditions"] if entry["type"] == "DisruptionTarget")
        return "deletionTimestamp" in pod["metadata"], next(reasons, "")


class Scene(Struct):
    """A node with three published GPUs, two of which pods have claimed."""

    plane: ControlPlane
    world: World
    pods: Pods

    @property
    def rules(self) -> dict[str, Any]:
        rules = self.plane.request("GET", DEVICE_TAINT_RULES).body["items"]
        return {rule["spec"]["deviceSelector"]["device"]: rule for rule in rules}

    @property
    def taints(self) -> dict[str, tuple[str, str]]:
        taints = {device: rule["spec"]["taint"] for device, rule in self.rules.items()}
        return {device: (taint["value"], taint["effect"]) for device, taint in taints.items()}

    def wait_for_taints(self, expected: dict[str, tuple[str, str]]) -> None:
        """Wait until exactly these taints are set, and the Node has none."""
        eventually(lambda: self.taints == expected)
        word = "devices" if expected else ""
        self.world.wait(lambda node: (node.record.get("taint", ""), node.tainted) == (word, False))

    def xid(self, device: str, code: int, text: str) -> None:
        self.world.host.xid(int(device.removeprefix("gpu-")), code, text)


@pytest.fixture
def scene(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    with World(tmp_path / "world", RealCluster(plane, "evicting")) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100", DEVICE_TAINTS="true", EVICT_SEVERITY="")
        publish(plane, world.cluster.name, [gpu.address for gpu in world.host.gpus[:3]])
        world.start()
        world.wait_for_status("pass")
        pods = Pods(plane)
        pods.start("first")
        pods.start("second")
        pods.wait_for_running("first", "second")
        yield Scene(plane, world, pods)


def test_only_the_pod_on_the_faulty_gpu_is_evicted_and_only_from_the_evict_severity_on(scene: Scene) -> None:
    pods, world = scene.pods, scene.world
    first, second = pods.device("first"), pods.device("second")

    # Healthy twins: without EVICT_SEVERITY, and with one above the finding, no pod is evicted.
    scene.xid(first, 79, FELL_OFF)
    scene.wait_for_taints({first: ("REBOOT", "NoSchedule")})
    rule = scene.rules[first]["metadata"]["uid"]
    world.configure(EVICT_SEVERITY="ISOLATE")
    world.agent.wait_for_looks(2)
    scene.wait_for_taints({first: ("REBOOT", "NoSchedule")})
    assert pods.end("first") == UNTOUCHED

    world.configure(EVICT_SEVERITY="REBOOT")
    scene.wait_for_taints({first: ("REBOOT", "NoExecute")})
    eventually(lambda: pods.end("first") == EVICTED)
    assert scene.rules[first]["metadata"]["uid"] == rule, "the rule was changed in place, without a gap"
    message = f"evicts the pods that claim {world.host.gpus[int(first[-1])].address}"
    eventually(lambda: any(message in event["message"] for event in world.events("DeviceTainted")))

    # A RESET finding is below EVICT_SEVERITY. A new pod gets the last GPU.
    scene.xid(second, 119, GSP)
    scene.wait_for_taints({first: ("REBOOT", "NoExecute"), second: ("RESET", "NoSchedule")})
    pods.start("replacement")
    pods.wait_for_running("replacement", "second")
    assert pods.device("replacement") not in (first, second)
    assert pods.end("second") == pods.end("replacement") == UNTOUCHED

    # A worse finding on the same GPU evicts its pod. Without the setting, the rules only keep new pods away.
    scene.xid(second, 79, FELL_OFF)
    scene.wait_for_taints({first: ("REBOOT", "NoExecute"), second: ("REBOOT", "NoExecute")})
    eventually(lambda: pods.end("second") == EVICTED)
    world.configure(EVICT_SEVERITY="")
    scene.wait_for_taints({first: ("REBOOT", "NoSchedule"), second: ("REBOOT", "NoSchedule")})
    assert scene.rules[first]["metadata"]["uid"] == rule

    world.host.reboot()
    world.restart()
    world.wait_for_status("pass")
    scene.wait_for_taints({})
    assert pods.end("replacement") == UNTOUCHED


TOLERATIONS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "for-ever": [{"key": KEY, "operator": "Exists", "effect": "NoExecute"}],
    "another-severity": [{"key": KEY, "value": "ISOLATE", "effect": "NoExecute"}],
    "every-effect": [{"key": KEY, "operator": "Exists"}],
    "for-hours": [{"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 7200}],
    "for-a-second": [{"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}],
    "admin": [],
}
"""Tolerations of a claim, by the name of its pod. The claim of `admin` also allocates devices that are in use."""


def test_controller_evicts_the_pods_whose_claims_do_not_tolerate_the_taint(plane: ControlPlane) -> None:
    name, pods = "tolerating", Pods(plane)
    cluster = Cluster(lambda: plane.api(plane.agent_kubeconfig(name)))
    plane.create_node(name)
    publish(plane, name, [f"0000:{number:02x}:00.0" for number in range(len(TOLERATIONS))])
    admin = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    assert plane.request("PATCH", "/api/v1/namespaces/default", admin).status == 200
    for kind, tolerations in TOLERATIONS.items():
        request = {"deviceClassName": DRIVER, "tolerations": tolerations, "adminAccess": kind == "admin"}
        spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}}
        answer = plane.request("POST", TEMPLATES, {"metadata": {"name": kind}, "spec": spec})
        assert answer.status == 201, answer.message
        pods.start(kind, kind)
    pods.wait_for_running(*TOLERATIONS)

    rules, node = DeviceTaints(cluster.connection), cluster.nodes.read(name)
    for device in {pods.device(kind) for kind in TOLERATIONS}:
        rules.create_rule(MissingRule(rule_name(name, device), device, RuleTaint("REBOOT", evicts=True)), node)
    evicted = {"none", "another-severity", "for-a-second", "every-effect", "admin"}
    eventually(lambda: {kind for kind in TOLERATIONS if pods.end(kind) == EVICTED} == evicted)
    assert all(pods.end(kind) == UNTOUCHED for kind in TOLERATIONS.keys() - evicted)
