"""In-memory stand-in of the Kubernetes API for the demo and the tests: nodes, events, leases and others.

It implements the requests of the agent and the command line, with the real server's codes and
messages. Users, admission, validation and managedFields are missing: tests of those use a real kube-apiserver.
"""

import functools
import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from gpu_healthcheck.sim import cluster_objects
from gpu_healthcheck.sim.api_answers import ApiAnswers
from gpu_healthcheck.sim.api_gate import RequestGate
from gpu_healthcheck.sim.api_objects import MERGE_PATCH, NAMESPACES, NODES, RUNTIME_CLASSES, Object, patched
from gpu_healthcheck.sim.loopback import LoopbackServer

_NODE_INFO = (
    *("machineID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion"),
    *("operatingSystem", "architecture"),
)
"""Fields that the API requires."""


class ApiStandIn(RequestGate):
    """Stand-in of the Kubernetes API on loopback."""

    def __init__(self, *nodes: str, instance_type: str = "p5.48xlarge") -> None:
        super().__init__()
        for name in nodes or ("gpu-node-1",):
            self.add_node(name, instance_type)
        self._server = LoopbackServer(functools.partial(ApiAnswers, self))

    @property
    def endpoint(self) -> str:
        return self._server.endpoint

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.recover()
        self._server.close()

    def kubeconfig(self, path: Path) -> Path:
        """Write the kubeconfig as JSON, which is also YAML."""
        name = "stand-in"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": self.endpoint}}],
            "users": [{"name": name, "user": {"token": name}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
        path.write_text(json.dumps(config, indent=2) + "\n")
        return path

    # -- changes by a person or a cloud, independent of the program under test

    def add_node(self, name: str, instance_type: str = "p5.48xlarge") -> Object:
        node = cluster_objects.node(name, {"nvidia.com/gpu.present": "true"}, instance_type, datetime.now(UTC), {})
        node["metadata"]["annotations"] = {}
        node["status"]["nodeInfo"] = {
            **dict.fromkeys(_NODE_INFO, "simulated"),
            "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
            "bootID": str(uuid.uuid4()),
        }
        return self.store.create(NODES, "", node)

    def node(self, name: str | None = None) -> Object:
        """Return the node of that name; without a name the first one."""
        return self.store.get(NODES, "", name) if name else self.store.find_all(NODES, "")[0][0]

    def add_runtime_class(self, name: str, handler: str, node_selector: dict[str, str] | None = None) -> Object:
        scheduling = {"scheduling": {"nodeSelector": node_selector}} if node_selector else {}
        return self.store.create(RUNTIME_CLASSES, "", {"metadata": {"name": name}, "handler": handler, **scheduling})

    def add_namespace(self, name: str, annotations: dict[str, str] | None = None) -> Object:
        return self.store.create(NAMESPACES, "", {"metadata": {"name": name, "annotations": annotations or {}}})

    def edit_node(self, name: str, merge_patch: Object) -> Object:
        """Write as another client, both spec and status; not recorded in `requests`."""
        return self.store.patch(NODES, "", name, lambda node: patched(node, merge_patch, MERGE_PATCH))

    def delete_node(self, name: str) -> None:
        self.store.delete(NODES, "", name)

    def wait_for(self, predicate: Callable[[Object], bool], timeout: float, node_name: str | None = None) -> float:
        """Return the monotonic time at which the node first matched the predicate. Raises TimeoutError."""
        name = node_name or self.node()["metadata"]["name"]
        deadline = time.monotonic() + timeout
        became_true: float | None = None
        seen = 0
        with self.store.changed:
            while True:
                for change in self.store.history[seen:]:
                    seen += 1
                    if change.resource == NODES and change.object["metadata"]["name"] == name:
                        holds = change.type != "DELETED" and predicate(change.object)
                        became_true = (became_true or change.at) if holds else None
                if became_true is not None:
                    return became_true
                if not self.store.changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"not observed within {timeout} s: {json.dumps(self.node(name))}")

    # -- outages of the connection

    def refuse(self) -> None:
        """Close the port, and cut off all connections."""
        self._server.refuse()

    def accept(self) -> None:
        """Listen again on the same port."""
        self._server.open()

    @property
    def connections(self) -> int:
        """Return the number of connections so far."""
        return self._server.accepted

    def cut_connections(self) -> None:
        """End watches in the middle of the stream, and accept new connections."""
        self._server.cut_connections()
