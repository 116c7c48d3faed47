"""Steps name the object, the command or the value that ends a cause; evidence agrees with the node's record."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.model import Certainty
from tests.diagnosis.component_states import gpu_node, operator
from tests.diagnosis.states import (
    GPU,
    Object,
    ago,
    condition,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    recorded,
    terminated,
    waiting,
)
from tests.diagnosis.test_unscheduled import waits

CLAIM_WAITS = "pod has unbound immediate PersistentVolumeClaims"
MOUNTS = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
HEALTHY = recorded(status="pass", severity="PASS", inventory={"pci": 8, "nvml": 8})


def closed(key: str, kind: str = "") -> list[Object]:
    """A node with a taint, and the condition that causes it."""
    pressure = [condition(kind, "True", "KubeletHasSo")] if kind else []
    tainted = node("a", taints=[{"key": key, "effect": "NoSchedule"}], conditions=pressure)
    return [tainted, waits(f"1 node(s) had untolerated taint {{{key}: }}")]


def unbound(storage_class: str, message: str = "") -> list[Object]:
    spec = {"storageClassName": storage_class} if storage_class else {}
    claim = obj("PersistentVolumeClaim", "data", "team", spec=spec, status={"phase": "Pending"})
    events = [event(claim, "ProvisioningFailed", message)] if message else []
    return [node("a"), claim, *events, waits(CLAIM_WAITS, spec=MOUNTS)]


def crashed(words: str, **changes: Any) -> Object:
    ends = waiting(
        "CrashLoopBackOff", restartCount=5, lastState={"terminated": terminated(1, message=words, minutes=9)}
    )
    return pod("t", on="a", states=[ends], **changes)


SHARE = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4096,30:;"}
HAMI_OOM = "[HAMI-core ERROR (pid:1 thread=1 allocator.c:54)]: Device 0 OOM 8 / 4"
STEPS: list[tuple[str, list[Object], str, str]] = [
    (
        "disk",
        closed("node.kubernetes.io/disk-pressure", "DiskPressure"),
        "NodeNotReady",
        "`crictl rmi --prune` removes unused images",
    ),
    (
        "memory",
        closed("node.kubernetes.io/memory-pressure", "MemoryPressure"),
        "NodeNotReady",
        "`kubectl get pods -A -o wide --field-selector=spec.nodeName=a`",
    ),
    ("Karpenter", closed("karpenter.sh/disrupted"), "NodeUnderMaintenance", "Wait: Karpenter drains this node"),
    (
        "Cluster Autoscaler",
        closed("ToBeDeletedByClusterAutoscaler"),
        "NodeUnderMaintenance",
        "Wait: the Cluster Autoscaler drains this node",
    ),
    ("no class", unbound(""), "VolumeClaimNotBound", "Name a StorageClass in the claim"),
    (
        "no such class",
        unbound("fast", 'storageclass.storage.k8s.io "fast" not found'),
        "VolumeClaimNotBound",
        "Create the StorageClass fast; or name an existing one: `kubectl get storageclass`",
    ),
    ("a provisioner", unbound("fast"), "VolumeClaimNotBound", "`kubectl describe storageclass fast`"),
    (
        "HAMi's limit",
        [node("a"), crashed(HAMI_OOM, annotations=SHARE)],
        "GpuMemoryExhausted",
        "Raise nvidia.com/gpumem in the container's limits (now 4096 MiB per card)",
    ),
    (
        "HAMi's limit, unknown",
        [node("a"), crashed(HAMI_OOM)],
        "GpuMemoryExhausted",
        "Raise nvidia.com/gpumem in the container's limits (in MiB)",
    ),
    (
        "a whole GPU's memory",
        [node("a"), crashed("CUDA out of memory")],
        "GpuMemoryExhausted",
        "Make the batch or the model smaller",
    ),
    (
        "another platform",
        [
            node("a", labels={"kubernetes.io/arch": "arm64"}),
            pod("t", on="a", phase="Pending", states=[waiting("ErrImagePull", "no match for platform in manifest")]),
        ],
        "ImageOfAnotherArchitecture",
        "the node needs arm64: `docker buildx imagetools inspect registry.example/train:1`",
    ),
    (
        "huge pages",
        [
            node("a"),
            waits(
                "1 Insufficient hugepages-2Mi", containers=[container("main", 1, resources={"hugepages-2Mi": "4Gi"})]
            ),
        ],
        "MoreCpuOrMemoryThanAnyGpuNodeHas",
        "`hugepagesz=2M hugepages=2048`",
    ),
]


@pytest.mark.parametrize(("state", "cause", "step"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
def test_the_steps_name_what_ends_the_cause(state: list[Object], cause: str, step: str) -> None:
    (problem,) = judged(*state).problems

    assert problem.found.cause.name == cause
    assert step in " ".join(problem.found.remedy)


LOST = "CUDA error: GPU is lost"
MISSING = [condition("GPUMissing", "True", "GPUMissing", "7 of 8 GPUs", minutes=30)]


@pytest.mark.parametrize(
    ("annotations", "certainty", "step"),
    [
        (HEALTHY, Certainty.LIKELY, "`gpu-healthcheck quarantine a`"),
        (recorded(timestamp=ago(90), status="pass", inventory={"pci": 8, "nvml": 8}), Certainty.PROVEN, ""),
        (recorded(status="warn", inventory={"pci": 8, "nvml": 7}), Certainty.PROVEN, ""),
        ({}, Certainty.PROVEN, ""),
    ],
    ids=["a newer record without a fault", "an older record", "a GPU does not respond", "no record"],
)
@pytest.mark.parametrize("reported", [True, False], ids=["by a monitor", "by a program"])
def test_a_report_that_a_newer_record_contradicts_is_not_certain(
    annotations: dict[str, str], certainty: Certainty, step: str, reported: bool
) -> None:
    faulty = node("a", annotations=annotations, conditions=MISSING if reported else [])
    (problem,) = judged(faulty, *([] if reported else [crashed(LOST)])).problems
    shown = any("8 respond to NVML" in line for line in problem.found.evidence)

    assert problem.found.cause.name == ("NodeReportsGpuFault" if reported else "GpuHardwareFault")
    assert problem.found.certainty is certainty
    assert (step != "") == shown
    assert (step != "") == any("gpu-healthcheck quarantine a" in words for words in problem.found.remedy)


@pytest.mark.parametrize(
    ("nvml", "step"), [(8, "All GPUs respond by now, so restart"), (7, "Find out why the plugin does not offer 1 GPU:")]
)
def test_gpus_that_respond_are_not_called_missing(nvml: int, step: str) -> None:
    annotations = recorded(status="pass", severity="PASS", inventory={"pci": 8, "nvml": nvml})
    state = operator(gpu_node("a", allocatable={GPU: "7"}, annotations=annotations))
    (problem,) = judged(*state).problems

    assert problem.found.cause.name == "UnhealthyGpus"
    assert problem.found.remedy[0].startswith(step)
    assert f"agent's record of 11:58Z: 8 GPUs on PCI, {nvml} respond to NVML" in problem.found.evidence
