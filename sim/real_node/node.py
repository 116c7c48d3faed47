"""A real one-node Kubernetes in namespaces of its own: kubelet, containerd and runc over a simulated GPU host."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sim.control_plane.build import ControlPlaneError, node_binaries
from sim.control_plane.files import AUDIT_POLICY, write_kubeconfig, write_signing_key
from sim.node import SimulatedNode
from sim.real_node import arguments, images, needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

FOLDER = Path(tempfile.gettempdir()) / "gpu-healthcheck-node"
"""Of the one node that a machine can have; it is there while the node is."""
NAME = "gpu-node-1"
READY_SECONDS = 120
_CGROUPS = Path("/sys/fs/cgroup")
_AFTER_US = 'cat > /dev/null; exec "$0" -m sim.real_node down'


class RealNodeError(ControlPlaneError):
    """The node could not be had, started or asked; the message says why."""


class RealNode:
    """A node that stays until `down`, also when the process that brought it up has ended.

    `hardware` is the directory of a SimulatedNode (without one: of a healthy one that goes with the node): its GPUs,
    EFA devices, driver library, kernel log and boot id are the node's. `with RealNode(…)` brings it up, and takes it
    down however the process ends.
    """

    def __init__(self, hardware: Path | None = None, instance_type: str = "p5.48xlarge", name: str = NAME) -> None:
        self.folder = FOLDER
        self.name = name
        self._hardware = hardware
        self._instance_type = instance_type
        self._after_us: subprocess.Popen[bytes] | None = None
        self._outer: subprocess.Popen[bytes] | None = None

    # --- coming and going

    def __enter__(self) -> Self:
        self._refuse_a_second()
        # Should we be killed, the end of this pipe takes the node down all the same.
        self._after_us = subprocess.Popen(
            ["sh", "-c", _AFTER_US, sys.executable],
            cwd=images.REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.down()
        if self._after_us is not None and self._after_us.stdin is not None:
            self._after_us.stdin.close()
            self._after_us.wait(timeout=60)

    def up(self) -> None:
        """Bring it up until its Node is Ready; whatever came so far is taken down when that fails."""
        if reason := needs.missing():
            raise RealNodeError(reason)
        self._refuse_a_second()
        plane_bin, kubelet_bin = node_binaries()
        pause = images.pause()
        self.folder.mkdir(mode=0o700)
        try:
            with ExitStack() as held:
                if self._hardware is None:
                    self._hardware = self.folder / "hardware"
                    held.enter_context(SimulatedNode.create(self._hardware, self._instance_type))
                self._write_files(plane_bin, kubelet_bin)
                _make_cgroups()
                self._begin()
            self.start("etcd")
            self.start("kube-apiserver")
            self._start_containerd()
            self.load(pause)
            self.wait_until(self._api_is_ready, "the API server is ready")
            for name in ("kube-controller-manager", "kube-scheduler", "kubelet"):
                self.start(name)
            self.wait_until(self.is_ready, "the Node is Ready")
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """The kernel ends every process of the node; its mounts, links and rules go with the namespaces."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            _wait_until(lambda: not _is_ours(pid), READY_SECONDS, lambda: f"pid {pid} does not end")
        if self._outer is not None:
            self._outer.kill()  # takes a PID 1 with it that never told its number
            self._outer.wait(READY_SECONDS)
            self._outer = None
        for top in _cgroups():
            for folder, _, _ in os.walk(top, topdown=False):
                _remove_cgroup(Path(folder))
        if self.folder.exists():
            shutil.rmtree(self.folder)

    @property
    def pid(self) -> int | None:
        """Of its PID 1, as this machine counts; None when no node is up."""
        try:
            pid = int((self.folder / "pid-1").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _is_ours(pid) else None

    @property
    def is_up(self) -> bool:
        return self.pid is not None

    # --- its programs

    def start(self, name: str) -> None:
        self._tell(f"start {name}")

    def stop(self, name: str) -> None:
        self._tell(f"stop {name}")

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def power_off(self) -> None:
        """Everything on the node ends at once; the control plane, which runs elsewhere in a real cluster, goes on."""
        self._tell("power-off")

    def power_on(self) -> None:
        self._start_containerd()
        self.start("kubelet")

    # --- doing something on it

    def argv(self, *words: str) -> list[str]:
        """The command line that runs these words on the node."""
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
        """Standard output of kubectl as the admin."""
        return self.run("kubectl", *words, input=input).stdout

    def get(self, path: str) -> Any:
        """An object of the API, by its path."""
        return json.loads(self.kubectl("get", "--raw", path))

    def load(self, archive: Path) -> None:
        """Give containerd the images of an archive."""
        with archive.open("rb") as file:
            command = self.argv("ctr", "--namespace=k8s.io", "images", "import", "-")
            done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RealNodeError(f"{archive} was not taken: {done.stderr.strip()}")

    def is_ready(self) -> bool:
        done = self.run("kubectl", "get", "--raw", f"/api/v1/nodes/{self.name}", check=False)
        if done.returncode != 0:
            return False
        conditions = json.loads(done.stdout)["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
        _wait_until(true, seconds, lambda: f"not within {seconds:g} s: {what}\n{self.logs()}")

    def logs(self, lines: int = 8) -> str:
        """The end of each program's log."""
        ends = []
        for log in sorted(set(self.folder.glob("*.log")) - {self.folder / "audit.log"}):
            ends += [f"--- end of {log.name}", *log.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(ends)

    # --- inside

    def _refuse_a_second(self) -> None:
        if self.folder.exists():
            state = f"is up, pid {self.pid}" if self.is_up else f"left {self.folder}"
            raise RealNodeError(f"another node {state}: `python -m sim.real_node down` ends it")

    def _write_files(self, plane_bin: Path, kubelet_bin: Path) -> None:
        folder, admin, kubelet = self.folder, secrets.token_hex(16), secrets.token_hex(16)
        assert self._hardware is not None
        write_signing_key(folder / "signing.key")
        (folder / "tokens.csv").write_text(
            f'{admin},admin,admin,"system:masters"\n{kubelet},system:node:{self.name},{self.name},"system:nodes"\n'
        )
        (folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
        (folder / "kubelet.json").write_text(json.dumps(arguments.KUBELET_CONFIGURATION))
        authority = folder / "certificates" / "apiserver.crt"
        for user, token in (("admin", admin), ("kubelet", kubelet)):
            url = f"https://{arguments.API_ADDRESS}:443"
            write_kubeconfig(folder / f"{user}.kubeconfig", url=url, ca_file=authority, token=token)
        (folder / "bin").mkdir()
        (folder / "bin" / "kubectl").symlink_to(plane_bin / "kubectl")
        plan = {
            "name": self.name,
            "hardware": str(self._hardware.resolve()),
            "plane_bin": str(plane_bin),
            "kubelet_bin": str(kubelet_bin),
            "labels": {
                "node.kubernetes.io/instance-type": self._instance_type,
                "nvidia.com/gpu.present": "true",
            },
        }
        (folder / arguments.PLAN).write_text(json.dumps(plan))

    def _begin(self) -> None:
        with (self.folder / "pid-1.log").open("wb") as log:
            self._outer = outer = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child"),
                    *(sys.executable, "-m", arguments.FIRST_PROCESS, str(self.folder)),
                ],
                cwd=images.REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")

        def is_there() -> bool:
            if outer.poll() is not None:
                raise RealNodeError(f"PID 1 of the node ended\n{self.logs(30)}")
            if not (self.folder / "pid-1").exists() and (pid := children.read_text().strip()):
                (self.folder / "pid-1").write_text(pid)
            return (self.folder / arguments.SOCKET).exists()

        self.wait_until(is_there, "PID 1 has made the node's root")

    def _start_containerd(self) -> None:
        """A kubelet that finds none ends at once."""
        self.start("containerd")
        self.wait_until(lambda: self.run("ctr", "version", check=False).returncode == 0, "containerd answers")

    def _api_is_ready(self) -> bool:
        return self.run("kubectl", "get", "--raw", "/readyz", check=False).stdout == "ok"

    def _tell(self, line: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / arguments.SOCKET))
            connection.sendall(f"{line}\n".encode())
            with connection.makefile() as answer:
                if said := answer.read():
                    raise RealNodeError(f"{line}: {said}")


def _cgroups() -> list[Path]:
    """The node's place in each hierarchy: several on cgroup v1, one on v2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / arguments.CGROUP]
    return [top / arguments.CGROUP for top in sorted(_CGROUPS.iterdir()) if top.is_dir() and not top.is_symlink()]


def _make_cgroups() -> None:
    for cgroup in _cgroups():
        cgroup.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # v1: empty until somebody fills them
            if (cgroup / file).exists() and not (cgroup / file).read_text().strip():
                (cgroup / file).write_text((cgroup.parent / file).read_text())


def _remove_cgroup(folder: Path) -> None:
    def removed() -> bool:
        with suppress(FileNotFoundError):
            try:
                folder.rmdir()
            except OSError:  # the kernel has not yet let go of the last process
                return False
        return True

    _wait_until(removed, 10, lambda: f"{folder} can't be removed")


def _is_ours(pid: int) -> bool:
    """Whether that is a PID 1 of ours and not who got its number later; a zombie has no command line."""
    try:
        return arguments.FIRST_PROCESS.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_until(true: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise RealNodeError(why())
        time.sleep(0.1)
