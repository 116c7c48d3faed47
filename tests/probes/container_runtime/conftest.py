"""A node with a kubelet and containerd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.sim.node import SimulatedNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    with SimulatedNode.create(tmp_path / "node", "p5.48xlarge") as node:
        node.run_kubernetes("eks-al2023")
        yield node
