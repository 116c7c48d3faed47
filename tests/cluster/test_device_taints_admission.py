"""DeviceTaintRules that an agent's token may and may not write on the real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import timedelta
from functools import partial, reduce
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints
from gpu_healthcheck.healthcheck.cluster.errors import Conflict
from gpu_healthcheck.healthcheck.node.device_rules import DeviceRule, RuleTaint
from gpu_healthcheck.healthcheck.verdict.device_taints import MissingRule
from gpu_healthcheck.sim.control_plane import DEVICE_TAINT_RULES, ControlPlane
from tests.device_taints import Json, publish, rules_of
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

P = "gpu-healthcheck.aws-samples.io"
OWN, OTHER = "taints-own", "taints-own.gpu-0"
NAME = f"gpu-healthcheck.{OWN}.gpu-0"
CALLED = (
    "the name of an agent's DeviceTaintRule must be its own node's name and the GPU or a number up to 63: "
    f"the token belongs to '{OWN}'"
)
DEVICES = "an agent may taint only devices of gpu.nvidia.com in the pool of its own node, each by its name"
TAINT = f"an agent's device taint must be {P}/unhealthy=<severity>:NoSchedule, or NoExecute with"
OWNER = "the only owner of an agent's DeviceTaintRule must be its own Node"
LABELS = "an agent's DeviceTaintRule must have exactly our labels, and neither annotations nor finalizers"


@pytest.fixture
def plane(device_taints: ControlPlane) -> Iterator[ControlPlane]:
    for name in (OWN, OTHER):
        device_taints.create_node(name)
    yield device_taints
    for name in (OWN, OTHER):
        device_taints.request("DELETE", f"/api/v1/nodes/{name}")


def rule(plane: ControlPlane, node: str = OWN, device: str = "gpu-0") -> Json:
    uid = plane.request("GET", f"/api/v1/nodes/{node}").body["metadata"]["uid"]
    labels = {"app.kubernetes.io/name": "gpu-healthcheck", "app.kubernetes.io/component": "agent", f"{P}/holder": node}
    return {
        "metadata": {
            "name": f"gpu-healthcheck.{node}.{device}",
            "labels": labels,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}],
        },
        "spec": {
            "deviceSelector": {"driver": "gpu.nvidia.com", "pool": node, "device": device},
            "taint": {"key": f"{P}/unhealthy", "value": "RESET", "effect": "NoSchedule"},
        },
    }


def changed(base: Json, path: str, value: Any) -> Json:
    """Return a copy with this value at the path. With None, the path is removed."""
    made = deepcopy(base)
    *way, last = path.split("/")
    place = reduce(lambda found, key: found.setdefault(key, {}), way, made)
    if value is None:
        del place[last]
    else:
        place[last] = value
    return made


CASES: list[tuple[str, Any, str]] = [
    ("metadata/name", "anything", CALLED),
    ("metadata/name", f"gpu-healthcheck.{OTHER}.gpu-0", CALLED),
    *(("metadata/name", f"gpu-healthcheck.{OWN}.{one}", CALLED) for one in ("64", "00", "1a", "1.0")),
    ("spec/deviceSelector/device", "gpu-1", CALLED),
    ("spec/deviceSelector/device", None, CALLED),
    ("spec/deviceSelector", None, CALLED),
    ("spec/deviceSelector/driver", "gpu.example.com", DEVICES),
    ("spec/deviceSelector/driver", None, DEVICES),
    ("spec/deviceSelector/pool", OTHER, DEVICES),
    ("spec/deviceSelector/pool", None, DEVICES),
    ("spec/taint/key", "gpu.nvidia.com/xid", TAINT),
    ("spec/taint/effect", "NoExecute", TAINT),
    ("spec/taint/effect", "None", TAINT),
    ("spec/taint/value", "true", TAINT),
    ("spec/taint/value", None, TAINT),
    ("metadata/ownerReferences", None, OWNER),
    ("metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Node", "name": OWN, "uid": "0" * 100_000}], OWNER),
    ("metadata/labels", None, LABELS),
    ("metadata/labels/extra", "x", LABELS),
    ("metadata/annotations", {"a": "b"}, LABELS),
    ("metadata/finalizers", ["example.com/hold"], LABELS),
]


def test_an_agent_writes_rules_of_its_own_node_and_no_others(plane: ControlPlane) -> None:
    token, rules = plane.agent_token(OWN), DEVICE_TAINT_RULES
    good = rule(plane)
    for path, value, refusal in CASES:
        body = changed(good, path, value)
        answer = plane.request("POST", f"{rules}?dryRun=All", body, token=token)
        assert (answer.status, refusal in answer.message) == (403, True), (path, value, answer.message)
    others = plane.request("POST", rules, rule(plane, OTHER), token=token)
    assert (others.status, CALLED in others.message) == (403, True)

    def ask(method: str, body: Any = None) -> tuple[int, str]:
        answer = plane.request(method, f"{rules}/{NAME}", body, token=token)
        return answer.status, answer.message

    assert plane.request("POST", rules, good, token=token).status == 201
    assert TAINT in ask("PATCH", {"spec": {"taint": {"effect": "NoExecute"}}})[1]
    assert ask("PATCH", {"spec": {"taint": {"value": "ISOLATE", "effect": "NoExecute"}}})[0] == 200
    assert TAINT in ask("PATCH", {"spec": {"taint": {"value": "RESET"}}})[1]
    assert ask("PATCH", {"spec": {"taint": {"effect": "NoSchedule"}}})[0] == 200
    assert "cannot patch" in plane.request("PATCH", f"{rules}/{NAME}/status", {"status": {}}, token=token).message
    # A person's changes stay.
    his = {"spec": {"taint": {"effect": "None"}}}
    assert plane.request("PATCH", f"{rules}/{NAME}", his).status == 200
    assert (ask("DELETE")[0], TAINT in ask("PATCH", {"spec": {"taint": {"effect": "NoSchedule"}}})[1]) == (403, True)
    assert plane.request("PATCH", f"{rules}/{NAME}", {"spec": {"taint": {"effect": "NoSchedule"}}}).status == 200
    assert ask("DELETE")[0] == 200


def test_a_rule_has_no_field_manager_but_ours(plane: ControlPlane) -> None:
    token, rules = plane.agent_token(OWN), DEVICE_TAINT_RULES
    for query in ("fieldManager=evil", "fieldManager=gpu-healthcheck2"):
        refused = plane.request("POST", f"{rules}?{query}", rule(plane, OWN), token=token)
        assert (refused.status, "as field manager gpu-healthcheck" in refused.message) == (403, True)


def test_a_token_makes_164_rules_and_not_one_more(plane: ControlPlane) -> None:
    token, rules = plane.agent_token(OWN), DEVICE_TAINT_RULES
    devices = [f"{kind}{number}" for kind in ("gpu-", "gpu-0", "gpu-0-mig-1g-", "x") for number in range(110)]
    called = [(rule(plane, device=device), f"gpu-healthcheck.{OWN}.{device}") for device in devices]
    called += [(rule(plane), f"gpu-healthcheck.{OWN}.{number}") for number in range(110)]
    made = [
        name
        for body, name in called
        if plane.request("POST", rules, changed(body, "metadata/name", name), token=token).status == 201
    ]

    whole, numbers = [f"gpu-{number}" for number in range(100)], map(str, range(64))
    assert made == [f"gpu-healthcheck.{OWN}.{text}" for text in (*whole, *numbers)]
    # Neither can one of them be made a rule for more than a device.
    numbered = f"{rules}/gpu-healthcheck.{OWN}.63"
    for change in ({"device": None}, {"device": None, "pool": None}, {"pool": OTHER}):
        assert plane.request("PATCH", numbered, {"spec": {"deviceSelector": change}}, token=token).status == 403
    assert {plane.request("DELETE", f"{rules}/{text}", token=token).status for text in made} == {200}


def test_object_of_an_older_agent_may_be_changed_and_removed(plane: ControlPlane) -> None:
    """Up to 0.2.0 a part of a GPU had a rule of its own name."""
    token, rules = plane.agent_token(OWN), DEVICE_TAINT_RULES
    older = rule(plane, device="gpu-0-mig-1g-0")
    path = f"{rules}/{older['metadata']['name']}"
    assert CALLED in plane.request("POST", rules, older, token=token).message
    assert plane.request("POST", rules, older).status == 201

    assert plane.request("PATCH", path, {"spec": {"taint": {"value": "ISOLATE"}}}, token=token).status == 200
    other = {"spec": {"deviceSelector": {"device": "gpu-1"}}}
    assert CALLED in plane.request("PATCH", path, other, token=token).message
    assert plane.request("DELETE", path, token=token).status == 200


def test_the_products_own_requests_pass(plane: ControlPlane) -> None:
    kubeconfig = plane.agent_kubeconfig(OWN)
    client = Cluster(lambda: plane.api(kubeconfig))
    taints = DeviceTaints(client.connection)
    node = client.nodes.read(OWN)
    publish(plane, OWN, ["0000:53:00.0"])
    publish(plane, OTHER, ["0000:53:00.0"])

    assert [(device.name, device.address) for device in taints.list_devices(OWN)] == [("gpu-0", "0000:53:00.0")]
    assert taints.list_rules(OWN) == ()
    taints.create_rule(MissingRule(NAME, "gpu-0", RuleTaint("RESET")), node)

    def noted() -> bool:
        return all(rule.is_processed_now for rule in taints.list_rules(OWN))

    eventually(noted)
    (made,) = taints.list_rules(OWN)

    def sent(change: Callable[[DeviceRule], None]) -> bool:
        """Send the change, unless a controller has written the rule's status since it was read."""
        (read,) = taints.list_rules(OWN)
        try:
            change(read)
        except Conflict:
            return False
        assert not taints.delete_rule(read), "it was changed since it was read"
        return True

    eventually(lambda: sent(taints.ask_again))
    eventually(noted)
    (asked,) = taints.list_rules(OWN)
    assert (asked.is_ours, asked.uid, asked.version != made.version) == (True, made.uid, True)
    assert asked.time_added - made.time_added == timedelta(seconds=1)
    for taint in (RuleTaint("REBOOT"), RuleTaint("REBOOT", evicts=True), RuleTaint("RESET")):
        change = partial(taints.change_taint, taint=taint)
        eventually(partial(sent, change))
        (made,) = taints.list_rules(OWN)
        assert (made.is_ours, made.taint, made.node_uid, made.uid) == (True, taint, node.uid, asked.uid)
    assert [rule.name for rule in taints.list_all_rules()] == [NAME]

    # The rules of a Node are deleted with it.
    plane.request("DELETE", f"/api/v1/nodes/{OWN}")
    eventually(lambda: rules_of(plane, OWN) == {})
