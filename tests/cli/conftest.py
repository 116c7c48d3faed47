"""Nodes that can be quarantined, for each test of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.control_plane import ControlPlane
from sim.kubelet import Kubelets
from sim.kubelet_logs import KubeletLogs
from tests.cli.quarantine_world import ROOT, Hospital
from tests.scheduling import scheduled

__all__ = ["hospital", "scheduled"]


@pytest.fixture
def hospital(scheduled: ControlPlane, tmp_path: Path) -> Iterator[Hospital]:
    folder = tmp_path / "pods"
    folder.mkdir()
    kubelets = Kubelets(scheduled, folder, environment={"PYTHONPATH": str(ROOT)})
    with kubelets, KubeletLogs(scheduled, folder) as logs:
        hospital = Hospital(scheduled, folder, kubelets, logs)
        hospital.prepare()
        yield hospital
        hospital.close()
