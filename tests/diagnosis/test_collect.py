"""Requests to a cluster where listing everything is forbidden, and to kubelets without an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.sources.collect import Collector
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden, NotFound, Unavailable
from tests.diagnosis.hami.hami_states import hami, hami_node
from tests.diagnosis.served import Served
from tests.diagnosis.states import Object, ago, node, pod, snapshot, terminated, waiting


def test_collector_limits_config_maps_by_name_in_one_namespace() -> None:
    asked: list[Mapping[str, str]] = []

    def objects(path: str, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        if "/namespaces/team/" not in path:
            raise Forbidden("no", "list", resource)
        if resource == "configmaps":
            asked.append(query)
        yield from ()

    Collector(objects).collect(namespace="team")
    assert asked
    assert all(entry["fieldSelector"].startswith("metadata.name=") for entry in asked)


HAMIS = [*hami(hami_node("a")), *hami(hami_node("b"), release="gpu-hami", namespace="share")]


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        ([node("a")], []),
        (
            HAMIS,
            [
                *[f"kube-system/hami{text}" for text in ("-scheduler", "-scheduler-device", "-device-plugin")],
                *[f"share/gpu-hami{text}" for text in ("-scheduler", "-scheduler-device", "-device-plugin")],
            ],
        ),
    ],
    ids=["no HAMi", "two of other names"],
)
def test_collector_lists_hamis_config_maps_where_it_is_installed(state: list[Object], asked: list[str]) -> None:
    found: list[str] = []

    def objects(path: str, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        if resource == "configmaps":
            found.append(f"{path.split('/')[4]}/{query['fieldSelector'].removeprefix('metadata.name=')}")
        yield from (entry for entry in state if f"{entry['kind'].lower()}s" == resource)

    assert Collector(objects).collect().sees("ConfigMap")
    assert found == asked


def test_collector_asks_a_silent_kubelet_once() -> None:
    asked: list[str] = []

    def read(namespace: str, name: str, container: str, previous: bool) -> str:
        del namespace, container, previous
        asked.append(name)
        if name.startswith("gone"):
            raise Unavailable("get pods/log: the read timed out")
        return "said"

    ended = [waiting("CrashLoopBackOff", lastState={"terminated": terminated(1)})]
    where = {"gone": ("silent", 10), "down": ("not-ready", 50), "up": ("well", 10)}  # 40 logs are read at most
    pods = [pod(f"{name}-{n}", on=home, states=ended) for name, (home, many) in where.items() for n in range(many)]
    nodes = [node("silent"), node("not-ready", ready="Unknown"), node("well")]
    seen = Collector(lambda *_: iter(())).with_logs(snapshot(*nodes, *pods), read)
    assert {subject for subject, _ in seen.logs} == {f"pod/team/up-{n}" for n in range(10)}
    assert not [name for name in asked if name.startswith("down")]
    assert 1 <= sum(name.startswith("gone") for name in asked) < 10


def test_collector_reads_the_log_of_a_daemon_that_runs_without_becoming_ready() -> None:
    label = {"resource.nvidia.com/computeDomain": "d0"}
    unready = {"name": "main", "ready": False, "restartCount": 0, "state": {"running": {"startedAt": ago(30)}}}
    pods = [pod("held", 0, on="a", labels=label, states=[unready]), pod("works", 0, on="a", labels=label)]

    seen = Collector(lambda *_: iter(())).with_logs(snapshot(node("a"), *pods), lambda *_: "NV_ERR_IN_USE")

    assert set(seen.logs) == {("pod/team/held", "main")}


def test_collector_adds_the_served_version_to_objects_that_lack_it() -> None:
    def objects(path: str, resource: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        del query
        if resource == "resourceclaims" and "/v1beta1/" not in path:
            raise NotFound("the server could not find the requested resource")
        yield from ([{"metadata": {"name": "c", "namespace": "team"}}] if resource == "resourceclaims" else [])

    (claim,) = Collector(objects).collect().claims

    assert claim.api == "resource.k8s.io/v1beta1"


def test_collector_paths_have_an_api_version() -> None:
    served = Served([])

    Collector(served.objects).collect()

    assert all(re.fullmatch(r"/(?:api/v1|apis/[a-z0-9.-]+/v\d[a-z0-9]*)/[a-z]+", path) for path, _ in served.asked)
