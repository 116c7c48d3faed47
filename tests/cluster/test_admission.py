"""Allowed and forbidden writes of an agent's token on the real API server: the table of the policies."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.client import Cluster as Client
from gpu_healthcheck.healthcheck.cluster.errors import Conflict
from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.deep import claim as deep_runs
from gpu_healthcheck.healthcheck.node.state import HARDWARE_READY, OUR_WORD, REPAIR_CONDITIONS
from gpu_healthcheck.healthcheck.verdict.budget import holder_label
from gpu_healthcheck.sim.control_plane import Answer, ControlPlane, unbound_token
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

P = "gpu-healthcheck.aws-samples.io"
OWN, OTHER = "admission-own", "admission-other"
MAIN, STATUS = "nodes", "nodes/status"
STRATEGIC = "application/strategic-merge-patch+json"
HEARTBEATS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
SLOTS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck-budget/leases"
DIGEST = "0123456789ab"
EVENTS = "/api/v1/namespaces/default/events"
POD_EVENTS = "/api/v1/namespaces/kube-public/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"

SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
STARTUP = {"key": f"{P}/startup", "effect": "NoSchedule"}
MAINTENANCE = {"key": f"{P}/maintenance", "value": "l2", "effect": "NoSchedule"}
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "7c1f0a66-0000-4000-8000-000000000001"}
SOMEBODY = OWNER | {"name": "somebody", "uid": "7c1f0a66-0000-4000-8000-000000000002"}

NOT_ITS_OWN = "an agent may change its own Node only: the token belongs to 'admission-own'"
FOREIGN_LABEL = f"an agent may change labels under {P}/ only: status, severity, last-check and mode"
LABEL_VALUE = "an agent may set its labels only to their defined values"
FOREIGN_NOTE = f"an agent may change annotations under {P}/ only: results, sweep-result and run"
TOO_LONG = "an agent's annotation may have at most 20 KiB"
NO_LEVEL_2 = "an agent may reserve its Node only for a level 2 diagnostic"
ENABLED = f"an agent may not change the label {P}/enabled; only a person may"
FOREIGN_SPEC = "an agent may change nothing in a Node's spec except our taints"
FOREIGN_TAINT = "an agent may add and remove the taints unhealthy and maintenance, remove startup, and touch no other"
EFFECT = "an agent's taints must have the effect NoSchedule"
FINALIZERS = "an agent may not change the finalizers of a Node"
OWNERS = "an agent may not change the owners of a Node"
FOREIGN_STATUS = "an agent may change nothing in a Node's status except the conditions GpuHealthy, GpuRebootRequired"
FOREIGN_CONDITION = "an agent may change no condition except GpuHealthy, GpuRebootRequired, GpuReplacementRequired and"
CONDITION = "an agent may write each condition once, as True, False or Unknown, with a reason in PascalCase"
THEIR_CONDITION = "an agent may change a condition for repairers only if it is its own"
HEARTBEAT = "an agent may write only the heartbeat of its own node: the token belongs to 'admission-own'"
SLOT = "an agent may acquire and release a slot only for its own node: the token belongs to 'admission-own'"
SLOT_NAME = "the name of a slot must be slot-<number>, with at most five digits and no leading zero"
LEASE_OWNER = "the only owner of an agent's Lease must be its own Node"
LEASE_HOLDER = "the holder of an agent's Lease must be its own node"
LEASE_MARKS = "an agent may not set annotations or finalizers of a Lease"
LEASE_LABELS = "a slot must have the label holder with its own node's name, and no other label but group"
LEASE_RELABELLED = "an agent may not change the labels of a Lease"
LEASE_FIELDS = "an agent's Lease may contain only its holder"
LEASE_TIMES = "a heartbeat may last at most 259200 seconds, and its renewTime must be between 1970 and 2099"
EVENT = (
    "an agent may write Events only about its own Node, and new warnings GpuUnhealthy about pods: "
    "the token belongs to 'admission-own'"
)
EVENT_SOURCE = "the source of an agent's Event must be gpu-healthcheck on its own node"
EVENT_NAME = "the name of an agent's Event must be its own node's name and twelve hexadecimal digits"
EVENT_FIELDS = "an agent's Event may contain only reason, message, type, times, count, source and the Node or pod"
EVENT_WORDS = "an agent's Event must have a reason in PascalCase and the type Normal or Warning"
EVENT_LENGTH = "an agent's Event may have a message of at most 1,024 bytes"
EVENT_CHANGED = "an agent may change only its own Events"
RELEASED = f"an agent may remove the annotation {P}/release but not write it"
QUARANTINED = "an agent may not change the annotations quarantine-result and cordoned-by; only a quarantine run may"
LEVEL_2 = "an agent may set the taint maintenance only to l2"
TRUE = "an agent may set the taint unhealthy only to true"
UNBOUND = "the token is bound to no node"
RBAC = "cannot {}"


@dataclass(frozen=True)
class Cluster:
    """The control plane with two Nodes that others have marked, and the token of the agent on the first."""

    plane: ControlPlane
    token: str

    def ask(self, method: str, path: str, body: Any = None, content_type: str = STRATEGIC) -> Answer:
        return self.plane.request(method, path, body, token=self.token, content_type=content_type)

    def agent(self) -> Client:
        """The product's own client with this token."""
        return client(self.plane, self.token)

    def patch(self, path: str, body: Any) -> Answer:
        """A merge patch: unlike the strategic one it can drop a taint or a finalizer by its absence."""
        return self.ask("PATCH", path, body, "application/merge-patch+json")

    def node(self, name: str = OWN) -> dict[str, Any]:
        body = self.plane.request("GET", f"/api/v1/nodes/{name}").body
        assert isinstance(body, dict)
        return body


def client(plane: ControlPlane, token: str) -> Client:
    path = write_kubeconfig(plane.folder / "admission.kubeconfig", url=plane.url, ca_file=plane.ca_file, token=token)
    return Client(lambda: plane.api(path))


@pytest.fixture(scope="module")
def unchanged(installed: ControlPlane) -> Iterator[Cluster]:
    """Yield the cluster for tests that change nothing in it: their requests are rejected."""
    _create_nodes(installed)
    yield Cluster(installed, installed.agent_token(OWN))
    _delete_written(installed)
    installed.request("DELETE", f"/api/v1/namespaces/gpu-healthcheck/pods/agent-on-{OWN}?gracePeriodSeconds=0")


@pytest.fixture
def cluster(unchanged: Cluster) -> Iterator[Cluster]:
    """Yield the same for one test that writes; its objects are replaced afterwards."""
    yield unchanged
    _delete_written(unchanged.plane)
    _create_nodes(unchanged.plane)


