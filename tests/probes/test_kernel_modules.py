"""The kernel modules that drive NVIDIA GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.driver_files import KernelModules, read_modules
from gpu_healthcheck.sim.node import DRIVER_VERSION, SimulatedNode


def test_the_drivers_version_is_read(node: SimulatedNode) -> None:
    assert read_modules(Host(node.root)) == KernelModules(DRIVER_VERSION, nouveau=False)


def test_an_unloaded_driver_has_no_version(node: SimulatedNode) -> None:
    node.driver_unload()

    assert read_modules(Host(node.root)) == KernelModules("", nouveau=False)


def test_nouveau_is_observed_with_the_nvidia_driver(node: SimulatedNode) -> None:
    node.load_nouveau()

    assert read_modules(Host(node.root)) == KernelModules(DRIVER_VERSION, nouveau=True)


def test_missing_sys_is_unobserved(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="sys/module: no such directory"):
        read_modules(Host(tmp_path))
