"""Objects that a kubelet or the control plane itself creates; pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from gpu_healthcheck.healthcheck import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

NAMESPACE = "gpu-healthcheck"
"""Name of the namespace and of the agent's ServiceAccount."""
DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
DEVICE_TAINT_RULES = "/apis/resource.k8s.io/v1/devicetaintrules"


def node(
    name: str, labels: Mapping[str, str], instance_type: str, now: datetime, devices: Mapping[str, str]
) -> dict[str, Any]:
    """Return a Node with marks of other programs, so that a test can check that they survive.

    `devices` are the resources of registered device plugins, such as `nvidia.com/gpu`.
    """
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    capacity = {"cpu": "192", "memory": "2Ti", "pods": "100", **devices}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": instance_type,
                **labels,
            },
        },
        "spec": {"providerID": f"aws:///us-west-2a/i-{zlib.crc32(name.encode()):017x}"},
        "status": {
            "capacity": capacity,
            "allocatable": capacity | {"cpu": "191"},
            "addresses": [{"type": "Hostname", "address": name}],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "simulated: no kubelet reports this",
                    "lastHeartbeatTime": moment,
                    "lastTransitionTime": moment,
                }
            ],
        },
    }


def agent_pod(node_name: str) -> dict[str, Any]:
    """Return the agent's pod on that node. It does not run; tokens are bound to it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"agent-on-{node_name}", "namespace": NAMESPACE},
        "spec": {
            "nodeName": node_name,
            "serviceAccountName": NAMESPACE,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "agent", "image": f"gpu-healthcheck:{__version__}"}],
        },
    }


def token_request(pod: Mapping[str, Any], seconds: int) -> dict[str, Any]:
    """Return the request for a token bound to the pod, which contains `authentication.kubernetes.io/node-name`."""
    bound_to = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds, "boundObjectRef": bound_to},
    }
