"""A node for real resets: the program as a process, simulated programs of NVIDIA, the API stand-in."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.reset_life import SignOfLife
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.deep.reset_command import ResetCommand, render, returned, sign_of_life
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.sim.api_objects import PODS
from gpu_healthcheck.sim.host_services import Container
from tests.device_files import may_be_made
from tests.quarantine.world import NODE, P, World

JOB = f"gpu-reset-{NODE}"
MAINTENANCE = {"key": f"{P}/maintenance", "value": "reset", "effect": "NoSchedule"}
UID = "0d4f7f63-6e4f-4f7e-9b34-{:012d}"


class ResetWorld(World):
    """Each started Job has a command next to it, which gives signs of life and returns the node after the last record.

    With the variable SILENT, the command is dead from the start.
    """

    operands: Mapping[str, str] = {}
    """Labels that the command has switched off."""

    @contextmanager
    def started(self, *words: str, program: str = "repair", **variables: str) -> Iterator[subprocess.Popen[str]]:
        command = render(ResetCommand(JOB, self.operands, sign_of_life(datetime.now(UTC))))
        self.annotate(reset_command=command)
        run = super().started(*words, program=program, **variables)
        if "SILENT" in variables:
            with run as process:
                yield process
            return
        cluster = cluster_of(Access(str(self.stand_in.kubeconfig(Path(self.folder) / "command"))))
        began, ended = self.record.get("timestamp"), threading.Event()

        def returning(node: NodeState) -> Mapping[str, Any] | None:
            return returned(node, JOB, datetime.now(UTC))

        def follow() -> None:
            while not ended.wait(0.05):
                record = self.record
                if record.get("timestamp") != began and "running" not in record:
                    cluster.nodes.update(NODE, returning)

        with SignOfLife(cluster, NODE), run as process:
            follower = threading.Thread(target=follow, daemon=True)
            follower.start()
            try:
                yield process
            finally:
                ended.set()
                follower.join()

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.annotations.get(f"{P}/reset-result", "{}"))
        return record

    @property
    def marks(self) -> tuple[str, str, bool]:
        run = json.loads(self.annotations.get(f"{P}/run", "{}"))
        mode = (self.node["metadata"].get("labels") or {}).get(f"{P}/mode", "")
        return run.get("kind", ""), mode, MAINTENANCE in (self.node["spec"].get("taints") or [])

    @property
    def asked(self) -> list[str]:
        """Return the calls of nvidia-smi and systemctl."""
        file = self.host.root / "nvidia-smi/asked"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def state_dir(self) -> Any:
        return self.folder / "state"

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "STATE_DIR": str(self.state_dir)}

    def add_pod(self, number: int, name: str, *, gpus: int = 0, **metadata: Any) -> str:
        """Add a pod on the node, and return its UID."""
        uid = UID.format(number)
        container: dict[str, Any] = {"name": "work"}
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        pod = {
            "metadata": {"name": name, "namespace": "default", "uid": uid, **metadata},
            "spec": {"nodeName": NODE, "containers": [container]},
            "status": {"phase": "Running"},
        }
        stored = self.stand_in.store.create(PODS, pod["metadata"]["namespace"], pod)
        return str(stored["metadata"]["uid"])

    def run_process(self, pid: int, name: str, uid: str = "", *, gpu: int) -> None:
        """Run a process with an open GPU, in the pod with this UID or on the host."""
        if not may_be_made():
            pytest.skip("only root can make device files")
        group = f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/x" if uid else f"0::/system.slice/{name}"
        self.host.services.start_in_container(pid, name, Container(group))
        self.host.open_gpu(gpu, pid)

    def reset(self, *words: str, gpu: int = 0, program: str = "repair", **variables: str) -> Any:
        return self.run(f"--gpu={self.host.gpus[gpu].address}", *words, program=program, **variables)
