"""Stand-in for the kubelet plugin of NVIDIA's DRA driver: a DaemonSet, and the ResourceSlice of its node."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Self

from gpu_healthcheck.sim.control_plane import ControlPlane

DRIVER = "gpu.nvidia.com"
XID_TAINT = f"{DRIVER}/xid"
_SLICES, _NAME = "/apis/resource.k8s.io/v1/resourceslices", "dra-driver-nvidia-gpu"
_DAEMON_SETS, _PODS = "/apis/apps/v1/namespaces/default/daemonsets", "/api/v1/namespaces/default/pods"
_SELECTOR = f"app.kubernetes.io%2Fname%3D{_NAME}"
_POLL_SECONDS = 0.2


@dataclass
class DraPlugin:
    """Kubelet plugin of one node. A GPU keeps its taint until the plugin's pod is another one, as with NVIDIA's."""

    plane: ControlPlane
    name: str
    addresses: list[str]
    _tainted: int | None = None
    _uid: str = ""
    _generation: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        labels = {"app.kubernetes.io/name": _NAME}
        container = {"name": "gpus", "image": "x"}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        template = {"metadata": {"labels": labels}, "spec": spec}
        body = {"metadata": {"name": _NAME}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
        answer = self.plane.request("POST", _DAEMON_SETS, body)
        assert answer.status == 201, answer.message
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self.plane.request("DELETE", f"{_DAEMON_SETS}/{_NAME}")
        self.plane.request("DELETE", f"{_SLICES}/{self.name}")

    def taint(self, index: int) -> None:
        """Publish the GPU with the taint of an Xid."""
        self._tainted = index
        self._publish()

    @property
    def taints(self) -> list[str]:
        """Return the published taints."""
        devices = self.plane.request("GET", f"{_SLICES}/{self.name}").body["spec"]["devices"]
        return [taint["key"] for device in devices for taint in device.get("taints", ())]

    @property
    def is_running(self) -> bool:
        return bool(self._uid)

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            selector = f"labelSelector={_SELECTOR}&fieldSelector=spec.nodeName%3D{self.name}"
            uids = [
                pod["metadata"]["uid"]
                for pod in self.plane.request("GET", f"{_PODS}?{selector}").body["items"]
                if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
            ]
            if uids and uids[0] != self._uid:
                self._uid, self._tainted = uids[0], None
                self._publish()

    def _publish(self) -> None:
        self._generation += 1
        devices: list[dict[str, Any]] = [
            {"name": f"gpu-{index}", "attributes": {"resource.kubernetes.io/pciBusID": {"string": address}}}
            for index, address in enumerate(self.addresses)
        ]
        if self._tainted is not None:
            devices[self._tainted]["taints"] = [{"key": XID_TAINT, "value": "62", "effect": "NoSchedule"}]
        pool = {"name": self.name, "generation": self._generation, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": self.name, "pool": pool, "devices": devices}
        self.plane.request("DELETE", f"{_SLICES}/{self.name}")
        answer = self.plane.request("POST", _SLICES, {"metadata": {"name": self.name}, "spec": spec})
        assert answer.status == 201, answer.message
