"""GPU owners, free GPUs, and the state of nodes that take no new pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.allocation import allocation, totals
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.report.content import Report
from gpu_healthcheck.diagnosis.report.document import cluster_document
from gpu_healthcheck.diagnosis.report.pages import html_page, markdown_page
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, STARTUP, UNHEALTHY
from tests.diagnosis.states import GPU, Object, container, node, obj, pod, snapshot

SHARED = "nvidia.com/gpu.shared"
SLICE = "nvidia.com/mig-1g.10gb"
H100 = {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100"}
FOUR = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
CARDS = [
    {"id": "GPU-1", "count": 10, "devmem": 32768, "devcore": 100, "type": "NVIDIA-V100", "health": True},
    {"id": "GPU-2", "index": 1, "count": 10, "devmem": 32768, "devcore": 100, "type": "NVIDIA-V100"},
]
OLD = "GPU-1,10,32768,100,NVIDIA-V100,0,true:GPU-2,10,32768,100,NVIDIA-V100,1,false:"
GIVEN = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4096,30:;GPU-1,NVIDIA,1024,0:;"}


def asks(name: str, resource: str, number: int, on: str = "a", **more: Any) -> Object:
    return pod(name, on=on, containers=[container(resources={resource: str(number)})], **more)


def published(*names: str, **pool: int) -> Object:
    spec = {"driver": "gpu.nvidia.com", "nodeName": "a", "pool": {"name": "a", **pool}}
    return obj("ResourceSlice", "-".join(names), spec=spec | {"devices": [{"name": name} for name in names]})


def claimed(device: str) -> Object:
    request = {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    allocated = {"devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "a", "device": device}]}}
    status = {"allocation": allocated, "reservedFor": [{"resource": "pods", "name": "x"}]}
    return obj("ResourceClaim", "c", "team", spec={"devices": {"requests": [request]}}, status=status)


def registered(text: str) -> Object:
    return node("a", 20, annotations={"hami.io/node-nvidia-register": text})


X, GOING = pod("x", 3, on="a"), {"deletionTimestamp": "2026-11-22T11:00:00Z"}
TWO = published("gpu-0", "gpu-1")
ANEW = published("gpu-0", generation=2, resourceSliceCount=2)
RENAMED = node("a", 0, labels=FOUR, capacity={SHARED: "32"}, allocatable={SHARED: "32"})
CUT = node("a", 0, labels={"nvidia.com/gpu.count": "8"}, capacity={SLICE: "56"}, allocatable={SLICE: "56"})
ON_CARD = pod("x", 1, on="a", annotations=GIVEN)
BY_HAMI = (GPU, "places on cards by HAMi", 10, 2, 8)
STATES: list[tuple[str, list[Object], int, tuple[str, str, int, int, int]]] = [
    ("whole", [node("a", 8), X], 8, (GPU, "GPUs", 8, 3, 5)),
    ("an ended pod", [node("a", 8), pod("x", 3, on="a", phase="Succeeded")], 8, (GPU, "GPUs", 8, 0, 8)),
    ("a pod that is being deleted", [node("a", 8), pod("x", 3, on="a", metadata=GOING)], 8, (GPU, "GPUs", 8, 3, 5)),
    ("one unhealthy", [node("a", 8, allocatable={GPU: "7"}), pod("x", 7, on="a")], 8, (GPU, "GPUs", 7, 7, 0)),
    ("time-sliced", [node("a", 32, labels=FOUR), pod("x", 2, on="a")], 8, (GPU, "time-sliced places", 32, 2, 30)),
    ("time-sliced and renamed", [RENAMED, asks("x", SHARED, 1)], 8, (SHARED, "time-sliced places", 32, 1, 31)),
    ("MIG instances", [CUT, asks("x", SLICE, 2)], 8, (SLICE, "MIG instances", 56, 2, 54)),
    ("HAMi", [registered(json.dumps(CARDS)), ON_CARD], 2, BY_HAMI),
    ("HAMi before 2.8", [registered(OLD), ON_CARD], 2, BY_HAMI),
    ("claims", [node("a", None), TWO, claimed("gpu-0")], 2, ("gpu.nvidia.com", "devices by DRA", 2, 1, 1)),
    (
        "claims while the driver publishes anew",
        *([node("a", None), TWO, claimed("gpu-0"), ANEW], 1),
        ("gpu.nvidia.com", "devices by DRA, not all published yet", 1, 1, 0),
    ),
]


@pytest.mark.parametrize(("state", "cards", "pool"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_allocation_of_each_kind_of_sharing(
    state: list[Object], cards: int, pool: tuple[str, str, int, int, int]
) -> None:
    (allocated,) = allocation(snapshot(*state)).nodes
    (only,) = allocated.pools
    assert allocated.gpus == cards
    assert (only.resource, only.kind, only.total, only.held, only.free) == pool


def test_allocation_lists_memory_and_cores_by_card() -> None:
    (allocated,) = allocation(snapshot(registered(json.dumps(CARDS)), ON_CARD)).nodes
    assert [(card.card.uuid, card.part.slots, card.part.memory, card.part.cores) for card in allocated.cards] == [
        ("GPU-1", 2, 5120, 30),
        ("GPU-2", 0, 0, 0),
    ]


def test_free_cpu_and_memory_count_all_pods() -> None:
    (allocated,) = allocation(snapshot(node("a", 8), pod("x", 1, on="a"), asks("web", "cpu", 90))).nodes
    assert (int(allocated.cpu_free), int(allocated.memory_free)) == (6, 1000 * 1024**3)


def test_allocation_of_namespaces_adds_their_memory() -> None:
    state = [
        *(node("a", 8, labels=H100), node("b", 0, capacity={SLICE: "7"}, allocatable={SLICE: "7"})),
        *(pod("x", 2, on="a"), asks("y", SLICE, 1, on="b", namespace="other"), pod("z", 8)),
    ]
    namespaces = allocation(snapshot(*state)).namespaces
    assert [(each.namespace, each.pending, each.running, each.devices, each.memory) for each in namespaces] == [
        ("other", 0, 1, {SLICE: 1}, 10 * 1024),
        ("team", 1, 1, {GPU: 2}, 2 * 81559),
    ]


def test_allocation_without_pods_is_unknown() -> None:
    assert allocation(snapshot(node("a", 8), missing=["Pod"])).pods_seen is False


HOSTILE = [
    *("[", "[1]", '[{"id":5}]', "x" * 100_000, "a,b:c", ",,,,,,:", "[[[[[[" * 1000),
    "GPU-1,9999999999999999999,1,1,t,0,true:",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_malformed_annotation_is_tolerated(text: str) -> None:
    annotations = {"hami.io/node-nvidia-register": text}
    given = {"hami.io/vgpu-devices-allocated": text}
    assert allocation(snapshot(node("a", 8, annotations=annotations), pod("x", 1, on="a", annotations=given))).nodes


CLOSED: list[tuple[Any, str]] = [
    ({"taints": [{"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}]}, "our taint unhealthy"),
    ({"taints": [{"key": MAINTENANCE, "value": "l2", "effect": "NoSchedule"}]}, "our taint maintenance"),
    ({"taints": [{"key": STARTUP, "effect": "NoSchedule"}]}, "our taint startup"),
    ({"cordoned": True}, "cordoned"),
    ({"ready": "False"}, "not ready"),
]


@pytest.mark.parametrize(("changes", "why"), CLOSED, ids=[why for _, why in CLOSED])
def test_closed_node_has_nothing_free(changes: dict[str, Any], why: str) -> None:
    allocated = allocation(snapshot(node("a", 8, **changes), node("b", 8), pod("x", 3, on="a"), pod("y", 1, on="b")))

    assert [(each.node, each.usable, each.closed) for each in allocated.nodes] == [("a", False, why), ("b", True, "")]
    assert [each.pools[0].free for each in allocated.nodes] == [0, 7]
    assert [(total.total, total.held, total.free) for total in totals(allocated)] == [(16, 4, 7)]
    shown = cluster_document(allocated)
    assert (shown["gpu_nodes_usable"], shown["resources"][0]["free"]) == (1, 7)


@pytest.mark.parametrize(
    "taint",
    [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": UNHEALTHY, "value": "true", "effect": "PreferNoSchedule"},
    ],
)
def test_node_with_a_tolerated_taint_is_usable(taint: Object) -> None:
    (node_allocation,) = allocation(snapshot(node("a", 8, taints=[taint]))).nodes

    assert (node_allocation.usable, node_allocation.pools[0].free) == (True, 8)


def test_reports_explain_a_closed_node() -> None:
    taint = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
    seen = snapshot(node("a", 8, taints=[taint]), node("b", 8))
    report = Report(diagnose(seen), cluster=allocation(seen))

    text, page = markdown_page(report), html_page(report)
    assert "- Total GPU Nodes: 2 (1 ready and not cordoned, 1 with our taint)" in text
    assert "8 of 16 free" in text
    assert "not usable: our taint unhealthy" in text
    assert "not usable: our taint unhealthy" in page
