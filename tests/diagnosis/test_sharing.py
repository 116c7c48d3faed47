"""Time-slicing and MPS that a ConfigMap declares and the device plugin does not read, while every GPU is in use."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.sources.redaction import redacted
from tests.diagnosis.states import (
    GPU,
    Object,
    condition,
    consequences,
    container,
    judged,
    node,
    obj,
    pod,
    results,
    snapshot,
)

NS, NAME = "gpu-operator", "time-slicing-config-all"
SLICES = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n"
MPS = SLICES.replace("timeSlicing", "mps")
PLAIN = "version: v1\nflags:\n  migStrategy: none\n"
WAITS = pod(
    "second",
    conditions=[condition("PodScheduled", "False", "Unschedulable", f"0/1 nodes are available: 1 Insufficient {GPU}.")],
)
FULL = [pod("first", 1, on="a"), WAITS]
OPERATOR = obj(
    "Deployment",
    "gpu-operator",
    NS,
    metadata={"labels": {"app": "gpu-operator"}},
    spec={"replicas": 1, "template": {"spec": {"containers": [{"name": "gpu-operator", "image": "x"}]}}},
    status={"replicas": 1, "readyReplicas": 1},
)
CHART = {
    "app.kubernetes.io/name": "nvidia-device-plugin",
    "app.kubernetes.io/instance": "nvdp",
    "helm.sh/chart": "nvidia-device-plugin-0.17.1",
}


def config(namespace: str = NS, name: str = NAME, /, **data: str) -> Object:
    return obj("ConfigMap", name, namespace, data=data or {"any": SLICES})


def plugin(env: dict[str, str] | None = None, args: tuple[str, ...] = (), /, **changes: Any) -> list[Object]:
    """Return the plugin's DaemonSet with a ready pod on node a."""
    labels, namespace = changes.get("labels", {"app": "nvidia-device-plugin-daemonset"}), changes.get("namespace", NS)
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.1",
        "env": variables,
    }
    container["args"] = list(args)
    status = {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1}
    name = changes.get("name", "nvidia-device-plugin-daemonset")
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    made = obj("DaemonSet", name, namespace, metadata={"labels": labels}, spec={"template": template}, status=status)
    runs = pod(
        f"{name}-x", 0, on="a", namespace=namespace, labels=labels, owner=("DaemonSet", name), containers=[container]
    )
    return [made, runs]


def policy(**config: str) -> Object:
    return obj("ClusterPolicy", "cluster-policy", spec={"devicePlugin": {"config": config}}, status={"state": "ready"})


def found(*objects: Object) -> list[str]:
    """Return the steps of the only problem."""
    (problem,) = judged(*objects).problems
    assert problem.found.cause.name == "SharingConfigNotRead"
    assert consequences(problem) == [("GpusAllInUse", f"resource/{GPU}")]
    return list(problem.found.steps)


MANAGED = {"CONFIG_FILE": "/config/config.yaml", "DEFAULT_CONFIG": ""}
A = node("a", 1)


def test_operator_without_a_name_gets_a_patch_of_its_policy() -> None:
    first, _ = found(A, *FULL, OPERATOR, policy(), config(), *plugin())
    words = shlex.split(first.partition("`")[2].removesuffix("`"))
    assert words[:4] == ["kubectl", "patch", "clusterpolicies.nvidia.com", "cluster-policy"]
    assert json.loads(words[-1]) == {"spec": {"devicePlugin": {"config": {"name": NAME, "default": "any"}}}}


def test_chart_without_a_name_is_upgraded_to_its_own_version() -> None:
    (step,) = found(A, *FULL, config(), *plugin(labels=CHART, name="nvdp-nvidia-device-plugin"))
    upgrade = f"`helm upgrade nvdp nvdp/nvidia-device-plugin --namespace={NS} --version=0.17.1 --reuse-values"
    assert f"{upgrade} --set=config.name={NAME},config.default=any`" in step


def test_plain_daemon_set_gets_a_volume_and_its_file() -> None:
    (step,) = found(A, *FULL, config(), *plugin())
    words = shlex.split(step.partition("`")[2].removesuffix("`"))
    assert words[:6] == ["kubectl", "-n", NS, "patch", "daemonset", "nvidia-device-plugin-daemonset"]
    spec = json.loads(words[-1])["spec"]["template"]["spec"]
    assert spec["volumes"] == [{"name": "sharing-config", "configMap": {"name": NAME}}]
    assert spec["containers"][0]["env"] == [{"name": "CONFIG_FILE", "value": "/config/any"}]


def test_mps_needs_the_chart() -> None:
    (step,) = found(A, *FULL, config(any=MPS), *plugin())
    assert "install that chart" in step


