"""Command lines and input files of all programs on the node; pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.control_plane import arguments as plane
from sim.node import FABRIC_MANAGER
from sim.real_node.images import PAUSE
from sim.real_node.nvidia_runtime import PROGRAM as NVIDIA_RUNTIME

if TYPE_CHECKING:
    from collections.abc import Mapping

NODE_ADDRESS = "10.99.0.1"
API_ADDRESS = "10.96.0.1"
"""Address of the Service `kubernetes`: the API server itself listens on it, without address translation."""
DNS_ADDRESS = "10.96.0.10"
"""Address of the DNS Service; unused, without a server."""
POD_NETWORK = "10.98.0.0/24"
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

KUBELET_CONFIGURATION: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "failCgroupV1": False,
    "failSwapOn": False,
    "cgroupDriver": "cgroupfs",  # no systemd here
    "cgroupRoot": f"/{CGROUP}",
    "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
    # Only the node's own API server reaches this port: the namespaces have no way out.
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "clusterDNS": [DNS_ADDRESS],
    "clusterDomain": "cluster.local",
    "syncFrequency": "2s",  # default 1 minute: a changed ConfigMap is mounted in the same way, but sooner
    "singleProcessOOMKill": True,  # as on cgroup v1; on v2 one process would end the whole container
    "oomScoreAdj": 0,  # a lower value needs a capability that a container may lack
    "maxOpenFiles": 20000,
    # No eviction on a small machine: a removed image could not be pulled again.
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
}

CONTAINERD_CONFIGURATION = f"""\
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without CAP_SYS_RESOURCE no process can be made less likely to be killed than we are.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "{NVIDIA_RUNTIME}"
"""

CNI_CONFIGURATION = json.dumps(
    {
        "cniVersion": "0.4.0",
        "name": "node",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": POD_NETWORK}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni-ipam",
                },
            }
        ],
    }
)

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
