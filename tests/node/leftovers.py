"""Leftovers of a node on the machine that carried it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_healthcheck.sim.real_node.arguments import CGROUP, LOOK_ALIKES
from gpu_healthcheck.sim.real_node.running import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLACES = (
    "/etc/cni",
    "/opt/cni",
    "/opt/simulated-node",
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/kubelet",
)
_LIBRARIES = "/usr/lib/*/libnvidia-ml.so.1"


def traces() -> set[str]:
    """One line for each process, mount, link, firewall rule, control group, kernel setting and file."""
    return {
        *(f"process {words}" for words in _command_lines() if str(FOLDER) in words),
        *(f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines()),
        *(f"link {line}" for line in _lines("ip", "-brief", "link")),
        *(f"rule {line}" for line in _lines("iptables", "-S")),
        *(f"cgroup {folder}" for folder in Path("/sys/fs/cgroup").glob(f"**/{CGROUP}*")),
        *(f"setting {key} {Path('/proc/sys', key).read_text().strip()}" for key in LOOK_ALIKES),
        *(f"file {place}" for place in (*_PLACES, FOLDER) if Path(place).exists()),
        *(f"file {library}" for library in Path("/").glob(_LIBRARIES.removeprefix("/"))),
    }


def _command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended while we looked
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
