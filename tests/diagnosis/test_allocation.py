from __future__ import annotations

import json
from typing import Any

import pytest

from diagnosis.answers.allocation import allocation, totals
from diagnosis.causes.diagnose import diagnose
from diagnosis.report.content import Report
from diagnosis.report.document import cluster_document
from diagnosis.report.pages import html_page, markdown_page
from healthcheck.node.state import MAINTENANCE, STARTUP, UNHEALTHY
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


def claimed() -> list[Object]:
    devices = [{"name": "gpu-0"}, {"name": "gpu-1"}]
    results = [{"driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}]
    return [
        obj(
            "ResourceSlice",
            "s",
            spec={"driver": "gpu.nvidia.com", "nodeName": "a", "pool": {"name": "a"}, "devices": devices},
        ),
        obj(
            "ResourceClaim",
            "c",
            "team",
            spec={"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
            status={
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "x"}],
            },
        ),
    ]


def published_anew(*names: str) -> Object:
    """Return the first of two slices that replace the earlier one."""
    pool = {"name": "a", "generation": 2, "resourceSliceCount": 2}
    devices = [{"name": name} for name in names]
    return obj(
        "ResourceSlice", "t", spec={"driver": "gpu.nvidia.com", "nodeName": "a", "pool": pool, "devices": devices}
    )


STATES: list[tuple[str, list[Object], int | None, tuple[str, str, int, int, int]]] = [
    ("whole", [node("a", 8), pod("x", 3, on="a")], 8, (GPU, "GPUs", 8, 3, 5)),
    ("a pod that ended", [node("a", 8), pod("x", 3, on="a", phase="Succeeded")], 8, (GPU, "GPUs", 8, 0, 8)),
    (
        "a pod that goes",
        [node("a", 8), pod("x", 3, on="a", metadata={"deletionTimestamp": "2026-11-22T11:00:00Z"})],
        8,
        (GPU, "GPUs", 8, 3, 5),
    ),
    ("one unhealthy", [node("a", 8, allocatable={GPU: "7"}), pod("x", 7, on="a")], 8, (GPU, "GPUs", 7, 7, 0)),
    ("time-sliced", [node("a", 32, labels=FOUR), pod("x", 2, on="a")], 8, (GPU, "time-sliced places", 32, 2, 30)),
    (
        "time-sliced under another name",
        [node("a", 0, labels=FOUR, capacity={SHARED: "32"}, allocatable={SHARED: "32"}), asks("x", SHARED, 1)],
        8,
        (SHARED, "time-sliced places", 32, 1, 31),
    ),
    (
        "MIG instances",
        [
            node("a", 0, labels={"nvidia.com/gpu.count": "8"}, capacity={SLICE: "56"}, allocatable={SLICE: "56"}),
            asks("x", SLICE, 2),
        ],
        8,
        (SLICE, "MIG instances", 56, 2, 54),
    ),
    (
        "HAMi's places",
        [
            node("a", 20, annotations={"hami.io/node-nvidia-register": json.dumps(CARDS)}),
            pod("x", 1, on="a", annotations=GIVEN),
        ],
        2,
        (GPU, "places on cards by HAMi", 10, 2, 8),
    ),
    (
        "HAMi's places of old",
        [node("a", 20, annotations={"hami.io/node-nvidia-register": OLD}), pod("x", 1, on="a", annotations=GIVEN)],
        2,
        (GPU, "places on cards by HAMi", 10, 2, 8),
    ),
    ("claims", [node("a", None), *claimed()], 2, ("gpu.nvidia.com", "devices by DRA", 2, 1, 1)),
    (
        "claims while the driver publishes anew",
        [node("a", None), *claimed(), published_anew("gpu-0")],
        1,
        ("gpu.nvidia.com", "devices by DRA, not all published yet", 1, 1, 0),
    ),
]


@pytest.mark.parametrize(("state", "cards", "pool"), [pair[1:] for pair in STATES], ids=[pair[0] for pair in STATES])
def test_each_way_to_give_out_gpus_is_counted_its_own_way(
    state: list[Object], cards: int | None, pool: tuple[str, str, int, int, int]
) -> None:
    (node_allocation,) = allocation(snapshot(*state)).nodes
    (pair,) = node_allocation.pools
    assert node_allocation.gpus == cards
    assert (pair.resource, pair.kind, pair.total, pair.held, pair.free) == pool


def test_hamis_memory_and_cores_are_listed_by_card() -> None:
    register = {"hami.io/node-nvidia-register": json.dumps(CARDS)}
    (node_allocation,) = allocation(
        snapshot(node("a", 20, annotations=register), pod("x", 1, on="a", annotations=GIVEN))
    ).nodes
    assert [(card.card.uuid, card.part.slots, card.part.memory, card.part.cores) for card in node_allocation.cards] == [
        ("GPU-1", 2, 5120, 30),
        ("GPU-2", 0, 0, 0),
    ]


def test_free_cpu_and_memory_count_all_pods() -> None:
    others = asks("web", "cpu", 90)
    (node_allocation,) = allocation(snapshot(node("a", 8), pod("x", 1, on="a"), others)).nodes
    assert (int(node_allocation.cpu_free), int(node_allocation.memory_free)) == (6, 1000 * 1024**3)


def test_each_namespace_is_listed_with_its_own_memory() -> None:
    state = [
        node("a", 8, labels=H100),
        node("b", 0, capacity={SLICE: "7"}, allocatable={SLICE: "7"}),
        pod("x", 2, on="a"),
        asks("y", SLICE, 1, on="b", namespace="other"),
        pod("z", 8),
    ]
    allocations = allocation(snapshot(*state)).namespaces
    assert [
        (
            namespace_allocation.namespace,
            namespace_allocation.pending,
            namespace_allocation.running,
            namespace_allocation.devices,
            namespace_allocation.memory,
        )
        for namespace_allocation in allocations
    ] == [
        ("other", 0, 1, {SLICE: 1}, 10 * 1024),
        ("team", 1, 1, {GPU: 2}, 2 * 81559),
    ]


def test_without_pods_nobody_knows_who_holds_what() -> None:
    assert allocation(snapshot(node("a", 8), missing=["Pod"])).pods_seen is False


HOSTILE = [
    "[",
    "[1]",
    '[{"id":5}]',
    "x" * 100_000,
    "a,b:c",
    ",,,,,,:",
    "[[[[[[" * 1000,
    "GPU-1,9999999999999999999,1,1,t,0,true:",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_an_annotation_that_nobody_can_read_breaks_nothing(text: str) -> None:
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
def test_nothing_is_free_on_a_node_that_takes_no_new_pods(changes: dict[str, Any], why: str) -> None:
    allocated = allocation(snapshot(node("a", 8, **changes), node("b", 8), pod("x", 3, on="a"), pod("y", 1, on="b")))

    assert [
        (node_allocation.node, node_allocation.usable, node_allocation.closed) for node_allocation in allocated.nodes
    ] == [("a", False, why), ("b", True, "")]
    assert [node_allocation.pools[0].free for node_allocation in allocated.nodes] == [0, 7]
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
def test_a_node_with_a_taint_that_gpu_pods_tolerate_is_usable(taint: Object) -> None:
    (node_allocation,) = allocation(snapshot(node("a", 8, taints=[taint]))).nodes

    assert (node_allocation.usable, node_allocation.pools[0].free) == (True, 8)


def test_reports_say_why_a_node_is_not_usable() -> None:
    taint = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
    seen = snapshot(node("a", 8, taints=[taint]), node("b", 8))
    report = Report(diagnose(seen), cluster=allocation(seen))

    text, page = markdown_page(report), html_page(report)
    assert "- Total GPU Nodes: 2 (1 ready and not cordoned, 1 with our taint)" in text
    assert "8 of 16 free" in text
    assert "not usable: our taint unhealthy" in text
    assert "not usable: our taint unhealthy" in page
