"""Stand-in for NVIDIA's device plugin, a DaemonSet with pods without a command, and the kubelet's count of its GPUs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.host_services import Container
from gpu_healthcheck.sim.node import SimulatedNode

DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
"""Label by which the GPU operator runs it on a node."""
PLUGIN = "nvidia-device-plugin-daemonset"
_DAEMON_SETS, _PODS = "/apis/apps/v1/namespaces/default/daemonsets", "/api/v1/namespaces/default/pods"
_PID = 6001
_POLL_SECONDS = 0.2


@dataclass
class DevicePlugin:
    """Device plugin of one node.

    A GPU that was lost stays out of `allocatable` until the plugin's pod is another one, as with NVIDIA's (issue 1014).
    While it runs, it has every GPU open.
    """

    plane: ControlPlane
    node: SimulatedNode
    name: str
    lost: int = 0
    tolerates: Sequence[str] = ()
    """Our taints that it tolerates, besides NVIDIA's own."""
    _uid: str = ""
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            self._synchronize()

    def _synchronize(self) -> None:
        selector = f"labelSelector=app%3D{PLUGIN}&fieldSelector=spec.nodeName%3D{self.name}"
        pods = [
            pod
            for pod in self.plane.request("GET", f"{_PODS}?{selector}").body["items"]
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
        ]
        uid = pods[0]["metadata"]["uid"] if pods else ""
        if uid != self._uid:
            self._uid = uid
            self.lost = 0
            self.node.services.end_process(_PID)
            if uid:
                group = Container(f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/x")
                self.node.services.start_in_container(_PID, "nvidia-device-plugin", group)
                for gpu in self.node.gpus:
                    self.node.open_gpu(gpu.index, _PID)
        count = len(self.node.gpus) - self.lost if uid else 0
        amounts = {"allocatable": {"nvidia.com/gpu": str(count)}, "capacity": {"nvidia.com/gpu": "8"}}
        self.plane.request("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": amounts})

    def install(self, *, operator: bool) -> None:
        """Create the DaemonSet, selected by the operator's label if `operator`."""
        labels = {"app": PLUGIN}
        spec: dict[str, Any] = {
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoSchedule"}
                for key in ("nvidia.com/gpu", *(f"{PREFIX}/{key}" for key in self.tolerates))
            ],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "plugin", "image": "x"}],
        }
        if operator:
            spec["nodeSelector"] = {DEPLOY: "true"}
        template = {"metadata": {"labels": labels}, "spec": spec}
        body = {"metadata": {"name": PLUGIN}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
        answer = self.plane.request("POST", _DAEMON_SETS, body)
        assert answer.status == 201, answer.message

    def remove(self) -> None:
        self.plane.request("DELETE", f"{_DAEMON_SETS}/{PLUGIN}")