def _create_nodes(plane: ControlPlane) -> None:
    for name in (OWN, OTHER):
        labels = {"example.com/team": "vision", f"{P}/enabled": "true"}
        plane.create_node(name, labels=labels, taints=[SPOT, STARTUP])
        marks = {
            "annotations": {"example.com/note": "kept"},
            "finalizers": ["example.com/hold"],
            "ownerReferences": [OWNER],
        }
        spec = {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}
        marked = plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": marks, "spec": spec})
        assert marked.status == 200, marked.message


def _delete_written(plane: ControlPlane) -> None:
    for name in (OWN, OTHER):
        plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"finalizers": None}})
        plane.request("DELETE", f"/api/v1/nodes/{name}")
        plane.request("DELETE", f"{HEARTBEATS}/{name}")
    plane.request("DELETE", SLOTS)
    plane.request("DELETE", EVENTS)


def path_of(resource: str, name: str) -> str:
    return f"/api/v1/nodes/{name}" + ("/status" if resource == STATUS else "")


def node_owner(name: str, uid: str = "7c1f0a66-0000-4000-8000-000000000003") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}


def lease(name: str, holder: str, **metadata: Any) -> dict[str, Any]:
    """Return a heartbeat as an agent creates it, but without an owner.

    The garbage collector would search for the owner.
    """
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, **metadata},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 900},
    }


def heartbeat(**changed: Any) -> dict[str, Any]:
    """Return the agent's own heartbeat with an owner that does not exist: it must be refused."""
    own = lease(OWN, OWN, ownerReferences=[node_owner(OWN)])
    return own | {"spec": own["spec"] | changed}


def slot(name: str, holder: str = OWN, **metadata: Any) -> dict[str, Any]:
    marks = {"labels": {f"{P}/holder": holder}, "ownerReferences": [node_owner(holder)], **metadata}
    return lease(name, holder, **marks) | {"spec": {"holderIdentity": holder}}


def event(
    name: str, node: str, *, source: str = "gpu-healthcheck", reporter: str = "gpu-healthcheck"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{name}", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reason": "Xid79",
        "message": "a GPU fell off the bus",
        "type": "Warning",
        "source": {"component": source, "host": node},
        "reportingComponent": reporter,
        "reportingInstance": node,
        "count": 1,
    }


def pod_event(name: str, node: str = OWN, /, *, namespace: str = "kube-public", **pod: str) -> dict[str, Any]:
    """Return the Event about a pod of a faulty GPU. `pod` changes the reference."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "train", "uid": "uid-1"}
    named = {"metadata": {"name": f"{node}.{name}", "namespace": namespace}, "involvedObject": about | pod}
    return event(name, node) | named | {"reason": "GpuUnhealthy"}


def new_event(name: str, node: str, reporter: str = "gpu-healthcheck") -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{name}", "namespace": "default"},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reason": "Xid79",
        "note": "a GPU fell off the bus",
        "type": "Warning",
        "action": "Judged",
        "reportingController": reporter,
        "reportingInstance": node,
    }


def metadata(**changed: Any) -> dict[str, Any]:
    return {"metadata": changed}


def spec(**changed: Any) -> dict[str, Any]:
    return {"spec": changed}


@dataclass(frozen=True)
class Refused:
    """One write that must be refused. The name completes the sentence `an agent may not …`."""

    what: str
    body: dict[str, Any] | list[dict[str, Any]]
    message: str
    through: tuple[str, ...] = (MAIN,)
    node: str = OWN
    content_type: str = "application/merge-patch+json"


BOTH = (MAIN, STATUS)
READY_LOST = {"type": "Ready", "status": "False", "reason": "Planted", "message": "planted"}
PRESSURE = {"type": "DiskPressure", "status": "True", "reason": "Planted", "message": "planted"}
VERDICT = {"type": "GpuHealthy", "status": "False", "reason": "Xid79", "message": "a GPU fell off the bus"}
READY = {"type": HARDWARE_READY, "status": "False", "reason": "NvidiaXID79Error", "message": f"{OUR_WORD}Xid79"}
RUN = '{"kind":"l2","holder":"agent","until":"2026-11-21T12:00:00Z"}'

OTHER_VALUES = [
    ("status", "agent-stopped"),
    ("status", "pass2"),
    ("status", ""),
    ("severity", "SKIP"),
    ("severity", "reset"),
    ("last-check", "2026-11-21T01_02_03Z"),
    ("last-check", "9999999-11-21T010203Z"),
    ("mode", "quarantine"),
]
"""Of the labels that are an agent's: what no agent says there."""
OTHER_RUNS = {
    "a sweep": RUN.replace("l2", "sweep"),
    "a quarantine": RUN.replace("l2", "quarantine"),
    "a sweep, its key twice": RUN.replace("{", '{"kind":"sweep",'),
    "a sweep, its key twice and later": RUN.replace("}", ',"kind":"sweep"}'),
    "a level 2 behind a line of something else": f"x\n{RUN}",
    "a level 2 before a line of something else": f"{RUN}\n",
    "a level 2 with padding": RUN.replace("agent", "a" * 258_000),
    "a level 2 of somebody else": RUN.replace("agent", "job-1"),
    "a level 2 without an end": RUN.replace("2026-11-21T12:00:00Z", "never"),
}
OTHER_CONDITIONS: dict[str, list[dict[str, Any]]] = {
    "twice": [VERDICT, VERDICT | {"status": "True"}],
    "with another status": [VERDICT | {"status": "Maybe"}],
    "without a reason": [VERDICT | {"reason": ""}],
    "with a sentence for a reason": [VERDICT | {"reason": "it broke"}],
    "with a long reason": [VERDICT | {"reason": "X" * 64}],
    "with a long message": [VERDICT | {"message": "x" * 1025}],
    "with a message of many bytes": [VERDICT | {"message": "\u00e9" * 513}],
    "with a message of a megabyte": [VERDICT | {"message": "x" * 1_200_000}],
}


OTHER_REPAIRS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "twice": ([READY, READY | {"status": "True"}], CONDITION),
    "with another status": ([READY | {"status": "Maybe"}], CONDITION),
    "without a reason": ([READY | {"reason": ""}], CONDITION),
    "with a message of many bytes": ([READY | {"message": f"{OUR_WORD}{'x' * 1024}"}], CONDITION),
    "in another's words": ([READY | {"message": "a GPU fell off the bus"}], THEIR_CONDITION),
    "without words": ([{key: READY[key] for key in ("type", "status", "reason")}], CONDITION),
    "of a type that only begins like ours": ([READY | {"type": f"{HARDWARE_READY}x"}], FOREIGN_CONDITION),
}


