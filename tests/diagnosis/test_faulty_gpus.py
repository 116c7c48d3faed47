"""Work on a GPU with an active fault is the first cause; work on other GPUs of the node is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.target import Target, concerned, narrowed
from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, diagnose
from gpu_healthcheck.diagnosis.model import Certainty
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, RUN, SEVERITY, UNHEALTHY
from tests.diagnosis.states import (
    GPU,
    NOW,
    Object,
    ago,
    condition,
    consequences,
    event,
    judged,
    node,
    obj,
    pod,
    recorded,
    results,
    snapshot,
    terminated,
    waiting,
)
from tests.evicting import BUDGET_ANSWER, annotation, eviction

DEAD, HEALTHY = "GPU-8dbf1c52-1111-4c5e-9b1f-0123456789ab", "GPU-8dbf1c52-2222-4c5e-9b1f-0123456789ab"
TAINT = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
FAULTY = "PodOnFaultyGpu"


def finding(reason: str = "Xid79", severity: str = "REBOOT", subject: str = "gpu/0000:18:00.0", **more: Any) -> Object:
    fields = {"reason": reason, "severity": severity, "subject": subject, "detail": "GPU has fallen off the bus."}
    return fields | {"about": {"index": "1", "uuid": DEAD}, "first_seen": ago(40), "last_seen": ago(2)} | more


def faulty(*findings: Object, tainted: bool = True, **changes: Any) -> Object:
    """The node `a` with these findings in its agent's record, and our taint."""
    changes.setdefault("taints", [TAINT] if tainted else [])
    return node("a", annotations=recorded(*findings, status="fail", severity="REBOOT"), **changes)


def given(name: str, *ids: str, health: str = "Healthy", resource: str = GPU, **changes: Any) -> Object:
    """A pod that runs on `a`, with the devices that the kubelet reports."""
    resources = [{"resourceID": text, "health": health} for text in ids]
    state = {
        "name": "main",
        "ready": True,
        "state": {"running": {"startedAt": ago(60)}},
        "allocatedResourcesStatus": [{"name": resource, "resources": resources}],
    }
    return pod(name, len(ids), on="a", states=[state], **changes)


def rank(name: str, number: int, on: str, gpus: int = 1) -> Object:
    labels = {"batch.kubernetes.io/job-completion-index": str(number)}
    return pod(name, gpus, on=on, owner=("Job", "train"), labels=labels)


def job() -> list[Object]:
    return [
        obj("Job", "train", "team"),
        *(rank(f"train-{number}", number, "b" if number % 2 else "a") for number in range(4)),
    ]


def web(number: int, on: str) -> Object:
    """One of a Deployment's pods, which do without each other."""
    return pod(f"web-{number}", on=on, owner=("ReplicaSet", "web-5d"))


def causes(diagnosis: Diagnosis) -> list[str]:
    return [name for name, _ in results(diagnosis)]


@pytest.mark.parametrize("severity", ["RESET", "REBOOT", "ISOLATE"])
def test_a_pod_that_runs_on_a_node_with_a_fault_is_the_first_cause(severity: str) -> None:
    diagnosis = judged(faulty(finding(severity=severity)), pod("x", on="a"))

    assert results(diagnosis) == [(FAULTY, "node/a"), ("NodeKeptFromWork", "node/a")]
    found = diagnosis.problems[0].found
    where, what = f"gpu/0000:18:00.0 ({DEAD})", "GPU has fallen off the bus."
    assert found.affected == ("pod/team/x",)
    assert f"Xid79 {severity} on {where} since {ago(40)}: {what}" in found.evidence
    assert "`gpu-healthcheck explain Xid79`" in found.remedy[0]
    assert "let it write a checkpoint" in found.remedy[1]
    assert "`kubectl -n team get pod x -o yaml > x.yaml`" in found.remedy[2]
    assert "`kubectl -n team delete pod x && kubectl patch --local " in found.remedy[3]


def test_pod_on_a_faulty_gpu_precedes_a_cause_with_more_pods() -> None:
    crowd = [pod(f"w{number}", 16, conditions=[_refused()]) for number in range(9)]

    diagnosis = judged(faulty(finding()), node("b"), pod("x", on="a"), *crowd)
    assert causes(diagnosis)[:2] == [FAULTY, "MoreGpusThanAnyNodeHas"]


