"""Command lines and input files of all programs on the node; pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from gpu_healthcheck.sim.control_plane import arguments as plane
from gpu_healthcheck.sim.node import FABRIC_MANAGER

if TYPE_CHECKING:
    from collections.abc import Mapping

NODE_ADDRESS = "10.99.0.1"
API_ADDRESS = "10.96.0.1"
"""Address of the Service `kubernetes`: the API server itself listens on it, without address translation."""
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
FIRST_PROCESS = "sim.real_node.inside"
SOCKET, PLAN = "pid-1.sock", "plan.json"
"""Files in the node's folder: PID 1's socket for requests, and its plan."""
CGROUP = "gpu-healthcheck-node"
"""Parent control group of the node's pods in each hierarchy."""
_ETCD_PORT, _ETCD_PEER_PORT = 2379, 2380

LOOK_ALIKES = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Kernel settings that the kubelet would change for the whole machine: it reads files with its desired values."""

_RECIPES = Path(__file__).parent / "recipes"
KUBELET_CONFIGURATION = yaml.safe_load((_RECIPES / "kubelet.yaml").read_text())
CONTAINERD_CONFIGURATION = (_RECIPES / "containerd.toml").read_text()
CNI_CONFIGURATION = (_RECIPES / "cni.conflist").read_text()

# The kubelet searches the machine's kernel log for the OOM killer. The simulated log returns each record to one reader
# only, which must be the agent.
_WITH_THE_MACHINES_LOG = 'mount --make-private /dev && umount /dev/kmsg && exec "$@"'


def services(
    folder: Path, plane_bin: Path, kubelet_bin: Path, name: str, labels: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the command lines of the programs, by the name under which PID 1 starts and stops each."""
    return {
        "etcd": [str(plane_bin / "etcd"), *plane.etcd(folder, _ETCD_PORT, _ETCD_PEER_PORT)],
        "kube-apiserver": [
            str(plane_bin / "kube-apiserver"),
            *plane.kube_apiserver(folder, 443, _ETCD_PORT),
            "--bind-address=0.0.0.0",
            f"--advertise-address={NODE_ADDRESS}",
            "--kubelet-preferred-address-types=InternalIP",
        ],
        "kube-controller-manager": [
            str(plane_bin / "kube-controller-manager"),
            *plane.kube_controller_manager(folder, kubelets=True),
        ],
        "kube-scheduler": [str(plane_bin / "kube-scheduler"), *plane.kube_scheduler(folder)],
        # In the node's process list, it only has a name and runs.
        FABRIC_MANAGER: [str(folder / "bin" / FABRIC_MANAGER), "infinity"],
        "containerd": ["containerd"],
        "kubelet": [
            *("unshare", "--mount", "--propagation=unchanged", "sh", "-c", _WITH_THE_MACHINES_LOG, "sh"),
            str(kubelet_bin / "kubelet"),
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={folder / 'kubelet.kubeconfig'}",
            f"--hostname-override={name}",
            f"--node-ip={NODE_ADDRESS}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        ],
    }
