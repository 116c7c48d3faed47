"""The node's control groups on the machine; they contain only its pods."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpu_healthcheck.sim.real_node.arguments import CGROUP
from gpu_healthcheck.sim.real_node.waiting import wait_until

_CGROUPS = Path("/sys/fs/cgroup")


def _cgroups() -> list[Path]:
    """Return the node's group in each hierarchy: several on cgroup v1, one on v2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / CGROUP]
    return [top / CGROUP for top in sorted(_CGROUPS.iterdir()) if top.is_dir() and not top.is_symlink()]


def make() -> None:
    for cgroup in _cgroups():
        cgroup.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # v1: empty until they are set
            if (cgroup / file).exists() and not (cgroup / file).read_text().strip():
                (cgroup / file).write_text((cgroup.parent / file).read_text())


def remove() -> None:
    """Remove the group with all children; wait until the kernel has released the last process."""
    for top in _cgroups():
        for folder, _, _ in os.walk(top, topdown=False):
            _remove(Path(folder))


def _remove(folder: Path) -> None:
    def removed() -> bool:
        with suppress(FileNotFoundError):
            try:
                folder.rmdir()
            except OSError:  # the kernel has not released the last process yet
                return False
        return True

    wait_until(removed, 10, lambda: f"cannot remove {folder}")
