"""Pods that request GPUs in other ways than by a resource: shares of KAI and run:ai, and what nothing here knows."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.model import Certainty
from tests.diagnosis.hami.clusters import card, scheduler, shared
from tests.diagnosis.states import GPU, Object, condition, container, event, judged, node, pod, results

LABEL = "nvidia.com/gpu.memory"
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-GB10"}
NO_GPUS = "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs."
NO_MEMORY = "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPU memory."
NOT_SYNCED = (
    "no nodes with enough resources were found: 1 node is not a gpu node or the gpu memory count on the node was not "
    "synced yet, task: <team/t>, node: <a>."
)
T, GPUS = "pod/team/t", f"resource/{GPU}"


def refused(message: str, minutes: float = 30) -> list[Object]:
    return [condition("PodScheduled", "False", "Unschedulable", message, minutes=minutes)]


def asks(message: str, scheduler: str = "kai-scheduler", /, name: str = "t", **annotations: str) -> Object:
    """Return a pod that waits for a share of a GPU, and requests no resource."""
    noted = {key.replace("_", "-"): text for key, text in annotations.items()}
    return pod(name, 0, annotations=noted, spec={"schedulerName": scheduler}, conditions=refused(message))


def shares(name: str, group: str = "g1", **annotations: str) -> Object:
    noted = {key.replace("_", "-"): text for key, text in annotations.items()}
    labels = {"runai-gpu-group": group}
    return pod(name, 0, on="a", annotations=noted, labels=labels, spec={"schedulerName": "kai-scheduler"})


def reserves(group: str = "g1", **changes: Any) -> Object:
    labels = {"runai-gpu-group": group}
    return pod(f"gpu-reservation-{group}", 1, on="a", namespace="kai-resource-reservation", labels=labels, **changes)


def steps(*objects: Object) -> str:
    (problem,) = judged(*objects).problems
    return " ".join(problem.found.steps)


ONE, EIGHT = node("a", 1, labels={LABEL: "81559"}), node("a", 8, labels={LABEL: "81559"})
WHOLE = pod("whole", 1, on="a")
FULL = [ONE, reserves(), shares("x", gpu_fraction="0.6"), shares("y", gpu_memory="20000")]
SILENT = pod("t", 0, spec={"schedulerName": "koord"})
ONLY_WHOLE = "only whole gpu jobs can run on a node with MigStrategy='single'"
STATES: dict[str, tuple[list[Object], tuple[str, str]]] = {
    "a fraction beside a whole GPU": ([ONE, WHOLE, asks(NO_GPUS, gpu_fraction="0.5")], ("GpusAllInUse", GPUS)),
    "a fraction of a project of run:ai": (
        [ONE, WHOLE, asks(NO_GPUS, "runai-scheduler", gpu_fraction="0.5")],
        ("GpusAllInUse", GPUS),
    ),
    "a fraction larger than what is left": ([*FULL, asks(NO_GPUS, gpu_fraction="0.5")], ("GpusAllInUse", GPUS)),
    "fractions of more GPUs than a node has": (
        [EIGHT, asks(NO_GPUS, gpu_fraction="0.5", gpu_fraction_num_devices="9")],
        ("MoreGpusThanAnyNodeHas", T),
    ),
    "memory without a label": ([node("a", 1), asks(NO_GPUS, gpu_memory="2000")], ("GpuMemoryLabelMissing", "node/a")),
    "memory without a label, in newer words": (
        [node("a", 1), asks(NO_MEMORY, gpu_memory="2000")],
        ("GpuMemoryLabelMissing", "node/a"),
    ),
    "memory without a label, in words about the node": (
        [node("a", 1), asks(NOT_SYNCED, gpu_memory="2000")],
        ("GpuMemoryLabelMissing", "node/a"),
    ),
    "memory of a board with unified memory": (
        [node("a", 1, labels=PRODUCT), asks(NO_MEMORY, gpu_memory="2000")],
        ("GpuMemoryLabelMissing", "node/a"),
    ),
    "a fraction that fits by this count, without a label": (
        [node("a", 1, labels=PRODUCT), asks(NO_GPUS, gpu_fraction="0.5")],
        ("GpuMemoryLabelMissing", "node/a"),
    ),
    "more memory than a GPU has": ([ONE, asks(NO_MEMORY, gpu_memory="90000")], ("MoreGpusThanAnyNodeHas", T)),
    "more memory than a GPU has, whose label counts bytes": (
        [node("a", 1, labels={LABEL: str(81559 << 20)}), asks(NO_MEMORY, gpu_memory="90000")],
        ("MoreGpusThanAnyNodeHas", T),
    ),
    "a share, and a taint": (
        [
            node("a", 1, taints=[{"key": "pool", "value": "x", "effect": "NoSchedule"}]),
            asks("no nodes with enough resources were found: 1 node(s) had untolerated taint(s).", gpu_fraction="0.5"),
        ],
        ("TaintNotTolerated", T),
    ),
    "a share by the annotation of a container": (
        [ONE, WHOLE, asks(NO_GPUS, **{"nvidia.com/container.main.gpu_memory.request": "2000"})],
        ("GpusAllInUse", GPUS),
    ),
    "a share where there is room by this count": (
        [
            EIGHT,
            asks("no nodes with enough resources were found: 1 only whole gpu jobs can run here", gpu_fraction="0.5"),
        ],
        ("NoNodeFits", T),
    ),
    "no known sign but the message": ([ONE, asks(NO_GPUS)], ("NoNodeFits", T)),
    "an event alone": (
        [
            ONE,
            one := pod("t", 0, spec={"schedulerName": "koord"}),
            event(one, "FailedScheduling", "too few GPUs", by="koord"),
        ],
        ("NoNodeFits", T),
    ),
}


@pytest.mark.parametrize(("state", "cause"), STATES.values(), ids=STATES)
def test_pod_that_requests_no_gpu_resource_has_its_cause(state: list[Object], cause: tuple[str, str]) -> None:
    assert results(judged(*state)) == [cause]


@pytest.mark.parametrize("state", [state for state, _ in STATES.values()], ids=STATES)
def test_share_that_is_given_out_has_no_cause(state: list[Object]) -> None:
    kept = [entry for entry in state if not (entry["kind"] == "Pod" and entry["metadata"]["name"] == "t")]
    assert results(judged(*kept, shares("t", "g9", gpu_fraction="0.1"))) == []


WITHOUT_GPUS = {
    "cpu is short": "0/2 nodes are available: 2 Insufficient cpu.",
    "GPU nodes are tainted": "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {gpu: a}.",
    "a volume is named after GPUs": 'persistentvolumeclaim "gpu-data" not found',
    "KAI lacks CPU cores": NO_GPUS.replace("GPUs", "CPU cores"),
    "a group is named after GPUs": 'PreFilter plugin "Coscheduling": gangName: team/gpu-web, podName: team/gpu-web-1',
}


@pytest.mark.parametrize("message", WITHOUT_GPUS.values(), ids=WITHOUT_GPUS)
def test_pod_without_gpus_is_outside_the_report(message: str) -> None:
    assert results(judged(ONE, asks(message))) == []


def test_share_of_the_default_scheduler_is_no_request() -> None:
    message = "0/1 nodes are available: 1 Insufficient cpu."
    assert results(judged(ONE, asks(message, "default-scheduler", gpu_fraction="0.5"))) == []


def test_shares_and_their_reservation_are_named() -> None:
    (problem,) = judged(*FULL, asks(NO_GPUS, gpu_fraction="0.5")).problems
    sharers = "pod/team/x (gpu-fraction=0.6), pod/team/y (gpu-memory=20000)"
    reservation = f"pod/kai-resource-reservation/gpu-reservation-g1 for {sharers}"
    request = "one pod requests 1 (gpu-fraction=0.5 by annotation: a GPU that is free or shared)"
    assert problem.found.evidence == (
        f"{request}; 0 {GPU} free on 1 eligible node",
        f"node/a: 1 allocatable, 0 free, used by {reservation} (1)",
    )
    assert "Or let the pods that own whole GPUs request shares, too" in problem.found.remedy[-1]


def test_label_set_by_hand_ends_the_finding() -> None:
    waits = asks(NO_MEMORY, gpu_memory="2000")
    assert steps(node("a", 1, labels=PRODUCT), waits).endswith(f"`kubectl label node a {LABEL}=1024000`")
    assert "gfd.enabled=true" in steps(node("a", 1), waits)
    discrete = node("a", 1, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    assert "1024000" not in steps(discrete, waits)

    labelled = node("a", 1, labels=PRODUCT | {LABEL: "1024000"})
    assert results(judged(labelled, waits)) == [("NoNodeFits", T)]  # until KAI tries again, its words remain
    assert results(judged(labelled, shares("t", gpu_memory="2000"), reserves())) == []


def test_request_that_is_not_judged_is_counted_in_its_schedulers_words() -> None:
    pods = [asks(NO_GPUS, name=f"t-{number}") for number in range(3)]
    problems = judged(ONE, *pods).problems
    assert [problem.found.certainty for problem in problems] == [Certainty.LIKELY] * 3
    unjudged = "1 pod with a request for GPUs that is not judged here: no resource, claim or known annotation"
    assert problems[0].found.evidence == (f"the scheduler: {NO_GPUS}", f"{unjudged}; schedulerName kai-scheduler")


LIMIT = (
    "team-a quota has reached the allowable limit of GPUs. Limit is 4 GPUs, currently 4 GPUs allocated and workload "
    "requested 2 GPUs"
)
QUOTA = (
    "NonPreemptibleOverQuota: Non-preemptible workload is over quota. Workload requested 0.2 GPUs, but team-a quota is "
    "0.3 GPUs, while 0.1 GPUs are already allocated for non-preemptible pods. Use a preemptible workload to exceed it."
)
BY_NODE = (
    "no nodes with enough resources were found: 1 node does not have enough capacity. Reason: NonPreemptibleOverQuota, "
    f"Details: {QUOTA}"
)
KOORDINATOR = (
    "0/3 nodes are available: Insufficient quotas [[nvidia.com/gpu]], quotaName: team-a, runtime: cpu:4, used: cpu:2, "
    "exceedDimensions: [nvidia.com/gpu]. preemption: not eligible"
)
PATCH = '`kubectl patch queues.scheduling.run.ai team-a --type=merge -p \'{"spec":{"resources":{"gpu":%s}}}\'`'
QUEUES = {
    "limit": (LIMIT, "kai-scheduler", ("QueueLimitReached", "queue/team-a"), PATCH % '{"limit":6.0}'),
    "quota of non-preemptible pods": (
        QUOTA,
        "kai-scheduler",
        ("QueueLimitReached", "queue/team-a"),
        PATCH % '{"quota":0.31}',
    ),
    "quota by each node": (
        BY_NODE,
        "kai-scheduler",
        ("QueueLimitReached", "queue/team-a"),
        "PriorityClass",
    ),
    "project of run:ai": (LIMIT, "runai-scheduler", ("QueueLimitReached", "queue/team-a"), "in run:ai"),
    "Koordinator": (
        KOORDINATOR,
        "koord-scheduler",
        ("QueueLimitReached", "elasticquota/team-a"),
        "ElasticQuota team-a",
    ),
    "CapacityScheduling": (
        "Pod team/t is rejected in PreFilter because ElasticQuota team/team-a is more than Max",
        "plugins",
        ("QueueLimitReached", "elasticquota/team-a"),
        "ElasticQuota team-a",
    ),
    "YuniKorn": (
        "Request 'x' does not fit in queue 'root.team-a' (requested map[nvidia.com/gpu:1], available map[])",
        "yunikorn",
        ("QueueLimitReached", "queue/root.team-a"),
        "yunikorn-configs",
    ),
    "no queue": (
        "QueueDoesNotExist: Queue 'vision' does not exist.",
        "kai-scheduler",
        ("QueueMissing", T),
        "no parent itself",
    ),
    "no leaf queue, in old words": ("Unable to schedule pod", "kai-scheduler", ("QueueMissing", T), "no parent itself"),
}


@pytest.mark.parametrize(("message", "scheduler", "cause", "step"), QUEUES.values(), ids=QUEUES)
def test_queue_that_refuses_a_pod_is_named(message: str, scheduler: str, cause: tuple[str, str], step: str) -> None:
    waits = pod("t", spec={"schedulerName": scheduler}, conditions=refused(message))
    assert results(judged(ONE, WHOLE, waits)) == [cause]
    assert step in steps(ONE, WHOLE, waits)


def test_queue_of_yunikorn_is_named_by_its_event_alone() -> None:
    waits = pod("t", spec={"schedulerName": "yunikorn"})
    told = event(waits, "Informational", QUEUES["YuniKorn"][0], warning=False, by="yunikorn")
    placed = event(waits, "Informational", "Application team-a is accepted", warning=False, by="yunikorn")

    assert results(judged(ONE, WHOLE, waits, told)) == [("QueueLimitReached", "queue/root.team-a")]
    assert results(judged(ONE, waits, placed)) == []


@pytest.mark.parametrize(
    ("why", "step"),
    [
        ("Reached timeout waiting for GPU reservation pod", "describe pod gpu-reservation-g1`"),
        ("cluster is scaling up, could not create reservation pod", "kai-scale-adjust"),
        ("admission webhook denied the request", "Fix what the message names."),
    ],
)
def test_pod_that_kai_cannot_bind_is_reported(why: str, step: str) -> None:
    bound = condition("PodBound", "False", "BindingError", f"Failed to bind pod team/t to node a: {why}", minutes=10)
    waits = asks(NO_GPUS, gpu_fraction="0.5")
    waits["status"]["conditions"].append(bound)
    failed = reserves(phase="Pending")
    rows = judged(ONE, failed, waits)
    assert ("BindingFailed", T) in results(rows)
    found = next(problem.found for problem in rows.problems if problem.found.cause.name == "BindingFailed")
    assert step in " ".join(found.remedy)


def test_rejected_reservation_is_the_pod_to_look_at() -> None:
    message = (
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0"
    )
    failed = reserves("h", phase="Failed", status={"reason": "UnexpectedAdmissionError", "message": message})
    why = "Failed to bind pod team/t to node a: Reached timeout waiting for GPU reservation pod"
    waits = asks("", gpu_fraction="0.5")
    waits["status"]["conditions"] = [condition("PodBound", "False", "BindingError", why)]
    diagnosis = judged(ONE, WHOLE, failed, waits)
    assert results(diagnosis) == [("GpusUnavailableAtAdmission", "node/a"), ("BindingFailed", T)]
    remedy = diagnosis.problems[1].found.remedy
    assert remedy[0].endswith("describe pod gpu-reservation-h`")
    assert not any("RuntimeClass" in step for step in remedy)


def test_request_that_is_not_judged_gets_its_schedulers_log() -> None:
    runs = pod("koord-scheduler-0", 0, on="a", namespace="koordinator-system")
    waits = asks("0/1 nodes are available: 1 not enough GPU resource.", "koord-scheduler")
    remedy = steps(ONE, runs, waits)
    assert "`kubectl -n koordinator-system logs koord-scheduler-0 --tail=200`" in remedy
    assert "`kubectl -n team describe pod t`" in remedy


def test_failed_binding_before_a_newer_refusal_is_past() -> None:
    bound = condition("PodBound", "False", "BindingError", "Failed to bind pod team/t to node a: x", minutes=50)
    waits = asks(NO_GPUS, gpu_fraction="0.5")
    waits["status"]["conditions"].append(bound)
    assert results(judged(ONE, WHOLE, waits)) == [("GpusAllInUse", GPUS)]


KAI = pod("kai-scheduler-default-5d", 0, on="a", namespace="kai-scheduler", spec={"schedulerName": "default-scheduler"})
OLD_KAI = pod("scheduler-5d", 0, on="a", namespace="kai-scheduler")


@pytest.mark.parametrize("scheduler", [KAI, OLD_KAI], ids=["named after KAI", "named by its namespace"])
def test_pod_that_kai_passes_over_is_reported(scheduler: Object) -> None:
    labels = {"kai.scheduler/queue": "vision", "kai.scheduler/node-pool": "h100"}
    waits = pod("t", 0, labels=labels, annotations={"gpu-fraction": "0.5"}, spec={"schedulerName": "kai-scheduler"})
    diagnosis = judged(ONE, scheduler, waits)
    assert results(diagnosis) == [("QueueMissing", T)]
    assert "label kai.scheduler/queue=vision" in diagnosis.problems[0].found.evidence
    assert "Create a SchedulingShard for the pod's label kai.scheduler/node-pool=h100" in " ".join(
        diagnosis.problems[0].found.remedy
    )


def test_pod_that_kai_has_just_got_or_refused_has_no_missing_queue() -> None:
    new = pod("t", 0, age=5, annotations={"gpu-fraction": "0.5"}, spec={"schedulerName": "kai-scheduler"})
    assert results(judged(ONE, KAI, new)) == []
    assert results(judged(ONE, WHOLE, KAI, asks(NO_GPUS, gpu_fraction="0.5"))) == [("GpusAllInUse", GPUS)]


def test_missing_kai_is_a_missing_scheduler() -> None:
    waits = pod("t", 0, annotations={"gpu-fraction": "0.5"}, spec={"schedulerName": "kai-scheduler"})
    assert results(judged(ONE, waits)) == [("SchedulerNotThere", T)]


VENDORS = {
    "huawei.com/Ascend910B3": "GpuResourceAbsent",
    "cambricon.com/vmlu": "GpuResourceAbsent",
    "hygon.com/dcunum": "GpuResourceAbsent",
    "kunlunxin.com/xpu": "GpuResourceAbsent",
    "iluvatar.ai/BI-V150.vCore": "GpuResourceAbsent",
    "vastaitech.com/va": "GpuResourceAbsent",
}


@pytest.mark.parametrize("resource", VENDORS)
def test_accelerator_of_another_vendor_is_judged(resource: str) -> None:
    message = f"0/1 nodes are available: 1 Insufficient {resource}."
    asked = [container("main", 0, resources={resource: "1"})]
    waits = pod("t", 0, containers=asked, conditions=refused(message))
    offers = node("a", None, allocatable={resource: "1"}, capacity={resource: "1"})
    busy = pod("busy", 0, on="a", containers=asked)

    assert results(judged(node("a", None), waits)) == [("GpuResourceAbsent", f"resource/{resource}")]
    assert results(judged(offers, busy, waits)) == [("GpusAllInUse", f"resource/{resource}")]
    assert results(judged(offers, busy)) == []


def test_share_of_another_vendor_that_hami_does_not_manage_is_enabled_in_its_chart() -> None:
    memory = "huawei.com/Ascend910B3-memory"
    asked = [container("main", 0, resources={"huawei.com/Ascend910B3": "1", memory: "28672"})]
    message = f"0/1 nodes are available: 1 Insufficient {memory}."
    waits = pod("t", 0, containers=asked, spec={"schedulerName": "hami-scheduler"}, conditions=refused(message))
    offers = node("a", None, capacity={"huawei.com/Ascend910B3": "32"}, allocatable={"huawei.com/Ascend910B3": "32"})
    state = [offers, shared("b", card(0)), scheduler(), waits]
    assert ("GpuResourceAbsent", f"resource/{memory}") in results(judged(*state))
    found = next(each.found for each in judged(*state).problems if each.found.subject == f"resource/{memory}")
    assert "devices.ascend.enabled=true" in found.remedy[-1]


def test_slurm_that_counts_its_gpus_only_is_explained() -> None:
    message = 'running PreBind plugin "SlurmBridge": expression cannot be empty string'
    conditions = [condition("PodScheduled", "False", "SchedulerError", message, minutes=30)]
    waits = pod("t", spec={"schedulerName": "slurm-bridge-scheduler"}, conditions=conditions)
    assert results(judged(ONE, waits)) == [("SchedulerFailed", T)]
    assert "AutoDetect=nvml" in steps(ONE, waits)


def test_vgpus_of_volcano_are_explained_by_cards() -> None:
    resources = {"volcano.sh/vgpu-number": "2"}
    message = "0/1 nodes are unavailable: 1 no enough gpu cards on node ."
    offers = node("a", None, allocatable={"volcano.sh/vgpu-number": "10"}, capacity={"volcano.sh/vgpu-number": "10"})
    waits = pod("t", 0, containers=[container("main", 0, resources=resources)], conditions=refused(message))
    assert results(judged(offers, waits)) == [("NoNodeFits", T)]
    assert "node-vgpu-register" in steps(offers, waits)


def test_memory_per_card_of_volcano_is_no_unknown_resource() -> None:
    resources = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}
    offers = node("a", None, allocatable={"volcano.sh/vgpu-number": "10"}, capacity={"volcano.sh/vgpu-number": "10"})
    message = "0/1 nodes are unavailable: 1 node a not initialized with devicehamivgpu."
    waits = pod("t", 0, containers=[container("main", 0, resources=resources)], conditions=refused(message))
    assert results(judged(offers, waits)) == [("NoNodeFits", T)]
    assert "volcano-device-plugin" in steps(offers, waits)
