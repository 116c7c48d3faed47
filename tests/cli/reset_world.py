"""A node whose GPUs can be reset: agent, reset Job, operator's labels, and a device plugin that needs a restart."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.operations.reset_job import job_name, reset_job
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.device_plugin import DEPLOY, PLUGIN, DevicePlugin
from gpu_healthcheck.sim.host_boot import HostBoot
from gpu_healthcheck.sim.host_services import Container
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.node import SimulatedNode
from tests.cli.cluster import P, start
from tests.waiting import GIVE_UP_SECONDS, eventually

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/gpu-healthcheck/jobs"
WORK = "/apis/batch/v1/namespaces/default/jobs"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
BUDGET = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck-budget/leases"


@dataclass
class Workshop:
    plane: ControlPlane
    node: SimulatedNode
    kubelets: Kubelets
    plugin: DevicePlugin
    host: HostBoot
    folder: Path
    name: str
    module: str = "cli"
    given: dict[str, str] = field(default_factory=dict)
    """UUID of the GPU of each pod, by its name."""

    # --- making

    def run_plugin(self, *, operator: bool) -> None:
        """Run the device plugin, selected by the operator's label if the operator runs."""
        if operator:
            self.patch({"metadata": {"labels": {DEPLOY: "true"}}})
        self.plugin.install(operator=operator)
        eventually(lambda: self.allocatable == 8)

    def add_pod(self, name: str, gpu: int, **metadata: Any) -> None:
        reference = {
            "apiVersion": "example.com/v1",
            "kind": "ReplicaSet",
            "name": "of",
            "uid": name,
            "controller": True,
        }
        amounts = {"nvidia.com/gpu": "1"}
        spec = {
            "nodeName": self.name,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "work", "image": "x", "resources": {"limits": amounts, "requests": amounts}}],
        }
        self.given[name] = self.node.gpus[gpu].uuid
        body = {"metadata": {"name": name, "ownerReferences": [reference], **metadata}, "spec": spec}
        answer = self.plane.request("POST", PODS, body)
        assert answer.status == 201, answer.message

    def add_job(self, name: str, **spec: Any) -> dict[str, Any]:
        """Add a Job that no controller manages, and return the reference of its pods to it."""
        pod = {"restartPolicy": "Never", "containers": [{"name": "work", "image": "x"}]}
        body = {
            "metadata": {"name": name},
            "spec": {"managedBy": "example.com/tests", "template": {"spec": pod}, **spec},
        }
        answer = self.plane.request("POST", WORK, body)
        assert answer.status == 201, answer.message
        uid = answer.body["metadata"]["uid"]
        return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}

    def add_exporter(self, gpu: int) -> None:
        """Add a component of NVIDIA that has the GPU open, and that may not be evicted."""
        self.add_pod("exporter", gpu, labels={"app": "nvidia-dcgm-exporter"})
        del self.given["exporter"]  # it requests none
        self.add_budget("nvidia-dcgm-exporter")
        pod = self.plane.request("GET", f"{PODS}/exporter").body["metadata"]
        group = Container(f"0::/kubepods.slice/kubepods-pod{pod['uid'].replace('-', '_')}.slice/x")
        self.node.services.start_in_container(7001, "dcgm-exporter", group)
        self.node.open_gpu(gpu, 7001)

    def add_budget(self, app: str) -> None:
        """Let no pod with this label be evicted."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
        self.plane.request("POST", BUDGETS, {"metadata": {"name": "all"}, "spec": spec})
        eventually(lambda: self.plane.request("GET", f"{BUDGETS}/all").body["status"].get("currentHealthy"))

    def held(self) -> list[tuple[str, str, list[str]]]:
        """Return what the kubelet gave to pods."""
        return [("default", name, [uuid]) for name, uuid in self.given.items() if name in self.pods()]

    def break_gpu(self, index: int) -> None:
        """Let the driver log Xid 62 on it, until the agent has tainted the node; the device plugin loses it."""
        self.node.xid(index, 62, "Internal micro-controller halt")
        self.plugin.lost = 1
        eventually(lambda: self.is_tainted("unhealthy"))

    # --- the command

    def start(self, *words: str, command: str = "reset", **variables: str) -> subprocess.Popen[str]:
        program = "tests.cli.dying" if "KILL_AT" in variables and self.module == "cli" else self.module
        return start(self.plane.kubeconfig, command, *words, module=program, **variables)

    def reset(self, *words: str) -> tuple[int, str]:
        """Run the command to its end. Return its exit code and standard output."""
        process = self.start(self.name, *words)
        out, err = process.communicate(timeout=GIVE_UP_SECONDS)
        return process.returncode, out + err

    def next_commands(self) -> list[str]:
        """Return the commands of the next step in `status`."""
        out, _ = self.start(self.name, "-o", "json", command="status").communicate(timeout=GIVE_UP_SECONDS)
        return list(json.loads(out)["node"]["next_step"]["commands"])

    def interrupt(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=GIVE_UP_SECONDS)
        return process.returncode, out + err

    # --- reading

    @property
    def object(self) -> dict[str, Any]:
        body: dict[str, Any] = self.plane.request("GET", f"/api/v1/nodes/{self.name}").body
        return body

    def patch(self, patch: dict[str, Any]) -> None:
        answer = self.plane.request("PATCH", f"/api/v1/nodes/{self.name}", patch)
        assert answer.status == 200, answer.message

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.object["metadata"]["labels"])

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.annotation("reset-result") or "{}")
        return record

    def annotation(self, key: str) -> str:
        return str((self.object["metadata"].get("annotations") or {}).get(f"{P}/{key}", ""))

    @property
    def allocatable(self) -> int:
        return int(self.object["status"]["allocatable"].get("nvidia.com/gpu", 0))

    def condition(self, kind: str) -> dict[str, Any]:
        entries = self.object["status"]["conditions"]
        return next((entry for entry in entries if entry["type"] == kind), {})

    def is_tainted(self, key: str) -> bool:
        return any(taint["key"] == f"{P}/{key}" for taint in self.object["spec"].get("taints") or ())

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.annotation("results") or "{}").get("findings", [])
        return rows

    @property
    def findings(self) -> list[str]:
        return [row["reason"] for row in self.rows]

    @property
    def severities(self) -> list[str]:
        return sorted(row["severity"] for row in self.rows)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of a reset is left: claim, command, mode, taint, operator's labels."""
        marks = (self.annotation("run"), self.annotation("reset-command"), self.labels.get(f"{P}/mode"))
        return marks == ("", "", None) and not self.is_tainted("maintenance") and self.labels.get(DEPLOY) != "false"

    def pods(self) -> set[str]:
        items = self.plane.request("GET", PODS).body["items"]
        return {pod["metadata"]["name"] for pod in items if pod["metadata"].get("labels", {}).get("app") != PLUGIN}

    def job(self, node: str = "", **more: Any) -> str:
        """Create the Job of this node's reset, as a person's command does, but on `node`. Return its name."""
        cron_job = "/apis/batch/v1/namespaces/gpu-healthcheck/cronjobs/gpu-healthcheck-reset-node"
        template = self.plane.request("GET", cron_job).body["spec"]["jobTemplate"]
        target = NodeState(node or self.name, uid=self.object["metadata"]["uid"])
        job = reset_job(template, target, "gpu-healthcheck", ["0"], 60)
        job["metadata"] |= {"name": job_name(self.name), "ownerReferences": []}
        job["spec"] |= more
        answer = self.plane.request("POST", JOBS, job)
        assert answer.status == 201, answer.message
        return job_name(self.name)

    def has_job(self) -> bool:
        return self.plane.request("GET", f"{JOBS}/{job_name(self.name)}").status == 200

    def has_ended_job(self) -> bool:
        status = self.plane.request("GET", f"{JOBS}/{job_name(self.name)}").body["status"]
        return bool(status.get("succeeded") or status.get("failed"))

    @property
    def events(self) -> list[str]:
        items = self.plane.request("GET", "/api/v1/namespaces/default/events").body["items"]
        return [
            f"{event['reason']} {event['message']}" for event in items if event["involvedObject"]["name"] == self.name
        ]

    @property
    def steps(self) -> list[str]:
        """Return the steps of the record."""
        return [row["step"] for row in self.record["steps"]]

    @property
    def reported(self) -> list[str]:
        """Return the steps with an Event, in the order of the record, and the reason of the Event about the end."""
        events = self.events
        steps = [step for step in self.steps for event in events if event.startswith(f"GpuResetStep {step}: ")]
        reasons = [event.split()[0] for event in events]
        return [*steps, *(reason for reason in reasons if reason in ("GpuResetDone", "GpuResetFailed"))]

    def plugin_pod(self) -> str:
        """Return the UID of the device plugin's pod; '' without one."""
        items = self.plane.request("GET", f"{PODS}?labelSelector=app%3D{PLUGIN}").body["items"]
        return "".join(pod["metadata"]["uid"] for pod in items if pod["spec"]["nodeName"] == self.name)

    def close(self) -> None:
        self.plane.request("DELETE", f"{JOBS}/{job_name(self.name)}?propagationPolicy=Background")
        self.plugin.remove()
        self.plane.request("DELETE", BUDGETS)
        self.plane.request("DELETE", f"{WORK}?propagationPolicy=Background")
        self.plane.request("DELETE", f"{PODS}?gracePeriodSeconds=0")
        self.plane.request("DELETE", f"/api/v1/nodes/{self.name}")
        self.plane.request("DELETE", BUDGET)  # a tainted node keeps its slot
