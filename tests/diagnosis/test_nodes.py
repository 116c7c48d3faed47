"""GPU nodes that do not answer, and pods that should be gone."""

from __future__ import annotations

import pytest

from tests.diagnosis.states import Object, ago, condition, consequences, event, judged, node, obj, pod, results

SILENT = "Unknown"


def lease(name: str, minutes: float) -> Object:
    return obj("Lease", name, "kube-node-lease", spec={"holderIdentity": name, "renewTime": ago(minutes)})


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_gpu_node_that_is_not_ready(status: str) -> None:
    diagnosis = judged(node("a", ready=status), pod("x", on="a"))

    assert results(diagnosis) == [("NodeNotReady", "node/a")]
    assert "pod/team/x" in diagnosis.problems[0].found.affected


def test_unready_node_without_gpus_is_ignored() -> None:
    assert not results(judged(node("a", None, ready="False"), node("b")))


def test_node_that_joins_or_is_upgraded_is_ignored() -> None:
    joins = node("a", ready="False")
    joins["metadata"]["creationTimestamp"] = ago(3)
    upgrading = node("b", ready="False", cordoned=True, labels={"nvidia.com/gpu-driver-upgrade-state": "pod-restart"})
    flaps = node("c", ready="True")
    flaps["status"]["conditions"] = [condition("Ready", "Unknown", minutes=1)]

    assert not results(judged(joins))
    assert not results(judged(upgrading))
    assert not results(judged(flaps))


def test_stale_lease_beside_renewed_ones_is_reported() -> None:
    nodes = [node(name) for name in "abc"]

    assert results(judged(*nodes, lease("a", 9), lease("b", 0), lease("c", 0))) == [("NodeNotReady", "node/a")]
    assert not results(judged(*nodes, lease("a", 9), lease("b", 9), lease("c", 9)))


def test_pods_bound_to_a_missing_node_are_reported() -> None:
    bound = pod("x", on="a", phase="Pending")

    assert results(judged(node("b"), bound)) == [("GpuNodeGone", "node/a")]
    assert not results(judged(node("b"), pod("x", on="a", phase="Pending", age=2)))
    assert not results(judged(node("b"), pod("x", on="a")))
    assert not results(judged(bound, missing=["Node"]))


def test_pods_that_an_unready_node_does_not_delete_are_affected() -> None:
    pods = [pod(f"x-{number}", on="a", metadata={"deletionTimestamp": ago(45)}) for number in range(4)]

    diagnosis = judged(node("a", ready="Unknown"), *pods)
    assert results(diagnosis) == [("NodeNotReady", "node/a")]
    assert consequences(diagnosis.problems[0]) == [
        ("TerminatingPodHoldsGpus", f"pod/team/x-{number}") for number in range(4)
    ]


def test_pod_that_is_being_deleted_is_ignored() -> None:
    ends = pod("x", on="a", metadata={"deletionTimestamp": ago(3)})
    ended = pod("y", on="a", phase="Succeeded", metadata={"deletionTimestamp": ago(90), "finalizers": ["a/b"]})

    assert not results(judged(node("a"), ends, ended))


def test_kubelet_without_a_report_about_a_pod_is_reported() -> None:
    bound = pod("x", on="a", phase="Pending", age=30)

    assert results(judged(node("a"), bound)) == [("KubeletDoesNotAct", "node/a")]
    assert results(judged(node("a"), bound, lease("a", 25))) == [("KubeletDoesNotAct", "node/a")]
    heard = event(bound, "Pulling", "Pulling image", warning=False, minutes=29)
    assert not results(judged(node("a"), bound, heard))
    assert not results(judged(node("a"), pod("x", on="a", phase="Pending", age=4)))
    assert not results(judged(node("a"), bound, missing=["Event"]))
