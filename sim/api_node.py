"""A Node of the API stand-in, as a kubelet registers it."""

import uuid
from datetime import UTC, datetime

from sim.api_objects import NODES, Object


def node_object(name: str, instance_type: str) -> Object:
    """Return a Ready node as a kubelet registers it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "node.kubernetes.io/instance-type": instance_type,
                "nvidia.com/gpu.present": "true",
            },
            "annotations": {},
        },
        "spec": {"providerID": f"aws:///us-east-1a/{name}"},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "simulated",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": {
                "kubeletVersion": "v1.33.0",
                "kubeProxyVersion": "",
                "osImage": "simulated",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "kernelVersion": "6.8.0-1029-aws",
                "containerRuntimeVersion": "containerd://2.0.0",
                "machineID": uuid.uuid5(uuid.NAMESPACE_DNS, name).hex,
                "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
                "bootID": str(uuid.uuid4()),
            },
        },
    }
