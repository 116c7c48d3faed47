"""PID 1 of the node: it creates the node's root, starts and stops daemons on request, and reaps orphans.

Requests come through a socket in the node's folder, one line each: `start NAME`, `stop NAME`, `power-off`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from gpu_healthcheck.sim.control_plane.daemon import Daemon
from gpu_healthcheck.sim.real_node import root
from gpu_healthcheck.sim.real_node.arguments import PLAN, SOCKET, services
from gpu_healthcheck.sim.real_node.images import REPOSITORY
from gpu_healthcheck.sim.real_node.needs import SEARCH_PATH

_LISTEN_SECONDS = 0.2
_KERNEL = 2
_CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Programs that run elsewhere in a real cluster, and therefore survive a reboot of the node."""


class FirstProcess:
    """PID 1 of the node."""

    def __init__(self, folder: Path) -> None:
        plan = json.loads((folder / PLAN).read_text())
        plane_bin, kubelet_bin = Path(plan["plane_bin"]), Path(plan["kubelet_bin"])
        root.make(folder, plan["name"], Path(plan["hardware"]), REPOSITORY, plane_bin, kubelet_bin)
        # A FIFO drops unread records when its last holder closes it; a kernel's log does not.
        self._kernel_log = os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        root.bring_up_network(plan["name"])
        commands = services(folder, plane_bin, kubelet_bin, plan["name"], plan["labels"])
        self._daemons = {name: Daemon(name, argv, folder) for name, argv in commands.items()}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / SOCKET))
        self._socket.listen()
        self._socket.settimeout(_LISTEN_SECONDS)

    def serve(self) -> None:
        while True:
            self._reap_orphans()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            with connection, connection.makefile("rw") as lines:
                lines.write(self._execute(lines.readline().split()))

    def _execute(self, words: list[str]) -> str:
        try:
            match words:
                case ["start", name]:
                    self._daemons[name].start()
                case ["stop", name]:
                    self._daemons[name].kill()
                case ["power-off"]:
                    self._power_off()
                case _:
                    return f"no such command: {' '.join(words)}\n"
        except Exception:  # noqa: BLE001 - the requester gets the error, and PID 1 must not end
            return traceback.format_exc()
        return ""

    def _power_off(self) -> None:
        """End everything but the control plane at once, as when a machine is switched off."""
        for name in set(self._daemons) - set(_CONTROL_PLANE):
            self._daemons[name].kill()
        spared = {os.getpid(), _KERNEL, *(self._daemons[name].pid for name in _CONTROL_PLANE)}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in spared:
                try:
                    os.kill(int(entry.name), signal.SIGKILL)
                except ProcessLookupError:
                    continue
        root.power_off_pods()

    def _reap_orphans(self) -> None:
        """Reap dead processes without a waiting parent; a daemon's own object waits for the daemon."""
        ours = {daemon.pid: daemon for daemon in self._daemons.values() if daemon.pid}
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            if dead.si_pid not in ours:
                os.waitpid(dead.si_pid, 0)
            elif ours[dead.si_pid].is_running:  # this call reaps the dead process
                return


def _second_process() -> None:
    """Start a second process, as the kernel does on a real machine: probes distinguish a machine from a container by
    it.
    """
    if os.fork() == 0:
        Path("/proc/self/comm").write_text("kthreadd", encoding="ascii")
        while True:
            signal.pause()


def main() -> None:
    os.environ.clear()  # no container gets the environment of the process that started the node
    os.environ["PATH"] = SEARCH_PATH
    os.umask(0o022)
    _second_process()
    FirstProcess(Path(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
