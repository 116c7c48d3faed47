"""A cluster with the program's overlay, on a control plane that all scenarios share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.kubelet import Kubelets
from tests.evict.world import EvictWorld
from tests.overlays import OVERLAYS
from tests.scheduling import scheduled

__all__ = ["scheduled"]


@pytest.fixture(scope="package")
def overlaid(scheduled: ControlPlane) -> ControlPlane:
    scheduled.kubectl("apply", "-k", str(OVERLAYS / "evict"))
    # Its pod would run beside the processes of the tests.
    scheduled.kubectl("scale", "deployment", "gpu-healthcheck-evict", "-n", "gpu-healthcheck", "--replicas=0")
    return scheduled


@pytest.fixture
def world(overlaid: ControlPlane, tmp_path: Path) -> Iterator[EvictWorld]:
    pods = tmp_path / "pods"
    pods.mkdir()
    with Kubelets(overlaid, pods):
        world = EvictWorld(overlaid, tmp_path)
        yield world
        world.close()
