"""The manifests on a real API server: they apply completely, and have their effect."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.diagnosis.sources.kinds import KINDS, SHARING
from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.healthcheck.cluster.names import POLICIES
from gpu_healthcheck.healthcheck.settings.declaration import settings_of
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from gpu_healthcheck.sim.control_plane.build import binaries
from gpu_healthcheck.sim.real_node import agent_pod
from tests.newcomer.typed import shown
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
AGENT = "system:serviceaccount:gpu-healthcheck:gpu-healthcheck"
FILES = sorted(MANIFESTS.glob("*.yaml"))


def documents(kind: str) -> list[dict[str, Any]]:
    every = [found for file in FILES for found in yaml.safe_load_all(file.read_text())]
    return [found for found in every if found["kind"] == kind]


def test_the_policies_that_verify_asks_for_are_those_of_the_manifests() -> None:
    assert sorted(POLICIES) == sorted(
        document["metadata"]["name"] for document in documents("ValidatingAdmissionPolicy")
    )


@pytest.mark.cluster
def test_readmes_commands_install_the_users_image_at_the_first_try_and_start_a_quarantine(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kubernetes", tmp_path / "kubernetes")
    values = {"REGISTRY": "registry.example.com:5000/team", "NODE": "gpu-1"}
    printed = []
    with ControlPlane() as bare:
        bare.create_node("gpu-1")
        for begins in ("sed -i", "kubectl apply -f kubernetes/manifests/", 'sed "s/TARGET_NODE_NAME'):
            command = shown("README.md", begins, values).replace("kubectl", f"kubectl --kubeconfig={bare.kubeconfig}")
            path = os.pathsep.join([str(binaries()), os.environ["PATH"]])
            environment = os.environ | {"PATH": path}
            done = subprocess.run(
                ["sh", "-ec", command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            printed += done.stdout.splitlines()
        job = bare.request("GET", "/apis/batch/v1/namespaces/gpu-healthcheck/jobs/gpu-quarantine-gpu-1").body

    assert [line for line in printed if not line.endswith(" created")] == []
    assert "daemonset.apps/gpu-healthcheck-agent created" in printed
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com:5000/team/gpu-healthcheck:{__version__}"
    manifests = "".join(file.read_text() for file in (tmp_path / "kubernetes/manifests").rglob("*.yaml"))
    assert set(re.findall(rf"[^ \"]*gpu-healthcheck:{__version__}", manifests)) == {container["image"]}


CRITICAL = ("system-node-critical", "system-cluster-critical")


@pytest.mark.cluster
def test_agents_pods_are_admitted_where_their_priority_class_is_limited(controllers: ControlPlane) -> None:
    """GKE admits pods of a critical class only in namespaces with a ResourceQuota for that class.

    Without such a limit: tests/cluster/test_verify.py.
    """
    with ControlPlane(controllers=True, limited_priorities=CRITICAL) as plane:
        plane.create_node("gpu-1", labels={"nvidia.com/gpu.present": "true"})
        plane.kubectl("apply", "-f", str(MANIFESTS))
        selector = "app.kubernetes.io%2Fcomponent%3Dagent"
        pods = "/api/v1/namespaces/gpu-healthcheck/pods"

        assert eventually(lambda: plane.request("GET", f"{pods}?labelSelector={selector}").body["items"])
        spec = {"serviceAccountName": "gpu-healthcheck", "containers": [{"name": "a", "image": "a"}]}
        other = {"metadata": {"name": "other"}, "spec": {**spec, "priorityClassName": "system-cluster-critical"}}
        assert "insufficient quota to match these scopes" in plane.request("POST", pods, other).message


@pytest.mark.cluster
def test_applying_the_folder_again_with_strict_validation_changes_nothing(installed: ControlPlane) -> None:
    """kubectl reports the ConfigMap as configured, because the API server does not store an empty `data`."""
    path = "/api/v1/namespaces/gpu-healthcheck/configmaps/gpu-healthcheck-config"
    before = installed.request("GET", path).body["metadata"]["resourceVersion"]
    printed = installed.kubectl("apply", "--validate=strict", "-f", str(MANIFESTS)).splitlines()

    assert len(printed) == sum(1 for file in FILES for found in yaml.safe_load_all(file.read_text()) if found)
    assert [line for line in printed if not line.endswith(" unchanged")] == [
        "configmap/gpu-healthcheck-config configured"
    ]
    assert installed.request("GET", path).body["metadata"]["resourceVersion"] == before


@pytest.mark.cluster
def test_policies_give_no_type_check_warning(installed: ControlPlane, controllers: ControlPlane) -> None:
    paths = [f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}" for name in POLICIES]
    for path in paths:
        status = eventually(lambda path=path: installed.request("GET", path).body.get("status"))  # type: ignore[misc]

        assert status["typeChecking"] == {}, f"{path}: {json.dumps(status['typeChecking'], indent=1)}"


GROUPS = {"leases": "coordination.k8s.io", "runtimeclasses": "node.k8s.io"}


AGENTS_RIGHTS = [
    ("get", "nodes", "", True),
    ("watch", "nodes", "", True),
    ("patch", "nodes", "", True),
    ("patch", "nodes/status", "", True),
    ("list", "nodes", "", False),
    ("create", "nodes", "", False),
    ("update", "nodes", "", False),
    ("update", "nodes/status", "", False),
    ("delete", "nodes", "", False),
    ("create", "events", "default", True),
    ("patch", "events", "default", True),
    ("delete", "events", "default", False),
    ("create", "events", "kube-public", True),
    ("patch", "events", "kube-public", False),
    ("list", "events", "kube-public", False),
    ("get", "events", "default", False),
    ("list", "leases", "gpu-healthcheck", True),
    ("create", "leases", "gpu-healthcheck", True),
    ("patch", "leases", "gpu-healthcheck", True),
    ("get", "leases", "gpu-healthcheck", False),
    ("delete", "leases", "gpu-healthcheck", False),
    ("deletecollection", "leases", "gpu-healthcheck", False),
    ("create", "leases", "gpu-healthcheck-budget", True),
    ("delete", "leases", "gpu-healthcheck-budget", True),
    ("get", "leases", "gpu-healthcheck-budget", True),
    ("list", "leases", "gpu-healthcheck-budget", True),
    ("deletecollection", "leases", "gpu-healthcheck-budget", False),
    ("patch", "leases", "gpu-healthcheck-budget", False),
    ("get", "leases", "kube-node-lease", False),
    ("list", "runtimeclasses", "", True),
    ("get", "namespaces", "", True),
    ("list", "namespaces", "", False),
    ("patch", "namespaces", "", False),
    ("get", "runtimeclasses", "", False),
    ("watch", "runtimeclasses", "", False),
    ("patch", "runtimeclasses", "", False),
    ("list", "pods", "", False),
    ("list", "secrets", "", False),
    ("get", "secrets", "gpu-healthcheck", False),
    ("get", "configmaps", "gpu-healthcheck", False),
    ("create", "serviceaccounts/token", "gpu-healthcheck", False),
]
"""Verb, resource, namespace, and whether RBAC grants it to the agents' account."""


