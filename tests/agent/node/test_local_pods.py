"""Pods of the node, as the gate reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.agent.node import gate, pod_reporter
from gpu_healthcheck.agent.node.gate import LocalPods, Lookup
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.kubelet_pods import LocalPod

TRAIN = LocalPod("team", "train")
Answer = ValueError | ProbeError | dict[str, LocalPod]


class Node:
    """A node whose kubelet and runtime give these answers, the last one repeatedly. `reads`: their number."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.answers: list[Answer] = [{}]
        self.reads = 0
        monkeypatch.setattr(pod_reporter, "read_pods", self._read)
        monkeypatch.setattr(pod_reporter, "read_pod_resources", lambda _: ())
        monkeypatch.setattr(pod_reporter, "want_greeting", lambda *_: None)
        self.pods = LocalPods(root, lambda: "")

    def admit(self, *uids: str) -> None:
        for uid in uids:
            (self.root / "var/lib/kubelet/pods" / uid).mkdir(parents=True)

    def _read(self, *_: object) -> dict[str, LocalPod]:
        self.reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(gate, "PATIENCE_SECONDS", 60.0)
    return Node(tmp_path, monkeypatch)


def run(*finds: Coroutine[Any, Any, Lookup]) -> list[Lookup]:
    async def each() -> list[Lookup]:
        return [await find for find in finds]

    return asyncio.run(each())


@pytest.mark.parametrize("failure", [ValueError("a defect"), ProbeError("no answer")])
def test_after_a_read_that_failed_the_same_pod_causes_the_next_one(node: Node, failure: Answer) -> None:
    node.admit("u")
    node.answers = [failure, {"u": TRAIN}]
    failed, found = run(node.pods.find("u"), node.pods.find("u"))

    assert failed == Lookup(None, is_local=True, in_time=False)
    assert found.pod is not None
    assert (found.pod.pod, found.is_local, found.in_time) == (TRAIN, True, True)


def test_a_pod_that_the_kubelet_does_not_have_causes_no_read(node: Node) -> None:
    node.admit("u")

    assert run(*(node.pods.find(f"forged-{number}") for number in range(300))) == [Lookup()] * 300
    assert node.reads == 0


def test_a_pod_that_the_sockets_do_not_list_causes_one_read(node: Node) -> None:
    """A pod that has ended keeps its folder for a time."""
    node.admit("u")

    assert run(*(node.pods.find("u") for _ in range(50))) == [Lookup(is_local=True)] * 50
    assert node.reads == 1


def test_a_pod_whose_read_was_not_started_in_time_causes_one_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.admit("u", "v")
    node.answers = [{"v": TRAIN}, {"u": TRAIN}]
    monkeypatch.setattr(gate, "READ_SECONDS", 1000.0)
    monkeypatch.setattr(gate, "MOST_READS", 1)
    monkeypatch.setattr(gate, "PATIENCE_SECONDS", 0.5)

    async def find() -> list[Lookup]:
        found = [await node.pods.find("v"), await node.pods.find("u")]
        node.pods._reads_at = 0.0
        monkeypatch.setattr(gate, "PATIENCE_SECONDS", 60.0)
        return [*found, await node.pods.find("u")]

    _, late, found = asyncio.run(find())
    assert late == Lookup(None, is_local=True, in_time=False)
    assert found.pod is not None


def test_without_a_folder_of_pods_the_sockets_decide(node: Node) -> None:
    node.answers = [{"u": TRAIN}]
    found, unknown = run(node.pods.find("u"), node.pods.find("v"))

    assert (found.is_local, unknown) == (True, Lookup())


def test_simultaneous_pods_share_a_read(node: Node) -> None:
    uids = [f"u{number}" for number in range(100)]
    node.admit(*uids)
    node.answers = [dict.fromkeys(uids, TRAIN)]

    async def at_once() -> list[Lookup]:
        return await asyncio.gather(*(node.pods.find(uid) for uid in uids))

    assert all(found.pod is not None for found in asyncio.run(at_once()))
    assert node.reads == 1


def test_the_kubelet_of_k0s_has_a_folder_elsewhere(node: Node) -> None:
    (node.root / "var/lib/k0s/kubelet/pods/u").mkdir(parents=True)

    assert [found.is_local for found in run(node.pods.find("u"), node.pods.find("v"))] == [True, False]
