"""GPUs that are held and idle, and how much each is used, by the series of a Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, diagnose
from gpu_healthcheck.diagnosis.report.document import cluster_document
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.gpu_use import USE, read_use
from tests.diagnosis.states import Object, ago, container, node, obj, pod, results, snapshot
from tests.prometheus import Series, series

FOUND = [("GpusHeldIdle", "pod/team/x")]
EXPORTER = ("gpu-operator", "nvidia-dcgm-exporter-k8z2p")


def card(number: int, ratio: float | str = 0, **labels: str) -> Series:
    """A recorded series of a card of the node `a`."""
    return series(ratio, **{"node": "a", "gpu": str(number), "UUID": f"GPU-{number}"} | labels)


def owned(number: int, name: str = "x", **labels: str) -> Series:
    """A recorded series of a card that a workload's pod owns."""
    return card(number, **{"namespace": "team", "pod": name} | labels)


def idle(objects: Iterable[Object], *some: Series) -> Diagnosis:
    return diagnose(replace(snapshot(*objects), idle_gpus=read_use(some)))


def on_a(gpus: int = 2, **changes: Any) -> list[Object]:
    return [node("a", 8), pod("x", gpus, on="a", **{"age": 90} | changes)]


IDLES: dict[str, tuple[list[Object], list[Series]]] = {
    "its pod is named": (on_a(), [owned(0), owned(1)]),
    "one of two": (on_a(), [owned(0)]),
    "an exporter that knows only its own pod": (on_a(), [owned(0, node="nvidia-dcgm-exporter-k8z2p")]),
    "no pod is named, and all cards are idle": (on_a(8), [card(number) for number in range(8)]),
    "only the exporter's own pod is": (
        on_a(8),
        [card(number, namespace=EXPORTER[0], pod=EXPORTER[1]) for number in range(8)],
    ),
}


@pytest.mark.parametrize(("objects", "some"), IDLES.values(), ids=IDLES)
def test_idle_gpus_of_a_pod_are_a_cause(objects: list[Object], some: list[Series]) -> None:
    assert results(idle(objects, *some)) == FOUND


def test_idle_gpus_of_several_pods_are_one_cause_of_their_workload() -> None:
    owner = {"owner": ("ReplicaSet", "web"), "age": 90}
    pods = [pod(name, 1, on="a", **owner) for name in ("web-1", "web-2", "web-3")]
    (problem,) = idle(
        [node("a", 8), obj("ReplicaSet", "web", "team"), *pods], owned(0, "web-1"), owned(3, "web-3")
    ).problems
    assert (problem.found.subject, problem.found.affected) == (
        "replicaset/team/web",
        ("pod/team/web-1", "pod/team/web-3"),
    )
    assert problem.found.evidence == (
        "pod/team/web-1: 1 of its 1 GPUs on node/a at 0 % for an hour: GPU-0",
        "pod/team/web-3: 1 of its 1 GPUs on node/a at 0 % for an hour: GPU-3",
    )
    assert problem.found.remedy[0].endswith("`kubectl -n team logs web-1 --all-containers --tail=20`")


AGAIN = {"name": "main", "ready": True, "restartCount": 1, "state": {"running": {"startedAt": ago(9)}}}
SHARED = {
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
SLICED = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}
BUSY: dict[str, tuple[list[Object], list[Series]]] = {
    "no series at all": (on_a(), []),
    "a pod that has run for less than an hour": (on_a(age=50), [owned(0), owned(1)]),
    "a container that restarted minutes ago": (on_a(states=[AGAIN]), [owned(0)]),
    "a pod that ended": (on_a(phase="Succeeded"), [owned(0)]),
    "a pod that is being deleted": (on_a(metadata={"deletionTimestamp": "2026-11-22T11:59:00Z"}), [owned(0)]),
    "cards without a pod": ([node("a", 8)], [card(number) for number in range(8)]),
    "another pod of that name is named": (on_a(), [owned(0, namespace="other")]),
    "no pod is named, and one card is used": (on_a(8), [card(number) for number in range(7)]),
    "another node's cards": ([*on_a(8), node("b", 8)], [card(number, node="b") for number in range(8)]),
    "an unknown node": (on_a(8), [card(number, node="z") for number in range(8)]),
    "time-sliced cards": ([node("a", 32, labels=SHARED), pod("x", 1, on="a", age=90)], [owned(0)]),
    "MIG instances by the name of GPUs": ([node("a", 56, labels=SLICED), pod("x", 1, on="a", age=90)], [owned(0)]),
    "a pod without GPUs": (
        [node("a", 8), pod("x", on="a", age=90, containers=[container("main")])],
        [owned(0)],
    ),
}