def appended(conditions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A JSON patch: unlike the strategic one it can make two of a type."""
    return [{"op": "add", "path": "/status/conditions/-", "value": condition} for condition in conditions]


REFUSED_NODE_WRITES = [
    Refused("label another node", metadata(labels={f"{P}/status": "fail"}), NOT_ITS_OWN, BOTH, OTHER),
    Refused("taint another node", spec(taints=[SPOT, STARTUP, UNHEALTHY]), NOT_ITS_OWN, (MAIN,), OTHER),
    Refused("add a foreign label", metadata(labels={"example.com/new": "x"}), FOREIGN_LABEL, BOTH),
    Refused("change a foreign label", metadata(labels={"example.com/team": "audio"}), FOREIGN_LABEL, BOTH),
    Refused("remove a foreign label", metadata(labels={"example.com/team": None}), FOREIGN_LABEL, BOTH),
    Refused("use a label that only begins like ours", metadata(labels={f"{P}.evil/x": "y"}), FOREIGN_LABEL, BOTH),
    Refused("remove the label enabled", metadata(labels={f"{P}/enabled": None}), ENABLED, BOTH),
    Refused("change the label enabled", metadata(labels={f"{P}/enabled": "false"}), ENABLED, BOTH),
    Refused("add a foreign annotation", metadata(annotations={"example.com/new": "x"}), FOREIGN_NOTE, BOTH),
    Refused("change a foreign annotation", metadata(annotations={"example.com/note": "x"}), FOREIGN_NOTE, BOTH),
    Refused("remove a foreign annotation", metadata(annotations={"example.com/note": None}), FOREIGN_NOTE, BOTH),
    Refused("release its node", metadata(annotations={f"{P}/release": "{}"}), RELEASED, BOTH),
    Refused(
        "tell a quarantine run's result", metadata(annotations={f"{P}/quarantine-result": "{}"}), QUARANTINED, BOTH
    ),
    Refused("say that a quarantine run cordoned", metadata(annotations={f"{P}/cordoned-by": "x"}), QUARANTINED, BOTH),
    Refused(
        "keep its node for a quarantine", spec(taints=[SPOT, STARTUP, MAINTENANCE | {"value": "quarantine"}]), LEVEL_2
    ),
    Refused("keep its node for nobody", spec(taints=[SPOT, STARTUP, MAINTENANCE | {"value": None}]), LEVEL_2),
    Refused("add a finalizer", metadata(finalizers=["example.com/hold", "example.com/more"]), FINALIZERS, BOTH),
    Refused("remove the finalizers", metadata(finalizers=None), FINALIZERS, BOTH),
    Refused("add an owner", metadata(ownerReferences=[OWNER, SOMEBODY]), OWNERS, BOTH),
    Refused("remove the owners", metadata(ownerReferences=None), OWNERS, BOTH),
    Refused("cordon the node", spec(unschedulable=True), FOREIGN_SPEC),
    Refused("add a foreign taint", spec(taints=[SPOT, STARTUP, SPOT | {"key": "example.com/more"}]), FOREIGN_TAINT),
    Refused("drop a foreign taint", spec(taints=[STARTUP]), FOREIGN_TAINT),
    Refused("drop all taints", spec(taints=None), FOREIGN_TAINT),
    Refused("change a foreign taint", spec(taints=[SPOT | {"value": "no"}, STARTUP]), FOREIGN_TAINT),
    Refused("change the taint startup", spec(taints=[SPOT, STARTUP | {"value": "x"}]), FOREIGN_TAINT),
    Refused("widen its taint to NoExecute", spec(taints=[SPOT, STARTUP, UNHEALTHY | {"effect": "NoExecute"}]), EFFECT),
    Refused("change the capacity", {"status": {"capacity": {"cpu": "1"}}}, FOREIGN_STATUS, (STATUS,)),
    Refused("add a resource", {"status": {"capacity": {"nvidia.com/gpu": "9"}}}, FOREIGN_STATUS, (STATUS,)),
    Refused("change what is allocatable", {"status": {"allocatable": {"pods": "0"}}}, FOREIGN_STATUS, (STATUS,)),
    Refused("drop the allocatable", {"status": {"allocatable": None}}, FOREIGN_STATUS, (STATUS,)),
    Refused("change the addresses", {"status": {"addresses": []}}, FOREIGN_STATUS, (STATUS,)),
    Refused("change the node's description", {"status": {"nodeInfo": {"bootID": "x"}}}, FOREIGN_STATUS, (STATUS,)),
    Refused("add an image", {"status": {"images": [{"names": ["x:1"]}]}}, FOREIGN_STATUS, (STATUS,)),
    Refused(
        "change the condition Ready",
        {"status": {"conditions": [READY_LOST]}},
        FOREIGN_CONDITION,
        (STATUS,),
        content_type=STRATEGIC,
    ),
    Refused(
        "add a foreign condition",
        {"status": {"conditions": [PRESSURE]}},
        FOREIGN_CONDITION,
        (STATUS,),
        content_type=STRATEGIC,
    ),
    Refused("remove all conditions", {"status": {"conditions": None}}, FOREIGN_CONDITION, (STATUS,)),
    Refused("use a label of ours that nobody defined", metadata(labels={f"{P}/new": "x"}), FOREIGN_LABEL, BOTH),
    Refused("forge evictions on its node", metadata(annotations={f"{P}/evict": "{}"}), FOREIGN_NOTE, BOTH),
    Refused("use a name of ours that nobody defined", metadata(annotations={f"{P}/new": "x"}), FOREIGN_NOTE, BOTH),
    Refused("write a record without end", metadata(annotations={f"{P}/results": "x" * 20_481}), TOO_LONG, BOTH),
    Refused("write many bytes in few characters", metadata(annotations={f"{P}/results": "\u00e9" * 10_241}), TOO_LONG),
    Refused("fill its node", metadata(annotations={f"{P}/sweep-result": "x" * 250_000}), TOO_LONG, BOTH),
    Refused("give its taint another value", spec(taints=[SPOT, STARTUP, UNHEALTHY | {"value": "x" * 63}]), TRUE),
    *(
        Refused(f"label {key}={value or '(nothing)'}", metadata(labels={f"{P}/{key}": value}), LABEL_VALUE, BOTH)
        for key, value in OTHER_VALUES
    ),
    *(
        Refused(
            f"take its node for {what}",
            metadata(annotations={f"{P}/run": text}),
            NO_LEVEL_2 if len(text) <= 20_480 else TOO_LONG,
            BOTH,
        )
        for what, text in OTHER_RUNS.items()
    ),
    *(
        Refused(
            f"set its condition {what}",
            appended(ours),
            CONDITION,
            (STATUS,),
            content_type="application/json-patch+json",
        )
        for what, ours in OTHER_CONDITIONS.items()
    ),
    *(
        Refused(
            f"set a condition for repairers {what}",
            appended(ours),
            message,
            (STATUS,),
            content_type="application/json-patch+json",
        )
        for what, (ours, message) in OTHER_REPAIRS.items()
    ),
    Refused(
        "set a condition for repairers on another node",
        {"status": {"conditions": [READY]}},
        NOT_ITS_OWN,
        (STATUS,),
        OTHER,
        STRATEGIC,
    ),
]


@pytest.mark.parametrize(
    ("write", "resource"),
    [
        pytest.param(write, resource, id=f"{write.what} through {resource}")
        for write in REFUSED_NODE_WRITES
        for resource in write.through
    ],
)
def test_agent_write_to_a_node_is_rejected(unchanged: Cluster, write: Refused, resource: str) -> None:
    answer = unchanged.ask("PATCH", path_of(resource, write.node), write.body, write.content_type)

    assert (answer.status, write.message in answer.message) == (403, True), answer.message


def test_an_agent_may_not_add_the_startup_taint_back(cluster: Cluster) -> None:
    assert cluster.patch(path_of(MAIN, OWN), spec(taints=[SPOT])).status == 200

    answer = cluster.patch(path_of(MAIN, OWN), spec(taints=[SPOT, STARTUP]))

    assert (answer.status, FOREIGN_TAINT in answer.message) == (403, True), answer.message


def test_an_agent_may_not_uncordon_a_node(cluster: Cluster) -> None:
    cluster.plane.request("PATCH", path_of(MAIN, OWN), spec(unschedulable=True))

    answer = cluster.patch(path_of(MAIN, OWN), spec(unschedulable=None))

    assert (answer.status, FOREIGN_SPEC in answer.message) == (403, True), answer.message


@pytest.mark.parametrize(("name", "value"), [("podCIDR", "10.8.0.0/24"), ("providerID", "aws:///elsewhere")])
def test_an_agent_may_not_give_a_node_its(installed: ControlPlane, name: str, value: str) -> None:
    """While the value is not set, only the policy prevents the write."""
    installed.request("POST", "/api/v1/nodes", metadata(name="admission-blank"))
    token = installed.agent_token("admission-blank")

    body = {"spec": {name: value} | ({"podCIDRs": [value]} if name == "podCIDR" else {})}
    answer = installed.request("PATCH", path_of(MAIN, "admission-blank"), body, token=token)

    assert (answer.status, FOREIGN_SPEC in answer.message) == (403, True), answer.message


def test_an_agent_writes_labels_annotations_and_taint_in_one_patch(cluster: Cluster) -> None:
    version = cluster.node()["metadata"]["resourceVersion"]
    marks = {
        "resourceVersion": version,
        "labels": {f"{P}/status": "fail", f"{P}/severity": "REBOOT"},
        "annotations": {f"{P}/results": "{}"},
    }

    answer = cluster.ask(
        "PATCH", path_of(MAIN, OWN), {"metadata": marks, "spec": {"taints": [SPOT, STARTUP, UNHEALTHY]}}
    )

    assert answer.status == 200, answer.message
    assert answer.body["spec"]["taints"] == [SPOT, STARTUP, UNHEALTHY]
    assert answer.body["metadata"]["labels"][f"{P}/severity"] == "REBOOT"


def test_agent_removes_its_own_marks_and_the_startup_taint(cluster: Cluster) -> None:
    cluster.patch(path_of(MAIN, OWN), metadata(labels={f"{P}/mode": "l2"}) | spec(taints=[SPOT, STARTUP, UNHEALTHY]))

    answer = cluster.patch(path_of(MAIN, OWN), metadata(labels={f"{P}/mode": None}) | spec(taints=[SPOT]))

    assert answer.status == 200, answer.message
    assert answer.body["spec"]["taints"] == [SPOT]
    assert f"{P}/mode" not in answer.body["metadata"]["labels"]


def test_agent_acquires_its_node_for_a_level_2_and_releases_it_with_the_result(cluster: Cluster) -> None:
    now = datetime.now(UTC)
    run = deep_runs.Claim(deep_runs.RunKind.L2, "agent", now + timedelta(hours=1))
    taken = cluster.patch(path_of(MAIN, OWN), deep_runs.acquire(node_state(cluster.node()), run, now))
    assert taken.status == 200, taken.message
    assert taken.body["spec"]["taints"] == [SPOT, STARTUP, MAINTENANCE]

    patch = deep_runs.release(node_state(taken.body), run) or {}
    patch["metadata"]["annotations"][f"{P}/sweep-result"] = "{}"
    given_back = cluster.patch(path_of(MAIN, OWN), patch)

    assert given_back.status == 200, given_back.message
    assert given_back.body["spec"]["taints"] == [SPOT, STARTUP]
    assert f"{P}/mode" not in given_back.body["metadata"]["labels"]
    assert f"{P}/run" not in given_back.body["metadata"]["annotations"]


@pytest.mark.parametrize("kind", ["sweep", "quarantine"])
def test_agent_clears_the_marks_of_another_programs_ended_run(cluster: Cluster, kind: str) -> None:
    left = {"key": f"{P}/maintenance", "value": kind, "effect": "NoSchedule"}
    text = json.dumps({"kind": kind, "holder": "job-1", "until": "2026-11-21T01:02:03Z"})
    marks = metadata(labels={f"{P}/mode": kind}, annotations={f"{P}/run": text}) | spec(taints=[SPOT, STARTUP, left])
    assert cluster.plane.request("PATCH", path_of(MAIN, OWN), marks).status == 200

    until = datetime(2026, 11, 21, 1, 2, 4, tzinfo=UTC)
    answer = cluster.patch(path_of(MAIN, OWN), deep_runs.clear(node_state(cluster.node()), until))

    assert answer.status == 200, answer.message
    assert answer.body["spec"]["taints"] == [SPOT, STARTUP]
    assert f"{P}/run" not in answer.body["metadata"]["annotations"]


@pytest.mark.parametrize("resource", BOTH)
def test_agent_removes_a_release_with_its_new_record_and_cannot_change_it(cluster: Cluster, resource: str) -> None:
    release = f"{P}/release"
    assert cluster.plane.request("PATCH", path_of(MAIN, OWN), metadata(annotations={release: "{}"})).status == 200

    changed = cluster.patch(path_of(resource, OWN), metadata(annotations={release: '{"by":"me"}'}))
    answer = cluster.patch(path_of(resource, OWN), metadata(labels={f"{P}/status": "fail"}))
    taken = cluster.patch(path_of(resource, OWN), metadata(annotations={release: None, f"{P}/results": "{}"}))
    again = cluster.patch(path_of(resource, OWN), metadata(annotations={release: "{}"}))

    assert (changed.status, RELEASED in changed.message) == (403, True), changed.message
    assert (answer.status, taken.status, again.status) == (200, 200, 403), (answer.message, taken.message)
    assert release not in taken.body["metadata"]["annotations"]


def test_an_agent_sets_its_condition_and_leaves_the_others(cluster: Cluster) -> None:
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "GpuHealthy",
        "status": "False",
        "reason": "Xid79",
        "message": "a GPU fell off the bus",
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }

    answer = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [condition]}})

    assert answer.status == 200, answer.message
    assert {found["type"] for found in answer.body["status"]["conditions"]} == {"Ready", "GpuHealthy"}


def test_agent_sets_all_its_conditions_at_once_and_removes_those_for_repairers(cluster: Cluster) -> None:
    repairs = [READY | {"type": kind} for kind in REPAIR_CONDITIONS]

    answer = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [VERDICT, *repairs]}})
    changed = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [READY | {"status": "True"}]}})
    agent = cluster.agent()
    left = agent.nodes.remove_conditions(OWN, REPAIR_CONDITIONS)

    assert [answer.status, changed.status] == [200, 200], (answer.message, changed.message)
    assert {entry["type"] for entry in answer.body["status"]["conditions"]} == {
        "Ready",
        "GpuHealthy",
        *REPAIR_CONDITIONS,
    }
    assert {condition["type"] for condition in left.conditions} == {"Ready", "GpuHealthy"}


@pytest.mark.parametrize("words", [{"message": "Monitoring is active"}, {"message": ""}], ids=["theirs", "none"])
def test_an_agent_may_not_change_a_condition_that_another_program_wrote(
    cluster: Cluster, words: dict[str, str]
) -> None:
    theirs = {"status": {"conditions": [READY | {"status": "True"} | words]}}
    assert cluster.plane.request("PATCH", path_of(STATUS, OWN), theirs, content_type=STRATEGIC).status == 200

    over = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [READY]}})
    away = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [READY | {"$patch": "delete"}]}})
    answer = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [VERDICT]}})

    assert [THEIR_CONDITION in one.message for one in (over, away)] == [True, True], (over.message, away.message)
    assert (over.status, away.status, answer.status) == (403, 403, 200), answer.message


def test_the_policy_can_afford_a_node_as_crowded_as_they_get(cluster: Cluster) -> None:
    """CEL has a cost budget per request. A policy that exceeds it refuses every request."""
    crowd = {f"example.com/mark-{i}": "x" * 60 for i in range(150)}
    images = [{"names": [f"registry.example.com/{'x' * 150}{i}:{j}" for j in range(2)]} for i in range(50)]
    conditions = [READY_LOST | {"type": f"Type{i}"} for i in range(40)]
    taints = [SPOT | {"key": f"example.com/taint-{i}"} for i in range(40)]
    marks = {"labels": crowd, "annotations": crowd | {f"{P}/results": "x" * 16_384}}
    admin = cluster.plane.request
    assert admin("PATCH", path_of(MAIN, OWN), {"metadata": marks, "spec": {"taints": taints}}).status == 200
    status = {"images": images, "conditions": conditions}
    assert admin("PATCH", path_of(STATUS, OWN), {"status": status}, content_type=STRATEGIC).status == 200

    own = {"metadata": {"labels": {f"{P}/status": "fail"}}, "spec": {"taints": [*taints, UNHEALTHY]}}
    marked = cluster.ask("PATCH", path_of(MAIN, OWN), own)
    condition = {"type": "GpuHealthy", "status": "False", "reason": "Xid79", "message": "x" * 1024}
    answer = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [condition]}})

    assert [marked.status, answer.status] == [200, 200], (marked.message, answer.message)


def test_the_policy_can_afford_a_node_that_others_have_filled(cluster: Cluster) -> None:
    """The Node is filled to the API server's limits: 256 KiB of annotations, and 1.5 MiB in total."""
    full = {f"example.com/full-{i}": "x" * 60_000 for i in range(4)}
    conditions = [READY_LOST | {"type": f"Type{i}", "message": "x" * 50_000} for i in range(20)]
    admin = cluster.plane.request
    assert admin("PATCH", path_of(MAIN, OWN), metadata(annotations=full)).status == 200
    status = {"status": {"conditions": conditions}}
    assert admin("PATCH", path_of(STATUS, OWN), status, content_type=STRATEGIC).status == 200

    own = metadata(labels={f"{P}/status": "fail"}) | spec(taints=[SPOT, STARTUP, UNHEALTHY])
    marked = cluster.ask("PATCH", path_of(MAIN, OWN), own)
    answer = cluster.ask("PATCH", path_of(STATUS, OWN), {"status": {"conditions": [VERDICT]}})

    assert [marked.status, answer.status] == [200, 200], (marked.message, answer.message)


def test_an_agent_makes_and_renews_its_own_heartbeat(cluster: Cluster) -> None:
    agent, node = cluster.agent(), node_state(cluster.node())
    agent.leases.renew_heartbeat(node, datetime.now(UTC), 900)
    first = agent.leases.heartbeats(datetime.now(UTC))[OWN]
    # A mark by another client, which the agent must not change.
    note = {"metadata": {"annotations": {"example.com/note": "x"}, "labels": {"example.com/team": "vision"}}}
    assert cluster.plane.request("PATCH", f"{HEARTBEATS}/{OWN}", note).status == 200
    agent.leases.renew_heartbeat(node, datetime.now(UTC) + timedelta(seconds=1), 259_200)

    assert agent.leases.heartbeats(datetime.now(UTC))[OWN].renewed > first.renewed


def test_an_agent_labels_its_heartbeat_and_slot_with_its_group_and_removes_the_label(cluster: Cluster) -> None:
    agent, node = cluster.agent(), node_state(cluster.node())
    longest = "g" * 63
    for group in ("", longest, "other", ""):
        agent.leases.renew_heartbeat(node, datetime.now(UTC), 900, group)
        labels = cluster.plane.request("GET", f"{HEARTBEATS}/{OWN}").body["metadata"].get("labels", {})
        assert labels == ({f"{P}/group": group} if group else {})
        assert agent.leases.count_group(longest, 1) == (group == longest)
    slot = agent.leases.create_slot("slot-3", node, longest)

    assert (slot.group, list(agent.leases.slots(group=longest))) == (longest, [slot])
    assert list(agent.leases.slots(group="other")) == []
    relabelled = cluster.ask("PATCH", f"{SLOTS}/slot-3", metadata(labels={f"{P}/group": "other"}))
    assert relabelled.status == 403, relabelled.message


def test_an_agent_may_not_label_the_heartbeat_of_another_node(cluster: Cluster) -> None:
    cluster.plane.request("POST", HEARTBEATS, lease(OTHER, OTHER))
    answer = cluster.patch(f"{HEARTBEATS}/{OTHER}", metadata(labels={f"{P}/group": "g"}))

    assert "an agent may write only the heartbeat of its own node" in answer.message


def test_an_agent_may_not_change_what_others_wrote_on_its_heartbeat(cluster: Cluster) -> None:
    cluster.agent().leases.renew_heartbeat(node_state(cluster.node()), datetime.now(UTC), 900)
    note = {"metadata": {"annotations": {"example.com/note": "x"}, "labels": {"example.com/team": "vision"}}}
    assert cluster.plane.request("PATCH", f"{HEARTBEATS}/{OWN}", note).status == 200

    noted = cluster.patch(f"{HEARTBEATS}/{OWN}", metadata(annotations=None))
    labelled = cluster.patch(f"{HEARTBEATS}/{OWN}", metadata(labels={"example.com/team": "audio"}))

    assert [LEASE_MARKS in noted.message, LEASE_RELABELLED in labelled.message] == [True, True]


def test_an_agent_reads_the_size_of_the_fleet_from_one_lease(cluster: Cluster) -> None:
    for name in (OWN, OTHER, "admission-third"):
        cluster.plane.request("POST", HEARTBEATS, lease(name, name))

    answer = cluster.ask("GET", f"{HEARTBEATS}?limit=1")

    assert len(answer.body["items"]) + answer.body["metadata"]["remainingItemCount"] >= 3
    cluster.plane.request("DELETE", f"{HEARTBEATS}/admission-third")


def test_agent_acquires_and_releases_a_slot_for_its_node(cluster: Cluster) -> None:
    agent, node = cluster.agent(), node_state(cluster.node())
    taken = agent.leases.create_slot("slot-0", node)
    with pytest.raises(Conflict):
        agent.leases.create_slot("slot-0", node)
    assert agent.leases.read_slot("slot-0") == taken
    with pytest.raises(Conflict):
        agent.leases.delete_slot(replace(taken, uid=OWNER["uid"]))
    agent.leases.delete_slot(taken)

    assert list(agent.leases.slots()) == []


def test_slot_has_a_number_or_its_node_as_name(cluster: Cluster) -> None:
    agent = cluster.agent()
    for name in ("slot-9", "slot-10", "slot-99999", OWN):
        agent.leases.create_slot(name, node_state(cluster.node()))
        assert agent.leases.read_slot(name).holder == OWN


@pytest.mark.parametrize("length", [63, 64, 240])
def test_node_of_a_long_name_acquires_a_slot_and_finds_it(installed: ControlPlane, length: int) -> None:
    name = "n" * length
    installed.request("POST", "/api/v1/nodes", metadata(name=name))
    agent = client(installed, installed.agent_token(name))
    slot = agent.leases.create_slot("slot-7", agent.nodes.read(name))

    assert list(agent.leases.slots(name)) == [slot]
    agent.leases.delete_slot(slot)
    installed.request("DELETE", f"/api/v1/nodes/{name}")


def test_an_agent_counts_the_slots_and_finds_its_own(cluster: Cluster) -> None:
    for number, holder in enumerate((OWN, OTHER, OTHER)):
        mark = {f"{P}/holder": holder_label(holder)}
        cluster.plane.request("POST", SLOTS, lease(f"slot-{number}", holder, labels=mark))
    agent = cluster.agent()

    assert agent.leases.count_slots() == 3
    assert [slot.name for slot in agent.leases.slots(OWN)] == ["slot-0"]
    assert [slot.holder for slot in agent.leases.slots()] == [OWN, OTHER, OTHER]


def test_a_place_that_another_labels_as_an_agents_own_is_not_its_own(cluster: Cluster) -> None:
    mark = {f"{P}/holder": holder_label(OWN)}
    cluster.plane.request("POST", SLOTS, lease("slot-5", OTHER, labels=mark))

    assert list(cluster.agent().leases.slots(OWN)) == []


def test_agent_creates_an_event_about_its_node_and_counts_it_up(cluster: Cluster) -> None:
    answer = cluster.ask("POST", EVENTS, event(DIGEST, OWN))
    counted = cluster.ask("PATCH", f"{EVENTS}/{OWN}.{DIGEST}", {"count": 2})

    assert [answer.status, counted.status] == [201, 200], (answer.message, counted.message)


@dataclass(frozen=True)
class Request:
    """A request that must be rejected, after requests of the admin that create its target."""

    what: str
    method: str
    path: str
    body: dict[str, Any] | None
    message: str
    before: tuple[tuple[str, dict[str, Any]], ...] = field(default=())


ELSEWHERE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OTHERS_HEARTBEAT = ((HEARTBEATS, lease(OTHER, OTHER)),)
OTHERS_SLOT = ((SLOTS, lease("slot-1", OTHER)),)
OWN_SLOT = ((SLOTS, lease("slot-1", OWN)),)


@pytest.mark.parametrize("namespace", ["kube-public", "default"])
def test_an_agent_warns_a_pod_of_a_faulty_gpu(cluster: Cluster, namespace: str) -> None:
    """Admission does not see whether the pod runs on the agent's node, or exists."""
    path = f"/api/v1/namespaces/{namespace}/events"
    answer = cluster.ask("POST", path, pod_event("0123456789ab", namespace=namespace))
    cluster.plane.request("DELETE", f"{path}/{OWN}.0123456789ab")

    assert answer.status == 201, answer.message


OTHERS_EVENT = ((EVENTS, event(DIGEST, OTHER)),)
STRANGERS_EVENT = ((EVENTS, event(DIGEST, OWN, source="kubelet", reporter="kubelet")),)
OTHER_SLOTS: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"called {name}": (slot(name), SLOT_NAME)
        for name in ("slot-x", "slot-100000", "slot-00", "slot-01", "slot--1", "a.slot-1", "slot-1.a", "other")
    },
    "called as its neighbour": (slot(OTHER), SLOT_NAME),
    "for another node": (slot("slot-2", OTHER), SLOT),
    "that another node owns": (slot("slot-2", ownerReferences=[node_owner(OTHER)]), LEASE_OWNER),
    "that a pod owns": (slot("slot-2", ownerReferences=[node_owner(OWN) | {"kind": "Pod"}]), LEASE_OWNER),
    "that nobody owns": (slot("slot-2", ownerReferences=[]), LEASE_OWNER),
    "of two owners": (slot("slot-2", ownerReferences=[node_owner(OWN), OWNER]), LEASE_OWNER),
    "that controls it": (slot("slot-2", ownerReferences=[node_owner(OWN) | {"controller": True}]), LEASE_OWNER),
    "that outlives its deletion": (slot("slot-2", finalizers=["example.com/hold"]), LEASE_MARKS),
    "with an annotation": (slot("slot-2", annotations={"example.com/x": "x" * 250_000}), LEASE_MARKS),
    "with another's label": (slot("slot-2", labels={f"{P}/holder": OTHER}), LEASE_LABELS),
    "with a digest": (slot("slot-2", labels={f"{P}/holder": "0123456789abcdef" * 2}), LEASE_LABELS),
    "with one label more": (slot("slot-2", labels={f"{P}/holder": OWN, "a": "b"}), LEASE_LABELS),
    "without a label": (slot("slot-2", labels={}), LEASE_LABELS),
    "with its group alone": (slot("slot-2", labels={f"{P}/group": "a"}), LEASE_LABELS),
    "that says more": (slot("slot-2") | {"spec": {"holderIdentity": OWN, "leaseTransitions": 1}}, LEASE_FIELDS),
}
OTHER_HEARTBEATS: dict[str, tuple[dict[str, Any], str]] = {
    "of the far future": (heartbeat(renewTime="9999-01-01T00:00:00.000000Z"), LEASE_TIMES),
    "of the next century": (heartbeat(renewTime="2100-01-01T00:00:00.000000Z"), LEASE_TIMES),
    "of the year 0": (heartbeat(renewTime="0000-01-01T00:00:00.000000Z"), LEASE_TIMES),
    "of before all machines": (heartbeat(renewTime="1969-12-31T23:59:59.000000Z"), LEASE_TIMES),
    "that is good for ever": (heartbeat(leaseDurationSeconds=2_147_483_647), LEASE_TIMES),
    "that says more": (heartbeat(leaseTransitions=1), LEASE_FIELDS),
    "held by another": (heartbeat(holderIdentity=OTHER), LEASE_HOLDER),
    "without an owner": (lease(OWN, OWN), LEASE_OWNER),
    "with a label": (lease(OWN, OWN, ownerReferences=[node_owner(OWN)], labels={"a": "b"}), LEASE_LABELS),
    "that outlives its deletion": (
        lease(OWN, OWN, ownerReferences=[node_owner(OWN)], finalizers=["example.com/hold"]),
        LEASE_MARKS,
    ),
}
ALLOWED_EVENT = event(DIGEST, OWN)
OTHER_EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "called as its neighbour's": (ALLOWED_EVENT | {"metadata": {"name": f"{OTHER}.{DIGEST}"}}, EVENT_NAME),
    "called anything": (ALLOWED_EVENT | {"metadata": {"name": "anything"}}, EVENT_NAME),
    "of a long message": (ALLOWED_EVENT | {"message": "\u00e9" * 513}, EVENT_LENGTH),
    "of a sentence for a reason": (ALLOWED_EVENT | {"reason": "it broke"}, EVENT_WORDS),
    "of a long reason": (ALLOWED_EVENT | {"reason": "X" * 64}, EVENT_WORDS),
    "without a reason": (ALLOWED_EVENT | {"reason": ""}, EVENT_WORDS),
    "of another type": (ALLOWED_EVENT | {"type": "Error"}, EVENT_WORDS),
    "that happened very often": (ALLOWED_EVENT | {"count": 2_000_000_000}, EVENT_WORDS),
    "from another's host": (ALLOWED_EVENT | {"source": {"component": "gpu-healthcheck", "host": OTHER}}, EVENT_SOURCE),
    "by another instance": (ALLOWED_EVENT | {"reportingInstance": OTHER}, EVENT_SOURCE),
    "with something beside": (ALLOWED_EVENT | {"related": {"kind": "Pod", "name": "x"}}, EVENT_FIELDS),
    "with labels": (ALLOWED_EVENT | {"metadata": ALLOWED_EVENT["metadata"] | {"labels": {"a": "b"}}}, EVENT_FIELDS),
    "that outlives its deletion": (
        ALLOWED_EVENT | {"metadata": ALLOWED_EVENT["metadata"] | {"finalizers": ["example.com/hold"]}},
        EVENT_FIELDS,
    ),
}
OTHER_POD_EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "of its finding": (pod_event(DIGEST) | {"reason": "Xid79"}, EVENT),
    "that all is well": (pod_event(DIGEST) | {"type": "Normal"}, EVENT),
    "in another's name": (
        pod_event(DIGEST) | {"metadata": {"name": f"{OTHER}.{DIGEST}", "namespace": "kube-public"}},
        EVENT_NAME,
    ),
    "from another's host": (
        pod_event(DIGEST) | {"source": {"component": "gpu-healthcheck", "host": OTHER}},
        EVENT_SOURCE,
    ),
    "as the kubelet": (pod_event(DIGEST) | {"source": {"component": "kubelet"}}, EVENT_SOURCE),
    "without its UID": (pod_event(DIGEST, uid=""), EVENT),
    "by its field": (pod_event(DIGEST, fieldPath="spec.containers{main}"), EVENT_FIELDS),
    "of a long message": (pod_event(DIGEST) | {"message": "x" * 1025}, EVENT_LENGTH),
    "that is a Job": (pod_event(DIGEST, kind="Job"), EVENT),
    "that is its Node": (pod_event(DIGEST, kind="Node", name=OWN), EVENT),
}