@pytest.mark.cluster
def test_agents_account_has_only_the_rights_that_it_needs(installed: ControlPlane) -> None:
    answers = []
    for verb, resource, namespace, _ in AGENTS_RIGHTS:
        name, _, subresource = resource.partition("/")
        group = GROUPS.get(name, "")
        asked = {"verb": verb, "group": group, "resource": name, "subresource": subresource, "namespace": namespace}
        answers.append((verb, resource, namespace, may(installed, AGENT, asked)))
    assert answers == AGENTS_RIGHTS


def test_viewers_role_grants_the_listings_of_a_diagnosis_only() -> None:
    (role,) = (found for found in documents("ClusterRole") if found["metadata"]["name"] == "gpu-healthcheck-viewer")
    bindings = [*documents("ClusterRoleBinding"), *documents("RoleBinding")]
    rights = {(group, name) for rule in role["rules"] for group in rule["apiGroups"] for name in rule["resources"]}
    named = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}

    groups = {kind: kind.group.partition("/")[2].partition("/")[0] for kind in KINDS}
    listed = {("" if kind.group == "api/v1" else groups[kind], kind.resource) for kind in KINDS}
    assert rights == listed
    assert named == {"gpu-healthcheck-config", *SHARING, *(name for kind in KINDS for name in kind.names)}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}
    assert "aggregationRule" not in role
    assert not [name for name in role["metadata"]["labels"] if "aggregate" in name]
    assert not [found for found in bindings if found["roleRef"]["name"] == "gpu-healthcheck-viewer"]