@pytest.mark.parametrize(
    ("labels", "default", "step"),
    [
        ({}, "", "`kubectl patch clusterpolicies.nvidia.com cluster-policy"),
        ({}, "tesla", "`kubectl patch clusterpolicies.nvidia.com cluster-policy"),
        ({"nvidia.com/device-plugin.config": "tesla"}, "any", "label node a nvidia.com/device-plugin.config=any"),
        ({}, "any", f"`kubectl -n {NS} rollout restart daemonset nvidia-device-plugin-daemonset`"),
    ],
    ids=["no default", "a default that is no key", "a label that is no key", "read before the change"],
)
def test_operators_plugin_that_chooses_no_key_is_explained(labels: dict[str, str], default: str, step: str) -> None:
    managed = plugin(MANAGED | {"DEFAULT_CONFIG": default})
    state = [node("a", 1, labels=labels), *FULL, OPERATOR, policy(name=NAME, default=default), config(), *managed]
    assert step in " ".join(found(*state))


def test_config_map_of_another_namespace_is_to_be_created_in_the_plugins() -> None:
    state = [A, *FULL, config("default"), *plugin()]
    (problem,) = diagnose(snapshot(*state)).problems
    assert problem.found.steps[0].startswith(f"Create {NAME} in {NS}, too")


def test_shared_name_that_no_node_offers_is_explained_by_the_unread_configuration() -> None:
    message = f"0/1 nodes are available: 1 Insufficient {GPU}.shared."
    waits = pod(
        "t",
        containers=[container("main", 0, resources={f"{GPU}.shared": "1"})],
        conditions=[condition("PodScheduled", "False", "Unschedulable", message)],
    )
    (problem,) = judged(A, waits, config(), *plugin()).problems
    assert problem.found.cause.name == "SharingConfigNotRead"
    assert consequences(problem) == [("SharedGpuResourceRenamed", "pod/team/t")]


def test_policy_that_names_the_configuration_already_is_not_patched() -> None:
    (step,) = found(A, *FULL, OPERATOR, policy(name=NAME, default="any"), config(), *plugin())
    assert "logs deployment/gpu-operator" in step


SHARED = node("a", 1, allocatable={GPU: "4"}, capacity={GPU: "4"}, labels={"nvidia.com/gpu.replicas": "4"})
UNCOUNTED = node("a", None, allocatable={GPU: "4"}, capacity={GPU: "4"})
BUSY = [pod(f"p{number}", 1, on="a") for number in range(4)]
HEALTHY: dict[str, list[Object]] = {
    "the node shares": [SHARED, *BUSY, WAITS, config(), *plugin({"CONFIG_FILE": "x"})],
    "the node shares, without feature discovery": [UNCOUNTED, *BUSY, WAITS, config(), *plugin({"CONFIG_FILE": "x"})],
    "the plugin names a file": [A, *FULL, config(), *plugin({}, ("--config-file=/config/any",))],
    "a file in two words": [A, *FULL, config(), *plugin({}, ("--config-file", "/config/any"))],
    "the node's own key shares nothing": [
        node("a", 1, labels={"nvidia.com/device-plugin.config": "whole"}),
        *(*FULL, OPERATOR, policy(name=NAME, default="any"), config(any=SLICES, whole=PLAIN)),
        *plugin(MANAGED | {"DEFAULT_CONFIG": "any"}),
    ],
    "another ConfigMap with the word": [A, *FULL, config(any="sharing: dashboards\nreplicas: 4\n"), *plugin()],
    "one replica": [A, *FULL, config(any=SLICES.replace("4", "1")), *plugin()],
}


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
def test_plugin_that_reads_its_configuration_is_not_reported(state: list[Object]) -> None:
    assert results(judged(*state)) == [("GpusAllInUse", f"resource/{GPU}")]


def test_saved_plugin_keeps_the_name_of_its_file_and_no_other_argument() -> None:
    made, _ = plugin({"DEFAULT_CONFIG": "any", "TOKEN": "secret"}, ("--config-file=/config/any", "--password=secret"))
    (saved,) = redacted(made)["spec"]["template"]["spec"]["containers"]
    assert saved["args"] == ["--config-file=/config/any"]
    assert [entry["value"] for entry in saved["env"]] == ["any", "(set)"]


def test_configuration_without_waiting_pods_is_no_finding() -> None:
    assert results(judged(A, FULL[0], config(), *plugin())) == []


def test_sharing_ends_the_finding() -> None:
    remedied = [SHARED, FULL[0], pod("second", 1, on="a"), config(), *plugin({"CONFIG_FILE": "/config/any"})]
    assert results(judged(*remedied)) == []
