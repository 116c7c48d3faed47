"""The program evict as a process with its own account's token, between real controllers and simulated kubelets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.agent.world import UNHEALTHY, AgentProcess, Json, P
from tests.waiting import eventually

ACCOUNT = "gpu-healthcheck-evict"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/{}/pods"
JOBS, SETS = "/apis/batch/v1/namespaces/default/jobs", "/apis/apps/v1/namespaces/default/statefulsets"
DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
HEARTBEATS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
FAULTY_GPU, OTHER_GPU = f"GPU-{'a' * 8}-1111-2222-3333-{'a' * 12}", f"GPU-{'b' * 8}-1111-2222-3333-{'b' * 12}"
SELECTED = {"example.com/selected": "true"}
FINALIZER = "example.com/readable"


class EvictProcess(AgentProcess):
    """One process `python -m evict`."""

    @property
    def port(self) -> int:
        return int(self.wait_for_log("serving /metrics and /healthz")["port"])


class EvictWorld:
    """A cluster, the program's ConfigMap, and the processes that were started. Closing ends and removes them all."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.began = datetime.now(UTC)
        self.config = folder / "config"
        self.config.mkdir()
        self.processes: list[EvictProcess] = []
        self.configure(EVICT_SEVERITY="REBOOT", EVICT_DELAY="1", MAX_UNHEALTHY_PERCENT="100")

    def close(self) -> None:
        for process in self.processes:
            if process.running:
                assert process.terminate() == 0, process.log.read_text()
            failed = [*process.logged("a thread failed"), *process.logged("a step of an eviction failed")]
            assert not failed, failed
        for kind in (JOBS, SETS, DAEMON_SETS, BUDGETS, HEARTBEATS, PODS.format("default").replace("pods", "events")):
            self.plane.request("DELETE", f"{kind}?propagationPolicy=Background")
        for pod in self.pods():
            where = f"{PODS.format(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
            self.plane.request("PATCH", where, {"metadata": {"finalizers": None}})
            self.plane.request("DELETE", f"{where}?gracePeriodSeconds=0")
        eventually(lambda: not self.pods())
        self.plane.request("DELETE", NODES)

    def make(self, path: str, name: str, **fields: Any) -> Json:
        answer = self.plane.request("POST", path, {"metadata": {"name": name, **fields.pop("metadata", {})}, **fields})
        assert answer.status == 201, answer.message
        created: Json = answer.body
        return created

    # --- the program

    def configure(self, **values: str) -> None:
        for key, value in values.items():
            fresh = self.folder / "fresh"
            fresh.write_text(value)
            fresh.rename(self.config / key.replace("_overrides", "-overrides"))

    def start(self, kill_at: str = "") -> EvictProcess:
        """Start the program; with `kill_at` it dies at that write."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KUBE")}
        kubeconfig = self.plane.account_kubeconfig(ACCOUNT)
        environment = {"CONFIG_DIR": str(self.config), "METRICS_PORT": "0", "KUBECONFIG": str(kubeconfig)}
        module = "tests.evict.dying" if kill_at else "evict"
        command = [sys.executable, "-m", module, f"--kubeconfig={kubeconfig}"]
        log = self.folder / f"evict-{len(self.processes)}.log"
        self.processes.append(EvictProcess({**kept, **environment, "KILL_AT": kill_at}, log, command))
        return self.processes[-1]

    # --- nodes

    def add_node(self, name: str, *, has_agent: bool = False, **labels: str) -> None:
        labels = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
        self.plane.create_node(name, labels={**SELECTED, **labels}, devices={"nvidia.com/gpu": "8"})
        if has_agent:
            self.make(HEARTBEATS, name)

    def fail(self, name: str, severity: str = "REBOOT", uuid: str = FAULTY_GPU, **annotations: str) -> None:
        """Write a fault of one GPU as the node's agent does."""
        finding = {"reason": "Xid79", "severity": severity, "subject": "gpu/0000:18:00.0", "about": {"uuid": uuid}}
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        record = {"schema": 1, "timestamp": at, "status": "fail", "severity": severity, "findings": [finding]}
        metadata = {
            "labels": {f"{P}/severity": severity, f"{P}/status": "fail"},
            "annotations": {f"{P}/results": json.dumps(record)}
            | {f"{P}/{key}": annotations[key] for key in annotations},
        }
        self.edit(name, {"metadata": metadata, "spec": {"taints": [UNHEALTHY]}})

    def heal(self, name: str) -> None:
        """Write the end of the fault as the node's agent does."""
        labels = {f"{P}/severity": "PASS", f"{P}/status": "pass"}
        self.edit(name, {"metadata": {"labels": labels, "annotations": {f"{P}/results": None}}, "spec": {"taints": []}})

    def edit(self, name: str, patch: Mapping[str, Any]) -> None:
        answer = self.plane.request("PATCH", f"{NODES}/{name}", patch)
        assert answer.status == 200, answer.message

    def evictions(self, node: str) -> dict[str, Json]:
        """Return the rows of the annotation, by name of the pod."""
        annotations = self.plane.request("GET", f"{NODES}/{node}").body["metadata"].get("annotations") or {}
        rows = json.loads(annotations.get(f"{P}/evict", "{}")).get("pods", [])
        return {row["name"]: row for row in rows}

    def states(self, node: str) -> dict[str, str]:
        return {name: row["state"] for name, row in self.evictions(node).items()}

    def wait_for_states(self, node: str, **states: str) -> None:
        wanted = {name.replace("_", "-"): state for name, state in states.items()}
        eventually(lambda: self.states(node) == wanted, lambda: (self.states(node), wanted, self.logs()))

    # --- pods

    def start_pod(self, name: str, node: str, *, namespace: str = "default", gpus: int = 1, **fields: Any) -> None:
        """Start a pod on the node and wait until it runs. `metadata` and fields of its spec replace the defaults."""
        limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
        spec = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "work", "image": "work", "resources": limits}],
        }
        metadata = fields.pop("metadata", {})
        self.make(PODS.format(namespace), name, metadata=metadata, spec={**spec, **fields})
        eventually(lambda: self.pod(name, namespace)["status"].get("phase") == "Running")

    def pod(self, name: str, namespace: str = "default") -> Json:
        pod: Json = self.plane.request("GET", f"{PODS.format(namespace)}/{name}").body
        return pod

    def pods(self) -> list[Json]:
        """Return all pods that are bound to a Node."""
        pods = self.plane.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName!=").body["items"]
        return list(pods)

    def running(self, selects: Callable[[Json], bool] = lambda _: True) -> dict[str, str]:
        """Return the UIDs of the pods that run and are not being deleted, by name."""
        pods = [pod for pod in self.pods() if pod["status"].get("phase") == "Running" and selects(pod)]
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    def on(self, node: str) -> dict[str, str]:
        """Return the running pods of the node, without its agent."""
        agent = f"agent-on-{node}"
        return self.running(lambda pod: pod["spec"]["nodeName"] == node and pod["metadata"]["name"] != agent)

    # --- the program's requests

    def requests(self, status: int = 201) -> list[tuple[str, datetime]]:
        """Return the pods whose evictions the program requested with this answer, and when."""
        found = []
        for entry in self.plane.audit(self.began):
            about = entry.get("objectRef", {})
            if about.get("subresource") == "eviction" and entry["responseStatus"]["code"] == status:
                assert entry["user"]["username"].endswith(f":{ACCOUNT}")
                found.append((about["name"], datetime.fromisoformat(entry["requestReceivedTimestamp"])))
        return found

    def evicted(self) -> list[str]:
        return [name for name, _ in self.requests()]

    def wait_for_evicted(self, *names: str) -> None:
        """Wait until exactly these pods are evicted, in any order."""
        eventually(lambda: sorted(self.evicted()) == sorted(names), lambda: (self.evicted(), names, self.logs()))

    def events(self, about: str, reason: str) -> list[str]:
        """Return the messages of the program's Events about a Node or pod."""
        listed = self.plane.request("GET", "/api/v1/events").body["items"]
        events = [event for event in listed if event["involvedObject"]["name"] == about]
        return [event["message"] for event in events if event["reason"] == reason]

    def wait_for_event(self, about: str, reason: str) -> str:
        return eventually(partial(self.events, about, reason), self.logs)[0]

    def logs(self) -> str:
        return "\n".join(process.log.read_text(errors="replace")[-4000:] for process in self.processes)
