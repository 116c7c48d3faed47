"""Requests to a cluster for one pod: its dependencies, and everything only if that may change the result."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.target import Target, is_there
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from tests.diagnosis.one_pod_looks import looked_at
from tests.diagnosis.served import Served
from tests.diagnosis.states import Object, condition, container, node, obj, pod, results, snapshot, terminated, waiting

FULL = [pod("holder", 8, on="a", namespace="other"), pod("system", 0, on="a", namespace="kube-system")]
LOST = "Failed to initialize NVML: Unknown Error"


def refused(name: str, gpus: int, reason: str, **changes: Any) -> Object:
    message = f"0/2 nodes are available: 2 {reason}."
    return pod(name, gpus, conditions=[condition("PodScheduled", "False", "Unschedulable", message)], **changes)


TOO_MANY = refused("x", 16, "Insufficient nvidia.com/gpu")
IN_USE = refused("x", 8, "Insufficient nvidia.com/gpu")
ELSEWHERE = refused(
    "x", 1, "node(s) didn't match Pod's node affinity/selector", spec={"nodeSelector": {"pool": "none"}}
)
GATED = pod("x", 1, spec={"schedulingGates": [{"name": "example.com/wait"}]})
CRASHED = pod(
    "x",
    on="a",
    states=[
        waiting(
            "CrashLoopBackOff", lastState={"terminated": terminated(1, message="CUDA out of memory. Tried to allocate")}
        )
    ],
)
OF_A_COMPONENT = pod("nvidia-device-plugin-daemonset-x", 0, on="a")


@pytest.mark.parametrize(
    ("asked", "cause", "everything"),
    [
        pytest.param(TOO_MANY, "MoreGpusThanAnyNodeHas", False, id="more than any node has: its nodes tell"),
        pytest.param(ELSEWHERE, "NodeSelectorMatchesNoNode", False, id="a selector: so do they"),
        pytest.param(GATED, "SchedulingGateHeld", False, id="a gate: so does the pod"),
        pytest.param(CRASHED, "GpuMemoryExhausted", False, id="a crash: so does its container"),
        pytest.param(IN_USE, "GpusAllInUse", True, id="full nodes: who is on them is wanted"),
        pytest.param(OF_A_COMPONENT, "", True, id="a component: all its pods are wanted"),
    ],
)
def test_one_pod_lists_all_pods_only_if_needed(asked: Object, cause: str, everything: bool) -> None:
    state = [node("a"), node("b", None), *FULL, asked]
    served = Served(state)
    seen = looked_at(served, Target("Pod", "team", asked["metadata"]["name"]), snapshot(*state))
    assert [name for name, _ in results(diagnose(seen))] == ([cause] if cause else [])
    assert served.listed_all("Pod") is everything


def test_one_pod_lists_no_kind_twice() -> None:
    state = [node("a"), *FULL, IN_USE]
    served = Served(state)
    looked_at(served, Target("Pod", "team", "x"), snapshot(*state))
    assert [path for path, query in served.asked if not query].count("/api/v1/nodes") == 1


def test_one_pod_lists_only_its_node() -> None:
    served = Served([node("a"), node("b"), *FULL, CRASHED])
    seen = looked_at(served, Target("Pod", "team", "x"), snapshot())
    assert [one.name for one in seen.nodes] == ["a"]
    assert {pod.subject for pod in seen.pods} == {"pod/team/x", "pod/other/holder", "pod/kube-system/system"}


def test_one_pod_that_is_missing_lists_nothing_further() -> None:
    served = Served([node("a"), *FULL])
    target = Target("Pod", "team", "gone")
    assert not is_there(looked_at(served, target, snapshot()), target)
    assert {path for path, _ in served.asked} == {"/api/v1/namespaces/team/pods"}


def test_one_pod_that_was_replaced_has_not_failed() -> None:
    """By the pods of its namespace, not those of its node alone."""
    job = obj(
        "Job", "train", "team", spec={"parallelism": 1, "template": {"spec": {"containers": [container("main", 1)]}}}
    )
    ended = {"name": "main", "state": {"terminated": terminated(1, message="CUDA out of memory", minutes=90)}}
    failed = pod("x", on="a", age=120, phase="Failed", states=[ended], owner=("Job", "train"))
    after = pod("y", on="b", age=60, owner=("Job", "train"))
    seen = looked_at(Served([node("a"), node("b"), job, failed, after]), Target("Pod", "team", "x"), snapshot())
    assert results(diagnose(seen)) == []


def test_one_pod_reads_only_its_own_logs() -> None:
    logs = {("pod/team/x", "main"): LOST, ("pod/team/y", "main"): LOST}
    state = [node("a"), pod("x", on="a"), pod("y", on="a")]
    seen = looked_at(Served(state), Target("Pod", "team", "x"), snapshot(*state, logs=logs))
    assert list(seen.logs) == [("pod/team/x", "main")]
    assert results(diagnose(seen)) == [("GpuAccessLostAtRuntime", "node/a")]
