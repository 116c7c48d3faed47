"""A node for real resets: the program as a process, simulated programs of NVIDIA, the API stand-in."""

from __future__ import annotations

import json
from typing import Any

from sim.api_objects import PODS
from sim.host_services import Container
from tests.quarantine.world import NODE, P, World

JOB = f"gpu-reset-{NODE}"
MAINTENANCE = {"key": f"{P}/maintenance", "value": "reset", "effect": "NoSchedule"}
UID = "0d4f7f63-6e4f-4f7e-9b34-{:012d}"


class ResetWorld(World):
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
        group = f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/x" if uid else f"0::/system.slice/{name}"
        self.host.services.start_in_container(pid, name, Container(group))
        self.host.open_gpu(gpu, pid)

    def reset(self, *words: str, gpu: int = 0, program: str = "repair", **variables: str) -> Any:
        return self.run(f"--gpu={self.host.gpus[gpu].address}", *words, program=program, **variables)
