"""A failed or completed Job is a cause for who asks about it, with its reason and what its last pod's node had then."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.target import parse_target
from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.diagnosis.report.content import Report, report_of
from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    event,
    judged,
    node,
    obj,
    pod,
    recorded,
    snapshot,
    terminated,
)

XID = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "detail": "fell off the bus"}
LIMIT = condition("Failed", "True", "BackoffLimitExceeded", "Job has reached the specified backoff limit", minutes=10)


def bad(minutes: float = 12, **changes: Any) -> Object:
    found = XID | {"first_seen": ago(minutes)}
    return node("a", annotations=recorded(found, status="fail", severity="REBOOT"), **changes)


def job(*conditions: Object, kind: str = "Job", **metadata: Any) -> Object:
    return obj(kind, "train", "team", metadata=metadata, spec={}, status={"conditions": [*conditions]})


def lost(name: str = "train-x", minutes: float = 10, **changes: Any) -> Object:
    ended = {"name": "main", "state": {"terminated": terminated(137, minutes=minutes)}}
    return pod(name, 8, on="a", phase="Failed", states=[ended], owner=("Job", "train"), **changes)


def asked(words: str, *objects: Object) -> Report:
    judged(*objects)
    return report_of(snapshot(*objects), parse_target(words.split(), ""), "", None, overview=False)


def ends(report: Report) -> list[FoundCause]:
    found = [problem.found for problem in report.diagnosis.problems]
    return [one for one in found if one.cause.name in ("JobFailed", "JobComplete")]


def evidence(*objects: Object) -> str:
    (found,) = ends(asked("job team/train", job(LIMIT), *objects))
    return "\n".join(found.evidence)


def test_a_failed_job_has_its_reason_and_the_finding_of_then() -> None:
    (found,) = ends(asked("job team/train", bad(), job(LIMIT), lost()))

    assert (found.cause.name, found.subject) == ("JobFailed", "job/team/train")
    assert found.evidence == (
        f"Failed since {ago(10)}: BackoffLimitExceeded: Job has reached the specified backoff limit",
        "its last pod pod/team/train-x ran on node/a, exit code 137",
        f"node/a had then: Xid79 REBOOT on gpu/0000:18:00.0 since {ago(12)}: fell off the bus",
    )
    assert "`gpu-healthcheck explain Xid79`" in found.remedy[0]
    assert "`kubectl -n team logs train-x --tail=100`" in found.remedy[1]
    assert "docs/gate.md" in found.remedy[2]


@pytest.mark.parametrize(
    ("objects", "part"),
    [
        ([bad(), lost("train-w", 90), lost("train-x")], "its last pod pod/team/train-x"),
        ([bad(minutes=2), lost()], "the record of node/a has no finding from then"),
        ([node("a", annotations=recorded()), lost()], "the record of node/a has no finding from then"),
        ([node("a"), lost()], "could not check what node/a had then: no agent has written a record there"),
        ([node("b"), lost()], "could not check what node/a had then: it is gone"),
        # Deleted pods are known from events only.
        (
            [
                bad(),
                event(job(), "SuccessfulCreate", "Created pod: train-x", warning=False, by="job-controller"),
                event(lost(), "Scheduled", "Successfully assigned team/train-x to a", warning=False),
            ],
            "its last pod pod/team/train-x ran on node/a, and is gone\nnode/a had then: Xid79",
        ),
        # A finding that has ended since is known from the agent's event.
        (
            [
                node("a", annotations=recorded()),
                lost(),
                event(node("a"), "GpuHealthFail", "fail: Xid62 on x", minutes=11),
            ],
            "node/a had then, by its event GpuHealthFail: fail: Xid62 on x",
        ),
        (
            [
                node("a", annotations=recorded()),
                lost(),
                event(node("a"), "GpuHealthFail", "fail: Xid62 on x", minutes=30),
                event(node("a"), "GpuHealthPass", "pass", minutes=20, warning=False),
            ],
            "the record of node/a has no finding from then",
        ),
        ([], "BackoffLimitExceeded"),
    ],
)
def test_the_nodes_state_of_then_is_told_as_far_as_it_is_known(objects: list[Object], part: str) -> None:
    assert part in evidence(*objects)


@pytest.mark.parametrize(
    ("kind", "entry", "cause", "part"),
    [
        ("Job", condition("Failed", "True", "DeadlineExceeded", "x"), "JobFailed", "Raise `activeDeadlineSeconds`"),
        ("Job", condition("Failed", "True", "PodFailurePolicy", "Container main"), "JobFailed", "podFailurePolicy"),
        ("Job", condition("Failed", "True"), "JobFailed", "create it again"),
        ("JobSet", condition("Failed", "True", "ReachedMaxRestarts", "x"), "JobFailed", "create it again"),
        ("PyTorchJob", condition("Failed", "True", "PyTorchJobFailed", "x"), "JobFailed", "create it again"),
        ("Job", condition("Complete", "True"), "JobComplete", "create it again"),
        ("JobSet", condition("Completed", "True"), "JobComplete", "create it again"),
        ("MPIJob", condition("Succeeded", "True"), "JobComplete", "create it again"),
        ("Job", condition("Failed", "False"), "", ""),
        ("Job", condition("Suspended", "True", "JobSuspended"), "", ""),
    ],
)
def test_each_kind_reports_its_end(kind: str, entry: Object, cause: str, part: str) -> None:
    found = ends(asked(f"{kind.lower()} team/train", job(entry, kind=kind)))

    assert [one.cause.name for one in found] == ([cause] if cause else [])
    assert all(part in " ".join(one.remedy) for one in found)


def test_an_ended_job_is_no_cause_for_others() -> None:
    state = [node("a"), job(LIMIT), obj("Job", "other", "team"), lost()]

    assert not ends(asked("node a", *state))
    assert not ends(asked("job team/other", *state))
    assert not ends(asked("", *state))
    assert [one.cause.name for one in ends(asked("pod team/train-x", *state))] == ["JobFailed"]


def test_a_pod_of_a_completed_job_has_no_problem() -> None:
    done = pod("train-x", 8, on="a", phase="Succeeded", owner=("Job", "train"))
    assert not asked("pod team/train-x", node("a"), job(condition("Complete", "True")), done).diagnosis.problems


def test_a_job_set_fails_because_of_its_job() -> None:
    owner = [{"kind": "JobSet", "name": "set", "uid": "jobset-team-set", "controller": True}]
    above = obj("JobSet", "set", "team", status={"conditions": [condition("Failed", "True", "FailedJobs", "x")]})
    (problem,) = asked("jobset team/set", bad(), above, job(LIMIT, ownerReferences=owner), lost()).diagnosis.problems[
        -1:
    ]

    assert problem.found.subject == "job/team/train"
    assert [each.found.subject for each in problem.consequences] == ["jobset/team/set"]


GATES_MESSAGE = "a: Xid79 (REBOOT) on GPU 5; the pod ends, so that its job starts it elsewhere"


@pytest.mark.parametrize(
    ("name", "code", "message", "shown"),
    [
        ("gpu-gate", 75, GATES_MESSAGE, GATES_MESSAGE),
        ("gpu-gate", 75, "", "container gpu-gate: exit code 75"),
        ("own-name", 75, GATES_MESSAGE, GATES_MESSAGE),
        ("gpu-gate", 69, "no answer within 2 s", None),
        ("own-name", 75, "out of cheese", None),
    ],
)
def test_a_pod_that_the_gate_refused_has_its_message(name: str, code: int, message: str, shown: str | None) -> None:
    init = {"name": name, "state": {"terminated": terminated(code, message=message)}}
    refused = pod("train-x", 8, on="a", phase="Failed", states=[], status={"initContainerStatuses": [init]})

    problems = asked("pod team/train-x", bad(), refused).diagnosis.problems

    found = [one.found for one in problems if one.found.cause.name == "GateRefusedPod"]
    assert [(one.subject, one.evidence) for one in found] == ([("pod/team/train-x", (shown,))] if shown else [])
    assert "GateRefusedPod" not in {one.found.cause.name for one in judged(bad(), refused).problems}


EVICTED = condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting", minutes=11)
ANNOUNCED = "the pod is evicted at 11:48, because its GPU on a is faulty"


def test_an_eviction_of_the_last_pod_is_evidence() -> None:
    assert f"exit code 137; DisruptionTarget since {ago(11)}: EvictionByEvictionAPI" in evidence(
        bad(), lost(conditions=[EVICTED])
    )
    gone = (
        bad(),
        event(job(), "SuccessfulCreate", "Created pod: train-x", warning=False, by="job-controller"),
        event(lost(), "Scheduled", "Successfully assigned team/train-x to a", warning=False),
    )
    announced = event(lost(), "EvictionAnnounced", ANNOUNCED, by="gpu-healthcheck")
    assert f"ran on node/a, and is gone; EvictionAnnounced: {ANNOUNCED}\n" in evidence(*gone, announced)
    assert "ran on node/a, and is gone\n" in evidence(*gone)


@pytest.mark.parametrize("changes", [{"phase": "Failed"}, {"metadata": {"deletionTimestamp": ago(1)}}])
def test_an_evicted_pod_is_no_fault_of_its_job(changes: Object) -> None:
    ended = {"name": "main", "state": {"terminated": terminated(137, minutes=2)}}
    evicted = pod("train-x", 8, on="a", states=[ended], owner=("Job", "train"), conditions=[EVICTED], **changes)
    replacement = pod("train-y", 8, on="b", owner=("Job", "train"))

    for pods in ([evicted], [evicted, replacement]):
        found = judged(bad(), node("b"), job(), *pods).problems
        assert not [one.found for one in found if "train" in one.found.subject]
