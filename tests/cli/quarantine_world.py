"""A cluster in which nodes can be quarantined: real control plane and scheduler, pods as processes, their logs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_healthcheck.healthcheck.operations.quarantine_job import CRON_JOB, job_name
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.kubelet_logs import KubeletLogs
from tests.cli.cluster import P, start
from tests.waiting import eventually

NODES, DEFAULT_PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
JOB_PODS = "/api/v1/namespaces/gpu-healthcheck/pods"
BATCH = "/apis/batch/v1/namespaces/gpu-healthcheck"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
ACCOUNT = "tester"
LOST_GPU = {"reason": "DcgmDiagPcie", "severity": "RESET", "subject": "gpu/0000:18:00.0", "detail": "PCIe replays"}
TESTER = """
import json, os, sys, time
from datetime import UTC, datetime
from pathlib import Path
from tests.annotating import annotate
name, folder = os.environ["NODE_NAME"], Path(sys.argv[1])
told = json.loads((folder / f"{name}.json").read_text())
print(json.dumps({"event": "test: started", "test": "4-dcgm-diag-l4", "level": "info", "timestamp": "x"}), flush=True)
print("\\x1b[31mnot JSON at all [/red]", flush=True)
while (folder / f"{name}.hold").exists():
    time.sleep(0.05)
status = "pass" if told["recommendation"] == "return-to-service" else "fail"
print(json.dumps({"event": "test: ended", "test": "4-dcgm-diag-l4", "findings": told["findings"]}), flush=True)
checks = [{"check": "4-dcgm-diag-l4", "status": status, "severity": "PASS", "seen": "12 tests on 8 GPUs"}]
at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
record = {"schema": 1, "timestamp": at, "checks": checks, **told}
if told["recommendation"]:
    annotate(name, "quarantine-result", record)
