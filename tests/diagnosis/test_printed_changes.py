"""Printed commands on a real API server: they change what the finding is about, and nothing beside it.

Each state is diagnosed, and its objects are created in the API server together with those of other teams. Every command
of the remedy runs in its order.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from msgspec import Struct

from gpu_healthcheck.diagnosis.causes.diagnose import Problem, diagnose
from gpu_healthcheck.diagnosis.facts.components import DOMAIN_LABEL
from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.control_plane.build import binaries
from tests.diagnosis import test_sharing as sharing
from tests.diagnosis.component_states import NAMESPACE, PLUGIN, daemon, gpu_node, operand, operator
from tests.diagnosis.hami.hami_states import hami, hami_node
from tests.diagnosis.remedy_rule import CHANGES, commands_of, parse
from tests.diagnosis.states import (
    GPU,
    Object,
    ago,
    condition,
    container,
    event,
    messages,
    node,
    obj,
    pod,
    recorded,
    snapshot,
    waiting,
)
from tests.test_printed_commands import has_own_test, printed

DCGM, OTHER_PLUGIN = "nvidia.com/gpu.deploy.dcgm", "nvidia-device-plugin"
XID = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0"}
(LOST,) = [row[3] for row in messages("rejection") if row[1] == "GpuLostAtAllocation"][:1]
REFUSED = 'pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged (container "x" must not set it)'
NO_ACCOUNT = 'pods "x" is forbidden: error looking up service account team/runner: serviceaccount "runner" not found'
NO_GPU_LEFT = f"0/1 nodes are available: 1 Insufficient {GPU}."
UNMATCHED = "1 node(s) didn't match Pod's node affinity/selector"
UNREGISTERED = node("b", None, labels={"nvidia.com/gpu.present": "true"})
BYSTANDERS = [
    node("other", None),
    pod("of-another-team", 0, on="a", phase="Failed", status={"reason": "Error"}),
    pod("report-x", 0, on="a", phase="Failed", owner=("Job", "report")),
    pod("service-0", 0, on="a", namespace="other", owner=("ReplicaSet", "service")),
    daemon("vendor-agent", namespace="other"),
]
"""Objects of others in the same namespace and on the same node."""
_VERSIONS = {
    "RuntimeClass": "node.k8s.io/v1",
    **dict.fromkeys(("Namespace", "ServiceAccount", "Node", "Pod"), "v1"),
    **dict.fromkeys(("DaemonSet", "Deployment", "ReplicaSet"), "apps/v1"),
    "ClusterPolicy": "nvidia.com/v1",
    "ValidatingWebhookConfiguration": "admissionregistration.k8s.io/v1",
}
_KINDS = (*_VERSIONS,)
_NAMESPACE = re.compile(r" -n \S+")


class State(Struct, frozen=True):
    """A state, its cause with remedies, and the objects that its commands change."""

    objects: list[Object]
    cause: str
    changed: set[str]


def rejected(number: int) -> Object:
    status = {"reason": "UnexpectedAdmissionError", "message": LOST}
    owner, labels = ("ReplicaSet", "llm"), {"app": "llm"}
    return pod(f"llm-{number}", on="a", phase="Failed", owner=owner, labels=labels, status=status)


def waits(message: str, **changes: Any) -> Object:
    unbound = [condition("PodScheduled", "False", "Unschedulable", f"0/1 nodes are available: {message}.", minutes=30)]
    return pod("train-0", 1, owner=("Job", "train"), conditions=unbound, **changes)


def ended(**changes: Any) -> Object:
    times = {"deletionTimestamp": ago(40), "deletionGracePeriodSeconds": 30}
    return pod("old", 8, on="a", owner=("ReplicaSet", "old"), metadata=times, **changes)


def second_plugin() -> list[Object]:
    labels = {"app.kubernetes.io/name": "nvidia-device-plugin"}
    own: Object = {"namespace": "kube-system", "labels": labels}
    return [
        daemon(OTHER_PLUGIN, wanted=1, selector={}, tolerations=[], **own),
        operand(OTHER_PLUGIN, "a", owner=("DaemonSet", OTHER_PLUGIN), **own),
    ]


def operators_plugin(text: str) -> list[Object]:
    plugin = daemon(PLUGIN, wanted=1, ready=0, made=0)
    return [plugin, event(plugin, "FailedCreate", f"Error creating: {text}", by="daemonset-controller")]


def refused(text: str) -> list[Object]:
    spec = {"replicas": 1, "template": {"spec": {"containers": [container("main", 1)]}}}
    serve = obj("ReplicaSet", "serve", "team", spec=spec, status={"replicas": 0})
    return [serve, event(serve, "FailedCreate", f"Error creating: {text}", by="replicaset-controller")]


def of_a_gone_domain() -> list[Object]:
    """A node with the label of a ComputeDomain that does not exist, and a pod that waits for another one there."""
    claims = {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "channel"}]}
    spec = {"channel": {"resourceClaimTemplate": {"name": "channel"}}}
    held = pod("w-0", on="a", phase="Pending", states=[waiting("ContainerCreating")], spec=claims)
    domain = obj("ComputeDomain", "train", "team", spec=spec, status={"status": "NotReady"})
    return [node("a", labels={DOMAIN_LABEL: "gone"}), held, domain]


def webhook() -> list[Object]:
    client = {"service": {"namespace": "policy", "name": "gate", "path": "/v"}}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]
    hook = {"name": "gate.example.com", "failurePolicy": "Fail", "clientConfig": client, "rules": rules}
    text = 'failed calling webhook "gate.example.com": failed to call webhook: Post "https://gate.policy.svc:443/v"'
    hook |= {"sideEffects": "None", "admissionReviewVersions": ["v1"]}
    return [
        *refused(f"Internal error occurred: {text}: dial tcp 10.0.0.1:443: connect: connection refused"),
        obj("ValidatingWebhookConfiguration", "gate", webhooks=[hook]),
    ]


def without_handler(*volumes: str, **changes: Any) -> list[Object]:
    """An operator of OLM, whose toolkit writes for another containerd, and a pod that needs the handler."""
    name, nvidia = "nvidia-container-toolkit-daemonset", obj("RuntimeClass", "nvidia", handler="nvidia")
    mounted = [{"name": f"containerd-{name}", "hostPath": {"path": f"/run/containerd/{name}"}} for name in volumes]
    toolkit = daemon(name, wanted=1, spec={"volumes": mounted})
    labels = {"labels": {"app": "gpu-operator"}}
    box = {"containers": [container("gpu-operator", image="nvcr.io/nvidia/gpu-operator:v25.3.0")]}
    spec = {"template": {"metadata": labels, "spec": box}}
    made_by = obj("Deployment", "gpu-operator", NAMESPACE, metadata=labels, spec=spec)
    policy = obj("ClusterPolicy", "gpu-cluster-policy", spec={})
    held = pod("x", on="a", phase="Pending", spec={"runtimeClassName": "nvidia"}, owner=("ReplicaSet", "x"))
    return [node("a", handlers=("", "runc"), **changes), nvidia, toolkit, made_by, policy, held]


MIG = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "failed"}
SWITCHED_OFF = {RESET_COMMAND: json.dumps({"holder": "x", "operands": {DCGM: "true"}, "renewed": "x"})}
OLD_HAMI: Object = {"register": "GPU-1,10,24576,100,NVIDIA-NVIDIA A10,0,true:", "offers": 10}
SILENT = {"annotations": {"hami.io/node-handshake": "Deleted_2026.11.22 11:41:00"}}
STATES = {
    "rejected pods of a lost GPU": State(
        [node("a"), *map(rejected, range(30))],
        "GpuLostAtAllocation",
        {"node/a", *(f"pod/team/llm-{number}" for number in range(30))},
    ),
    "running pods of a lost GPU": State(
        [
            node("a", annotations=recorded(XID, status="fail", severity="REBOOT")),
            pod("desk", 8, on="a"),
            pod("web-0", 1, on="a", owner=("ReplicaSet", "web")),
        ],
        "PodOnFaultyGpu",
        {"node/a", "pod/team/desk", "pod/team/web-0"},
    ),
    "failed MIG profiles": State(
        [gpu_node("a", labels=MIG), pod("slice-0", 1, on="a", owner=("ReplicaSet", "slice"))],
        "MigConfigFailed",
        {"node/a", "pod/team/slice-0"},
    ),
    "label of a domain that is gone": State(of_a_gone_domain(), "ComputeDomainNotReady", {"node/a"}),
    "operands off": State(
        [node("a", labels={DCGM: "false"}, annotations=SWITCHED_OFF)], "OperandsSwitchedOff", {"node/a"}
    ),
    "fault without a slot": State(
        [node("a", annotations=recorded(XID, status="fail", severity="REBOOT", taint="withheld"))],
        "FaultyNodeAcceptsWork",
        {"node/a"},
    ),
    "two device plugins": State(
        [*operator(gpu_node("a")), *second_plugin()], "TwoDevicePlugins", {f"daemonset/kube-system/{OTHER_PLUGIN}"}
    ),
    "cordoned": State([node("a", cordoned=True), waits("1 node(s) were unschedulable")], "NodeCordoned", {"node/a"}),
    "no label": State(
        [
            node("a"),
            waits(UNMATCHED, spec={"nodeSelector": {"example.com/pool": "x"}}),
        ],
        "NodeSelectorMatchesNoNode",
        {"node/a"},
    ),
    "plugin switched off": State(
        [gpu_node("a", None, labels={"nvidia.com/gpu.deploy.device-plugin": "false"}), waits(f"1 Insufficient {GPU}")],
        "GpuResourceAbsent",
        {"node/a"},
    ),
    "never ends": State([node("a"), ended()], "TerminatingPodHoldsGpus", {"pod/team/old"}),
    "never ends on a lost node": State([node("a", ready="Unknown"), ended()], "TerminatingPodHoldsGpus", {"node/a"}),
    "refused by Pod Security": State(
        [node("a"), *operators_plugin(REFUSED)], "PodSecurityDenied", {f"namespace/{NAMESPACE}"}
    ),
    "no account": State([node("a"), *refused(NO_ACCOUNT)], "ServiceAccountMissing", {"serviceaccount/team/runner"}),
    "no answer of a webhook": State(
        [node("a"), *webhook()], "WebhookUnreachable", {"validatingwebhookconfiguration/gate"}
    ),
    "HAMi ignores a namespace": State(
        [
            *hami(hami_node("a"), webhook=None)[2:],
            obj("Namespace", "team", metadata={"labels": {"hami.io/webhook": "ignore"}}),
            waits(f"1 Insufficient {GPU}", containers=[container("main", 1, resources={"nvidia.com/gpumem": "4000"})]),
        ],
        "HamiWebhookIgnored",
        {"namespace/team"},
    ),
    "HAMi's lock": State(
        hami(hami_node("a", annotations={"hami.io/mutex.lock": f"{ago(20)},team,x"}), webhook=None),
        "HamiNodeLockStale",
        {"node/a"},
    ),
    "HAMi's plugin is silent": State(
        hami(hami_node("a", **OLD_HAMI, **SILENT), version="v2.4.1", webhook=None),
        "HamiPluginSilent",
        {"node/a", "pod/kube-system/hami-device-plugin-a"},
    ),
    "HAMi's plugin is not on a node": State(
        [*hami(hami_node("a"), webhook=None), UNREGISTERED],
        "HamiPluginNotOnNode",
        {"node/b"},
    ),
    "operator of OLM": State(
        without_handler("socket", kubelet="v1.33.4+k3s1"),
        "RuntimeHandlerMissing",
        {"clusterpolicy/gpu-cluster-policy"},
    ),
    "sharing that the plugin does not read": State(
        [node("a", 1), *sharing.FULL, sharing.config(), *sharing.plugin()],
        "SharingConfigNotRead",
        {f"daemonset/{NAMESPACE}/{PLUGIN}"},
    ),
    "sharing that the operator does not name": State(
        [node("a", 1), *sharing.FULL, sharing.OPERATOR, sharing.policy(), sharing.config(), *sharing.plugin()],
        "SharingConfigNotRead",
        {"clusterpolicy/cluster-policy"},
    ),
    "update that waits for its old pod": State(
        [
            node("a", 1),
            obj("Deployment", "llm", "team", spec={"template": {"spec": {"containers": [container("main", 1)]}}}),
            pod("llm-1", on="a", owner=("ReplicaSet", "llm-5d9c7"), labels={"pod-template-hash": "5d9c7"}),
            pod(
                "llm-2",
                owner=("ReplicaSet", "llm-7f4b8"),
                labels={"pod-template-hash": "7f4b8"},
                conditions=[condition("PodScheduled", "False", "Unschedulable", NO_GPU_LEFT, minutes=30)],
            ),
        ],
        "GpusAllInUse",
        {"deployment/team/llm"},
    ),
    "toolkit for another runtime": State(
        without_handler("config", runtime="cri-o://1.33.4"), "RuntimeHandlerMissing", {"node/a"}
    ),
}
"""Causes whose remedies change the cluster."""


def found_in(problems: tuple[Problem, ...], cause: str) -> Iterator[FoundCause]:
    for problem in problems:
        if problem.found.cause.name == cause:
            yield problem.found
        yield from found_in(problem.consequences, cause)


@cache
def commands(name: str) -> tuple[str, ...]:
    """Return the commands of kubectl in the remedy of a state."""
    state = STATES[name]
    diagnosis = diagnose(snapshot(*state.objects, *BYSTANDERS))
    found = next(found_in(diagnosis.problems, state.cause), None)
    assert found is not None, [problem.found.cause.name for problem in diagnosis.problems]
    return tuple(text for text in commands_of(found) if text.startswith("kubectl "))


def is_change(command: str) -> bool:
    return parse(command.split()[1:]).verb in CHANGES


def test_every_change_that_diagnose_prints_is_run_here_or_has_its_own_test() -> None:
    run = [_NAMESPACE.sub("", command, count=1) for name in STATES for command in commands(name)]
    for words, file in printed("diagnosis").items():
        pattern = re.escape(words).replace(r"\*", ".+")
        is_mention = len(words.split()) == len(("kubectl", "uncordon"))  # of a verb, without an object
        assert is_mention or has_own_test(words) or any(re.fullmatch(pattern, text) for text in run), (words, file)


def complete(entry: Object) -> Object:
    """Return the object with the fields that the API server requires, and without those that it sets."""
    entry = deepcopy(entry)
    entry["apiVersion"] = _VERSIONS[entry["kind"]]
    entry.pop("status", None)
    meta, spec = entry["metadata"], entry.get("spec", {})
    for key in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(key, None)
    for owner in meta.get("ownerReferences", ()):
        owner["apiVersion"] = "apps/v1"
    if "template" in spec:
        labels = {"app": meta["name"]}
        spec["template"].setdefault("metadata", {})["labels"] = labels
        spec["selector"] = {"matchLabels": labels}
    if entry["kind"] == "Pod":
        spec["terminationGracePeriodSeconds"] = 0
    return entry


def _turn(entry: Object) -> tuple[int, bool]:
    """Return the place of an object: a webhook comes after all pods, and a labelled namespace after a plain one."""
    return _KINDS.index(entry["kind"]), "labels" in entry["metadata"]


class Cluster:
    """Objects of one state in the API server."""

    def __init__(self, plane: ControlPlane, objects: list[Object]) -> None:
        self.plane = plane
        plane.kubectl(
            "delete",
            ",".join(kind for kind in _KINDS if kind != "Namespace"),
            "--all",
            "-A",
            "--force",
            "--grace-period=0",
        )
        spaces = {entry["metadata"].get("namespace", "team") for entry in objects}
        accounts = [obj("ServiceAccount", "default", space) for space in spaces]
        made = [entry for entry in objects if entry["kind"] in _KINDS]
        every = sorted([*(obj("Namespace", name) for name in spaces), *accounts, *made], key=_turn)
        items = [complete(entry) for entry in every]
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=document)
        for entry in objects:
            if entry["kind"] == "Pod":
                self._finish(entry["metadata"], entry["status"]["phase"])

    def _finish(self, meta: Object, phase: str) -> None:
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        assert self.plane.request("PATCH", f"{path}/status", {"status": {"phase": phase}}).status == 200
        if "deletionTimestamp" in meta:
            self.plane.request("DELETE", f"{path}?gracePeriodSeconds=30")

    def read(self) -> dict[str, tuple[str, str]]:
        """Return uid and version of each object by subject."""
        items = json.loads(self.plane.kubectl("get", ",".join(_KINDS), "-A", "-o", "json"))["items"]
        metas = [(entry["kind"], entry["metadata"]) for entry in items]
        return {
            subject(kind, meta.get("namespace", ""), meta["name"]): (meta["uid"], meta["resourceVersion"])
            for kind, meta in metas
        }

    def run(self, command: str) -> None:
        if command.startswith("kubectl wait node "):  # the manager's part
            self.plane.kubectl("label", "node", "a", "nvidia.com/mig.config.state=success", "--overwrite")
        environment = os.environ | {"KUBECONFIG": str(self.plane.kubeconfig), "KUBERC": "off"}
        environment["PATH"] = f"{binaries()}:{os.environ['PATH']}"
        shell = ["bash", "-ec", command]
        done = subprocess.run(
            shell, cwd=self.plane.folder, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"


def changes(before: dict[str, tuple[str, str]], after: dict[str, tuple[str, str]]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """One of its own, without controllers, which would recreate pods and end those of lost nodes."""
    del control_plane  # it builds the programs
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"}
    spec = {"group": "nvidia.com", "scope": "Cluster", "names": names, "versions": [version]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    definition = kind | {"metadata": {"name": "clusterpolicies.nvidia.com"}, "spec": spec}
    with ControlPlane() as own:
        own.kubectl("create", "-f", "-", input=json.dumps(definition))
        own.kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com", "--timeout=30s")
        yield own


@pytest.mark.cluster
@pytest.mark.parametrize("name", STATES)
def test_commands_change_what_the_finding_is_about_and_nothing_else(name: str, plane: ControlPlane) -> None:
    state = STATES[name]
    cluster = Cluster(plane, [*state.objects, *BYSTANDERS])
    first = before = cluster.read()
    for command in commands(name):
        cluster.run(command)
        after = cluster.read()
        assert changes(before, after) or not is_change(command), f"{command} changes nothing"
        before = after
    assert changes(first, before) == state.changed