@pytest.mark.parametrize(("objects", "some"), BUSY.values(), ids=BUSY)
def test_gpus_that_may_be_in_use_are_no_cause(objects: list[Object], some: list[Series]) -> None:
    assert results(idle(objects, *some)) == []


def test_idle_gpus_are_a_consequence_of_hidden_gpus() -> None:
    boxes = [container("main", 2, env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "-1"}])]
    diagnosis = idle([node("a", 8), pod("x", 2, on="a", age=90, containers=boxes)], owned(0), owned(1))
    assert results(diagnosis) == [("GpusHiddenByVariable", "pod/team/x")]
    assert [consequence.found.cause.name for consequence in diagnosis.problems[0].consequences] == ["GpusHeldIdle"]


def test_a_failed_prometheus_query_is_reported_and_an_omitted_query_is_not() -> None:
    seen = snapshot(*on_a())
    assert diagnose(seen).unseen == ()
    (unchecked,) = diagnose(replace(seen, missing={USE: "http://x:9090 has not answered within 30 s"})).unseen
    assert (unchecked.kind, unchecked.hides) == (USE, "GpusHeldIdle")


def used(*some: Series) -> Snapshot:
    return replace(snapshot(*on_a()), gpu_use=read_use(some))


def test_each_card_is_listed_once_with_its_pod_in_numeric_order() -> None:
    some = [owned(10, value="1"), card(2, 0.5), card(2, 0.5), owned(1)]
    some[0]["value"][1] = "1"
    (node_allocation,) = allocation(used(*some)).nodes
    assert [(load.uuid, load.percent, load.pod) for load in node_allocation.loads] == [
        ("GPU-1", 0, "pod/team/x"),
        ("GPU-2", 50, ""),
        ("GPU-10", 100, "pod/team/x"),
    ]
    assert node_allocation.percent == 50
    (row,) = cluster_document(allocation(used(*some)))["nodes"]
    assert (row["utilization_percent"], row["utilization"][0]["pod"]) == (50, "pod/team/x")


def test_utilization_is_unknown_without_a_query() -> None:
    (row,) = cluster_document(allocation(used()))["nodes"]
    assert (row["utilization_percent"], row["utilization"]) == (None, [])


HOSTILE: list[Any] = [
    *(None, [], "x", 5, {}, {"metric": None, "value": None}, {"metric": [], "value": [1, "0"]}),
    *(card(0, "NaN"), card(0, "+Inf"), card(0, "-1"), card(0, "1.01"), card(0, "1" * 5000), card(0, "")),
    *({"metric": {"UUID": 5}, "value": [1, 0]}, {"metric": {}, "value": [1]}, {"metric": {}, "value": ["0", "0", "0"]}),
]


@pytest.mark.parametrize("entry", HOSTILE, ids=range(len(HOSTILE)))
def test_invalid_series_are_ignored(entry: Any) -> None:
    assert idle(on_a(8), entry).problems == ()
    (alone,) = allocation(used(entry)).nodes
    assert alone.loads == ()


def test_labels_of_series_are_printable_and_bounded() -> None:
    words = "\x1b[31m\u202e" + "x" * 100_000
    (use,) = read_use([card(0, UUID=words, gpu=words, node=words, pod=words, namespace=words)])
    for text in (use.uuid, use.index, use.node, *use.pods[0]):
        assert text.isprintable()
        assert len(text) <= 320
    (named,) = allocation(used(owned(0, UUID=words))).nodes
    assert named.loads[0].uuid.isprintable()