REFUSED_REQUESTS = [
    Request("make another's heartbeat", "POST", HEARTBEATS, lease(OTHER, OTHER), HEARTBEAT),
    Request("make a heartbeat of no node", "POST", HEARTBEATS, lease("anything", OWN), HEARTBEAT),
    Request(
        "renew another's heartbeat",
        "PATCH",
        f"{HEARTBEATS}/{OTHER}",
        {"spec": {"leaseDurationSeconds": 1}},
        HEARTBEAT,
        OTHERS_HEARTBEAT,
    ),
    Request(
        "date its heartbeat far ahead",
        "PATCH",
        f"{HEARTBEATS}/{OWN}",
        {"metadata": {"ownerReferences": [node_owner(OWN)]}, "spec": {"renewTime": "9999-01-01T00:00:00.000000Z"}},
        LEASE_TIMES,
        ((HEARTBEATS, lease(OWN, OWN)),),
    ),
    Request(
        "drop another's heartbeat",
        "DELETE",
        f"{HEARTBEATS}/{OTHER}",
        None,
        'cannot delete resource "leases"',
        OTHERS_HEARTBEAT,
    ),
    Request("drop all heartbeats", "DELETE", HEARTBEATS, None, "cannot deletecollection"),
    *(Request(f"take a slot {what}", "POST", SLOTS, *refused) for what, refused in OTHER_SLOTS.items()),
    *(Request(f"make a heartbeat {what}", "POST", HEARTBEATS, *refused) for what, refused in OTHER_HEARTBEATS.items()),
    *(Request(f"tell an event {what}", "POST", EVENTS, *refused) for what, refused in OTHER_EVENTS.items()),
    Request("free another's slot", "DELETE", f"{SLOTS}/slot-1", None, SLOT, OTHERS_SLOT),
    Request(
        "hand its slot on",
        "PATCH",
        f"{SLOTS}/slot-1",
        {"spec": {"holderIdentity": OTHER}},
        'cannot patch resource "leases"',
        OWN_SLOT,
    ),
    Request("touch the kubelet's lease", "POST", ELSEWHERE, lease(OWN, OWN), 'cannot create resource "leases"'),
    Request("tell an event about another node", "POST", EVENTS, event(DIGEST, OTHER), EVENT),
    *(Request(f"tell a pod {what}", "POST", POD_EVENTS, *refused) for what, refused in OTHER_POD_EVENTS.items()),
    Request(
        "count up an event about a pod",
        "PATCH",
        f"{EVENTS}/{OWN}.{DIGEST}",
        {"count": 2},
        EVENT,
        ((EVENTS, pod_event(DIGEST, namespace="default")),),
    ),
    Request(
        "change an event in another namespace",
        "PATCH",
        f"{POD_EVENTS}/{OWN}.{DIGEST}",
        {"count": 2},
        'cannot patch resource "events"',
        ((POD_EVENTS, pod_event(DIGEST)),),
    ),
    Request("read events", "GET", POD_EVENTS, None, 'cannot list resource "events"'),
    Request("tell an event as the kubelet", "POST", EVENTS, event(DIGEST, OWN, source="kubelet"), EVENT_SOURCE),
    Request("tell an event as nobody", "POST", EVENTS, event(DIGEST, OWN, source="", reporter=""), EVENT_SOURCE),
    Request(
        "turn another's event to its node",
        "PATCH",
        f"{EVENTS}/{OTHER}.{DIGEST}",
        event(DIGEST, OTHER) | {"involvedObject": event(DIGEST, OWN)["involvedObject"]},
        EVENT_CHANGED,
        OTHERS_EVENT,
    ),
    Request(
        "take the kubelet's event over",
        "PATCH",
        f"{EVENTS}/{OWN}.{DIGEST}",
        event(DIGEST, OWN),
        EVENT_CHANGED,
        STRANGERS_EVENT,
    ),
    Request("use the newer events API", "POST", NEW_EVENTS, new_event(DIGEST, OWN), 'cannot create resource "events"'),
    Request("delete its Node", "DELETE", f"/api/v1/nodes/{OWN}", None, 'cannot delete resource "nodes"'),
    Request("make a Node", "POST", "/api/v1/nodes", {"metadata": {"name": "x"}}, 'cannot create resource "nodes"'),
    Request("list the Nodes", "GET", "/api/v1/nodes", None, 'cannot list resource "nodes"'),
    Request("read pods", "GET", "/api/v1/pods", None, 'cannot list resource "pods"'),
    Request(
        "read secrets", "GET", "/api/v1/namespaces/gpu-healthcheck/secrets", None, 'cannot list resource "secrets"'
    ),
]


