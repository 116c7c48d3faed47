"""A cluster in which a sweep can really run: the real control plane with its scheduler, Nodes with GPUs, kubelets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.deep.due import last_deep_test
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.sim.control_plane import ControlPlane, unbound_token
from gpu_healthcheck.sim.kubelet import put_program
from tests.waiting import eventually

T = TypeVar("T")
P = "gpu-healthcheck.aws-samples.io"
NAMESPACE = "gpu-healthcheck"
NODES = "/api/v1/nodes"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TEMPLATE = f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs/gpu-healthcheck-sweep-node"
MANAGER = "gpu-healthcheck"
ROOT = Path(__file__).parents[2]
TESTER = """
import os, sys, time
from datetime import UTC, datetime
from pathlib import Path
from tests.annotating import annotate
name = os.environ["NODE_NAME"]
while Path(sys.argv[1], name).exists():
    time.sleep(0.05)
at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
record = {"schema": 1, "timestamp": at, "status": "pass", "severity": "PASS"}
while True:
    try:
        annotate(name, "sweep-result", record)
        break
    except OSError:  # as patient as the real one
        time.sleep(0.2)
"""
"""In the place of the program that tests a node: it ends once it is not held, with a record by its own token."""


def make_sweep_namespace(plane: ControlPlane, name: str) -> None:
    """A namespace for SWEEP_NAMESPACE, with the objects of 03-config.yaml's comment; it allows no privileges."""
    level = {"pod-security.kubernetes.io/enforce": "baseline"}
    made = plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": level}})
    assert made.status == 201, made.message
    sweep, sweeper = "gpu-healthcheck-sweep", "gpu-healthcheck-sweeper"
    for words in (
        f"create serviceaccount {sweep}",
        f"create clusterrolebinding {name} --clusterrole={sweep} --serviceaccount={name}:{sweep}",
        f"create role {sweeper} --verb=get,list,watch,create,delete --resource=jobs.batch",
        f"create rolebinding {sweeper} --role={sweeper} --serviceaccount={NAMESPACE}:{sweeper}",
    ):
        plane.kubectl(f"--namespace={name}", *words.split())
    attributes = {"namespace": name, "group": "batch", "resource": "jobs", "verb": "create"}
    review = {"spec": {"user": f"system:serviceaccount:{NAMESPACE}:{sweeper}", "resourceAttributes": attributes}}
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    eventually(lambda: plane.request("POST", reviews, review).body["status"]["allowed"])


