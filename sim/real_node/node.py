"""A real one-node Kubernetes in its own namespaces: kubelet, containerd and runc on a simulated GPU host."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gpu_healthcheck.sim.control_plane.build import node_binaries
from gpu_healthcheck.sim.control_plane.files import AUDIT_POLICY, write_kubeconfig, write_signing_key
from gpu_healthcheck.sim.node import FABRIC_MANAGER, SimulatedNode
from gpu_healthcheck.sim.real_node import arguments, cgroups, images, needs
from gpu_healthcheck.sim.real_node.agent_pod import MANIFESTS
from gpu_healthcheck.sim.real_node.running import HARDWARE, NAME, NEXT_RECORD, READY_SECONDS, RunningNode, is_ours
from gpu_healthcheck.sim.real_node.waiting import RealNodeError, wait_until

if TYPE_CHECKING:
    from types import TracebackType

COMMANDS = ("gpu-healthcheck", "kubectl-gpu_healthcheck", "kubectl_complete-gpu_healthcheck")
"""Programs of this checkout's environment, in the PATH as by pipx."""
_AFTER_US = 'cat > /dev/null; exec "$0" -m sim.real_node down'


class RealNode(RunningNode):
    """Node that stays until `down`, also after the process that started it has ended.

    `hardware` is the directory of a SimulatedNode (default: a healthy one, removed with the node): the node uses its
    GPUs, EFA devices, driver library, kernel log and boot id. `with RealNode(…)` starts the node, and stops it
    however the process ends.
    """

    def __init__(self, hardware: Path | None = None, instance_type: str = "p5.48xlarge", name: str = NAME) -> None:
        super().__init__(name)
        self._hardware = hardware
        self._instance_type = instance_type
        self._after_us: subprocess.Popen[bytes] | None = None
        self._outer: subprocess.Popen[bytes] | None = None

    # --- start and end

    def __enter__(self) -> Self:
        self._refuse_a_second()
        # If our process is killed, the end of this pipe removes the node.
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
            self._after_us.wait(READY_SECONDS)

    def up(self) -> None:
        """Start the node and wait until its Node is Ready; remove all parts if that fails."""
        if reason := needs.missing():
            raise RealNodeError(reason)
        self._refuse_a_second()
        plane_bin, kubelet_bin = node_binaries()
        pause = images.pause()
        self.folder.mkdir(mode=0o700)
        try:
            with ExitStack() as held:
                if self._hardware is None:
                    self._hardware = self.folder / HARDWARE
                    host = held.enter_context(SimulatedNode.create(self._hardware, self._instance_type))
                    (self.folder / NEXT_RECORD).write_text(str(host.kernel_log.next_sequence))
                self._write_files(plane_bin, kubelet_bin)
                cgroups.make()
                self._begin()
            self.start("etcd")
            self.start("kube-apiserver")
            self.start(FABRIC_MANAGER)
            self.start_containerd()
            self.load(pause)
            self.wait_until(self._api_is_ready, "the API server is ready")
            for name in ("kube-controller-manager", "kube-scheduler", "kubelet"):
                self.start(name)
            self.wait_until(self.is_ready, "the Node is Ready")
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End every process of the node; the kernel removes its mounts, links and rules with the namespaces."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_ours(pid), READY_SECONDS, lambda: f"pid {pid} does not end")
        if self._outer is not None:
            self._outer.kill()  # also ends a PID 1 that never reported its number
            self._outer.wait(READY_SECONDS)
            self._outer = None
        cgroups.remove()
        if self.folder.exists():
            shutil.rmtree(self.folder)

    # --- inside

    def _refuse_a_second(self) -> None:
        if self.folder.exists():
            state = f"is up, pid {self.pid}" if self.is_up else f"left {self.folder}"
            raise RealNodeError(f"another node {state}: stop it with `python -m sim.real_node down`")

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
        (folder / "bin" / FABRIC_MANAGER).symlink_to("/bin/sleep")
        for command in COMMANDS:
            (folder / "bin" / command).symlink_to(Path(sys.executable).parent / command)
        shutil.copytree(images.REPOSITORY / MANIFESTS, self.manifests, ignore=shutil.ignore_patterns("kustomization*"))
        configuration = Path(self.manifests, "03-config.yaml")
        # Without the permission to raise this machine's limits, pods can lock little memory, and the node reports it.
        silent = configuration.read_text().replace("data: {}", 'data: {severity-overrides: "MemlockLow = PASS"}')
        configuration.write_text(silent)
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

    def _api_is_ready(self) -> bool:
        return self.run("kubectl", "get", "--raw", "/readyz", check=False).stdout == "ok"
