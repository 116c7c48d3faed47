from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim.node import SimulatedNode

MakeNode = Callable[[str], SimulatedNode]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    nodes: list[SimulatedNode] = []

    def make(instance_type: str) -> SimulatedNode:
        nodes.append(SimulatedNode.create(tmp_path / f"node-{len(nodes)}", instance_type))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    return make_node("p5.48xlarge")
