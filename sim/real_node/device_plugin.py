"""Device plugin and nvidia-smi on a real node: a DaemonSet as NVIDIA's, and a program that resets simulated GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.real_device_plugin import SOCKETS, XIDS
from gpu_healthcheck.sim.real_node.images import OURS, REPOSITORY
from gpu_healthcheck.sim.real_node.root import HARDWARE
from gpu_healthcheck.sim.real_node.running import RunningNode

DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
"""Label by which the GPU operator runs it on a node."""
PLUGIN, NAMESPACE = "nvidia-device-plugin-daemonset", "kube-system"
OF_NVIDIA = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
"""Toleration of NVIDIA's DaemonSets."""
NVIDIA_SMI = "/usr/bin/nvidia-smi"
_SCRIPT = f"""\
#!/bin/sh
PROCESSES=/proc exec /{HARDWARE}{NVIDIA_SMI} "$@"
"""


@dataclass
class NodeDevicePlugin:
    """NVIDIA's programs of one real node."""

    node: RunningNode
    host: SimulatedNode

    def install(self, *, operator: bool, tolerations: Sequence[Mapping[str, str]] = (OF_NVIDIA,)) -> None:
        """Install both. With `operator`, the operator's label selects the DaemonSet's nodes."""
        self.host.install_nvidia_smi()
        self.node.run("sh", "-ec", f"cat >{NVIDIA_SMI}; chmod +x {NVIDIA_SMI}", input=_SCRIPT)
        self.host.write_value(XIDS, "")
        if operator:
            self.node.kubectl("label", "node", self.node.name, f"{DEPLOY}=true")
        manifest = _daemon_set(tolerations, operator=operator)
        self.node.kubectl("create", "--filename=-", input=json.dumps(manifest))

    def remove(self) -> None:
        """Remove both, and wait until the plugin's pod has ended.

        If a plugin registers while an earlier one of the same socket is connected, the kubelet of 1.37 refuses every
        later one with "device plugin already connected" (devicemanager: deregisterClient drops both clients).
        """
        self.node.kubectl(
            *("delete", "daemonset", PLUGIN, f"--namespace={NAMESPACE}", "--ignore-not-found", "--cascade=foreground")
        )
        self.node.kubectl("label", "node", self.node.name, f"{DEPLOY}-")
        self.node.run("rm", "-f", NVIDIA_SMI)

    def xid(self, index: int, code: int, text: str) -> None:
        """Let the driver log an Xid and report it to its clients."""
        self.host.xid(index, code, text)
        with (self.host.root / XIDS).open("a") as file:
            file.write(f"{self.host.gpus[index].uuid} {code}\n")

    def pods(self) -> list[str]:
        """Return the UIDs of its running pods."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3D{PLUGIN}"
        pods = self.node.get(path)["items"]
        return [pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"]


def _daemon_set(tolerations: Sequence[Mapping[str, str]], *, operator: bool) -> dict[str, Any]:
    labels = {"app": PLUGIN}
    folders = {"sockets": str(SOCKETS), "hardware": f"/{HARDWARE}", "repository": str(REPOSITORY)}
    spec: dict[str, Any] = {
        "tolerations": [*tolerations],
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "plugin",
                "image": OURS,
                "imagePullPolicy": "Never",
                "command": ["python3", "-m", "sim.real_device_plugin", f"/{HARDWARE}"],
                "workingDir": str(REPOSITORY),
                "securityContext": {"privileged": True, "runAsUser": 0},
                "volumeMounts": [{"name": name, "mountPath": path} for name, path in folders.items()],
            }
        ],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()],
    }
    if operator:
        spec["nodeSelector"] = {DEPLOY: "true"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": PLUGIN, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
