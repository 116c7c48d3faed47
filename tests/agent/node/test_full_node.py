"""A Node that other clients have filled: it has labels and taint, but no record.

The tests use a real kube-apiserver.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.agent.world import RESULTS, P, RealCluster, World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."
FILLER = "example.com/filler"
MOST_ANNOTATIONS, MOST_IN_ETCD = 256 << 10, 1536 << 10
"""Bytes of all annotations of an object (k8s.io/apimachinery, TotalAnnotationSizeLimitB); of a request to etcd."""


def annotations_filled(world: World) -> None:
    """Fill the Node's annotations up to a few bytes below the limit, in addition to our own annotations."""
    annotations = world.node().object["metadata"].get("annotations") or {}
    taken = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    fill_annotations(world, MOST_ANNOTATIONS - taken - len(FILLER) - 64)


def fill_annotations(world: World, size: int) -> None:
    answer = plane_of(world).request("PATCH", path_of(world), {"metadata": {"annotations": {FILLER: "x" * size}}})
    assert answer.status == 200, answer.message


def object_filled(world: World) -> None:
    """Fill the Node with other conditions up to etcd's limit, with less room than our record needs."""
    most = MOST_IN_ETCD
    fill_conditions(world, most)
    while fill_conditions(world, most) != 200:
        most -= 512


def fill_conditions(world: World, size: int) -> int:
    filler = {"type": "Filler", "status": "True", "reason": "Full", "message": "x" * size}
    path = f"{path_of(world)}/status"
    conditions = [entry for entry in world.node().object["status"].get("conditions") or [] if entry["type"] != "Filler"]
    body = {"status": {"conditions": [*conditions, filler]}}
    return plane_of(world).request("PATCH", path, body).status


def emptied(world: World) -> None:
    fill_conditions(world, 1)
    answer = plane_of(world).request("PATCH", path_of(world), {"metadata": {"annotations": {FILLER: None}}})
    assert answer.status == 200, answer.message


def plane_of(world: World) -> ControlPlane:
    assert isinstance(world.cluster, RealCluster)
    return world.cluster.plane


def path_of(world: World) -> str:
    return f"/api/v1/nodes/{world.cluster.name}"


def has_record(world: World) -> bool:
    return RESULTS in (world.node().object["metadata"].get("annotations") or {})


FULL = pytest.mark.parametrize("fill", [annotations_filled, object_filled], ids=["annotations", "object"])


@FULL
def test_full_node_is_labelled_tainted_and_reports_the_missing_record(
    installed: ControlPlane, tmp_path: Path, fill: Callable[[World], None]
) -> None:
    name = f"full-{fill.__name__.partition('_')[0]}"
    with World(tmp_path / name, RealCluster(installed, name)) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        fill(world)
        world.host.xid(3, 79, ERROR)
        world.start()
        node = world.wait(lambda node: node.status == "fail" and node.tainted)
        assert (node.severity, has_record(world)) == ("REBOOT", False)
        assert "without the record" in world.wait_for_event("RecordLeftOut")["message"]
        assert world.agent.metric("record_left_out") == 1

        # The agent tries the record again in each check cycle, and writes nothing else meanwhile.
        world.agent.wait_for_looks()
        written = world.agent.metric("cluster_writes_total{nodes,ok}")
        world.agent.wait_for_looks(2)
        assert world.agent.metric("cluster_writes_total{nodes,ok}") == written
        assert len(world.events("RecordLeftOut")) == 1

        emptied(world)
        node = world.wait(lambda node: "Xid79" in node.findings)
        assert (node.status, node.tainted) == ("fail", True)
        eventually(lambda: world.agent.metric("record_left_out") == 0)
        assert world.events("Released") == []


def test_a_record_that_grows_out_of_its_node_goes_and_is_nobodys_release(
    installed: ControlPlane, tmp_path: Path
) -> None:
    with World(tmp_path / "full-later", RealCluster(installed, "full-later")) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        world.start()
        world.wait_for_status("pass")
        annotations_filled(world)
        world.host.xid(3, 79, ERROR)
        world.wait(lambda node: node.status == "fail" and node.tainted)
        assert not has_record(world)
        eventually(lambda: world.node().condition.get("reason") == "Xid79")
        assert "no room" in world.node().condition["message"]

        # Neither a restart nor the return to `pass` is a person's release.
        world.agent.terminate()
        world.host.kernel_log.replay()
        world.start()
        world.agent.wait_for_looks(2)
        assert world.node().tainted
        world.agent.terminate()
        world.host.reboot()
        world.start()
        assert not world.wait_for_status("pass").tainted
        assert world.events("Released") == []


def test_node_without_a_taint_holds_no_slot(installed: ControlPlane, tmp_path: Path) -> None:
    cluster = RealCluster(installed, "full-refused")
    refusal = refusing(cluster.name)
    with World(tmp_path / cluster.name, cluster) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        world.start()
        world.wait_for_status("pass")
        try:
            installed.kubectl("apply", "-f", "-", input=json.dumps(refusal))
            eventually(lambda: installed.request("PATCH", f"{path_of(world)}?dryRun=All", TAINTED).status == 422)
            world.host.xid(3, 79, ERROR)
            eventually(lambda: world.agent.metric("forbidden{nodes}") == 1)
            world.agent.wait_for_looks(2)
            eventually(lambda: not cluster.slots())
        finally:
            installed.kubectl("delete", "-f", "-", input=json.dumps(refusal))
        world.wait(lambda node: node.status == "fail" and node.tainted)
        assert len(cluster.slots()) == 1


TAINTED = {"spec": {"taints": [{"key": f"{P}/unhealthy", "value": "test", "effect": "NoSchedule"}]}}


def refusing(node: str) -> dict[str, object]:
    """A cluster with a policy that allows no taint on this Node."""
    metadata = {"name": f"no-taint-on-{node}"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "this-node", "expression": f"object.metadata.name == '{node}'"}],
            "validations": [{"expression": "!has(object.spec.taints) || object.spec.taints.size() == 0"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": metadata["name"], "validationActions": ["Deny"]},
    }
    return {"apiVersion": "v1", "kind": "List", "items": [policy, binding]}
