"""NVIDIA's toolkit as installed by its package: its real `nvidia-ctk runtime`, and a `systemctl` for this node."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from gpu_healthcheck.sim.real_node.arguments import SOCKET
from gpu_healthcheck.sim.real_node.running import RunningNode
from tools.go_programs.build import built, digest, go_build, home_of

_ROOM = Path(__file__).parent / "nvidia_ctk"


def install(node: RunningNode) -> None:
    """Install the toolkit in the first folder of the node's PATH. Raises NoProgramError without Go."""
    programs = node.folder / "bin"
    shutil.copy2(program(), programs)
    systemctl = programs / "systemctl"
    systemctl.write_text(_systemctl(node.folder / SOCKET))
    systemctl.chmod(0o755)


def program() -> Path:
    """Return nvidia-ctk, and build it if necessary."""

    def build(folder: Path) -> None:
        print("building nvidia-ctk (once, takes some seconds)", file=sys.stderr, flush=True)
        go_build(_ROOM, folder, "-s -w", ["."])

    return built(home_of("nvidia-ctk") / digest(_ROOM), build) / "nvidia-ctk"


def _systemctl(first_process: Path) -> str:
    """Return a systemctl stand-in: the node's first process executes `restart UNIT`."""
    return f"""\
#!{sys.executable}
import socket, sys

command, unit = sys.argv[1:]
if command != "restart":
    sys.exit("systemctl: only restart")
for word in ("stop", "start"):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect({str(first_process)!r})
        connection.sendall(f"{{word}} {{unit}}\\n".encode())
        with connection.makefile() as answer:
            if said := answer.read():
                sys.exit(said)
"""
