"""Nodes that can be quarantined or reset, for each test of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.device_plugin import DevicePlugin
from gpu_healthcheck.sim.host_boot import HostBoot
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.kubelet_logs import KubeletLogs
from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.pod_resources import serving_pod_resources
from tests.cli.cluster import ROOT
from tests.cli.quarantine_world import Hospital
from tests.cli.reset_world import Workshop
from tests.device_files import may_be_made
from tests.scheduling import scheduled

__all__ = ["hospital", "scheduled", "workshop"]


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


_NUMBERS = count(1)


@pytest.fixture
def workshop(
    scheduled: ControlPlane, short_root: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Workshop]:
    """A p5.48xlarge outside of EC2 with its agent. The parameter is the command line's module."""
    if not may_be_made():
        pytest.skip("only root can make device files")
    module = getattr(request, "param", "cli")
    name = f"gpu-{next(_NUMBERS)}.example.internal"
    program = tmp_path / "programs/gpu-healthcheck"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
    program.chmod(0o755)
    folder, config = tmp_path / "pods", tmp_path / "config"
    for one in (folder, config):
        one.mkdir()
    (config / "ESCALATE_AFTER").write_text("0")
    environment = {
        "PYTHONPATH": str(ROOT),
        "METRICS_PORT": "0",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        "STATE_DIR": str(tmp_path / "state"),
        "REPORT_DIR": str(tmp_path / "reports"),
        "CONFIG_DIR": str(config),
    }
    with SimulatedNode.create(short_root / "n", "p5.48xlarge") as node:
        node.install_nvidia_smi()
        kubelets = Kubelets(scheduled, folder, {name: node.root}, environment, tmp_path / "programs")
        scheduled.create_node(name, labels={"nvidia.com/gpu.present": "true"}, provider_id="metal://a")
        plugin = DevicePlugin(scheduled, node, name)
        host = HostBoot(scheduled, node, kubelets, plugin, name)
        workshop = Workshop(scheduled, node, kubelets, plugin, host, tmp_path, name, module)
        with kubelets, plugin, host, serving_pod_resources(node.root, workshop.held):
            yield workshop
            workshop.close()
