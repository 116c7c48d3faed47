"""Pods that are evicted from a Node, and when: tables over Nodes and pods as the API shows them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.evict.select import Fault, Target, fault_on, plan_evictions, stands_back, targets
from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, acquire
from gpu_healthcheck.healthcheck.model import PREFIX, Severity
from gpu_healthcheck.healthcheck.node.evictions import MOST_PODS, EvictionState, PodEviction
from gpu_healthcheck.healthcheck.node.state import RELEASE, RESULTS, SEVERITY, STATUS, TAINT, NodeState
from tests.hostile import HOSTILE

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
DELAY = timedelta(seconds=60)
ONE, TWO, THREE = (f"GPU-{digit * 8}-0000-0000-0000-000000000000" for digit in "123")
GPU = "nvidia.com/gpu"
Pod = dict[str, Any]


def finding(reason: str = "Xid79", severity: str = "REBOOT", subject: str = "gpu/0000:18:00.0", uuid: str = ONE) -> Any:
    return {"reason": reason, "severity": severity, "subject": subject, "about": {"uuid": uuid} if uuid else {}}


def node(
    *findings: Any, status: str = "fail", tainted: bool = True, text: str = "", released: bool = False
) -> NodeState:
    record = text or json.dumps({"schema": 1, "status": "fail", "findings": findings or [finding()]})
    return NodeState(
        "bad",
        labels={STATUS: status, SEVERITY: "REBOOT"},
        taints=(TAINT,) if tainted else (),
        annotations={RESULTS: record, **({RELEASE: "{}"} if released else {})},
    )


@pytest.mark.parametrize(
    ("found", "least", "expected"),
    [
        (node(), Severity.REBOOT, ("Xid79", {ONE})),
        (node(), Severity.ISOLATE, None),
        (node(), None, None),
        (node(finding(severity="ISOLATE")), Severity.REBOOT, ("Xid79", {ONE})),
        (node(finding(severity="RESET")), Severity.REBOOT, None),
        (node(finding(severity="MONITOR")), Severity.REBOOT, None),
        (node(tainted=False), Severity.REBOOT, None),
        (node(status="pass"), Severity.REBOOT, None),
        (node(status="unknown"), Severity.REBOOT, None),
        (node(released=True), Severity.REBOOT, None),
        (node(text="{"), Severity.REBOOT, None),
        (node(text=json.dumps({"schema": 1, "findings": [{"severity": "REBOOT"}]})), Severity.REBOOT, None),
        # The worst finding is named; all GPUs with one of EVICT_SEVERITY or worse count, and no others.
        (
            node(finding(), finding("Xid48", "ISOLATE", uuid=TWO), finding("Xid119", "RESET", uuid=THREE)),
            Severity.REBOOT,
            ("Xid48", {ONE, TWO}),
        ),
        # A fault of the node or of an unknown GPU concerns all pods with GPUs.
        (node(finding(), finding("SxidFatal", subject="nvswitch/0", uuid="")), Severity.REBOOT, ("Xid79", None)),
        (node(finding(uuid="")), Severity.REBOOT, ("Xid79", None)),
        (node(finding(subject="node", uuid=ONE)), Severity.REBOOT, ("Xid79", None)),
    ],
)
def test_the_fault_for_which_pods_leave(found: NodeState, least: Severity | None, expected: Any) -> None:
    fault = fault_on(found, least)

    assert (fault and (fault.reason, None if fault.uuids is None else set(fault.uuids))) == expected


@given(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60), st.recursive(st.integers() | st.text(), st.lists)))
def test_a_hostile_record_names_no_unprintable_fault(value: Any) -> None:
    record = {"schema": 1, "findings": [{"reason": value, "severity": "REBOOT", "subject": value, "about": value}]}
    fault = fault_on(node(text=json.dumps(record)), Severity.REBOOT)

    assert fault is None or str(fault).isprintable()


@pytest.mark.parametrize("kind", RunKind)
def test_evictions_wait_while_a_run_uses_the_node(kind: RunKind) -> None:
    patch = acquire(node(), Claim(kind, "run-1", NOW + timedelta(hours=1)), NOW)
    assert patch is not None
    claimed = replace(node(), annotations=patch["metadata"]["annotations"])

    assert stands_back(claimed, NOW)
    assert not stands_back(claimed, NOW + timedelta(hours=2))
    assert not stands_back(node(), NOW)


def container(*ids: str, count: str = "1", resource: str = GPU) -> tuple[Pod, Pod]:
    """Return a container and its status with these devices."""
    entries = [{"name": resource, "resources": [{"resourceID": one, "health": "Healthy"} for one in ids]}]
    status = {"name": "train", "allocatedResourcesStatus": entries} if ids else {"name": "train"}
    return {"name": "train", "resources": {"limits": {resource: count}}}, status


def pod(*containers: tuple[Pod, Pod], spec: Pod | None = None, phase: str = "Running", **metadata: Any) -> Pod:
    used = containers or (container(ONE),)
    return {
        "metadata": {"namespace": "team", "name": "train-0", "uid": "uid-0", **metadata},
        "spec": {"nodeName": "bad", "containers": [each for each, _ in used], **(spec or {})},
        "status": {"phase": phase, "containerStatuses": [status for _, status in used]},
    }


def owner(kind: str, name: str = "train", group: str = "apps/v1") -> Pod:
    return {"ownerReferences": [{"apiVersion": group, "kind": kind, "name": name, "uid": "o", "controller": True}]}


def tolerating(**toleration: Any) -> Pod:
    return {"tolerations": [toleration]}


EFA = {"name": "vpc.amazonaws.com/efa", "resources": [{"resourceID": "rdmap79s0"}]}
CASES: dict[str, tuple[Pod, bool]] = {
    "on the faulty GPU": (pod(), True),
    "on a healthy GPU": (pod(container(TWO)), False),
    "on a healthy and the faulty GPU": (pod(container(TWO, ONE, count="2")), True),
    "two containers, the second on the faulty GPU": (pod(container(TWO), container(ONE)), True),
    "two containers on healthy GPUs": (pod(container(TWO), container(THREE)), False),
    "devices not reported": (pod(container()), True),
    "one of two devices reported": (pod(container(TWO, count="2")), True),
    "a time slice of the faulty GPU": (pod(container(f"{ONE}::3")), True),
    "a time slice of a healthy GPU": (pod(container(f"{TWO}::3")), False),
    "two time slices of one healthy GPU": (pod(container(f"{TWO}::0", f"{TWO}::1", count="2")), False),
    "a renamed shared GPU": (pod(container(f"{TWO}::0", resource="nvidia.com/gpu.shared")), False),
    "a MIG instance, whose GPU is unknown": (pod(container("MIG-1", resource="nvidia.com/mig-1g.10gb")), True),
    "a device of another form": (pod(container("0")), True),
    "HAMi's share": (
        pod(({"name": "x", "resources": {"limits": {GPU: "1", "nvidia.com/gpumem": "3000"}}}, container(TWO)[1])),
        True,
    ),
    "devices of another resource": (
        pod((container(TWO)[0], {"allocatedResourcesStatus": [EFA, *container(TWO)[1]["allocatedResourcesStatus"]]})),
        False,
    ),
    "an init container on the faulty GPU": (
        pod(
            ({"name": "log"}, {}),
            spec={"initContainers": [container()[0]]},
        ),
        True,
    ),
    "a claim": (pod(({"name": "x"}, {}), spec={"resourceClaims": [{"name": "gpu"}]}), True),
    "no GPU": (pod(({"name": "x"}, {})), False),
    "zero GPUs": (pod(container(count="0")), False),
    "not started": (pod(container(), phase="Pending"), True),
    "succeeded": (pod(phase="Succeeded"), False),
    "failed": (pod(phase="Failed"), False),
    "ending": (pod(deletionTimestamp="2026-11-28T12:00:00Z"), True),
    "of a Job": (pod(**owner("Job", group="batch/v1")), True),
    "of a DaemonSet": (pod(**owner("DaemonSet")), False),
    "static": (pod(annotations={"kubernetes.io/config.mirror": "x"}), False),
    "in kube-system": (pod(namespace="kube-system"), False),
    "ours": (pod(namespace="gpu-healthcheck"), False),
    "tolerates everything": (pod(spec=tolerating(operator="Exists")), False),
    "tolerates our taint": (pod(spec=tolerating(key=f"{PREFIX}/unhealthy", operator="Exists")), False),
    "tolerates its value": (pod(spec=tolerating(key=f"{PREFIX}/unhealthy", value="true", effect="NoSchedule")), False),
    "tolerates another value": (pod(spec=tolerating(key=f"{PREFIX}/unhealthy", value="false")), True),
    "tolerates another effect": (pod(spec=tolerating(operator="Exists", effect="NoExecute")), True),
    "tolerates another taint": (pod(spec=tolerating(key=GPU, operator="Exists")), True),
}
FAULT = Fault("Xid79", Severity.REBOOT, "gpu/0000:18:00.0", frozenset({ONE}))


@pytest.mark.parametrize(("found", "leaves"), CASES.values(), ids=CASES)
def test_pods_that_leave(found: Pod, leaves: bool) -> None:
    assert [target.name for target in targets(FAULT, [found])] == (["train-0"] if leaves else [])


def test_a_fault_of_the_node_concerns_pods_on_all_gpus() -> None:
    fault = Fault("FabricFailed", Severity.REBOOT, "node", None)

    assert len(targets(fault, [pod(container(TWO)), pod(container(f"{THREE}::0"))])) == 2


SLURM = {
    "Slinky": pod(labels={"app.kubernetes.io/name": "slurmd"}, **owner("NodeSet", "gpu", "slinky.slurm.net/v1beta1")),
    "Soperator": pod(**owner("NodeSet", "worker", "slurm.nebius.ai/v1alpha1")),
    "an owner's name": pod(**owner("StatefulSet", "slurmd-gpu")),
    "a container": pod(({**container()[0], "name": "slurmd"}, {})),
}


@pytest.mark.parametrize("found", SLURM.values(), ids=SLURM)
def test_a_slurm_node_is_recognised(found: Pod) -> None:
    assert [target.is_slurm_node for target in targets(FAULT, [found])] == [True]


def test_a_job_that_slurm_does_not_own_is_no_slurm_node() -> None:
    assert [target.is_slurm_node for target in targets(FAULT, [pod(**owner("Job"))])] == [False]


def target(uid: str, *, ends: bool = False, slurm: bool = False) -> Target:
    return Target("team", uid, uid, ends, slurm)


def eviction(uid: str, state: str = "announced", seconds_ago: float = 0) -> PodEviction:
    at = NOW - timedelta(seconds=seconds_ago)
    return PodEviction(namespace="team", name=uid, uid=uid, state=EvictionState(state), at=at, due=at + DELAY)


@pytest.mark.parametrize(
    ("found", "before", "states", "announced", "ready"),
    [
        ([target("a")], [], ["announced"], ["a"], []),
        ([target("a")], [eviction("a", seconds_ago=59)], ["announced"], [], []),
        ([target("a")], [eviction("a", seconds_ago=60)], ["announced"], [], ["a"]),
        ([target("a")], [eviction("a", "refused", 90)], ["refused"], [], ["a"]),
        ([target("a", ends=True)], [eviction("a", "requested", 90)], ["requested"], [], []),
        ([target("a", ends=True)], [eviction("a", seconds_ago=90)], ["requested"], [], []),
        # Another client ends this pod: nothing is to announce.
        ([target("a", ends=True)], [], [], [], []),
        # The replacement on the same node is announced, and has its whole delay.
        ([target("b")], [eviction("a", "requested", 90)], ["announced"], ["b"], []),
        ([target("a", slurm=True)], [], ["slurm"], ["a"], []),
        ([target("a", slurm=True)], [eviction("a", "slurm", 9000)], ["slurm"], [], []),
        ([], [eviction("a", "refused", 90)], [], [], []),
        # A request that was accepted for a pod that nevertheless lives on is repeated.
        ([target("a")], [eviction("a", "requested", 90)], ["requested"], [], ["a"]),
        # A forged or future announcement does not postpone the eviction.
        ([target("a")], [eviction("a", seconds_ago=-9000)], ["announced"], [], []),
    ],
)
def test_steps_of_an_eviction(
    found: list[Target], before: list[PodEviction], states: list[str], announced: list[str], ready: list[str]
) -> None:
    plan = plan_evictions(found, before, DELAY, NOW)

    assert [str(each.state) for each in plan.pods] == states
    assert [each.uid for each in plan.announced] == announced
    assert [each.uid for each in plan.ready] == ready
    assert all(each.due and each.due <= NOW + DELAY for each in plan.pods)


def test_without_a_delay_a_pod_is_ready_at_its_announcement() -> None:
    plan = plan_evictions([target("a")], [], timedelta(0), NOW)

    assert [each.uid for each in plan.ready] == [each.uid for each in plan.announced] == ["a"]


def test_no_more_pods_at_a_time_than_the_annotation_has_room_for() -> None:
    plan = plan_evictions([target(f"p{number}") for number in range(200)], [], DELAY, NOW)

    assert len(plan.pods) == len(plan.announced) == MOST_PODS
