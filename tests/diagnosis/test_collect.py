"""What is asked of a cluster where a listing of all is forbidden, and of kubelets that do not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diagnosis.collect import Collector
from healthcheck.cluster.errors import Forbidden, Unavailable
from tests.diagnosis.states import node, pod, snapshot, terminated, waiting


def test_in_one_namespace_alone_config_maps_are_asked_for_by_our_names_too() -> None:
    asked: list[Mapping[str, str]] = []

    def objects(path: str, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        if "/namespaces/team/" not in path:
            raise Forbidden("no", "list", resource)
        if resource == "configmaps":
            asked.append(query)
        yield from ()

    Collector(objects).collect(namespace="team")
    assert asked
    assert all(one["fieldSelector"].startswith("metadata.name=") for one in asked)


def test_a_kubelet_that_does_not_answer_is_asked_no_more_and_one_that_is_not_ready_not_at_all() -> None:
    asked: list[str] = []

    def read(namespace: str, name: str, container: str, previous: bool) -> str:
        del namespace, container, previous
        asked.append(name)
        if name.startswith("gone"):
            raise Unavailable("get pods/log: the read timed out")
        return "said"

    ended = [waiting("CrashLoopBackOff", lastState={"terminated": terminated(1)})]
    where = {"gone": "silent", "down": "not-ready", "up": "well"}
    pods = [pod(f"{name}-{n}", on=node_of, states=ended) for name, node_of in where.items() for n in range(10)]
    nodes = [node("silent"), node("not-ready", ready="Unknown"), node("well")]
    seen = Collector(lambda *_: iter(())).with_logs(snapshot(*nodes, *pods), read)
    assert {subject for subject, _ in seen.logs} == {f"pod/team/up-{n}" for n in range(10)}
    assert not [name for name in asked if name.startswith("down")]
    assert 1 <= sum(name.startswith("gone") for name in asked) < 10
