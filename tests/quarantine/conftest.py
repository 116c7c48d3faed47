"""A node for quarantine runs, alone in its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sim.node import SimulatedNode
from tests.quarantine.world import NODE, SPOT, World
from tests.scheduling import scheduled

__all__ = ["rdma_world", "scheduled", "world"]


@pytest.fixture
def world(make_node: Callable[[str], SimulatedNode], tmp_path: Path) -> Iterator[World]:
    host = make_node("p4d.24xlarge")
    for device in range(2, len(host.efa_names)):
        host.remove_efa(device)
    host.install_dcgmi()
    host.install_nccl_tests()
    (host.root / "nccl").mkdir()
    (host.root / "fi_pingpong").mkdir(exist_ok=True)
    with ApiStandIn() as stand_in:
        stand_in.edit_node(NODE, {"spec": {"taints": [SPOT]}})
        yield World(host, stand_in, tmp_path)


@pytest.fixture
def rdma_world(make_node: Callable[[str], SimulatedNode], tmp_path: Path) -> Iterator[World]:
    """A p6e-gb300r.36xlarge with two of its RDMA devices."""
    host = make_node("p6e-gb300r.36xlarge")
    for index in range(2, len(host.shape.mlx5)):
        host.remove_mlx5(index)
    host.install_dcgmi()
    host.install_nccl_tests()
    host.install_perftest()
    (host.root / "nccl").mkdir()
    with ApiStandIn() as stand_in:
        stand_in.edit_node(NODE, {"metadata": {"labels": {INSTANCE_TYPE: host.instance_type}}})
        yield World(host, stand_in, tmp_path)