@dataclass
class Fleet:
    """The Nodes of one test. `config`: the ConfigMap's folder of its sweepers."""

    plane: ControlPlane
    folder: Path
    names: list[str] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.plane.api)

    # --- making

    def configure(self, **values: str) -> None:
        self.config.mkdir(exist_ok=True)
        for key, value in values.items():
            (self.config / key).write_text(value)

    @property
    def image(self) -> Path:
        """The programs in the image of the Jobs."""
        return self.folder / "image"

    def install_test(self) -> None:
        """Install the program of the Jobs."""
        self._held.mkdir()
        put_program(self.image, [sys.executable, "-c", TESTER, str(self._held)])

    def hold(self, name: str) -> None:
        """The test of this node goes on until it is let go."""
        (self._held / name).touch()

    def let_go(self, name: str) -> None:
        (self._held / name).unlink()

    @property
    def _held(self) -> Path:
        """A file for each node: a Node's name is as long as a file's may be."""
        return self.folder / "held"

    def set_in_pods(self, **fields: Any) -> None:
        """Edit the pod in the template; None removes a field."""
        patch = {"spec": {"jobTemplate": {"spec": {"template": {"spec": fields}}}}}
        answer = self.plane.request("PATCH", TEMPLATE, patch)
        assert answer.status == 200, answer.message

    def add(self, name: str, *, gpus: int = 8, healthy: bool = True, **marks: Any) -> str:
        """A Node as its agent left it: judged a moment ago, its heartbeat good for an hour."""
        self.plane.create_node(name, devices={"nvidia.com/gpu": str(gpus)} if gpus else {}, **marks)
        self.names.append(name)
        status, state = ("pass", "True") if healthy else ("fail", "False")
        self.mark(name, {"metadata": {"labels": {f"{P}/status": status}}})
        condition = {"type": "GpuHealthy", "status": state, "reason": "x", "message": "x"}
        self.cluster.nodes.patch_conditions(name, [condition])
        self.cluster.leases.renew_heartbeat(self.node(name), datetime.now(UTC), 3600)
        return name

    def mark(self, name: str, patch: Mapping[str, Any]) -> None:
        answer = self.plane.request("PATCH", f"{NODES}/{name}?fieldManager={MANAGER}", dict(patch))
        assert answer.status == 200, answer.message

    def gpu_pod(self, name: str, node: str, gpus: int = 8, command: Sequence[str] = ()) -> None:
        """Another workload, for the scheduler to place on this node; without a command it never ends."""
        resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
        container = {"name": "work", "image": "work", "command": list(command), "resources": resources}
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [container],
        }
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        answer = self.plane.request("POST", "/api/v1/namespaces/default/pods", body)
        assert answer.status == 201, answer.message

    def give_out(self, name: str, gpus: int) -> None:
        """NVIDIA's DRA driver publishes the GPUs of this node."""
        devices = [{"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}}} for number in range(gpus)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": devices}
        answer = self.plane.request("POST", SLICES, {"metadata": {"name": name}, "spec": spec})
        assert answer.status == 201, answer.message

    @contextmanager
    def protected(self, label: str) -> Iterator[None]:
        """Nodes with this label can be changed by the admin only, by a policy of the cluster's."""
        policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
        policy = {
            "metadata": {"name": "protected"},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [
                    {
                        "expression": f"!('{label}' in object.metadata.labels) || request.userInfo.username == 'admin'",
                        "message": "nobody changes this node",
                    }
                ],
            },
        }
        binding = {
            "metadata": {"name": "protected"},
            "spec": {"policyName": "protected", "validationActions": ["Deny"]},
        }
        assert self.plane.request("POST", policies, policy).status == 201
        assert self.plane.request("POST", f"{policies[:-3]}ybindings", binding).status == 201
        token = unbound_token(self.plane, "gpu-healthcheck-sweeper")
        (name,) = (name for name in self.names if label in self.node(name).labels)
        try:
            dry = f"{NODES}/{name}?dryRun=All"
            eventually(lambda: "nobody changes" in self.plane.request("PATCH", dry, {}, token=token).message)
            yield
        finally:
            self.plane.request("DELETE", f"{policies[:-3]}ybindings/protected")
            self.plane.request("DELETE", f"{policies}/protected")

    # --- the sweeper

    def sweeper(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """One sweep as its CronJob would start it, with the account's own token."""
        kubeconfig = self.plane.account_kubeconfig("gpu-healthcheck-sweeper")
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "CONFIG_DIR": str(self.config),
            "COLUMNS": "300",
            **variables,
        }
        program = "tests.sweeper.dying" if "KILL_AT" in variables else "sweeper"
        program = "tests.sweeper.impatient" if "FORBIDDEN_SECONDS" in variables else program
        return subprocess.Popen(
            [sys.executable, "-m", program, *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sweep(self, *words: str, **variables: str) -> tuple[int, str, str]:
        """One sweep to its end: exit code, standard output and standard error."""
        process = self.sweeper(*words, **variables)
        out, err = process.communicate()
        return process.returncode, out, err

    # --- looking

    def node(self, name: str) -> NodeState:
        return self.cluster.nodes.read(name)

    def jobs(self) -> list[dict[str, Any]]:
        items = self.plane.request("GET", f"{JOBS}?labelSelector=app.kubernetes.io/component=sweep").body["items"]
        return [entry for entry in items if entry["metadata"]["annotations"][f"{P}/node"] in self.names]

    def working(self) -> list[str]:
        """Names of the nodes on which a Job is at work."""
        ended = ("Complete", "Failed")
        return [
            job["metadata"]["annotations"][f"{P}/node"]
            for job in self.jobs()
            if not any(entry["type"] in ended for entry in job["status"].get("conditions", []))
        ]

    def residue(self) -> dict[str, dict[str, Any]]:
        """Return the marks of runs on the Nodes, by name; Nodes without marks are left out."""
        found = {}
        for name in self.names:
            node = self.node(name)
            marks: dict[str, Any] = {key: node.annotations[key] for key in (f"{P}/run",) if key in node.annotations}
            marks |= {key: node.labels[key] for key in (f"{P}/mode",) if key in node.labels}
            marks |= {
                str(taint["key"]): taint.get("value") for taint in node.taints if "maintenance" in str(taint["key"])
            }
            if marks:
                found[name] = marks
        return found

    def work(self) -> set[str]:
        """Return the phases of the other workload's pods."""
        pods = self.plane.request("GET", "/api/v1/namespaces/default/pods").body["items"]
        return {pod["status"]["phase"] for pod in pods}

    def tested(self) -> dict[str, str]:
        now = datetime.now(UTC)
        every = {name: last_deep_test(self.node(name), now) for name in self.names}
        return {name: test.status for name, test in every.items() if test}

    def close(self) -> None:
        for job in self.jobs():
            self.plane.request("DELETE", f"{JOBS}/{job['metadata']['name']}?propagationPolicy=Background")
        for pods in (f"{PODS}?labelSelector=app.kubernetes.io/component=sweep&", "/api/v1/namespaces/default/pods?"):
            self.plane.request("DELETE", f"{pods}gracePeriodSeconds=0")
        for name in self.names:
            self.plane.request("DELETE", f"{NODES}/{name}")
            self.plane.request("DELETE", f"{LEASES}/{name}")
            self.plane.request("DELETE", f"{SLICES}/{name}")