def test_ranks_of_a_job_on_the_node_are_named() -> None:
    diagnosis = judged(faulty(finding()), node("b"), *job())

    (line,) = [text for text in diagnosis.problems[0].found.evidence if text.startswith("job/")]
    assert line == "job/team/train: 2 of its 4 pods there: pod/team/train-0 (rank 0), pod/team/train-2 (rank 2)"
    many = judged(faulty(finding()), obj("Job", "train", "team"), rank("train-0", 0, "a", 8))
    assert any("pod/team/train-0 (node rank 0)" in text for text in many.problems[0].found.evidence)


def test_a_rank_on_another_node_is_linked_to_the_rank_on_a_faulty_gpu() -> None:
    state = snapshot(faulty(finding()), node("b"), *job())
    others = snapshot(faulty(finding()), node("b"), *(web(number, "b" if number % 2 else "a") for number in range(4)))

    def touching(seen: Snapshot, name: str) -> list[str]:
        target = Target("Pod", "team", name)
        return [problem.found.cause.name for problem in narrowed(diagnose(seen), concerned(seen, target)).problems]

    assert touching(state, "train-0") == touching(state, "train-1") == [FAULTY]
    assert (touching(others, "web-0"), touching(others, "web-1")) == ([FAULTY], [])


def test_failure_of_other_ranks_follows_from_the_faulty_gpu() -> None:
    states = [waiting("CrashLoopBackOff", lastState={"terminated": terminated(1, message="NCCL error: remote")})]
    labels = {"batch.kubernetes.io/job-completion-index": "9"}
    lost = pod("train-9", on="b", owner=("Job", "train"), labels=labels, states=states)

    diagnosis = judged(faulty(finding()), node("b"), *job(), lost)
    assert consequences(diagnosis.problems[0]) == [("CollectiveFails", "job/team/train")]


def test_a_fault_without_a_taint_asks_for_a_cordon_first() -> None:
    diagnosis = judged(faulty(finding(), tainted=False), pod("x", on="a"))

    assert causes(diagnosis) == [FAULTY]
    assert "`kubectl cordon a`" in diagnosis.problems[0].found.remedy[1]


def test_a_taint_without_a_record_is_explained_by_the_condition() -> None:
    conditions = [condition("GpuHealthy", "False", "Xid79", "GPU has fallen off the bus", minutes=40)]
    diagnosis = judged(node("a", taints=[TAINT], conditions=conditions), pod("x", on="a"))

    assert causes(diagnosis) == [FAULTY, "NodeKeptFromWork"]
    assert diagnosis.problems[0].found.evidence[0] == f"Xid79 on node/a since {ago(40)}: GPU has fallen off the bus"


RUNS = {RUN: json.dumps({"kind": "l2", "holder": "x", "until": ago(-9)})}
SHARED = f"{DEAD}::3"
MIG = "MIG-8dbf1c52-3333-4c5e-9b1f-0123456789ab"
HAMI = {"hami.io/vgpu-devices-allocated": f"{DEAD},NVIDIA,4096,30:;"}


@pytest.mark.parametrize(
    ("work", "evidence"),
    [
        (given("x", DEAD), f"on {DEAD}"),
        (given("x", HEALTHY, DEAD), f"on {DEAD}"),
        (given("x", SHARED, resource="nvidia.com/gpu.shared"), f"on {DEAD}"),
        (pod("x", on="a", annotations=HAMI), f"on {DEAD}"),
        (given("x", "nvidia1"), "running: pod/team/x"),
        (given("x", MIG, resource="nvidia.com/mig-1g.10gb"), "running: pod/team/x"),
        (pod("x", on="a"), "the GPUs of each pod are unknown"),
    ],
    ids=["its GPU", "one of its GPUs", "a replica", "by HAMi", "an unknown ID", "an instance of some GPU", "no names"],
)
def test_fault_of_another_gpu_counts_only_if_the_pods_gpus_are_unknown(work: Object, evidence: str) -> None:
    diagnosis = judged(faulty(finding()), work)

    assert causes(diagnosis)[0] == FAULTY
    assert any(evidence in text for text in diagnosis.problems[0].found.evidence)


@pytest.mark.parametrize(
    "work",
    [
        given("x", HEALTHY),
        given("x", f"{HEALTHY}::3", resource="nvidia.com/gpu.shared"),
        pod("x", on="a", annotations={"hami.io/vgpu-devices-allocated": f"{HEALTHY},NVIDIA,4096,30:;"}),
        pod("x", on="a", phase="Succeeded"),
        pod("x", 0, on="a"),
        pod("x", on="a", metadata={"deletionTimestamp": ago(0)}),
        pod("x", on="a", labels={"app.kubernetes.io/name": "gpu-healthcheck"}),
        pod("x", on="b"),
    ],
    ids=["another GPU", "its replica", "by HAMi", "ended", "no GPU", "going", "our own test", "another node"],
)
def test_work_on_healthy_gpus_of_a_faulty_node_is_no_cause(work: Object) -> None:
    assert causes(judged(faulty(finding()), node("b"), work)) == ["NodeKeptFromWork"]


