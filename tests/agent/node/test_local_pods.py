"""Pods of the node, as the gate reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node import gate
from agent.node.gate import LocalPods
from healthcheck.probes.pods_by_uid import LocalPod


def test_a_read_that_fails_unexpectedly_ends_and_the_next_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"u": LocalPod("team", "train")}
    answers: Iterator[ValueError | dict[str, LocalPod]] = iter((ValueError("a defect"), found))

    def read(*_: object) -> dict[str, LocalPod]:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    monkeypatch.setattr(gate, "read_pods", read)
    monkeypatch.setattr(gate, "read_pod_resources", lambda _: ())

    async def find_twice() -> list[bool]:
        pods = LocalPods(tmp_path, lambda: "")
        return [await pods.find("u", client) is not None for client in ("10.0.0.1", "10.0.0.2")]

    assert asyncio.run(find_twice()) == [False, True]
