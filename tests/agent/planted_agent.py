"""`PLANT=… python -m tests.agent.planted_agent`: the quick agent with a fault of ours that nothing else provokes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import force_setattr

from gpu_healthcheck.agent.node import node_writer
from gpu_healthcheck.agent.process.agent_program import main
from gpu_healthcheck.agent.state import agent_state
from gpu_healthcheck.healthcheck.checks import gpu_count
from gpu_healthcheck.healthcheck.cluster import nodes
from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.deep.claim import claim_on
from gpu_healthcheck.healthcheck.deep.deep_record import records_to_adopt
from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.node.state import STATUS
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.agent.quick_agent import hurry

POISON = "poison"


def stumble() -> NoReturn:
    raise ValueError(f"over {POISON}")


def in_the_verdict() -> None:
    """Fail each verdict on a finding that contains the poison text."""

    def planted(memory: Any, outcomes: Any) -> Any:
        if any(POISON in entry.finding.detail for entry in memory.active):
            stumble()
        return decide(memory, outcomes)

    vars(agent_state)["decide"] = planted


def in_a_deep_record() -> None:
    def planted(node: Any, taken: Any) -> Any:
        if any(POISON in text for text in node.annotations.values()):
            stumble()
        return records_to_adopt(node, taken)

    vars(node_writer)["records_to_adopt"] = planted


def once_in_a_deep_record() -> None:
    """A failure that passes, as on a machine short of memory."""
    left = [1]

    def planted(node: Any, taken: Any) -> Any:
        if left and any(POISON in text for text in node.annotations.values()):
            left.pop()
            stumble()
        return records_to_adopt(node, taken)

    vars(node_writer)["records_to_adopt"] = planted


def in_a_run() -> None:
    def planted(node: Any, now: Any) -> Any:
        if any(POISON in text for text in node.annotations.values()):
            stumble()
        return claim_on(node, now)

    vars(agent_state)["claim_on"] = planted


def in_a_node() -> None:
    """A failing Node can't be read until it is marked."""

    def planted(node: Any) -> Any:
        labels = node["metadata"].get("labels") or {}
        if labels.get(STATUS) == "fail" and POISON not in labels:
            stumble()
        return node_state(node)

    vars(nodes)["node_state"] = planted


def in_a_check() -> None:
    def planted(*_: Any) -> Iterator[Any]:
        stumble()
        yield

    force_setattr(gpu_count.CHECK, "judge", planted)


def on_the_disk() -> None:
    """No answer while a file of this name exists next to the written file."""
    fill = vars(node_file)["_fill"]

    def planted(file: Any, content: bytes, *, on_disk: bool) -> None:
        while (Path(file.name).parent / POISON).exists():
            time.sleep(0.01)
        fill(file, content, on_disk=on_disk)

    vars(node_file)["_fill"] = planted


if __name__ == "__main__":
    hurry()
    plants = (in_the_verdict, in_a_deep_record, once_in_a_deep_record, in_a_run, in_a_check, in_a_node, on_the_disk)
    {one.__name__: one for one in plants}[os.environ["PLANT"]]()
    sys.exit(main())
