"""Reboots of a simulated host that its systemd has accepted: its pods end, and its kubelet registers the new boot."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Self

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.device_plugin import DevicePlugin
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.node import SimulatedNode

_POLL_SECONDS = 0.1


@dataclass
class HostBoot:
    """Host of one node. With `stays_down` it shuts down, and does not come back until `come_back`."""

    plane: ControlPlane
    node: SimulatedNode
    kubelets: Kubelets
    plugin: DevicePlugin
    name: str
    stays_down: bool = False
    down_seconds: float = 1.0
    loses: int | None = None
    """GPU that is gone after the next boot."""
    is_down: bool = False
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._report(ready=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            if (request := self.node.root / "systemd/reboot").exists():
                request.unlink()
                self._go_down()
                if not self.stays_down and not self._stopping.wait(self.down_seconds):
                    self.come_back()

    def _go_down(self) -> None:
        self.kubelets.stuck.add(self.name)
        self.kubelets.kill(self.name)
        self._report(ready=False)
        self.is_down = True

    def come_back(self) -> None:
        """Boot: the kubelet restarts the containers of DaemonSets, so the device plugin lists all GPUs again."""
        if self.loses is not None:
            self.node.remove_gpu(self.loses)
        self.node.reboot()
        self.is_down = False
        self.plugin.lost = 0
        self._report(ready=True)
        self.kubelets.stuck.discard(self.name)

    def _report(self, *, ready: bool) -> None:
        path = f"/api/v1/nodes/{self.name}"
        status = self.plane.request("GET", path).body["status"]
        state = "True" if ready else "Unknown"
        conditions = [
            {**entry, "status": state} if entry["type"] == "Ready" else entry for entry in status["conditions"]
        ]
        change = {"conditions": conditions, "nodeInfo": {**status["nodeInfo"], "bootID": self.node.boot_id}}
        self.plane.request("PATCH", f"{path}/status", {"status": change})
