"""Kubernetes' own gangs: `workloadRef` of 1.35, `schedulingGroup` of 1.36 and newer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.snapshot.queues import POD_GROUP, WORKLOAD
from gpu_healthcheck.diagnosis.sources.saved import read_saved
from tests.diagnosis.component_states import gpu_node
from tests.diagnosis.states import (
    Object,
    condition,
    consequences,
    container,
    event,
    judged,
    obj,
    pod,
    results,
    terminated,
)

API = "scheduling.k8s.io"
GROUP = ("podgroup", "train-workers")
JOB = obj("Job", "train", "team", spec={"parallelism": 4}, status={"active": 4})
SYSTEM = pod("coredns", 0, on="a", namespace="kube-system")
NODES = [gpu_node("a"), gpu_node("b"), SYSTEM]
REFUSED = "0/2 nodes are available: 2 pod group train-workers can not be scheduled as a gang."


def group(least: int | None = 4, *conditions: Object, version: str = "v1alpha2", **changes: Any) -> Object:
    policy: Object = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    entry = obj("PodGroup", "train-workers", "team", status={"conditions": list(conditions)}, **changes)
    return entry | {"apiVersion": f"{API}/{version}", "spec": {"schedulingPolicy": policy}}


def workload(least: int = 4, name: str = "workers") -> Object:
    """A Workload of Kubernetes 1.35, which has the groups within."""
    groups = [{"name": name, "policy": {"gang": {"minCount": least}}}]
    return obj("Workload", "train", "team", spec={"podGroups": groups}) | {"apiVersion": f"{API}/v1alpha1"}


def member(index: int, *, by_ref: bool = False, on: str = "", **changes: Any) -> Object:
    ref = {"workloadRef": {"name": "train", "podGroup": "workers"}}
    spec = ref if by_ref else {"schedulingGroup": {"podGroupName": "train-workers"}}
    changes.setdefault("owner", ("Job", "train"))
    return pod(f"train-{index}", 8, on=on, spec=spec, **changes)


def members(*indices: int, **changes: Any) -> list[Object]:
    return [member(index, **changes) for index in indices]


def refused(kind: str, text: str = REFUSED) -> Object:
    return condition(kind, "False", "Unschedulable", text, minutes=20)


IN_OTHER_WORDS = "minCount 4 can't be met: 0 pods are scheduled, and 2 of 4 pods have a place"
SHORT = condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
OTHERS = [pod(f"other-{on}", 8, on=on, namespace="else") for on in "ab"]
IN_USE = [("GpusAllInUse", "resource/nvidia.com/gpu")]
BARE: Any = {"metadata": {"ownerReferences": []}}
INCOMPLETE, MISSING = [("GangIncomplete", "job/team/train")], [("PodGroupMissing", "job/team/train")]
FOUR = members(0, 1, 2, 3)
BY_PODS = members(0, 1, 2, 3, conditions=[refused("PodScheduled")])
REFUSED_GROUP = group(4, refused("PodGroupScheduled"))
INITIALLY = group(4, refused("PodGroupInitiallyScheduled"), version="v1beta1")
STATES: list[tuple[str, list[Object], list[tuple[str, str]]]] = [
    ("too few members", [*NODES, JOB, group(), *members(0, 1, 3)], INCOMPLETE),
    ("too few members of a group of 1.35", [*NODES, JOB, workload(), *members(0, 1, by_ref=True)], INCOMPLETE),
    ("too few members of a group of 1.37", [*NODES, JOB, group(version="v1alpha3"), *members(0, 1)], INCOMPLETE),
    ("too few bare pods", [*NODES, group(2), member(0, **BARE)], [("GangIncomplete", "podgroup/team/train-workers")]),
    ("no group", [*NODES, JOB, *FOUR], MISSING),
    ("no Workload", [*NODES, JOB, *members(0, 1, by_ref=True)], MISSING),
    ("a Workload without the group", [*NODES, JOB, workload(name="others"), *members(0, 1, by_ref=True)], MISSING),
    ("members that have just been created", [*NODES, JOB, group(), *members(0, 1, age=1)], []),
    ("room for two of four", [*NODES, JOB, REFUSED_GROUP, *FOUR], INCOMPLETE),
    ("room for two of four in 1.37", [*NODES, JOB, INITIALLY, *FOUR], INCOMPLETE),
    ("room for two of four, by the pods' conditions", [*NODES, JOB, group(), *BY_PODS], INCOMPLETE),
    (
        "room for two of four, in other words",
        [*NODES, JOB, group(4, refused("PodGroupScheduled", IN_OTHER_WORDS)), *FOUR],
        INCOMPLETE,
    ),
    (
        "room for none",
        [*NODES, JOB, group(2, refused("PodGroupScheduled", IN_OTHER_WORDS)), *members(0, 1), *OTHERS],
        IN_USE,
    ),
    ("pods of a group that start alone", [*NODES, JOB, group(None), *members(0, conditions=[SHORT]), *OTHERS], IN_USE),
    (
        "no node with so many GPUs",
        [gpu_node("a", 4), SYSTEM, JOB, group(2, refused("PodGroupScheduled")), *members(0, 1)],
        [("MoreGpusThanAnyNodeHas", "job/team/train")],
    ),
    (
        "a group whose pods run",
        [*NODES, JOB, group(2, condition("PodGroupScheduled", "True")), member(0, on="a"), member(1, on="b")],
        [],
    ),
    (
        "a group of another scheduler",
        [*NODES, JOB, obj("PodGroup", "train-workers", "team", spec={"minMember": 2}), *members(0, 1)],
        MISSING,
    ),
]


@pytest.mark.parametrize(("state", "expected"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_gang_has_exactly_its_cause(state: list[Object], expected: list[tuple[str, str]]) -> None:
    assert results(judged(*state)) == expected


def test_gang_names_its_members() -> None:
    ended = pod("train-2", 8, on="b", phase="Failed", owner=("Job", "train"), spec=member(2)["spec"])

    (problem,) = judged(*NODES, JOB, group(), *members(0, 3), ended).problems

    assert problem.found.evidence == (
        "podgroup/team/train-workers: minCount 4; 2 pods so far: pod/team/train-0, pod/team/train-3",
        "2 pods missing",
        "ended: pod/team/train-2",
    )
    assert "podgroups.scheduling.k8s.io train-workers" in problem.found.remedy[1]


def test_gang_is_a_consequence_of_its_owners_quota() -> None:
    text = 'pods "train-2" is forbidden: exceeded quota: gpu, requested: requests.nvidia.com/gpu=8, used: '
    text += "requests.nvidia.com/gpu=16, limited: requests.nvidia.com/gpu=16"
    hard = {"hard": {"requests.nvidia.com/gpu": "16"}, "used": {"requests.nvidia.com/gpu": "16"}}
    quota = obj("ResourceQuota", "gpu", "team", spec={"hard": hard["hard"]}, status=hard)
    template = {"spec": {"containers": [container("main", 8)]}}
    job = obj("Job", "train", "team", spec={"parallelism": 4, "template": template}, status={"active": 2})
    why = event(job, "FailedCreate", f"Error creating: {text}", by="job-controller")

    (problem,) = judged(*NODES, job, group(), *members(0, 1), quota, why).problems

    assert problem.found.cause.name == "ExceededQuota"
    assert ("GangIncomplete", "job/team/train") in consequences(problem)


def test_gang_with_all_members_is_complete() -> None:
    complete = [*NODES, JOB, group(2, condition("PodGroupScheduled", "True"))]
    assert results(judged(*complete, member(0))) == [("GangIncomplete", "job/team/train")]
    assert results(judged(*complete, member(0, on="a"), member(1, on="b"))) == []
    lowered = [*NODES, JOB, group(1, refused("PodGroupScheduled", "0/2 nodes are available: 2 Insufficient cpu."))]
    assert ("GangIncomplete", "job/team/train") not in results(judged(*lowered, member(0)))


@pytest.mark.parametrize(("kind", "by_ref"), [(POD_GROUP, False), (WORKLOAD, True)])
def test_unlisted_groups_are_unknown(kind: str, by_ref: bool) -> None:
    diagnosis = judged(*NODES, JOB, *members(0, 1, by_ref=by_ref), missing=(kind,))

    assert results(diagnosis) == []
    assert [unseen.kind for unseen in diagnosis.unseen] == [kind]
    refused_alone = [*NODES, JOB, *members(0, 1, by_ref=by_ref, conditions=[SHORT]), *OTHERS]
    assert results(judged(*refused_alone, missing=(kind,))) == IN_USE


def test_saved_gangs_and_volcano_groups_differ_by_api(tmp_path: Path) -> None:
    ended = pod("done", 8, on="a", phase="Failed", states=[{"name": "main", "state": {"terminated": terminated(1)}}])
    kinds: list[list[Object]] = [NODES, [*members(0, 1), ended], [JOB], [group()]]
    for at, items in enumerate(kinds):
        (tmp_path / f"{at}.json").write_text(json.dumps({"kind": "List", "items": items}))

    found = diagnose(read_saved([tmp_path])).problems

    assert ("GangIncomplete", "job/team/train") in [(one.found.cause.name, one.found.subject) for one in found]
