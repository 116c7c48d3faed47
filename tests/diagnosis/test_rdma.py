"""RDMA devices of mlx5: resources that no node offers, claims of RoCE, ports that are down; each with its twin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.model import Certainty
from gpu_healthcheck.diagnosis.report import terminal
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.report.pages import markdown_page
from gpu_healthcheck.healthcheck.host.console import Screen
from tests.diagnosis.component_states import daemon, gpu_node, operand
from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    consequences,
    container,
    judged,
    node,
    obj,
    pod,
    recorded,
    results,
    snapshot,
    terminated,
    waiting,
)
from tests.hostile import HOSTILE

SHARED, SRIOV = "rdma/hca_shared_devices_a", "nvidia.com/hostdev"
SHARED_PLUGIN, SRIOV_PLUGIN = "rdma-shared-dp-ds", "network-operator-sriov-device-plugin"
LABELS = {SHARED_PLUGIN: {"app": "rdma-shared-dp"}, SRIOV_PLUGIN: {"app": "sriovdp"}}
MELLANOX = {"feature.node.kubernetes.io/pci-15b3.present": "true", "network.nvidia.com/operator.mofed.wait": "false"}
SYSTEM = pod("coredns", 0, on="a", namespace="kube-system")
JOB = obj("Job", "train", "team", spec={"parallelism": 2}, status={"active": 2})
Row = tuple[str, list[Object], list[tuple[str, str]]]


def rdma_node(name: str, **changes: Any) -> Object:
    labels = changes.pop("labels", MELLANOX)
    return gpu_node(name, labels=labels, **changes)


def offering(name: str, resource: str, number: str = "63") -> Object:
    return rdma_node(name, capacity={resource: number}, allocatable={resource: number})


def plugin(name: str, *nodes: str, **changes: Any) -> list[Object]:
    """A device plugin as NVIDIA's network operator installs it, with a pod on each of the nodes."""
    kept: Any = {"namespace": "network-operator", "labels": LABELS[name]}
    pods = [operand(name, on, owner=("DaemonSet", name), **kept, **changes) for on in nodes]
    return [daemon(name, wanted=len(nodes), selector=MELLANOX, **kept), *pods, SYSTEM]


def asking(resource: str, number: int = 1) -> Object:
    """A pod of a job with all GPUs of a node and these RDMA devices, as kube-scheduler refuses it."""
    message = f"0/2 nodes are available: 2 Insufficient {resource}."
    return pod(
        "train-0",
        8,
        owner=("Job", "train"),
        containers=[container("main", 8, resources={resource: str(number)})],
        conditions=[condition("PodScheduled", "False", "Unschedulable", message)],
    )


NODES = [rdma_node("a"), rdma_node("b")]
BARE = [rdma_node("a", labels={}), rdma_node("b", labels={})]
CRASHES = waiting("CrashLoopBackOff", "back-off", "main", lastState={"terminated": terminated(1)})
CRASHED: Any = {"states": [CRASHES]}
OTHER_NAME = [offering(name, "rdma/hca_shared_devices_b") for name in "ab"]
IS_ABSENT = "RdmaResourceAbsent"
RESOURCES: list[tuple[str, str, list[Object], tuple[str, str]]] = [
    ("no plugin", SHARED, [*NODES, SYSTEM], (IS_ABSENT, f"resource/{SHARED}")),
    (
        *("a plugin that is ready and selects nothing", SHARED),
        *([*NODES, *plugin(SHARED_PLUGIN, "a", "b")], (IS_ABSENT, f"resource/{SHARED}")),
    ),
    (
        *("a plugin whose labels the nodes lack", SHARED),
        *([*BARE, *plugin(SHARED_PLUGIN)], (IS_ABSENT, f"resource/{SHARED}")),
    ),
    (
        *("a plugin that crashes", SHARED, [*NODES, *plugin(SHARED_PLUGIN, "a", "b", **CRASHED)]),
        ("RdmaPluginNotReady", f"daemonset/network-operator/{SHARED_PLUGIN}"),
    ),
    ("another name of the same plugin", SHARED, OTHER_NAME, ("ResourceNameUnknown", "job/team/train")),
    *(
        (f"no SR-IOV plugin: {name}", name, [*NODES, SYSTEM], (IS_ABSENT, f"resource/{name}"))
        for name in (SRIOV, "openshift.io/mlnx_rdma", "intel.com/mlnx_rdma", "mellanox.com/mlnx_rdma")
    ),
    (
        *("an SR-IOV plugin that crashes", SRIOV, [*NODES, *plugin(SRIOV_PLUGIN, "a", "b", **CRASHED)]),
        ("SriovPluginNotReady", f"daemonset/network-operator/{SRIOV_PLUGIN}"),
    ),
]


