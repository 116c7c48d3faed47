"""A running node: start and stop its programs, run commands on it, send requests to its API."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_healthcheck.sim.kernel_log import SimulatedKernelLog
from gpu_healthcheck.sim.node import FABRIC_MANAGER
from gpu_healthcheck.sim.real_node import arguments, images, needs
from gpu_healthcheck.sim.real_node.waiting import RealNodeError, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(tempfile.gettempdir()) / "gpu-healthcheck-node"
"""Folder of the machine's only node; it exists while the node does."""
NAME = "gpu-node-1"
READY_SECONDS = 600
HARDWARE, NEXT_RECORD = "hardware", "next-record"
"""Files in the folder: the default simulated host, and the number of its kernel's next record."""


class RunningNode:
    """Running node, identified by its folder, so that other processes than its starter can use it."""

    def __init__(self, name: str = NAME) -> None:
        self.folder = FOLDER
        self.name = name

    @property
    def manifests(self) -> str:
        """Return the path of our manifests for `kubectl apply -f` on this node."""
        return str(self.folder / "manifests")

    @property
    def pid(self) -> int | None:
        """Return the PID of the node's PID 1 on this machine; None if no node is up."""
        try:
            pid = int((self.folder / "pid-1").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if is_ours(pid) else None

    @property
    def is_up(self) -> bool:
        return self.pid is not None

    # --- its programs

    def start(self, name: str) -> None:
        self._send(f"start {name}")

    def stop(self, name: str) -> None:
        self._send(f"stop {name}")

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def power_off(self) -> None:
        """End everything on the node at once; the control plane, elsewhere in a real cluster, keeps running."""
        self._send("power-off")

    def power_on(self) -> None:
        self.start(FABRIC_MANAGER)
        self.start_containerd()
        self.start("kubelet")

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers: a kubelet without it exits at once."""
        self.start("containerd")
        self.wait_until(lambda: self.run("ctr", "version", check=False).returncode == 0, "containerd answers")

    # --- commands on the node

    def argv(self, *words: str) -> list[str]:
        """Return the command line that runs this command on the node."""
        if not self.is_up:
            raise RealNodeError("no node is up: `python -m sim.real_node up`")
        kept = {key: os.environ[key] for key in ("TERM", "LANG") if key in os.environ}
        wanted = kept | {
            "PATH": f"{self.folder / 'bin'}:{needs.SEARCH_PATH}",
            "HOME": "/root",
            "KUBECONFIG": str(self.folder / "admin.kubeconfig"),
            "KUBERC": "off",
            "KUBECACHEDIR": "/run/kubectl-cache",
        }
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid"]
        return [
            *enter,
            "env",
            f"--chdir={images.REPOSITORY}",
            "--ignore-environment",
            *(f"{key}={value}" for key, value in wanted.items()),
            *words,
        ]

    def run(self, *words: str, check: bool = True, input: str | None = None) -> subprocess.CompletedProcess[str]:  # noqa: A002 - as subprocess calls it
        done = subprocess.run(self.argv(*words), input=input, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise RealNodeError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done

    def kubectl(self, *words: str, input: str | None = None) -> str:  # noqa: A002
        """Return the standard output of kubectl as admin."""
        return self.run("kubectl", *words, input=input).stdout

    def get(self, path: str) -> Any:
        """Return an object of the API by its path."""
        return json.loads(self.kubectl("get", "--raw", path))

    def load(self, archive: Path) -> None:
        """Import the images of an archive into containerd."""
        with archive.open("rb") as file:
            command = self.argv("ctr", "--namespace=k8s.io", "images", "import", "-")
            done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RealNodeError(f"containerd did not import {archive}: {done.stderr.strip()}")

    def xid(self, gpu: int, code: int) -> None:
        """Write an Xid to the kernel log of a node with its own host. Agents that start later do not read it."""
        number, hardware = self.folder / NEXT_RECORD, self.folder / HARDWARE
        if not number.exists():
            raise RealNodeError("no node is up, or it has no host of its own: `python -m sim.real_node up`")
        address = (hardware / f"nvml/gpu{gpu}/bus_id").read_text().strip().lower()[-12:-2]
        log = SimulatedKernelLog(hardware / "dev/kmsg")
        log.overrun(int(number.read_text()))
        log.write(f"NVRM: Xid (PCI:{address}): {code}, pid='<unknown>', name=<unknown>, injected by hand")
        number.write_text(str(log.next_sequence))
        log.close()

    def is_ready(self) -> bool:
        done = self.run("kubectl", "get", "--raw", f"/api/v1/nodes/{self.name}", check=False)
        if done.returncode != 0:
            return False
        conditions = json.loads(done.stdout)["status"].get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
        wait_until(true, seconds, lambda: f"not within {seconds:g} s: {what}\n{self.logs()}")

    def logs(self, lines: int = 8) -> str:
        """Return the end of each program's log."""
        ends = []
        for log in sorted(set(self.folder.glob("*.log")) - {self.folder / "audit.log"}):
            ends += [f"--- end of {log.name}", *log.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(ends)

    def _send(self, line: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / arguments.SOCKET))
            connection.sendall(f"{line}\n".encode())
            with connection.makefile() as answer:
                if message := answer.read():
                    raise RealNodeError(f"{line}: {message}")


def is_ours(pid: int) -> bool:
    """Whether the PID is our PID 1 and not a later process with the same number; a zombie has no command line."""
    try:
        return arguments.FIRST_PROCESS.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
