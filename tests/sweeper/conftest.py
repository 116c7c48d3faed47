"""A fleet of its own for each test of sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.kubelet import Kubelets
from tests.scheduling import scheduled
from tests.sweeper.world import Fleet

__all__ = ["fleet", "kubelets", "scheduled"]


@pytest.fixture
def fleet(scheduled: ControlPlane, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(scheduled, tmp_path)
    fleet.configure()
    fleet.install_test()
    yield fleet
    fleet.close()


@pytest.fixture
def kubelets(fleet: Fleet, tmp_path: Path) -> Iterator[Kubelets]:
    folder = tmp_path / "pods"
    folder.mkdir()
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with Kubelets(fleet.plane, folder, environment=environment, programs=fleet.image) as running:
        yield running