@pytest.mark.parametrize(
    ("name", "objects", "cause"), [row[1:] for row in RESOURCES], ids=[row[0] for row in RESOURCES]
)
def test_absent_rdma_resource_has_exactly_its_cause(name: str, objects: list[Object], cause: tuple[str, str]) -> None:
    assert results(judged(*objects, JOB, asking(name))) == [cause]


@pytest.mark.parametrize(("name", "daemon_set"), [(SHARED, SHARED_PLUGIN), (SRIOV, SRIOV_PLUGIN)])
def test_offered_rdma_resource_has_no_cause(name: str, daemon_set: str) -> None:
    waits = asking(name)
    running = pod("train-0", 8, on="a", owner=("Job", "train"), containers=waits["spec"]["containers"])
    objects = [offering("a", name, "8"), rdma_node("b"), *plugin(daemon_set, "a", "b")]

    assert results(judged(*objects, JOB, running)) == []


@pytest.mark.parametrize("name", ["nvidia.com/gpu.shared", "vpc.amazonaws.com/efa", "example.com/nic"])
def test_other_resources_are_no_rdma_resources(name: str) -> None:
    (problem, *_) = judged(*NODES, SYSTEM, JOB, asking(name)).problems

    assert problem.found.cause.name != IS_ABSENT


def test_absent_rdma_resource_names_the_state_of_the_plugin() -> None:
    none = judged(*NODES, SYSTEM, JOB, asking(SHARED)).problems[0].found
    idle = judged(*NODES, *plugin(SHARED_PLUGIN, "a", "b"), JOB, asking(SHARED)).problems[0].found
    elsewhere = judged(*BARE, *plugin(SHARED_PLUGIN), JOB, asking(SHARED)).problems[0].found
    (crashed,) = judged(*NODES, *plugin(SHARED_PLUGIN, "a", "b", **CRASHED), JOB, asking(SHARED)).problems

    assert none.remedy[0].startswith("Install the RDMA shared device plugin (rdmaSharedDevicePlugin of")
    assert "the cluster has no RDMA shared device plugin" in none.evidence
    assert "Compare the resourceName hca_shared_devices_a" in idle.remedy[0]
    assert any("is ready on node/a, node/b, and offers no such resource" in text for text in idle.evidence)
    assert any("requires feature.node.kubernetes.io/pci-15b3.present=true" in text for text in elsewhere.evidence)
    assert elsewhere.remedy[0].startswith("Find out why the nodes lack these labels")
    assert consequences(crashed) == [(IS_ABSENT, f"resource/{SHARED}")]


def test_unhealthy_virtual_functions_are_no_unhealthy_gpus() -> None:
    port_down = {"reason": "RdmaPortDown", "severity": "MONITOR", "subject": "rdma/mlx5_0"}
    capacity: Any = {"capacity": {SRIOV: "8"}, "allocatable": {SRIOV: "4"}}
    sick = rdma_node("a", annotations=recorded(port_down), **capacity)
    healthy = rdma_node("a", capacity={SRIOV: "8"}, allocatable={SRIOV: "8"})

    (problem,) = judged(sick, *plugin(SRIOV_PLUGIN, "a"), JOB, asking(SRIOV, 8)).problems

    assert (problem.found.cause.name, problem.found.subject) == ("RdmaDevicesUnhealthy", "node/a")
    assert problem.found.evidence == (
        f"node/a: capacity 8 {SRIOV}, allocatable 4",
        "the agent finds ports down: rdma/mlx5_0",
    )
    young = asking(SRIOV, 8)
    young["metadata"]["creationTimestamp"] = ago(1)
    assert results(judged(healthy, *plugin(SRIOV_PLUGIN, "a"), JOB, young)) == []