@pytest.mark.parametrize("subject", ["node", "driver", "nvswitch/0000:85:00.0"])
def test_a_fault_of_the_node_strikes_all_its_pods(subject: str) -> None:
    work = given("x", HEALTHY)

    assert causes(judged(faulty(finding("DriverUnresponsive", subject=subject, about={})), work))[0] == FAULTY


@pytest.mark.parametrize(
    "state",
    [
        faulty(finding(severity="MONITOR"), tainted=False),
        faulty(tainted=False),
        node("a", taints=[{"key": MAINTENANCE, "value": "l2", "effect": "NoSchedule"}], annotations=RUNS),
        node("a", taints=[{**TAINT, "effect": "PreferNoSchedule"}], labels={SEVERITY: "MONITOR"}),
    ],
    ids=["MONITOR", "no finding", "a run of ours", "somebody else's taint"],
)
def test_work_on_a_node_without_a_fault_is_no_cause(state: Object) -> None:
    assert FAULTY not in causes(judged(state, pod("x", on="a")))


def test_device_that_the_kubelet_reports_unhealthy_is_a_cause() -> None:
    diagnosis = judged(node("a"), given("x", DEAD, health="Unhealthy"), given("y", HEALTHY))

    (problem,) = diagnosis.problems
    assert (problem.found.cause.name, problem.found.affected) == (FAULTY, ("pod/team/x",))
    assert problem.found.evidence[0] == f"the kubelet reports {GPU} {DEAD} of pod/team/x as Unhealthy"
    assert not causes(judged(node("a"), given("x", DEAD, health="Unknown")))
    assert not causes(judged(node("a"), given("x", "rdmap16s0", health="Unhealthy", resource="vpc.amazonaws.com/efa")))


def warned(work: Object, **changes: Any) -> Object:
    text = f"GPU 1 of the node ({DEAD}), which this pod uses, is faulty"
    return event(work, "GpuUnhealthy", text, **{"by": "gpu-healthcheck", **changes})


def test_without_nodes_the_pods_own_status_shows_its_unhealthy_gpu() -> None:
    diagnosis = diagnose(snapshot(given("x", DEAD, health="Unhealthy"), given("y", HEALTHY), missing=["Node"]))

    assert results(diagnosis) == [(FAULTY, "node/a")]
    found = diagnosis.problems[0].found
    assert (found.affected, found.certainty) == (("pod/team/x",), Certainty.PROVEN)
    assert found.evidence[0] == f"the kubelet reports {GPU} {DEAD} of pod/team/x as Unhealthy"
    assert "`gpu-healthcheck status a`" in found.remedy[-1]
    assert not any("cordon" in step for step in found.remedy)


def test_without_nodes_an_event_of_the_agent_shows_the_faulty_gpu_of_a_pod() -> None:
    struck, twin, other = given("x", DEAD), given("y", HEALTHY), given("z", HEALTHY)
    events = [warned(struck), warned(twin, by="tenant"), warned(other, uid="of-an-earlier-pod-of-this-name")]
    diagnosis = diagnose(snapshot(struck, twin, other, *events, missing=["Node"]))

    assert results(diagnosis) == [(FAULTY, "node/a")]
    found = diagnosis.problems[0].found
    assert (found.affected, found.certainty) == (("pod/team/x",), Certainty.LIKELY)
    assert found.evidence[0].startswith("pod/team/x: Event GpuUnhealthy: GPU 1 of the node (")


def test_a_visible_record_outranks_an_event_of_the_agent() -> None:
    work = given("x", DEAD)

    assert not causes(judged(node("a", annotations=recorded()), work, warned(work)))


def claimed(name: str, device: str, *, reported: bool = False, health: str = "Healthy") -> list[Object]:
    """A pod with a device of NVIDIA's DRA driver: by its claim, or by the kubelet's report too."""
    request = {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    results = [{"request": "g", "driver": "gpu.nvidia.com", "pool": "a", "device": device}]
    claim = obj(
        "ResourceClaim",
        f"{name}-c",
        "team",
        spec={"devices": {"requests": [request]}},
        status={"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": name}]},
    )
    resources = {"claims": [{"name": "gpu"}]}
    state: Object = {"name": "main", "ready": True, "state": {"running": {"startedAt": ago(60)}}}
    if reported:
        named = [{"resourceID": f"gpu.nvidia.com/a/{device}", "health": health}]
        state["allocatedResourcesStatus"] = [{"name": "claim:gpu/g", "resources": named}]
    work = pod(
        name,
        on="a",
        containers=[{"name": "main", "image": "x", "resources": resources}],
        spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-c"}]},
        states=[state],
    )
    return [claim, work]