def test_the_role_for_teams_grants_nodes_and_leases_only() -> None:
    name = "gpu-healthcheck-team-viewer"
    (role,) = (found for found in documents("ClusterRole") if found["metadata"]["name"] == name)
    bindings = [*documents("ClusterRoleBinding"), *documents("RoleBinding")]

    assert [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        ([""], ["nodes"], ["get", "list"]),
        (["coordination.k8s.io"], ["leases"], ["get", "list"]),
    ]
    assert "aggregationRule" not in role
    assert not [label for label in role["metadata"]["labels"] if "aggregate" in label]
    assert not [found for found in bindings if found["roleRef"]["name"] == name]


def may(plane: ControlPlane, account: str, asked: dict[str, str]) -> bool:
    review = {"spec": {"user": account, "resourceAttributes": asked}}
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer.body["status"]["allowed"])


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("account", "granted"),
    [
        (
            "gpu-healthcheck-sweeper",
            {
                "/nodes": "get list patch",
                "/pods": "list",
                "coordination.k8s.io/leases": "list",
                "batch/jobs": "get list watch create delete",
                "batch/cronjobs": "",
            },
        ),
        ("gpu-healthcheck-sweep", {"/nodes": "get patch"}),
        ("gpu-healthcheck-quarantine", {"/nodes": "get patch", "/pods": "list"}),
    ],
)
def test_rbac_gives_the_deep_tests_accounts_their_work_and_no_more(
    installed: ControlPlane, account: str, granted: dict[str, str]
) -> None:
    user = f"system:serviceaccount:gpu-healthcheck:{account}"
    resources = {"/secrets", "/configmaps", "/pods", "/nodes", "/nodes/status", "/events", "/serviceaccounts/token"}
    resources |= {"coordination.k8s.io/leases", "batch/jobs", "batch/cronjobs", "apps/daemonsets"}
    for path in sorted(resources):
        group, name, subresource = (*path.split("/"), "")[:3]
        asked = {"group": group, "resource": name, "subresource": subresource, "namespace": "gpu-healthcheck"}
        verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
        allowed = {verb for verb in verbs if may(installed, user, {**asked, "verb": verb})}
        assert allowed == set(granted.get(path, "").split()), path
    template = {"group": "batch", "resource": "cronjobs", "namespace": "gpu-healthcheck", "verb": "get"}
    named = {"name": "gpu-healthcheck-sweep-node"}
    assert may(installed, user, {**template, **named}) is ("batch/cronjobs" in granted)


def test_the_generated_part_of_the_config_map_is_fresh() -> None:
    command = [sys.executable, str(ROOT / "tools" / "manifests.py"), "--check"]

    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def spec_of(kind: str, name: str) -> dict[str, Any]:
    (found,) = (document for document in documents(kind) if document["metadata"]["name"] == name)
    spec: dict[str, Any] = found["spec"]
    return spec


def test_the_sweepers_pods_stay_off_every_node_that_has_an_agent() -> None:
    """Its token may mark every Node, so it must not be on a GPU node, where a pod could break out."""
    agent = spec_of("DaemonSet", "gpu-healthcheck-agent")["template"]["spec"]
    sweeper = spec_of("CronJob", "gpu-healthcheck-sweeper")["jobTemplate"]["spec"]["template"]["spec"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    anywhere = agent["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    (nowhere,) = sweeper["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]

    assert [term["matchExpressions"] for term in anywhere] == [
        [{**entry, "operator": "In"}] for entry in nowhere["matchExpressions"]
    ]
    assert {entry["operator"] for entry in nowhere["matchExpressions"]} == {"NotIn"}
    evict = yaml.safe_load((MANIFESTS.parent / "overlays" / "evict" / "deployment.yaml").read_text())
    assert evict["spec"]["template"]["spec"]["affinity"] == sweeper["affinity"]


@pytest.mark.parametrize("name", ["gpu-healthcheck-sweep-node", "gpu-healthcheck-quarantine-node"])
def test_who_takes_nodes_away_leaves_one_under_a_deep_test(name: str) -> None:
    pod = spec_of("CronJob", name)["jobTemplate"]["spec"]["template"]

    assert pod["metadata"]["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }


def test_port_of_the_manifest_is_the_agents() -> None:
    (agent,) = documents("DaemonSet")
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    port = settings_of(AgentSettings)["METRICS_PORT"].default

    assert [entry["containerPort"] for entry in container["ports"]] == [port]
    assert port == agent_pod.METRICS_PORT
    for page in ("README.md", "docs/metrics.md"):
        assert str(port) in (ROOT / page).read_text()


def test_the_files_can_be_joined() -> None:
    """`sed ... *.yaml | kubectl apply -f -`: without a line between them, two documents were one."""
    assert [file.name for file in FILES if not file.read_text().startswith("---\n")] == []