ROCE, EFA = "roce.networking.k8s.aws", "efa.networking.k8s.aws"
AWS = "dra.networking.k8s.aws"
DRANET = {"k8s-app": "aws-dranet"}
EXPRESSIONS = {
    ROCE: f"device.driver == '{AWS}' && device.attributes['dra.vpc.amazonaws.com'].deviceType == 'roce'",
    EFA: f"device.driver == '{AWS}' && device.attributes['dra.vpc.amazonaws.com'].deviceType == 'efa'",
}
NONE = "device.attributes['dra.vpc.amazonaws.com'].deviceType == 'none'"
CLASSES = [
    obj("DeviceClass", name, spec={"selectors": [{"cel": {"expression": text}}]}) for name, text in EXPRESSIONS.items()
]


def claiming(device_class: str, count: int = 8, selector: str = "") -> list[Object]:
    """A pod with a claim of network devices, its claim, and the scheduler's refusal."""
    selectors = {"selectors": [{"cel": {"expression": selector}}]} if selector else {}
    request = {"name": "net", "exactly": {"deviceClassName": device_class, "count": count, **selectors}}
    claim = obj("ResourceClaim", "net", "team", spec={"devices": {"requests": [request]}})
    message = "0/2 nodes are available: 2 cannot allocate all claims."
    waits = pod(
        "train-0",
        4,
        owner=("Job", "train"),
        spec={"resourceClaims": [{"name": "net", "resourceClaimName": "net"}]},
        conditions=[condition("PodScheduled", "False", "Unschedulable", message)],
    )
    return [waits, claim]


