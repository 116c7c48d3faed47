"""Pods that a kubelet rejected, each by its message, and the same pods after their replacement."""

from __future__ import annotations

import pytest

from tests.diagnosis.states import GPU, Object, consequences, container, judged, messages, node, obj, pod, results

UNEXPECTED = "UnexpectedAdmissionError"
BY_TEXT = messages("rejection")


def makers(ready: int) -> list[Object]:
    """A Deployment of two pods and its ReplicaSet."""
    template = {"spec": {"containers": [container("main", 1)]}}
    spec, status = {"replicas": 2, "template": template}, {"replicas": 2, "readyReplicas": ready}
    above = {"ownerReferences": [{"kind": "Deployment", "name": "llm", "uid": "d", "controller": True}]}
    return [
        obj("Deployment", "llm", "team", spec=spec, status=status),
        obj("ReplicaSet", "llm-1", "team", metadata=above, spec=spec, status=status),
    ]


def rejected(name: str, reason: str, message: str, **changes: object) -> Object:
    fields = {"reason": reason, "message": message}
    return pod(name, on="a", phase="Failed", status=fields, owner=("ReplicaSet", "llm-1"), **changes)


@pytest.mark.parametrize(("reason", "cause", "subject", "message"), BY_TEXT)
def test_rejections_with_the_same_message_are_one_cause(reason: str, message: str, cause: str, subject: str) -> None:
    pods = [rejected(f"llm-{number}", reason, message) for number in range(30)]

    diagnosis = judged(node("a"), *makers(0), *pods)

    assert results(diagnosis) == [(cause, subject)]
    assert len(diagnosis.problems[0].found.affected) == 30


@pytest.mark.parametrize(("reason", "message"), [(row[0], row[3]) for row in BY_TEXT])
def test_rejected_pod_that_was_replaced_is_ignored(reason: str, message: str) -> None:
    """The rejected pod only lies there."""
    assert not results(judged(node("a"), *makers(2), rejected("llm-0", reason, message)))


def test_rejected_pod_of_a_completed_job_is_ignored() -> None:
    done = obj("Job", "train", "team", status={"conditions": [{"type": "Complete", "status": "True"}]})
    left = pod(
        "train-x",
        on="a",
        phase="Failed",
        owner=("Job", "train"),
        status={"reason": UNEXPECTED, "message": BY_TEXT[0][3]},
    )

    assert not results(judged(node("a"), done, left))
    assert results(judged(node("a"), left))


@pytest.mark.parametrize("reason", ["NodeShutdown", "Terminated", "Preempting", "DeadlineExceeded", ""])
def test_requested_end_is_no_rejection(reason: str) -> None:
    ended = pod("x", on="a", phase="Failed", status={"reason": reason, "message": "Pod was terminated"})

    assert not results(judged(node("a"), ended))


def test_template_that_names_a_node_is_the_object_to_change() -> None:
    template = {"spec": {"nodeName": "a", "containers": [container("main", 1)]}}
    maker = obj("Job", "train", "team", spec={"template": template})
    full = "Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 8, capacity: 8"
    status = {"reason": "OutOfnvidia.com/gpu", "message": full}
    left = pod("train-x", on="a", phase="Failed", owner=("Job", "train"), status=status)

    diagnosis = judged(node("a"), maker, left)

    assert results(diagnosis) == [("NodeOverbooked", "job/team/train")]
    assert "the template itself names the node: nodeName a" in diagnosis.problems[0].found.evidence


def test_evidence_has_the_nodes_current_capacity() -> None:
    unhealthy = node("a", allocatable={GPU: "0"})
    left = rejected("llm-0", UNEXPECTED, BY_TEXT[2][3])

    (problem,) = judged(unhealthy, left).problems

    assert problem.found.cause.name == "UnhealthyGpus"
    assert consequences(problem) == [("NoHealthyGpuAtAdmission", "node/a")]
    assert "node/a: nvidia.com/gpu: capacity 8, allocatable 0 now" in problem.consequences[0].found.evidence
