"""A path of which the kernel says neither that it is there nor that it is not: could not check, for each that asks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.driver_files import read_modules
from gpu_healthcheck.healthcheck.probes.efa.infiniband import openable_efa, read_rdma
from gpu_healthcheck.healthcheck.probes.gdrcopy import read_gdrcopy
from gpu_healthcheck.healthcheck.probes.nvml.driver import library_versions
from gpu_healthcheck.healthcheck.probes.pod_resources import are_claimed, is_kubelet_here, read_pod_resources
from gpu_healthcheck.sim.node import SimulatedNode
from tests.permissions import as_nobody

CASES: list[tuple[Callable[[Host], object], str]] = [
    (read_modules, "sys/module"),
    (read_modules, "sys/module/nouveau"),
    (read_gdrcopy, "sys/module"),
    (read_gdrcopy, "sys/module/gdrdrv"),
    (read_gdrcopy, "dev/gdrdrv"),
    (read_gdrcopy, "opt/gdrcopy"),
    (read_gdrcopy, "etc/modules-load.d"),
    (read_gdrcopy, "etc/systemd/system"),
    (read_rdma, "sys/class"),
    (read_rdma, "sys/class/infiniband"),
    (lambda host: openable_efa(host.root), "sys/class/infiniband"),
    (read_rdma, "sys/module/efa"),
    (lambda host: are_claimed(host.root), "var/lib/kubelet/plugins/gpu.nvidia.com"),
    (lambda host: is_kubelet_here(host.root), "var/lib/kubelet"),
    (read_pod_resources, "var/lib/kubelet/pod-resources"),
]


@pytest.mark.parametrize(("read", "path"), CASES, ids=[path for _, path in CASES])
def test_nobody_can_tell(node: SimulatedNode, read: Callable[[Host], object], path: str) -> None:
    place = node.root / path
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(place.name)

    with pytest.raises(ProbeError, match=f"{path}.*: Too many levels of symbolic links"):
        read(Host(node.root))


def test_hidden_library_counts_as_one(short_root: Path) -> None:
    """The others alone would be a mismatch without evidence."""
    (short_root / "hidden").mkdir(mode=0)
    (short_root / "usr/lib64").mkdir(parents=True)
    (short_root / "usr/lib64/libnvidia-ml.so.1").symlink_to("/hidden/libnvidia-ml.so.570.133.20")
    short_root.chmod(0o755)

    with as_nobody():
        found = library_versions(short_root)
    assert found == ("570.133.20",)
