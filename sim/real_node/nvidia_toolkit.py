"""NVIDIA's toolkit as a package leaves it on a node: its real `nvidia-ctk runtime`, and a `systemctl` for this node."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from go_programs.build import built, digest, go_build, home_of
from sim.real_node.arguments import SOCKET
from sim.real_node.running import RunningNode

_ROOM = Path(__file__).parent / "nvidia_ctk"


def install(node: RunningNode) -> None:
    """Into the folder of programs that is first in the node's PATH. Raises NoProgramError where there is no Go."""
    programs = node.folder / "bin"
    shutil.copy2(program(), programs)
    systemctl = programs / "systemctl"
    systemctl.write_text(_systemctl(node.folder / SOCKET))
    systemctl.chmod(0o755)


def program() -> Path:
    """Its nvidia-ctk, built first where need be."""

    def build(folder: Path) -> None:
        print("building nvidia-ctk, once: some seconds", file=sys.stderr, flush=True)
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