"""
"""In the place of the program that tests a node: what it finds, and until when it takes, is told in the folder."""


@dataclass
class Hospital:
    plane: ControlPlane
    folder: Path
    kubelets: Kubelets
    logs: KubeletLogs
    names: list[str] = field(default_factory=list)

    # --- making

    def prepare(self) -> None:
        """The template of the Job, and an account for its pods."""
        role = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "gpu-healthcheck"}
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
        self._made("/api/v1/namespaces/gpu-healthcheck/serviceaccounts", {})
        self._made(f"{rbac}/clusterroles", {"rules": [role]})
        self._made(f"{rbac}/clusterrolebindings", {"subjects": [subject], "roleRef": reference})
        self.use(self.template())

    def use(self, spec: Mapping[str, Any]) -> None:
        """The CronJob that Jobs are made from."""
        self.plane.request("DELETE", f"{BATCH}/cronjobs/{CRON_JOB}")
        self._made(f"{BATCH}/cronjobs", {"spec": spec}, CRON_JOB)

    def template(self) -> dict[str, Any]:
        environment = [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
        command = [sys.executable, "-c", TESTER, str(self.folder)]
        pod = {
            "serviceAccountName": ACCOUNT,
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "quarantine", "image": "x", "command": command, "env": environment}],
        }
        job = {"backoffLimit": 0, "activeDeadlineSeconds": 600, "template": {"spec": pod}}
        return {"suspend": True, "schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}}

    def _made(self, path: str, body: Mapping[str, Any], name: str = ACCOUNT) -> None:
        answer = self.plane.request("POST", path, {**body, "metadata": {"name": name}})
        assert answer.status in (201, 409), answer.message

    def admit(
        self,
        name: str,
        *findings: Mapping[str, str],
        recommendation: str = "return-to-service",
        **marks: Any,
    ) -> str:
        """Add a Node with the result of its test."""
        self.plane.create_node(name, **marks)
        self.names.append(name)
        self.logs.serve(name)
        fields = {"recommendation": recommendation, "reasons": ["as the test was told"], "findings": list(findings)}
        (self.folder / f"{name}.json").write_text(json.dumps(fields))
        return name

    def hold(self, name: str) -> None:
        """Keep the node's test running until `let_go`."""
        (self.folder / f"{name}.hold").touch()

    def let_go(self, name: str) -> None:
        (self.folder / f"{name}.hold").unlink()

    def pod(self, name: str, node: str, *, owner: str = "ReplicaSet", **more: Any) -> None:
        """Add a pod on the node, of an unread controller; `more` is its metadata and its spec."""
        # Of a missing API group: the garbage collector skips owners that it can't query.
        reference = {"apiVersion": "example.com/v1", "kind": owner, "name": "of", "uid": name, "controller": True}
        metadata = {"name": name, "namespace": "default", "ownerReferences": [reference] if owner else []}
        metadata |= {key: more.pop(key) for key in ("labels", "finalizers") if key in more}
        spec = {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "work", "image": "work"}],
            **more,
        }
        answer = self.plane.request("POST", DEFAULT_PODS, {"metadata": metadata, "spec": spec})
        assert answer.status == 201, answer.message

    def warning(self, node: str, reason: str, message: str) -> None:
        """Add a kubelet's warning about the pod of a node's Job."""
        selector = f"labelSelector=batch.kubernetes.io/job-name={job_name(node)}"
        (pod,) = eventually(lambda: self.plane.request("GET", f"{JOB_PODS}?{selector}").body["items"])
        about = {"kind": "Pod", "namespace": "gpu-healthcheck", "name": pod["metadata"]["name"]}
        event = {
            "metadata": {"generateName": "told-"},
            "involvedObject": {**about, "uid": pod["metadata"]["uid"]},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        answer = self.plane.request("POST", "/api/v1/namespaces/gpu-healthcheck/events", event)
        assert answer.status == 201, answer.message

    def budget(self, name: str, label: str) -> None:
        """A disruption budget that allows nothing, once the controller has counted its pods."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": label}}}
        answer = self.plane.request("POST", BUDGETS, {"metadata": {"name": name}, "spec": spec})
        assert answer.status == 201, answer.message
        eventually(lambda: self.plane.request("GET", f"{BUDGETS}/{name}").body["status"].get("currentHealthy"))

    # --- the command

    def start(self, *words: str, kubeconfig: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start the command. With KILL_AT it dies at that point, see `dying`."""
        program = "tests.cli.dying" if "KILL_AT" in variables else "cli"
        return start(kubeconfig or self.plane.kubeconfig, "quarantine", *words, module=program, **variables)

    def quarantine(self, *words: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
        """Run the command to its end. Return its exit code, standard output and standard error."""
        process = self.start(*words, kubeconfig=kubeconfig)
        out, err = process.communicate()
        return process.returncode, out, err

    # --- reading the cluster

    def node(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = self.plane.request("GET", f"{NODES}/{name}").body
        return body

    def cordon(self, name: str) -> tuple[bool, str | None]:
        """Whether it is cordoned, and by which run of ours."""
        node = self.node(name)
        annotations = node["metadata"].get("annotations") or {}
        return bool(node["spec"].get("unschedulable")), annotations.get(f"{P}/cordoned-by")

    def jobs(self, name: str) -> list[str]:
        """The uid of the node's Job."""
        answer = self.plane.request("GET", f"{BATCH}/jobs/{job_name(name)}")
        return [answer.body["metadata"]["uid"]] if answer.status == 200 else []

    def is_at_work(self, name: str) -> bool:
        answer = self.plane.request("GET", f"{BATCH}/jobs/{job_name(name)}")
        return answer.status == 200 and bool(answer.body["status"].get("ready"))

    def has_ended(self, name: str) -> bool:
        answer = self.plane.request("GET", f"{BATCH}/jobs/{job_name(name)}")
        return any(entry["type"] in ("Complete", "Failed") for entry in answer.body["status"].get("conditions") or ())

    def pods(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.plane.request("GET", DEFAULT_PODS).body["items"]}

    def close(self) -> None:
        for name in self.names:
            self.plane.request("DELETE", f"{BATCH}/jobs/{job_name(name)}?propagationPolicy=Background")
            (self.folder / f"{name}.hold").unlink(missing_ok=True)
        for name in self.pods():
            self.plane.request("PATCH", f"{DEFAULT_PODS}/{name}", {"metadata": {"finalizers": None}})
        self.plane.request("DELETE", BUDGETS)
        self.plane.request("DELETE", f"{DEFAULT_PODS}?gracePeriodSeconds=0")
        for name in self.names:
            self.plane.request("DELETE", f"{NODES}/{name}")
