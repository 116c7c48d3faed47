"""Steps that recreate pods: they name what they change, and end with fresh pods on a real API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable

import pytest

from gpu_healthcheck.diagnosis.facts.safe_steps import keep_off, let_in, recreate
from gpu_healthcheck.diagnosis.snapshot import Builder, Snapshot
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.control_plane.build import binaries
from tests.diagnosis.states import NOW, Object, condition, node, obj, pod, snapshot

NODE = "node-of-safe-steps"
_BACKTICKS = re.compile(r"`([^`]+)`")


def failed(name: str, on: str = "a", **changes: object) -> Object:
    return pod(name, on=on, phase="Failed", status={"reason": "UnexpectedAdmissionError"}, **changes)


def steps(state: Snapshot, *names: str) -> list[str]:
    return list(recreate(state, [each for each in state.pods if not names or each.meta.name in names]))


def test_few_pods_of_a_controller_are_deleted_by_name() -> None:
    state = snapshot(*(failed(f"llm-{number}", owner=("ReplicaSet", "llm")) for number in range(3)))

    assert steps(state) == [
        "Delete 3 Failed pods, for which ReplicaSet llm creates others: `kubectl -n team delete pod llm-0 llm-1 llm-2`"
    ]


def test_many_pods_are_selected_only_if_the_selector_takes_no_other_pod() -> None:
    many = [failed(f"llm-{number}", owner=("ReplicaSet", "llm"), labels={"app": "llm"}) for number in range(30)]
    elsewhere = failed("other", on="b", owner=("ReplicaSet", "llm"), labels={"app": "llm"})
    beside, alike = failed("report", owner=("Job", "report")), failed("alike", labels={"app": "llm"})
    llm = [f"llm-{number}" for number in range(30)]
    fields = "delete pods --field-selector=spec.nodeName=a,status.phase=Failed"

    (plain,) = steps(snapshot(*(failed(name, owner=("ReplicaSet", "llm")) for name in llm), elsewhere), *llm)
    (with_other,) = steps(snapshot(*many, elsewhere, beside), *llm)
    (not_alone,) = steps(snapshot(*many, elsewhere, beside, alike), *llm)

    assert "selector" not in plain
    assert f"{fields} --selector=app=llm`" in with_other
    assert "selector" not in not_alone
    assert "delete pod llm-0 llm-1 " in not_alone
    assert "diagnose then names the other 10" in not_alone


def test_node_is_cordoned_first_unless_new_pods_are_kept_off() -> None:
    state = snapshot(node("a"), node("b", cordoned=True))

    assert list(keep_off(state, "a")) == ["First keep new pods off the node: `kubectl cordon a`"]
    assert next(let_in(state, "a")).endswith("`kubectl uncordon a`")
    assert [*keep_off(state, "b"), *let_in(state, "b"), *keep_off(state, "")] == []


def run(plane: ControlPlane, remedy: Iterable[str]) -> None:
    """Run the commands of a remedy in a shell, in order."""
    path = f"{binaries()}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "KUBECONFIG": str(plane.kubeconfig), "KUBERC": "off"}
    for words in _BACKTICKS.findall(" ".join(remedy)):
        done = subprocess.run(
            ["bash", "-ec", words], cwd=plane.folder, env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"


def read(plane: ControlPlane, namespace: str) -> dict[str, Object]:
    """Return the pods and Jobs of a namespace by kind and name."""
    listed = json.loads(plane.kubectl("-n", namespace, "get", "pods,jobs", "-o", "json"))["items"]
    return {f"{entry['kind']}/{entry['metadata']['name']}": entry for entry in listed}


def seen(plane: ControlPlane, namespace: str) -> Snapshot:
    builder = Builder()
    for kind in ("Pod", "Job"):
        builder.listed(kind)
    for entry in read(plane, namespace).values():
        builder.add(entry["kind"], entry)
    return builder.build(NOW)


def bare(plane: ControlPlane, namespace: str, name: str) -> None:
    """Create a pod on a node and reject it as a kubelet does."""
    spec = {"containers": [{"name": "main", "image": "x"}], "nodeName": NODE}
    entry = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    plane.kubectl("create", "-f", "-", input=json.dumps(entry))
    reject(plane, namespace, name)


def reject(plane: ControlPlane, namespace: str, name: str) -> None:
    status = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: x"}}
    words = ("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    plane.kubectl("-n", namespace, *words)


@pytest.mark.cluster
def test_steps_end_with_fresh_pods_and_change_no_other(controllers: ControlPlane) -> None:
    plane, space = controllers, "safe-steps"
    plane.kubectl("create", "namespace", space)
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", space, "--timeout=60s")
    for name in ("desk", "shelf", "others"):
        bare(plane, space, name)
    before = read(plane, space)

    run(plane, steps(seen(plane, space), "desk", "shelf"))

    after = read(plane, space)
    for name in ("Pod/desk", "Pod/shelf"):
        assert after[name]["metadata"]["uid"] != before[name]["metadata"]["uid"]
        assert after[name]["status"]["phase"] == "Pending"
        assert "nodeName" not in after[name]["spec"]
    assert after["Pod/others"] == before["Pod/others"]


@pytest.mark.cluster
def test_failed_job_is_created_again_and_live_controllers_replace_their_pods(controllers: ControlPlane) -> None:
    plane, space = controllers, "safe-steps-of-owners"
    plane.kubectl("create", "namespace", space)
    plane.kubectl("create", "-f", "-", input=json.dumps(obj("Node", NODE)))
    pods: Object = {"containers": [{"name": "main", "image": "x"}], "nodeName": NODE}
    template, labels = {"metadata": {"labels": {"app": "x"}}, "spec": pods}, {"app": "llm"}
    once = template | {"spec": pods | {"restartPolicy": "Never"}}
    many = template | {"metadata": {"labels": labels}}
    bodies: dict[str, tuple[str, str, Object]] = {
        "Job": ("batch/v1", "train", {"backoffLimit": 0, "template": once}),
        "ReplicaSet": ("apps/v1", "llm", {"replicas": 21, "selector": {"matchLabels": labels}, "template": many}),
    }
    for kind, (version, name, spec) in bodies.items():
        entry = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": space}, "spec": spec}
        plane.kubectl("create", "-f", "-", input=json.dumps(entry))
    plane.kubectl("-n", space, "wait", "--for=create", "pod", "-l", "job-name=train", "--timeout=60s")
    plane.kubectl("-n", space, "wait", "--for=jsonpath={.status.replicas}=21", "rs/llm", "--timeout=60s")
    bare(plane, space, "others")
    for name in names_of(read(plane, space)):
        reject(plane, space, name)
    plane.kubectl("-n", space, "wait", "--for=condition=Failed", "job/train", "--timeout=60s")
    before, state = read(plane, space), seen(plane, space)
    failed_pods = [each for each in state.pods if each.phase == "Failed" and each.meta.owner is not None]
    remedy = list(recreate(state, failed_pods))
    assert any("--field-selector" in sentence for sentence in remedy)

    run(plane, remedy)
    plane.kubectl("-n", space, "wait", "--for=create", "pod", "-l", "job-name=train", "--timeout=60s")
    plane.kubectl("-n", space, "wait", "--for=jsonpath={.status.replicas}=21", "rs/llm", "--timeout=60s")

    after = read(plane, space)
    assert after["Job/train"]["metadata"]["uid"] != before["Job/train"]["metadata"]["uid"]
    assert after["Job/train"]["spec"]["template"]["metadata"]["labels"]["app"] == "x"
    assert [name for name in names_of(after) if after[f"Pod/{name}"]["status"]["phase"] == "Failed"] == ["others"]
    assert after["Pod/others"] == before["Pod/others"]


def names_of(listed: Iterable[str]) -> list[str]:
    return [key.removeprefix("Pod/") for key in listed if key.startswith("Pod/")]


def test_job_of_a_jobset_that_lives_is_not_created_again() -> None:
    failed_job = {"conditions": [condition("Failed", "True")]}
    above = {"ownerReferences": [{"kind": "JobSet", "name": "set", "uid": "s", "controller": True}]}
    left = failed("x", owner=("Job", "train"))
    job = obj("Job", "train", "team", status=failed_job)
    owned = obj("Job", "train", "team", metadata=above, status=failed_job)
    (save, create), (delete,) = steps(snapshot(left, job)), steps(snapshot(left, owned, obj("JobSet", "set", "team")))

    assert "kubectl -n team get job train -o yaml > train.yaml" in save
    assert "kubectl -n team delete job train && kubectl patch --local" in create
    assert "kubectl -n team delete pod x" in delete


def test_job_without_a_namespace_has_steps_too() -> None:
    job = obj("Job", "train", status={"conditions": [condition("Failed", "True")]})

    save, create = steps(snapshot(failed("x", owner=("Job", "train"), namespace=""), job))
    assert "get job train" in save
    assert "with its pods and their logs" in create
