"""What it costs to plan a sweep of a large fleet in the real API server: time, memory, and which requests.

Nodes and pods are as long as real ones: labels, records, the list of images, variables and volumes.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.outcome import CouldNotMeasure, Outcome, Row, summary
from bench.stage import INSTANCE_TYPE, Stage
from healthcheck.cluster.names import NAMESPACE
from healthcheck.model import PREFIX
from healthcheck.node.state import CONDITION, RESULTS, STATUS, SWEEP_RESULT
from sim.control_plane import ControlPlane, ControlPlaneError, install, objects
from sim.control_plane.files import write_kubeconfig

AIM_SECONDS, AIM_MIB = 5.0, 250.0
_ACCOUNT = f"{NAMESPACE}-sweeper"
_PODS_PER_NODE, _BUSY_PERCENT = 4, 70
_TIMES = 3
_WRITERS = 8
_PAGE = 500
_NOTES = (
    "sweep-plan: the API server runs on the same machine; a Node is about 13 kB of JSON, a pod about 4 kB",
    "            the memory is the whole process's at its peak, Python and the client with it",
)


def measure(stage: Stage) -> Outcome:
    try:
        with ControlPlane() as plane:  # of its own: thousands of heartbeats would be another fleet to other measures
            install(plane)
            return _measure(stage, plane)
    except ControlPlaneError as error:
        raise CouldNotMeasure(str(error)) from error


def _measure(stage: Stage, plane: ControlPlane) -> Outcome:
    size = stage.length.sweep_nodes
    _fill(plane, size)
    since = datetime.now(UTC)
    token = plane.kubectl("create", "token", _ACCOUNT, f"--namespace={NAMESPACE}").strip()
    path = stage.folder / "sweeper.kubeconfig"
    write_kubeconfig(path, url=plane.url, ca_file=plane.ca_file, token=token)
    runs = [_run(stage, path) for _ in range(_TIMES)]
    for run in runs:
        if (run["nodes"], run["busy"]) != (size, size * _BUSY_PERCENT // 100) or not run["taken"]:
            raise CouldNotMeasure(f"the plan is not the fleet's: {run}")
    asked = _asked(plane, since)
    seconds, peaks = [run["seconds"] for run in runs], [run["peak_mib"] for run in runs]
    calls = {what: number // _TIMES for what, number in asked.items()}
    listed = sum(number for what, number in calls.items() if what.startswith("list"))
    pages = 2 * -(-size // _PAGE) + -(-size * _PODS_PER_NODE // _PAGE) + 1
    what = f"plan of a sweep over {size} nodes and {size * _PODS_PER_NODE} pods"
    rows = (
        Row(
            what,
            f"≤ {AIM_SECONDS:g} s",
            f"{min(seconds):.1f} to {max(seconds):.1f} s",
            stage.length.met(max(seconds) <= AIM_SECONDS),
        ),
        Row(
            "its memory at the peak",
            f"≤ {AIM_MIB:g} MiB",
            f"{max(peaks):.0f} MiB",
            stage.length.met(max(peaks) <= AIM_MIB),
        ),
        Row(
            "its requests: pages, and none per node",
            f"{pages} lists",
            ", ".join(f"{number} {name}" for name, number in calls.items()),
            stage.length.met(listed == pages and sum(calls.values()) == pages + 1),
        ),
    )
    raw = {
        "seconds": summary(seconds),
        "cpu_seconds": summary([run["cpu_seconds"] for run in runs]),
        "peak_mib": summary(peaks),
        "requests": calls,
    }
    return Outcome(rows, raw, _NOTES)


def _run(stage: Stage, kubeconfig: Path) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.sweep_plan_program"],
        cwd=Path(__file__).parents[1],
        env={**stage.bare_environment, "KUBECONFIG": str(kubeconfig), "CONFIG_DIR": str(stage.folder / "none")},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise CouldNotMeasure(f"the plan ended with {process.returncode}")
    return {**json.loads(said), "peak_mib": used.ru_maxrss / 1024, "cpu_seconds": used.ru_utime + used.ru_stime}


def _asked(plane: ControlPlane, since: datetime) -> dict[str, int]:
    user = f"system:serviceaccount:{NAMESPACE}:{_ACCOUNT}"
    events = [event for event in plane.audit(since) if event["user"]["username"] == user]
    return dict(Counter(f"{event['verb']} {event['objectRef']['resource']}" for event in events))


# --- the fleet


def _fill(plane: ControlPlane, size: int) -> None:
    now = datetime.now(UTC)
    names = [f"fleet-node-{number:05d}.us-west-2.compute.internal" for number in range(size)]
    writer = _Writer(plane)
    writer.create("/api/v1/nodes", (_node(name, number, now) for number, name in enumerate(names)))
    # Admission taints every new Node as not ready, and the controller that lifts it does not run here.
    writer.untaint(names)
    writer.create(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases", (_beat(name, now) for name in names))
    pods = (_pod(name, number, place) for number, name in enumerate(names) for place in range(_PODS_PER_NODE))
    writer.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pods)


class _Writer:
    """Many objects in a short time: several connections, each kept open."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._own = threading.local()

    def create(self, path: str, bodies: Iterable[Mapping[str, Any]]) -> None:
        self._all([("POST", path, json.dumps(body)) for body in bodies])

    def untaint(self, names: Iterable[str]) -> None:
        patch = json.dumps({"spec": {"taints": None}})
        self._all([("PATCH", f"/api/v1/nodes/{name}", patch) for name in names])

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
        said = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise CouldNotMeasure(f"{method} {path}: {answer.status} {said[:300]!r}")


def _node(name: str, number: int, now: datetime) -> dict[str, Any]:
    """One in ten was tested an hour ago; nobody has tested the others."""
    labels = {f"feature.node.kubernetes.io/feature-{n}": "true" for n in range(40)} | {STATUS: "pass"}
    node = objects.node(name, labels, INSTANCE_TYPE, now, {"nvidia.com/gpu": "8"})
    record = {"timestamp": (now - timedelta(hours=1)).isoformat(), "status": "pass", "severity": "PASS"}
    annotations = {RESULTS: json.dumps({**record, "checks": ["x" * 1800]})}
    node["metadata"]["annotations"] = annotations | ({SWEEP_RESULT: json.dumps(record)} if number % 10 == 9 else {})
    node["status"]["images"] = [
        {"names": [f"registry.example.com/team/image-{n}@sha256:{n:064d}"], "sizeBytes": 1 << 30} for n in range(50)
    ]
    node["status"]["conditions"].append({"type": CONDITION, "status": "True", "reason": "x", "message": "x"})
    return node


def _beat(name: str, now: datetime) -> dict[str, Any]:
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "renewTime": renewed, "leaseDurationSeconds": 7200},
    }


def _pod(node: str, number: int, place: int) -> dict[str, Any]:
    """On seven nodes of ten the first pod has the GPUs."""
    has_gpus = place == 0 and number % 10 < _BUSY_PERCENT // 10
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
