"""Nodes with CRI-O or Docker: NVIDIA's handler, or its hook that needs none. They never get containerd's remedies."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.facts.crio_advice import without_class
from gpu_healthcheck.diagnosis.model import Certainty
from gpu_healthcheck.diagnosis.snapshot import Builder
from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.diagnosis.states import (
    NOW,
    Object,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    results,
    snapshot,
    terminated,
    waiting,
)
from tests.diagnosis.test_safe_steps import run

NVIDIA = obj("RuntimeClass", "nvidia", handler="nvidia")
NOT_FOUND = "Failed to create pod sandbox: failed to find runtime handler nvidia from runtime list map[crun:0xc00]"
UNSUPPORTED = 'Failed to create pod sandbox: rpc error: code = Unknown desc = RuntimeHandler "nvidia" not supported'
MISSING, TAKE_OUT = ("RuntimeHandlerMissing", "node/a"), "Take the line runtimeClassName out of "
TOOLKIT = "nvidia-container-toolkit-daemonset"
OF_CONTAINERD = re.compile(r"containerd config|restart containerd|pgrep -a containerd|CONTAINERD_|/etc/containerd|helm")
CRIO: Object = {"runtime": "cri-o://1.32.4", "handlers": None}
OPENSHIFT = CRIO | {"system": "Red Hat Enterprise Linux CoreOS 418.94", "labels": {"node.openshift.io/os_id": "rhcos"}}
K3S, DOCKER = CRIO | {"kubelet": "v1.32.5+k3s1"}, {"runtime": "docker://28.1.0", "handlers": None}
HOOKS = {"name": "crio-hooks", "hostPath": {"path": "/run/containers/oci/hooks.d"}}
CONTAINERDS = {"name": "containerd-config", "hostPath": {"path": "/etc/containerd"}}


def toolkit(*volumes: Object, tag: str = "v1.17.5-ubuntu20.04", **env: str) -> Object:
    image = f"registry.example/container-toolkit:{tag}"
    main = container("toolkit", 0, image=image, env=[{"name": name, "value": value} for name, value in env.items()])
    spec = {"template": {"spec": {"containers": [main], "volumes": [HOOKS, *volumes]}}}
    status = {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1}
    return obj("DaemonSet", TOOLKIT, "gpu-operator", metadata={"labels": {"app": TOOLKIT}}, spec=spec, status=status)


def held(text: str = NOT_FOUND, **changes: Any) -> list[Object]:
    spec = {"runtimeClassName": "nvidia"}
    waits = pod("tool", on="a", phase="Pending", spec=spec, states=[waiting("ContainerCreating")], **changes)
    return [NVIDIA, waits, event(waits, "FailedCreatePodSandBox", text, count=130)]


HOOK_MODE: list[tuple[str, Object, list[Object], bool]] = [
    ("the operator's hook", CRIO, [toolkit(RUNTIME="crio")], True),
    ("the operator's hook on OpenShift", OPENSHIFT, [toolkit(RUNTIME="crio")], False),
    ("the operator's hook by name", CRIO, [toolkit(RUNTIME="crio", CRIO_CONFIG_MODE="hook", tag="v1.19.1")], True),
    ("a toolkit that says nothing", CRIO, [toolkit()], True),
    ("k3s with the operator's hook", K3S, [toolkit(RUNTIME="crio")], True),
]


@pytest.mark.parametrize(
    ("changes", "others", "own"), [row[1:] for row in HOOK_MODE], ids=[row[0] for row in HOOK_MODE]
)
def test_pod_on_a_node_with_the_hook_needs_no_class(changes: Object, others: list[Object], own: bool) -> None:
    diagnosis = judged(node("a", **changes), *held(), *others)

    assert results(diagnosis) == [MISSING]
    found = diagnosis.problems[0].found
    assert found.steps[0] == f"{TAKE_OUT}pod/team/tool"
    assert ("hooks_dir" in found.steps[-1]) is own
    assert any("hook" in line for line in found.evidence)
    assert OF_CONTAINERD.search(str((found.evidence, found.steps))) is None


@pytest.mark.parametrize(
    ("changes", "others"),
    [(OPENSHIFT, []), (OPENSHIFT, [toolkit(tag="edge")]), (CRIO, [toolkit(RUNTIME="crio", tag="edge")])],
    ids=["no toolkit is visible", "no version on OpenShift", "no version"],
)
def test_unknown_way_of_the_toolkit_gets_the_steps_of_both(changes: Object, others: list[Object]) -> None:
    (problem,) = judged(node("a", **changes), *held(), *others).problems
    steps = " ".join(problem.found.steps)

    assert problem.found.certainty is Certainty.LIKELY
    assert steps.index("See which") < steps.index(TAKE_OUT) < steps.index("/etc/crio/crio.conf.d")
    assert OF_CONTAINERD.search(steps) is None


HANDLERS: list[tuple[str, Object, list[Object], tuple[str, ...]]] = [
    (
        "by hand",
        CRIO,
        [],
        ("--drop-in-config=/etc/crio/crio.conf.d/99-nvidia.toml", "`crio config`", "/etc/crio/conf.d"),
    ),
    ("k3s by hand", K3S, [], ("nvidia-ctk runtime configure --runtime=crio", "systemctl restart crio`")),
    (
        *("the operator with handlers", OPENSHIFT, [toolkit(RUNTIME="crio", CRIO_CONFIG_MODE="config")]),
        (f"logs daemonset/{TOOLKIT}", "oc debug node/a -- chroot /host systemctl restart crio"),
    ),
    ("a toolkit from 1.18 on", CRIO, [toolkit(RUNTIME="crio", tag="v1.18.1")], (f"logs daemonset/{TOOLKIT}",)),
    (
        *("the operator for containerd", CRIO, [toolkit(CONTAINERDS, RUNTIME="containerd")]),
        ("`kubectl label node a nvidia.com/gpu.deploy.container-toolkit=false --overwrite`", "--runtime=crio"),
    ),
    (
        *("an older operator for containerd", K3S, [toolkit(CONTAINERDS)]),
        ("`kubectl label node a nvidia.com/gpu.deploy.container-toolkit=false --overwrite`", "--runtime=crio"),
    ),
]


@pytest.mark.parametrize(
    ("changes", "others", "words"), [row[1:] for row in HANDLERS], ids=[row[0] for row in HANDLERS]
)
def test_handler_of_crio_is_configured_in_its_own_files(
    changes: Object, others: list[Object], words: tuple[str, ...]
) -> None:
    (problem,) = judged(node("a", **changes), *held(), *others).problems
    steps = " ".join(problem.found.steps)

    assert all(word in steps for word in words)
    assert OF_CONTAINERD.search(steps) is None
    assert TAKE_OUT not in steps


def test_toolkit_for_containerd_on_a_node_with_crio_is_the_cause() -> None:
    diagnosis = judged(node("a", **CRIO), *held(), toolkit(CONTAINERDS, RUNTIME="containerd"))
    assert results(diagnosis) == [("ToolkitConfiguresAnotherRuntime", f"daemonset/gpu-operator/{TOOLKIT}")]


@pytest.mark.parametrize("others", [[], [toolkit(RUNTIME="docker")]], ids=["by hand", "the operator"])
def test_docker_gets_a_default_runtime_and_pods_without_the_class(others: list[Object]) -> None:
    (problem,) = judged(node("a", **DOCKER), *held(UNSUPPORTED), *others).problems
    steps = " ".join(problem.found.steps)

    assert "`nvidia-ctk runtime configure --runtime=docker --set-as-default && systemctl restart docker`" in steps
    assert f"{TAKE_OUT}pod/team/tool" in steps
    assert OF_CONTAINERD.search(str(problem.found)) is None


@pytest.mark.parametrize("system", ["Talos (v1.11.0)", "Bottlerocket OS 1.40.0 (aws-k8s-1.33)"])
def test_files_that_cannot_be_changed_are_not_left_to_the_operator(system: str) -> None:
    (problem,) = judged(node("a", system=system, handlers=("", "runc")), *held(), toolkit(CONTAINERDS)).problems
    assert "helm" not in problem.found.steps[0]
    assert "its files can't be changed" in problem.found.steps[0]


def test_hook_that_only_the_distribution_shows_is_likely() -> None:
    certain = [judged(node("a", **OPENSHIFT), *held(), *others).problems[0] for others in ([], [toolkit()])]
    assert [problem.found.certainty for problem in certain] == [Certainty.LIKELY, Certainty.PROVEN]


def test_pod_without_a_gpu_is_not_sent_back_to_the_class() -> None:
    log = "RuntimeError: Found no NVIDIA driver on your system."
    last: Object = {"lastState": {"terminated": terminated(1, "Error", log)}, "restartCount": 9}
    fails = pod("x", 8, on="a", phase="Running", states=[waiting("CrashLoopBackOff", "back-off", **last)])

    assert results(judged(node("a", **OPENSHIFT), NVIDIA, fails)) == [("GpuNotInjected", "node/a")]
    assert results(judged(node("a", handlers=None), NVIDIA, fails)) == [("RuntimeClassNotNamed", "pod/team/x")]


def test_pod_without_the_class_on_such_a_node_is_no_cause() -> None:
    assert not results(judged(node("a", **CRIO), NVIDIA, toolkit(RUNTIME="crio"), pod("tool", on="a")))


HIDDEN = [
    ("CRI-O", NOT_FOUND, ("crio config", "--runtime=crio", f"{TAKE_OUT}pod/team/tool"), Certainty.LIKELY),
    ("Docker", UNSUPPORTED, ("--runtime=docker", f"{TAKE_OUT}pod/team/tool"), Certainty.PROVEN),
]


@pytest.mark.parametrize(("text", "words", "certainty"), [row[1:] for row in HIDDEN], ids=[row[0] for row in HIDDEN])
def test_message_names_the_runtime_of_a_node_that_is_not_visible(
    text: str, words: tuple[str, ...], certainty: Certainty
) -> None:
    (problem,) = judged(*held(text), missing=["Node"]).problems
    steps = " ".join(problem.found.steps)

    assert (problem.found.cause.name, problem.found.certainty) == ("RuntimeHandlerMissing", certainty)
    assert all(word in steps for word in words)
    assert OF_CONTAINERD.search(steps) is None


def test_containerd_of_a_node_that_is_not_visible_may_be_a_distributions() -> None:
    text = 'Failed to create pod sandbox: no runtime for "nvidia" is configured'
    (problem,) = judged(*held(text), missing=["Node"]).problems

    assert problem.found.steps[0].startswith("If the node runs k3s or RKE2, only restart that service")


def test_workload_gets_a_patch_and_a_job_is_created_again() -> None:
    owned = held(owner=("ReplicaSet", "serve-1"))
    made = obj("ReplicaSet", "serve-1", "team", metadata={"ownerReferences": [_owner("Deployment", "serve")]})
    deployment = obj("Deployment", "serve", "team", spec={"template": {"spec": {"containers": []}}})
    steps = judged(node("a", **OPENSHIFT), *owned, made, deployment).problems[0].found.steps
    assert "kubectl -n team patch deployment serve --type=json" in " ".join(steps)

    once = held(owner=("Job", "train"))
    job = obj("Job", "train", "team", spec={"template": {"spec": {"containers": []}}})
    assert "A Job's template can't be changed: delete train" in " ".join(
        judged(node("a", **OPENSHIFT), *once, job).problems[0].found.steps
    )


def test_saved_pod_without_a_namespace_has_the_steps_too() -> None:
    _, waits, failed = objects = held()
    del waits["metadata"]["namespace"]
    failed["involvedObject"].pop("namespace", None)

    (problem,) = diagnose(snapshot(node("a", **CRIO), *objects, toolkit(RUNTIME="crio"))).problems

    assert f"{TAKE_OUT}pod/tool" in problem.found.steps
    assert any("`kubectl get pod tool -o yaml > tool.yaml`" in step for step in problem.found.steps)


def _owner(kind: str, name: str) -> Object:
    return {"kind": kind, "name": name, "uid": f"{kind}-team-{name}".lower(), "controller": True}


@pytest.mark.cluster
def test_steps_take_the_class_out_of_the_named_objects_alone(controllers: ControlPlane) -> None:
    plane, space = controllers, "without-class"
    plane.kubectl("create", "namespace", space)
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", space, "--timeout=60s")
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "absent"}}
    plane.kubectl("create", "-f", "-", input=json.dumps(runtime_class | {"handler": "absent"}))
    spec: Object = {"containers": [{"name": "main", "image": "x"}], "runtimeClassName": "absent"}
    for name in ("tool", "others"):
        entry = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space}, "spec": spec}
        plane.kubectl("create", "-f", "-", input=json.dumps(entry))
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": spec}
    body = {"replicas": 1, "selector": {"matchLabels": {"app": "serve"}}, "template": template}
    serve = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve", "namespace": space}}
    plane.kubectl("create", "-f", "-", input=json.dumps(serve | {"spec": body}))
    plane.kubectl("-n", space, "wait", "--for=create", "pod", "-l", "app=serve", "--timeout=60s")

    run(plane, _remedy(plane, space))

    after = _read(plane, space)
    assert "runtimeClassName" not in after["Pod/tool"]["spec"]
    assert after["Pod/others"]["spec"]["runtimeClassName"] == "absent"
    assert "runtimeClassName" not in after["Deployment/serve"]["spec"]["template"]["spec"]


def _read(plane: ControlPlane, space: str) -> dict[str, Object]:
    listed = json.loads(plane.kubectl("-n", space, "get", "pods,deployments,replicasets", "-o", "json"))["items"]
    return {f"{entry['kind']}/{entry['metadata']['name']}": entry for entry in listed}


def _remedy(plane: ControlPlane, space: str) -> list[str]:
    builder = Builder()
    for entry in _read(plane, space).values():
        builder.add(entry["kind"], entry)
    state = builder.build(NOW)
    return list(without_class(state, [each for each in state.pods if each.meta.name != "others"]))
