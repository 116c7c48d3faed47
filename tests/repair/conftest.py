"""A node with nvidia-smi, alone in its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sim.node import SimulatedNode
from tests.quarantine.world import NODE, SPOT
from tests.repair.world import ResetWorld


@pytest.fixture
def world(make_node: Callable[[str], SimulatedNode], tmp_path: Path) -> Iterator[ResetWorld]:
    host = make_node("p5.48xlarge")
    host.install_nvidia_smi()
    with ApiStandIn() as stand_in:
        stand_in.edit_node(NODE, {"spec": {"taints": [SPOT]}})
        yield ResetWorld(host, stand_in, tmp_path)
