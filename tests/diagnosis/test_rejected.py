"""Pods that a kubelet rejected, each by its message, and the same pods after their replacement."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.component_states import PLUGIN, gpu_node, operand, operator
from tests.diagnosis.states import (
    GPU,
    Object,
    ago,
    consequences,
    container,
    judged,
    messages,
    node,
    obj,
    pod,
    recorded,
    results,
    terminated,
)

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


def steps_of(*state: Object, cause: str, **more: Any) -> list[str]:
    """Return the remedy of the finding with this cause, which stands by itself or below another one."""
    problems = judged(*state, **more).problems
    found = [each.found for problem in problems for each in (problem, *problem.consequences)]
    return list(next(each.remedy for each in found if each.cause.name == cause))


def refused(name: str, words: str, *, minutes: float = 20, **changes: Any) -> Object:
    status = {"reason": UNEXPECTED, "message": f"Pod was rejected: Allocate failed due to {words}, which is unexpected"}
    return pod(name, on="a", phase="Failed", status=status, age=minutes, **changes)


PLUGIN_POD = operator(gpu_node("a"))
NO_HEALTHY = f"no healthy devices present; cannot allocate unhealthy devices {GPU}"
CHOICE = "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = "
LINK = f"{CHOICE}unable to get device link information: error getting"
LOST = (
    f"{CHOICE}Unable to retrieve list of available devices: error creating nvml.Device 5: nvml: GPU is lost",
    f"{LINK} P2P link for devices (0, 3): Unknown Error",
    f"{LINK} NVLink for devices (0, 1): failed to get nvlink remote pci info: failed to get nvlink state: GPU is lost",
)
TOO_FEW = f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 0"
BARE = "kubectl -n team get pod desk -o yaml > desk.yaml"


@pytest.mark.parametrize("words", [NO_HEALTHY, f"cannot allocate unregistered device {GPU}"])
def test_node_that_is_healthy_again_needs_only_the_pod_again(words: str) -> None:
    cause = "NoHealthyGpuAtAdmission" if words == NO_HEALTHY else "DeviceResourceUnregistered"
    first, save, create = steps_of(*PLUGIN_POD, refused("desk", words), cause=cause)

    assert first == "node/a offers all its GPUs and has no fault now: only the rejected pods have to be recreated."
    assert BARE in save
    assert "kubectl -n team delete pod desk && " in create
    assert results(judged(*PLUGIN_POD, pod("desk", on="a"))) == []


def test_node_with_another_fault_is_not_called_healthy() -> None:
    fault = recorded({"reason": "Xid79", "severity": "RESET", "subject": "gpu/0"})
    unready = operand(PLUGIN, "a", phase="Pending", states=[])
    flapping = [refused(f"old-{minutes}", NO_HEALTHY, minutes=minutes) for minutes in (300, 100)]
    for state in (
        operator(gpu_node("a", annotations=fault)),
        [*operator(gpu_node("a"), without=[PLUGIN]), unready],
        [*PLUGIN_POD, *flapping],
    ):
        remedy = steps_of(*state, refused("desk", NO_HEALTHY), cause="NoHealthyGpuAtAdmission")
        assert not any("has no fault now" in step for step in remedy)


@pytest.mark.parametrize("words", LOST)
def test_lost_gpu_is_cordoned_first_and_its_pods_made_again_without_a_drain(words: str) -> None:
    cause = "GpuLostAtAllocation" if "GPU is lost" in words else "DevicePluginAllocateFailed"
    remedy = steps_of(*PLUGIN_POD, refused("desk", words), cause=cause)
    order = ("cordon a", BARE, "delete pod desk", "spec.nodeName=a", "reboot the machine", "replaced", "uncordon a")

    assert [part for step, part in zip(remedy, order, strict=True) if part not in step] == []


def test_lost_gpu_of_a_node_with_our_agent_is_reset_by_our_command() -> None:
    fault = recorded({"reason": "Xid79", "severity": "RESET", "subject": "gpu/0"})
    remedy = steps_of(gpu_node("a", annotations=fault), refused("desk", LOST[0]), cause="GpuLostAtAllocation")

    assert any("gpu-healthcheck reset a`" in step for step in remedy)
    assert not any("kubectl drain" in step for step in remedy)


def test_one_dead_gpu_that_rejects_all_pods_has_its_steps_once_at_the_node() -> None:
    state = [*operator(gpu_node("a", allocatable={GPU: "7"})), refused("desk", LOST[1])]
    (problem,) = judged(*state).problems

    assert (problem.found.cause.name, consequences(problem)) == (
        "UnhealthyGpus",
        [("DevicePluginAllocateFailed", "node/a")],
    )
    assert "the node's free GPUs are unusable too" in problem.found.remedy[0]
    assert problem.found.remedy[1] == "First keep new pods off the node: `kubectl cordon a`"
    assert any(BARE in step for step in problem.found.remedy)
    assert problem.consequences[0].found.remedy == (
        "Follow the steps of UnhealthyGpus of the node, which recreate these pods too.",
    )


def test_unhealthy_gpu_that_rejects_no_pod_leaves_the_others_in_use() -> None:
    remedy = steps_of(*operator(gpu_node("a", allocatable={GPU: "7"})), cause="UnhealthyGpus")

    assert not any("cordon" in step or "drain" in step for step in remedy)
    assert any("logs nvidia-device-plugin-daemonset-a" in step for step in remedy)


@pytest.mark.parametrize(
    "words",
    [
        f"{LINK.replace('error getting', 'error calling nvml.Init: Unknown Error')}",
        "rpc error: code = Unavailable",
        f"{LINK} P2P link for devices (0, 1): Not Supported",
    ],
)
def test_plugin_without_nvml_is_restarted_and_its_node_not_drained(words: str) -> None:
    remedy = steps_of(*PLUGIN_POD, refused("desk", words), cause="DevicePluginAllocateFailed")

    assert "kubectl cordon a" in remedy[0]
    assert "delete pod nvidia-device-plugin-daemonset-a" in remedy[2]
    assert "kubectl uncordon a" in remedy[3]
    assert not any("drain" in step for step in remedy)


def test_plugin_failure_before_a_gpu_pod_started_is_over() -> None:
    runs = pod("later", on="a", age=5)
    first, *_ = steps_of(*PLUGIN_POD, runs, refused("desk", LOST[0]), cause="GpuLostAtAllocation")

    assert "only the rejected pods have to be recreated" in first


@pytest.mark.parametrize(
    ("version", "labels", "restart"),
    [
        ("v1.33.4", {}, "systemctl restart kubelet"),
        ("v1.33.4+k3s1", {}, "systemctl restart k3s-agent"),
        ("v1.33.4+rke2r1", {"node-role.kubernetes.io/control-plane": "true"}, "systemctl restart rke2-server"),
        ("v1.33.4+k0s.0", {}, "systemctl restart k0sworker"),
        ("v1.33.4", {"microk8s.io/cluster": "true"}, "snap restart microk8s.daemon-kubelite"),
    ],
)
def test_stale_list_of_the_kubelet_is_shown_by_arithmetic(version: str, labels: dict[str, str], restart: str) -> None:
    state = [*operator(gpu_node("a", kubelet=version, labels=labels)), pod("busy", 1, on="a", age=90)]
    state += [refused(f"j-{minutes}", TOO_FEW, minutes=minutes, owner=("Job", "j")) for minutes in (200, 10)]
    (problem,) = judged(*state).problems

    sentence = f"8 {GPU} - 1 requested by pods then = 7 free; the kubelet counted 0 free"
    assert f"node/a: {sentence}" in problem.found.evidence
    assert restart in problem.found.remedy[0]
    assert "kubelet_internal_checkpoint" in problem.found.remedy[0]
    assert "delete pod j-200 j-10" in problem.found.remedy[1]


def restarts_first(*state: Object) -> bool:
    return "restart the kubelet there" in steps_of(*state, cause="GpusUnavailableAtAdmission")[0]


def test_kubelet_is_not_restarted_while_another_reason_is_visible() -> None:
    twice = [refused(f"j-{minutes}", TOO_FEW, minutes=minutes) for minutes in (200, 10)]
    other = pod("b", 1, on="a", spec={"schedulerName": "kai-scheduler"})
    used = pod("busy", 8, on="a", age=300)
    ended = {
        "age": 300,
        "phase": "Succeeded",
        "states": [{"name": "main", "state": {"terminated": terminated(0, minutes=280)}}],
    }

    assert restarts_first(*PLUGIN_POD, *twice)
    assert restarts_first(*PLUGIN_POD, *twice, refused("first", TOO_FEW, minutes=290), pod("old", 8, on="a", **ended))
    assert not restarts_first(*PLUGIN_POD, *twice, other)
    assert not restarts_first(*PLUGIN_POD, *twice, used)
    assert not restarts_first(*operator(gpu_node("a", allocatable={GPU: "7"})), *twice)
    assert not restarts_first(gpu_node("a"), *twice)  # the pods of one namespace alone


def test_single_rejection_that_contradicts_the_pods_is_tried_again_first() -> None:
    remedy = steps_of(*PLUGIN_POD, refused("desk", TOO_FEW, minutes=5), cause="GpusUnavailableAtAdmission")

    assert "only the rejected pods have to be recreated" in remedy[0]
    assert remedy[-1].startswith("If they are rejected again, restart the kubelet on the node:")


def test_pod_that_would_fail_as_it_was_is_corrected_before_it_is_created() -> None:
    too_large = f"request for '{GPU}: 2' too large: maximum request size for shared resources is 1; found 2"
    remedy = steps_of(*PLUGIN_POD, refused("desk", too_large), cause="SharedGpuRequestTooLarge")

    assert "Then correct the file, delete and create" in remedy[-1]


EMPTY = f"Pod was rejected: Node didn't have enough resource: {GPU}, requested: 1, used: 0, capacity: 0"


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        (gpu_node("a"), ("DeviceResourceUnregistered", "node/a")),
        (node("a", None), ("NodeOverbooked", "node/a")),
    ],
)
def test_kubelet_without_devices_waits_for_its_plugin_or_has_no_gpus(place: Object, cause: tuple[str, str]) -> None:
    left = pod("desk", on="a", phase="Failed", status={"reason": "OutOfnvidia.com/gpu", "message": EMPTY})

    assert cause in results(judged(*operator(place) if cause[0].startswith("Device") else [place], left))


def test_overbooked_by_the_count_of_the_kubelet_alone_is_made_again() -> None:
    full = f"Pod was rejected: Node didn't have enough resource: {GPU}, requested: 1, used: 8, capacity: 8"
    left = pod("desk", on="a", age=20, phase="Failed", status={"reason": "OutOfnvidia.com/gpu", "message": full})
    by_kubelet = steps_of(*PLUGIN_POD, left, cause="NodeOverbooked")
    by_pods = steps_of(*PLUGIN_POD, left, pod("busy", 8, on="a", age=90), cause="NodeOverbooked")

    assert "only the rejected pods have to be recreated" in by_kubelet[0]
    assert by_pods[0].startswith("Let one scheduler schedule all pods")


def test_plugin_that_may_not_read_a_mig_gpu_gets_the_right_and_its_gpu_no_reset() -> None:
    words = "rpc error: code = Unknown desc = error creating nvml.Device 5: nvml: Insufficient Permissions"
    remedy = " ".join(steps_of(*PLUGIN_POD, refused("desk", words), cause="DevicePluginAllocateFailed"))

    assert "NVIDIA_MIG_MONITOR_DEVICES=all" in remedy
    assert "reset" not in remedy


def test_rejected_pod_that_asks_for_another_vendors_share_is_reported() -> None:
    share = {"aliyun.com/gpu-mem": "3"}
    offers = node("a", None, capacity=share, allocatable=share, labels={"nvidia.com/gpu.present": "true"})
    message = {"reason": UNEXPECTED, "message": "Allocate failed due to rpc error: failed to find gpu id"}
    holds = [container("main", 0, resources=share)]

    sick = pod("t", 0, on="a", phase="Failed", containers=holds, status=message)
    assert results(judged(offers, sick)) == [("DevicePluginAllocateFailed", "node/a")]
    assert results(judged(offers, pod("t", 0, on="a", containers=holds))) == []


def test_rejection_without_its_message_is_read_first() -> None:
    """A line of `kubectl get pods` has the reason alone."""
    (problem,) = judged(refused("desk", "") | {"status": {"phase": "Failed", "reason": UNEXPECTED}}).problems

    assert problem.found.cause.name == "GpuPodRejected"
    assert "kubectl -n team describe pod desk" in problem.found.remedy[0]


def test_pod_that_had_succeeded_before_its_rejection_is_ignored() -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": ago(90)}}}
    state = [*PLUGIN_POD, refused("desk", TOO_FEW)]
    state[-1]["status"]["containerStatuses"] = [ended]

    assert results(judged(*state)) == []


@pytest.mark.parametrize("words", [NO_HEALTHY, TOO_FEW, LOST[0]])
def test_rejection_is_known_from_the_pod_alone(words: str) -> None:
    (problem,) = judged(refused("desk", words), missing=["Event", "Node", "DaemonSet", "Job"]).problems

    assert problem.found.subject == "node/a"
    assert any(BARE in step for step in problem.found.remedy)
    assert not any("has no fault now" in step for step in problem.found.remedy)


def test_failed_pods_of_others_are_in_no_step() -> None:
    """Many pods of one workload, and beside them a failed pod of another one on the same node."""
    many = [
        refused(f"llm-{number}", LOST[0], owner=("ReplicaSet", "llm-1"), labels={"app": "llm"}) for number in range(40)
    ]
    remedy = steps_of(*PLUGIN_POD, *makers(0), *many, pod("x", 0, on="a", phase="Failed"), cause="GpuLostAtAllocation")
    (delete,) = (step for step in remedy if "kubectl -n team delete" in step)

    assert delete.startswith("Delete 40 Failed pods, for which ReplicaSet llm-1 creates others: ")
    assert "--field-selector=spec.nodeName=a,status.phase=Failed --selector=app=llm" in delete