def network_slices(kind: str, *nodes: str) -> list[Object]:
    attributes = {"dra.vpc.amazonaws.com/deviceType": {"string": kind}}
    devices = [{"name": f"{kind}-{number}", "attributes": attributes} for number in range(8)]
    return [
        obj(
            "ResourceSlice",
            f"{on}-net",
            spec={
                "driver": AWS,
                "nodeName": on,
                "pool": {"name": on, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        )
        for on in nodes
    ]


def dranet(*nodes: str, **changes: Any) -> list[Object]:
    kept: Any = {"namespace": "kube-system", "labels": DRANET}
    pods = [operand("aws-dranet", on, owner=("DaemonSet", "aws-dranet"), **kept, **changes) for on in nodes]
    return [daemon("aws-dranet", wanted=len(nodes), selector={}, **kept), *pods, SYSTEM]


PUBLISHED = [*NODES, *dranet("a", "b"), *network_slices("roce", "a", "b")]
MIXED = [*NODES, *dranet("a", "b"), *network_slices("efa", "a")]
OTHER_FABRIC, NO_MATCH = (
    ("ClaimOfAnotherFabric", "resourceclaim/team/net"),
    ("NoDeviceMatchesClaim", "resourceclaim/team/net"),
)
CLAIMS: list[tuple[str, list[Object], tuple[str, str]]] = [
    (
        *("no driver publishes RoCE", [*NODES, SYSTEM, *CLASSES, *claiming(ROCE)]),
        ("NoDevicesPublished", f"deviceclass/{ROCE}"),
    ),
    (
        *("the network's driver crashes", [*NODES, *dranet("a", "b", **CRASHED), *CLASSES, *claiming(ROCE)]),
        ("NetworkDraDriverNotReady", "daemonset/kube-system/aws-dranet"),
    ),
    ("no class", [*PUBLISHED, CLASSES[1], *claiming(ROCE)], ("DeviceClassMissing", f"deviceclass/{ROCE}")),
    ("EFA claimed on nodes with RoCE", [*PUBLISHED, *CLASSES, *claiming(EFA)], OTHER_FABRIC),
    (
        "RoCE claimed on nodes with EFA",
        [*NODES, *dranet("a", "b"), *network_slices("efa", "a", "b"), *CLASSES, *claiming(ROCE)],
        OTHER_FABRIC,
    ),
    ("EFA beside RoCE nodes whose driver publishes nothing", [*MIXED, *CLASSES, *claiming(ROCE)], NO_MATCH),
    ("no RoCE device matches a selector", [*PUBLISHED, *CLASSES, *claiming(ROCE, selector=NONE)], NO_MATCH),
    ("more RoCE than a node has", [*PUBLISHED, *CLASSES, *claiming(ROCE, 9)], NO_MATCH),
]


@pytest.mark.parametrize(("objects", "cause"), [row[1:] for row in CLAIMS], ids=[row[0] for row in CLAIMS])
def test_unmet_claim_of_roce_has_exactly_its_cause(objects: list[Object], cause: tuple[str, str]) -> None:
    assert results(judged(*objects, JOB)) == [cause]


def test_remedy_of_a_claim_names_the_network_driver() -> None:
    missing = judged(*NODES, SYSTEM, *CLASSES, *claiming(ROCE), JOB).problems[0].found
    silent = judged(*NODES, *dranet("a", "b"), *CLASSES, *claiming(ROCE), JOB).problems[0].found
    other = judged(*NODES, *network_slices("roce", "a", "b"), *CLASSES, *claiming(EFA), JOB).problems[0].found

    assert missing.remedy[0].startswith("Install the network's DRA driver: the chart aws-dranet")
    assert "kubectl -n kube-system describe daemonset aws-dranet" in silent.remedy[0]
    assert other.remedy[0] == f"Set `deviceClassName: {ROCE}` in the claim for these nodes."


def down(*ports: str) -> dict[str, str]:
    rows = [
        {
            "reason": "RdmaPortDown",
            "severity": "MONITOR",
            "subject": f"rdma/{port}",
            "detail": "state 1: DOWN",
            "first_seen": ago(30),
        }
        for port in ports
    ]
    return recorded(*rows)


def ranks(*nodes: str, **changes: Any) -> list[Object]:
    owner = changes.pop("owner", ("Job", "train"))
    return [pod(f"train-{at}", 8, on=on, owner=owner, **changes) for at, on in enumerate(nodes)]


THREE = rdma_node("a", annotations=down("mlx5_0", "mlx5_1", "mlx5_2"))
PORTS: list[Row] = [
    ("several ports down", [THREE, rdma_node("b"), *ranks("a", "b")], [("RdmaPortsDownUnderJob", "node/a")]),
    (
        "on both nodes",
        [THREE, rdma_node("b", annotations=down("mlx5_0", "mlx5_1")), *ranks("a", "b")],
        [("RdmaPortsDownUnderJob", "node/a"), ("RdmaPortsDownUnderJob", "node/b")],
    ),
    ("one port down", [rdma_node("a", annotations=down("mlx5_0")), rdma_node("b"), *ranks("a", "b")], []),
    ("a job on one node", [THREE, rdma_node("b"), *ranks("a")], []),
    ("a job elsewhere", [THREE, rdma_node("b"), rdma_node("c"), *ranks("b", "c")], []),
    ("replicas that serve", [THREE, rdma_node("b"), *ranks("a", "b", owner=("StatefulSet", "serve"))], []),
    ("a job that has ended", [THREE, rdma_node("b"), *ranks("a", "b", phase="Succeeded")], []),
    ("the ports are active again", [rdma_node("a", annotations=recorded()), rdma_node("b"), *ranks("a", "b")], []),
]


@pytest.mark.parametrize(("objects", "expected"), [row[1:] for row in PORTS], ids=[row[0] for row in PORTS])
def test_multi_node_job_over_ports_that_are_down(objects: list[Object], expected: list[tuple[str, str]]) -> None:
    assert results(judged(*objects, JOB, SYSTEM)) == expected


def test_ports_down_names_ports_pods_and_node() -> None:
    (problem,) = judged(THREE, rdma_node("b"), *ranks("a", "b"), JOB, SYSTEM).problems
    found = problem.found

    assert found.evidence[0] == "node/a: 3 RDMA ports are down"
    assert found.evidence[1] == f"rdma/mlx5_0 since {ago(30)}: state 1: DOWN"
    assert found.evidence[4] == "job/team/train runs there: pod/team/train-0"
    assert "`kubectl cordon a`" in found.remedy[1]
    assert "`kubectl -n team delete pod train-0`" in found.remedy[2]
    assert (found.affected, found.certainty) == (("pod/team/train-0", "job/team/train"), Certainty.PROVEN)


def test_node_without_gpus_needs_no_rdma_plugin() -> None:
    assert results(judged(node("plain", None), *plugin(SHARED_PLUGIN, "plain", **CRASHED))) == []


SICK: Any = {"capacity": {SRIOV: "8"}, "allocatable": {SRIOV: "4"}}
OF_ROCE = [*PUBLISHED, *CLASSES]


def placed(waits: Object, on: str, **changes: Any) -> Object:
    """A pod that waited, on a node."""
    spec = waits["spec"] | {"nodeName": on}
    return pod(waits["metadata"]["name"], on=on, owner=("Job", "train"), spec=spec, **changes)


def allocated(claim: Object, name: str) -> Object:
    given = [{"driver": AWS, "pool": "a", "device": f"roce-{number}", "request": name} for number in range(8)]
    return claim | {"status": {"allocation": {"devices": {"results": given}}, "reservedFor": [{"name": "train-0"}]}}


OFFERING = [offering("a", SHARED), offering("b", SHARED), *plugin(SHARED_PLUGIN, "a", "b")]
OFFERED = [*OFFERING, JOB, placed(asking(SHARED), "a")]
CORDONED = rdma_node("a", annotations=down("mlx5_0", "mlx5_1"), cordoned=True)
ENDS: dict[str, tuple[list[Object], list[Object]]] = {
    "RdmaResourceAbsent": ([*NODES, SYSTEM, JOB, asking(SHARED)], OFFERED),
    "RdmaDevicesUnhealthy": (
        [rdma_node("a", **SICK), *plugin(SRIOV_PLUGIN, "a"), JOB, asking(SRIOV, 8)],
        [offering("a", SRIOV, "8"), *plugin(SRIOV_PLUGIN, "a"), JOB, placed(asking(SRIOV, 8), "a")],
    ),
    "RdmaPluginNotReady": ([*NODES, *plugin(SHARED_PLUGIN, "a", "b", **CRASHED), JOB, asking(SHARED)], OFFERED),
    "SriovPluginNotReady": (
        [*NODES, *plugin(SRIOV_PLUGIN, "a", "b", **CRASHED), JOB, asking(SRIOV)],
        [offering("a", SRIOV), offering("b", SRIOV), *plugin(SRIOV_PLUGIN, "a", "b"), JOB, placed(asking(SRIOV), "a")],
    ),
    "ClaimOfAnotherFabric": (
        [*OF_ROCE, JOB, *claiming(EFA)],
        [*OF_ROCE, JOB, placed(claiming(ROCE)[0], "a"), allocated(claiming(ROCE)[1], "net")],
    ),
    "RdmaPortsDownUnderJob": (
        [THREE, rdma_node("b"), *ranks("a", "b"), JOB, SYSTEM],
        [CORDONED, *map(rdma_node, "bc"), *ranks("b", "c"), JOB, SYSTEM],
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_followed_remedy_ends_the_cause(name: str) -> None:
    broken, repaired = ENDS[name]

    assert [cause for cause, _ in results(judged(*broken))] == [name]
    assert results(judged(*repaired)) == []


def renamed(value: Any, words: str) -> Any:
    """An object whose nodes, pods, namespaces, resources and ports have these words in their names."""
    match value:
        case dict():
            return {renamed(key, words): renamed(entry, words) for key, entry in value.items()}
        case list():
            return [renamed(entry, words) for entry in value]
        case str() if value.startswith("{"):
            return json.dumps(renamed(json.loads(value), words))
        case "a" | "b" | "c":
            return f"{words}{value}"
        case str():
            for part in ("train", "team", "network-operator", "shared_devices", "hostdev", "DOWN", "main"):
                value = value.replace(part, f"{part}{words}")
            value = value.replace("mlx5_", f"mlx5_{words[:40]}")
    return value


def texts(value: Any) -> Iterator[str]:
    match value:
        case dict():
            yield from (text for entry in value.items() for text in texts(entry))
        case list() | tuple():
            yield from (text for entry in value for text in texts(entry))
        case str():
            yield value


@pytest.mark.parametrize("words", ["", "n" * 150, *HOSTILE])
@pytest.mark.parametrize("name", ENDS)
def test_hostile_names_are_printable_in_reports(name: str, words: str) -> None:
    found = diagnose(snapshot(*renamed(ENDS[name][0], words)))
    report = Report(found)
    screen = Screen(file=StringIO(), width=80)
    for part in terminal.page(report, 80):
        screen.print(part, soft_wrap=True)
    lines = screen.file.getvalue().split("\n")  # type: ignore[attr-defined]

    assert [line for line in lines if not line.isprintable()] == []
    assert [text for text in texts(document(report)) if not text.isprintable()] == []
    assert [line for line in markdown_page(report).split("\n") if not line.isprintable()] == []
    if not words:
        assert [line for line in lines if len(line) > 80 and "`" not in line and len(line.split()[-1]) < 40] == []
    if words in ("", "n" * 150):
        assert [cause for cause, _ in results(found)] == [name]
