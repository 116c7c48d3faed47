from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim.node import SimulatedNode


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[str], SimulatedNode]]:
    nodes: list[SimulatedNode] = []

    def make(instance_type: str) -> SimulatedNode:
        nodes.append(SimulatedNode.create(tmp_path / f"node-{len(nodes)}", instance_type))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[[str], SimulatedNode]) -> SimulatedNode:
    return make_node("p5.48xlarge")