def slices() -> list[Object]:
    devices = [
        {"name": f"gpu-{place}", "attributes": {"uuid": {"string": uuid}, "type": {"string": "gpu"}}}
        for place, uuid in enumerate((HEALTHY, DEAD))
    ]
    spec = {"driver": "gpu.nvidia.com", "nodeName": "a", "pool": {"name": "a"}, "devices": devices}
    return [obj("ResourceSlice", "s", spec=spec), obj("DeviceClass", "gpu.nvidia.com", spec={})]


@pytest.mark.parametrize("reported", [False, True])
def test_a_claimed_device_is_known_by_its_slice(reported: bool) -> None:
    on_dead = judged(faulty(finding()), *slices(), *claimed("x", "gpu-1", reported=reported))
    diagnosis = judged(faulty(finding()), *slices(), *claimed("x", "gpu-0", reported=reported))

    assert causes(on_dead) == [FAULTY, "NodeKeptFromWork"]
    assert causes(diagnosis) == ["NodeKeptFromWork"]


def test_a_claimed_device_that_the_kubelet_reports_as_unhealthy() -> None:
    diagnosis = judged(node("a"), *slices(), *claimed("x", "gpu-1", reported=True, health="Unhealthy"))

    assert causes(diagnosis) == [FAULTY]
    assert "claim:gpu/g gpu.nvidia.com/a/gpu-1" in diagnosis.problems[0].found.evidence[0]


def test_a_finding_from_a_record_of_an_earlier_version_has_no_time_and_counts() -> None:
    old = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0"}

    assert causes(judged(faulty(old), given("x", HEALTHY)))[0] == FAULTY


def _refused() -> Object:
    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    return condition("PodScheduled", "False", "Unschedulable", message)


@pytest.mark.parametrize(
    ("state", "why", "evidence", "remedy"),
    [
        ("announced", None, "the eviction of pod/team/x is announced for 12:01Z", ""),
        ("requested", None, "the eviction of pod/team/x is requested", ""),
        ("slurm", None, "pod/team/x is a Slurm node, which Slurm must drain: it is not evicted", ""),
        (
            "refused",
            BUDGET_ANSWER.format("train"),
            "the eviction of pod/team/x waits: refused by PodDisruptionBudget team/train",
            "Let PodDisruptionBudget team/train allow the eviction of pod/team/x, or move the pod:",
        ),
        (
            "refused",
            "denied by `webhook`",
            "the eviction of pod/team/x waits: refused by denied by `webhook`",
            "Let what refuses it allow the eviction of pod/team/x, or move the pod:",
        ),
    ],
)
def test_an_eviction_of_the_pod_is_evidence(state: str, why: str | None, evidence: str, remedy: str) -> None:
    pods = [eviction(name, state, at=NOW, uid=uid, why=why) for name, uid in (("x", "pod-team-x"), ("y", "gone"))]
    marks = annotation(*pods, now=NOW)
    noted, plain = faulty(finding()), judged(faulty(finding()), pod("x", on="a")).problems[0].found
    noted["metadata"]["annotations"] |= marks

    diagnosis = judged(noted, pod("x", on="a"))

    found = diagnosis.problems[0].found
    assert causes(diagnosis) == [FAULTY, "NodeKeptFromWork"]
    assert set(found.evidence) - set(plain.evidence) == {evidence}
    assert set(found.remedy) - set(plain.remedy) == ({remedy} if remedy else set())
    assert "evict" not in str(judged(node("a", annotations=marks), pod("x", on="a")).problems)


def test_eviction_events_are_evidence_for_a_user_who_sees_no_nodes() -> None:
    work = given("x", DEAD)
    announced = event(work, "EvictionAnnounced", "the pod is evicted at 12:01", by="gpu-healthcheck")
    found = diagnose(snapshot(work, warned(work), announced, missing=["Node"])).problems[0].found

    assert "pod/team/x: Event EvictionAnnounced: the pod is evicted at 12:01" in found.evidence
    assert not diagnose(snapshot(work, announced, missing=["Node"])).problems
