"""A large fleet in a real API server. Nodes and pods are as long as real ones: labels, records, images, variables."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from bench.outcome import CouldNotMeasure
from bench.stage import INSTANCE_TYPE
from gpu_healthcheck import healthcheck
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.node.state import CONDITION, RESULTS, STATUS, SWEEP_RESULT
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, CheckRow, RunRecord
from gpu_healthcheck.sim import cluster_objects
from gpu_healthcheck.sim.control_plane import ControlPlane

_GROUPS = ("0-nvidia-smi", "2-efa-enumeration", "3-topology-check", "7-container-runtime", "8-hami")
_SEEN = "8 of 8 GPUs answer, driver 570.133.20; " * 6
PODS_PER_NODE, BUSY_PERCENT = 4, 70
_WRITERS = 8


def fill(plane: ControlPlane, size: int) -> None:
    now = datetime.now(UTC)
    names = [f"fleet-node-{number:05d}.us-west-2.compute.internal" for number in range(size)]
    writer = Writer(plane)
    writer.create("/api/v1/nodes", (node(name, number, now) for number, name in enumerate(names)))
    # Admission taints every new Node as not ready, and the controller that lifts it does not run here.
    writer.patch((f"/api/v1/nodes/{name}", {"spec": {"taints": None}}) for name in names)
    writer.create(
        f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases", (heartbeat(name, now) for name in names)
    )
    pods = (pod(name, number, place) for number, name in enumerate(names) for place in range(PODS_PER_NODE))
    writer.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pods)


class Writer:
    """Create many objects fast, over several persistent connections."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._own = threading.local()

    def create(self, path: str, bodies: Iterable[Mapping[str, Any]]) -> None:
        self._all([("POST", path, json.dumps(body)) for body in bodies])

    def patch(self, patches: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Send each object to its path."""
        self._all([("PATCH", path, json.dumps(body)) for path, body in patches])

    def _all(self, requests: list[tuple[str, str, str]]) -> None:
        with ThreadPoolExecutor(_WRITERS) as threads:
            list(threads.map(self._send, requests))

    def _send(self, request: tuple[str, str, str]) -> None:
        if not hasattr(self._own, "connection"):
            context = ssl.create_default_context(cafile=str(self._plane.ca_file))
            address = urlsplit(self._plane.url)
            self._own.connection = http.client.HTTPSConnection(
                str(address.hostname), address.port, timeout=60, context=context
            )
        method, path, body = request
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._plane.admin_token}", "Content-Type": kind}
        self._own.connection.request(method, path, body, headers)
        answer = self._own.connection.getresponse()
        result = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise CouldNotMeasure(f"{method} {path}: {answer.status} {result[:300]!r}")


def node(name: str, number: int, now: datetime) -> dict[str, Any]:
    """Return a node; one in ten was tested an hour ago, the others never."""
    labels = {f"feature.node.kubernetes.io/feature-{n}": "true" for n in range(40)} | {STATUS: "pass"}
    node = cluster_objects.node(name, labels, INSTANCE_TYPE, now, {"nvidia.com/gpu": "8"})
    swept = RunRecord(schema=records.SCHEMA, timestamp=timestamp(now - timedelta(hours=1)), status="pass")
    node["metadata"]["annotations"] = {
        RESULTS: records.dump(_record(name, now)),
        **({SWEEP_RESULT: records.dump(swept)} if number % 10 == 9 else {}),
    }
    node["status"]["images"] = [
        {"names": [f"registry.example.com/team/image-{n}@sha256:{n:064d}"], "sizeBytes": 1 << 30} for n in range(50)
    ]
    # A log request by host name needs name resolution, which fails for these names.
    node["status"]["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
    node["status"]["conditions"].append({"type": CONDITION, "status": "True", "reason": "x", "message": "x"})
    return node


def _record(name: str, now: datetime) -> AgentRecord:
    """Return a record as written by an agent, of about 1,900 characters."""
    return AgentRecord(
        schema=records.SCHEMA,
        timestamp=timestamp(now),
        hostname=name,
        instance_type=INSTANCE_TYPE,
        status="pass",
        severity="PASS",
        checks=tuple(CheckRow(check=group, status="pass", severity="PASS", seen=_SEEN) for group in _GROUPS),
        findings=(),
        unobserved=(),
        agent_version=healthcheck.__version__,
        machine="ec2f1d2b-0000-4000-8000-000000000000",
        boot_id="0d6c5b8e-0000-4000-8000-000000000000",
        cursor=4711,
    )


def heartbeat(name: str, now: datetime) -> dict[str, Any]:
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "renewTime": renewed, "leaseDurationSeconds": 7200},
    }


def pod(node: str, number: int, place: int) -> dict[str, Any]:
    """Return the pods; on seven of ten nodes the first pod has the GPUs."""
    has_gpus = place == 0 and number % 10 < BUSY_PERCENT // 10
    resources = {"limits": {"nvidia.com/gpu": "8"}} if has_gpus else {"requests": {"cpu": "100m", "memory": "64Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"work-{number}-{place}", "labels": {f"{PREFIX}/bench-{n}": "x" for n in range(5)}},
        "spec": {
            "nodeName": node,
            "serviceAccountName": NAMESPACE,
            "containers": [
                {
                    "name": "work",
                    "image": "registry.example.com/team/image@sha256:0",
                    "env": [{"name": f"VARIABLE_{n}", "value": "a value of some length"} for n in range(20)],
                    "resources": resources,
                }
            ],
        },
    }