@pytest.mark.parametrize("refused", [pytest.param(found, id=found.what) for found in REFUSED_REQUESTS])
def test_agent_request_is_rejected(unchanged: Cluster, refused: Request) -> None:
    for path, made in refused.before:
        assert unchanged.plane.request("POST", path, made).status == 201

    answer = unchanged.ask(refused.method, refused.path, refused.body)
    for path, made in refused.before:
        assert unchanged.plane.request("DELETE", f"{path}/{made['metadata']['name']}").status == 200

    assert (answer.status, refused.message in answer.message) == (403, True), answer.message


def test_the_policy_judges_the_newer_events_api_too(cluster: Cluster) -> None:
    """Were a role ever to grant events.k8s.io, the same rules hold there: shown with a role of this test."""
    rules = [{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}]
    cluster.plane.kubectl("apply", "-f", "-", input=_role_and_binding(rules))
    try:
        while "cannot create" in (own := cluster.ask("POST", NEW_EVENTS, new_event(DIGEST, OWN))).message:
            pass
        other = cluster.ask("POST", NEW_EVENTS, new_event(DIGEST, OTHER))
    finally:
        cluster.plane.kubectl("delete", "-n", "default", "role/newer-events", "rolebinding/newer-events")

    assert (own.status, other.status, EVENT in other.message) == (201, 403, True)


def _role_and_binding(rules: list[dict[str, Any]]) -> str:
    group = "rbac.authorization.k8s.io"
    named = {"metadata": {"name": "newer-events", "namespace": "default"}}
    account = {"kind": "ServiceAccount", "name": "gpu-healthcheck", "namespace": "gpu-healthcheck"}
    role = {"apiVersion": f"{group}/v1", "kind": "Role", **named, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        **named,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "newer-events"},
        "subjects": [account],
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", path_of(MAIN, OWN), metadata(labels={f"{P}/status": "pass"})),
        ("PATCH", path_of(STATUS, OWN), metadata(labels={f"{P}/status": "pass"})),
        ("POST", HEARTBEATS, lease(OWN, OWN)),
        ("POST", SLOTS, slot("slot-3")),
        ("POST", EVENTS, event(DIGEST, OWN)),
    ],
    ids=["a Node", "a Node's status", "a heartbeat", "a slot", "an event"],
)
def test_token_without_a_node_writes_nothing(unchanged: Cluster, method: str, path: str, body: dict[str, Any]) -> None:
    answer = unchanged.plane.request(method, path, body, token=unbound_token(unchanged.plane))

    assert (answer.status, UNBOUND in answer.message) == (403, True), answer.message


def test_policies_hold_no_other_account(cluster: Cluster) -> None:
    answer = cluster.plane.request("PATCH", path_of(MAIN, OWN), metadata(labels={"example.com/new": "x"}))

    assert answer.status == 200


def test_agent_watches_one_node_without_the_verb_list(unchanged: Cluster) -> None:
    path = f"/api/v1/nodes?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3D{OWN}"

    answer = unchanged.ask("GET", path)

    assert answer.status == 200
    assert {found["object"]["metadata"]["name"] for found in answer.body} == {OWN}
