"""For each cause of an unscheduled pod one state that yields it, and a twin that yields nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diagnosis.model import Certainty
from healthcheck.node.state import UNHEALTHY
from tests.diagnosis.states import (
    GPU,
    Object,
    ago,
    condition,
    consequences,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    results,
    terminated,
    waiting,
)

JOB = "job/team/train"
MIG = "nvidia.com/mig-1g.10gb"
_PREEMPTION = " preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."


def unscheduled(message: str, reason: str = "Unschedulable") -> list[Object]:
    return [condition("PodScheduled", "False", reason, message, minutes=30)]


def waits(reasons: str, gpus: int = 1, /, name: str = "train-0", **changes: Any) -> Object:
    """A pod of the Job `train` that the scheduler refuses for these reasons."""
    message = f"0/2 nodes are available: {reasons}.{_PREEMPTION}"
    return pod(name, gpus, owner=("Job", "train"), conditions=unscheduled(message), **changes)


def asks(resource: str, amount: int = 1, **changes: Any) -> Object:
    containers = [container("main", 0, resources={resource: str(amount)})]
    return waits(f"2 Insufficient {resource}", 0, containers=containers, **changes)


def runs(name: str, gpus: int, on: str, **changes: Any) -> Object:
    return pod(name, gpus, on=on, **changes)


SHORT = "2 Insufficient nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
SILENT_NODE = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
TEAM = [{"key": "dedicated", "value": "vision", "effect": "NoSchedule"}]
GPU_TAINT = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
GONE = {"deletionTimestamp": ago(40), "deletionGracePeriodSeconds": 30}
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
SHARED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"}
HAS_GPU = {"nvidia.com/gpu.present": "true"}
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
SELECTS_A100 = {"nodeSelector": A100}
UNTOLERATED = "2 node(s) had untolerated taint {nvidia.com/gpu: present}"
SELECTOR = "2 node(s) didn't match Pod's node affinity/selector"


CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one-gpu"}]}


def claimed(selector: str = "", **changes: Any) -> list[Object]:
    """A pod with a claim of one GPU, the claim and its class."""
    device = {
        "name": "gpu",
        "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1},
    }
    if selector:
        device["exactly"]["selectors"] = [{"cel": {"expression": selector}}]  # type: ignore[index]
    claim = obj("ResourceClaim", "one-gpu", "team", spec={"devices": {"requests": [device]}})
    entry = waits("2 cannot allocate all claims", 0, spec=CLAIMS, **changes)
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    cls = obj("DeviceClass", "gpu.nvidia.com", spec={"selectors": [{"cel": {"expression": expression}}]})
    return [entry, claim, cls]


def devices(*names: str, on: str = "a", product: str = "NVIDIA H100", generation: int = 1, count: int = 1) -> Object:
    attributes = {"type": {"string": "gpu"}, "productName": {"string": product}}
    each = [{"name": name, "attributes": attributes} for name in names]
    pool = {"name": on, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": "gpu.nvidia.com", "nodeName": on, "pool": pool, "devices": each}
    return obj("ResourceSlice", f"{on}-slice-{generation}", spec=spec)


def tainted(entry: Object, effect: str = "NoSchedule") -> Object:
    """The same slice, in which its driver taints each device."""
    for device in entry["spec"]["devices"]:
        device["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect}]
    return entry


def taint_rule(device: str = "gpu-0", name: str = "", *, heeded: bool = True, **changes: Any) -> Object:
    """As our agent writes it; `spec` is merged."""
    selector = {"driver": "gpu.nvidia.com", "pool": "a", "device": device}
    taint = {"key": UNHEALTHY, "value": "REBOOT", "effect": "NoSchedule"}
    conditions = [{"type": "EvictionInProgress", "status": "False", "reason": "OtherEffect"}] if heeded else []
    spec = {"deviceSelector": selector, "taint": taint, **changes}
    name = name or f"gpu-healthcheck.a.{device}"
    return obj("DeviceTaintRule", name, spec=spec, status={"conditions": conditions})


def by_resource() -> Object:
    """A DeviceClass that stands behind `nvidia.com/gpu`."""
    selectors = [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]
    return obj("DeviceClass", "gpu.nvidia.com", spec={"selectors": selectors, "extendedResourceName": GPU})


def taken(device: str, name: str = "other") -> Object:
    result = {"driver": "gpu.nvidia.com", "pool": "a", "device": device, "request": "gpu"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"name": "other-0", "resource": "pods"}],
    }
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return obj("ResourceClaim", name, "team", spec={"devices": {"requests": [request]}}, status=status)


def queued(reason: str, message: str, status: str = "False", age: float = 30) -> Object:
    """Kueue's Workload of the Job `train`."""
    template = {"spec": {"containers": [container("main", 1)]}}
    spec = {"queueName": "vision", "podSets": [{"name": "main", "count": 1, "template": template}]}
    owner = {"kind": "Job", "name": "train", "uid": "x", "controller": True}
    fields = {"conditions": [condition("QuotaReserved", status, reason, message)]}
    metadata = {"ownerReferences": [owner]}
    return obj("Workload", "job-train-1", "team", metadata=metadata, spec=spec, status=fields, age=age)


IN_LINE = (
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h, 2 more needed"
)


def group(phase: str = "Pending", gpus: int = 8, age: float = 30, api: str = "scheduling.volcano.sh/v1beta1") -> Object:
    """The PodGroup of a Volcano Job, which has no pods until it is let in."""
    owner = {"kind": "Job", "name": "train", "uid": "x", "controller": True}
    spec = {"queue": "vision", "minMember": 2, "minResources": {"cpu": "8", GPU: str(gpus)}}
    entry = obj("PodGroup", "train-x", "team", age=age, metadata={"ownerReferences": [owner]}, spec=spec)
    return entry | {"apiVersion": api, "status": {"phase": phase}}


def queue(given: int = 8, most: int = 8, state: str = "Open") -> Object:
    status = {"state": state, "allocated": {GPU: str(given)}}
    entry = obj("Queue", "vision", spec={"capability": {GPU: str(most)}}, status=status)
    return entry | {"apiVersion": "scheduling.volcano.sh/v1beta1"}


HELD = "VolcanoHoldsGroup"
ZONE = "topology.kubernetes.io/zone"


def volume(name: str, zone: str, *, old: bool = False) -> list[Object]:
    """A claim of that name, bound to a volume in the zone; `old`: only the volume's label tells of it."""
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec: Object = {} if old else {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    claim = obj("PersistentVolumeClaim", name, "team", spec={"volumeName": f"pv-{name}"}, status={"phase": "Bound"})
    labels = {"labels": {ZONE: zone}} if old else {}
    return [claim, obj("PersistentVolume", f"pv-{name}", metadata=labels, spec=spec)]


def mounts(*names: str) -> Object:
    spec = {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]}
    return waits("1 node(s) had volume node affinity conflict, 1 Insufficient nvidia.com/gpu", 8, spec=spec)


def lease(name: str, minutes: float) -> Object:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": ago(minutes)}
    return obj("Lease", name, "kube-system", spec=spec)


def scheduler(name: str, namespace: str) -> Object:
    """Its pod is Running between two crashes, and not ready."""
    crashes = [waiting("CrashLoopBackOff", "back-off", name="scheduler", restartCount=30)]
    return pod(name, 0, on="a", namespace=namespace, states=crashes, conditions=[condition("Ready", "False")])


def unlooked(by: str) -> Object:
    return pod("train-0", owner=("Job", "train"), spec={"schedulerName": by})


IN_A, IN_B = (node(name, labels={ZONE: name}) for name in "ab")
STATES: list[tuple[str, list[Object], str, str]] = [
    ("all in use", [node("a"), runs("busy", 8, "a"), waits(SHORT)], "GpusAllInUse", f"resource/{GPU}"),
    (
        "fragmented",
        [node("a"), node("b"), runs("x", 6, "a"), runs("y", 6, "b"), waits(SHORT, 4)],
        "GpusFragmented",
        f"resource/{GPU}",
    ),
    ("more than any", [node("a"), node("b"), waits(SHORT, 16)], "MoreGpusThanAnyNodeHas", JOB),
    (
        "stuck terminating",
        [node("a"), runs("old", 8, "a", metadata=GONE | {"finalizers": ["example.com/keep"]}), waits(SHORT, 8)],
        "TerminatingPodHoldsGpus",
        "pod/team/old",
    ),
    (
        "unhealthy",
        [node("a", allocatable={GPU: "7"}), runs("busy", 7, "a"), waits(SHORT)],
        "UnhealthyGpus",
        "node/a",
    ),
    (
        "cpu used up",
        [
            node("a"),
            pod("etl", 0, on="a", containers=[container("main", 0, resources={"cpu": "95"})]),
            waits("1 Insufficient cpu", 0, containers=[container("main", 1, resources={"cpu": "8"})]),
        ],
        "CpuOrMemoryUsedUp",
        "resource/cpu",
    ),
    (
        "more cpu than any",
        [node("a"), waits("2 Insufficient cpu", 0, containers=[container("main", 1, resources={"cpu": "128"})])],
        "MoreCpuOrMemoryThanAnyGpuNodeHas",
        JOB,
    ),
    ("no GPUs anywhere", [node("a", None), waits(SHORT)], "GpuResourceAbsent", f"resource/{GPU}"),
    ("misspelled", [node("a"), asks("nvidia.com/gpus")], "ResourceNameUnknown", JOB),
    ("vendor misspelled", [node("a"), asks("nividia.com/gpu")], "ResourceNameUnknown", JOB),
    ("of another vendor", [node("a"), asks("amd.com/gpu")], "ResourceNameUnknown", JOB),
    (
        "mig profile absent",
        [
            node("a", 0, allocatable={"nvidia.com/mig-3g.40gb": "2"}, capacity={"nvidia.com/mig-3g.40gb": "2"}),
            asks(MIG),
        ],
        "MigProfileAbsent",
        JOB,
    ),
    ("mig single", [node("a", labels={"nvidia.com/mig.strategy": "single"}), asks(MIG)], "MigProfileAbsent", JOB),
    (
        "only mig",
        [node("a", None, allocatable={MIG: "7"}, capacity={MIG: "7"}), waits(SHORT)],
        "GpusOnlyAsMigSlices",
        JOB,
    ),
    (
        "renamed by sharing",
        [node("a", None, allocatable={f"{GPU}.shared": "32"}, capacity={f"{GPU}.shared": "32"}), waits(SHORT)],
        "SharedGpuResourceRenamed",
        JOB,
    ),
    ("taint", [node("a", taints=GPU_TAINT), waits(UNTOLERATED)], "TaintNotTolerated", JOB),
    (
        "newest taint text",
        [node("a", taints=GPU_TAINT), waits("1 node(s) had untolerated taint(s)")],
        "TaintNotTolerated",
        JOB,
    ),
    ("cordoned", [node("a", cordoned=True), waits("1 node(s) were unschedulable")], "NodeCordoned", "node/a"),
    (
        "cordoned beside a full one",
        [node("a", cordoned=True), node("b"), runs("busy", 8, "b"), waits("1 node(s) were unschedulable, " + SHORT)],
        "NodeCordoned",
        "node/a",
    ),
    (
        "driver upgrade",
        [
            node("a", cordoned=True, labels={"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}),
            waits("1 node(s) were unschedulable"),
        ],
        "NodeUnderMaintenance",
        "node/a",
    ),
    (
        "hyperpod",
        [
            node(
                "a",
                taints=[
                    {
                        "key": "sagemaker.amazonaws.com/node-health-status",
                        "value": "Unschedulable",
                        "effect": "NoSchedule",
                    }
                ],
            ),
            waits("1 node(s) had untolerated taint {sagemaker.amazonaws.com/node-health-status: Unschedulable}"),
        ],
        "NodeUnderMaintenance",
        "node/a",
    ),
    (
        "startup taint",
        [
            node("a", taints=[{"key": "ebs.csi.aws.com/agent-not-ready", "effect": "NoExecute"}]),
            waits("1 node(s) had untolerated taint {ebs.csi.aws.com/agent-not-ready: }"),
        ],
        "NodeStartupUnfinished",
        "node/a",
    ),
    (
        "not ready",
        [
            node("a", ready="Unknown", taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]),
            waits("1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }"),
        ],
        "NodeNotReady",
        "node/a",
    ),
    (
        "ours",
        [
            node("a", taints=[{"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}]),
            waits(f"1 node(s) had untolerated taint {{{UNHEALTHY}: true}}"),
        ],
        "NodeKeptFromWork",
        "node/a",
    ),
    (
        "selector value",
        [node("a", labels=SHARED), waits(SELECTOR, spec=SELECTS_A100)],
        "NodeSelectorMatchesNoNode",
        JOB,
    ),
    ("selector label", [node("a"), waits(SELECTOR, spec=SELECTS_A100)], "NodeSelectorMatchesNoNode", JOB),
    (
        "selector of others",
        [node("a"), node("b", None, labels={"pool": "cpu"}), waits(SELECTOR, spec={"nodeSelector": {"pool": "cpu"}})],
        "NodeSelectorMatchesNoNode",
        JOB,
    ),
    (
        "volume unbound",
        [
            node("a"),
            obj(
                "PersistentVolumeClaim", "data", "team", spec={"storageClassName": "fast"}, status={"phase": "Pending"}
            ),
            waits(
                "pod has unbound immediate PersistentVolumeClaims",
                spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
            ),
        ],
        "VolumeClaimNotBound",
        "persistentvolumeclaim/team/data",
    ),
    (
        "volume missing",
        [
            node("a"),
            waits(
                'persistentvolumeclaim "data" not found',
                spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
            ),
        ],
        "VolumeClaimMissing",
        "persistentvolumeclaim/team/data",
    ),
    (
        "not ready, and not tainted yet",
        [node("a", ready="Unknown"), waits(SHORT)],
        "NodeNotReady",
        "node/a",
    ),
    (
        "held on a node that does not answer",
        [
            node("a"),
            node("b", ready="Unknown", taints=SILENT_NODE),
            runs("x", 8, "a"),
            runs("y", 8, "b", metadata=GONE),
            waits(SHORT + ", 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }", 8),
        ],
        "NodeNotReady",
        "node/b",
    ),
    (
        "EFA used up",
        [
            node("a", capacity={EFA: "32"}, allocatable={EFA: "32"}),
            pod("x", 0, on="a", containers=[container("main", 0, resources={EFA: "32"})]),
            waits(f"1 Insufficient {EFA}", 0, containers=[container("main", 8, resources={EFA: "32"})]),
        ],
        "CpuOrMemoryUsedUp",
        f"resource/{EFA}",
    ),
    (
        "others have room",
        [
            node("a", taints=TEAM),
            node("b"),
            runs("busy", 8, "b"),
            waits("1 node(s) had untolerated taint(s), " + SHORT),
        ],
        "GpusAllInUse",
        f"resource/{GPU}",
    ),
    (
        "an error of the scheduler",
        [
            node("a"),
            pod(
                "train-0", owner=("Job", "train"), conditions=unscheduled("binding volumes: timeout", "SchedulerError")
            ),
        ],
        "SchedulerFailed",
        JOB,
    ),
    (
        "the device plugin switched off",
        [node("a", None, labels=HAS_GPU | {PLUGIN: "false"}), waits(SHORT)],
        "GpuResourceAbsent",
        f"resource/{GPU}",
    ),
    (
        "its driver is upgraded",
        [node("a", None, labels=HAS_GPU | {PLUGIN: "paused-for-driver-upgrade"}), waits(SHORT)],
        "NodeUnderMaintenance",
        "node/a",
    ),
    (
        "the driver of another model is upgraded",
        [
            node("a", None, labels=HAS_GPU | {PLUGIN: "paused-for-driver-upgrade"}),
            waits(SHORT, spec=SELECTS_A100),
        ],
        "GpuResourceAbsent",
        f"resource/{GPU}",
    ),
    ("no nodes at all", [waits("no nodes available to schedule pods")], "GpuResourceAbsent", f"resource/{GPU}"),
    ("volume zone", [node("a"), waits("1 node(s) had volume node affinity conflict")], "VolumeInAnotherZone", JOB),
    ("anti-affinity", [node("a"), waits("1 node(s) didn't match pod anti-affinity rules")], "PodAffinityUnmet", JOB),
    ("spread", [node("a"), waits("1 node(s) didn't match pod topology spread constraints")], "PodAffinityUnmet", JOB),
    (
        "a volume where the GPUs are all in use",
        [IN_A, IN_B, runs("busy", 8, "b"), *volume("data", "b"), mounts("data")],
        "VolumeInAnotherZone",
        JOB,
    ),
    (
        "a volume whose zone is a label of its own",
        [IN_A, IN_B, runs("busy", 8, "b"), *volume("data", "b__c", old=True), mounts("data")],
        "VolumeInAnotherZone",
        JOB,
    ),
    (
        "two volumes that lie apart",
        [IN_A, IN_B, *volume("data", "a"), *volume("more", "b"), mounts("data", "more")],
        "VolumeInAnotherZone",
        JOB,
    ),
    (
        "a volume that is in use",
        [
            node("a"),
            waits(
                "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use "
                "by another pod"
            ),
        ],
        "VolumeInUse",
        JOB,
    ),
    ("a reason that nobody knows", [node("a"), waits("1 node(s) were not blessed")], "NoNodeFits", JOB),
    (
        "DRA: no such claim",
        [node("a", None), *claimed()[:1]],
        "ResourceClaimMissing",
        "resourceclaim/team/one-gpu",
    ),
    (
        "DRA: no such claim, and so no word of the scheduler",
        [node("a"), pod("train-0", 0, owner=("Job", "train"), spec=CLAIMS)],
        "ResourceClaimMissing",
        "resourceclaim/team/one-gpu",
    ),
    (
        "DRA: free devices, and the scheduler says no",
        [node("a", None), *claimed(), devices("gpu-0")],
        "ClaimNotSatisfied",
        JOB,
    ),
    (
        "kueue, and the place in its topology",
        [
            node("a"),
            pod(
                "train-0",
                owner=("Job", "train"),
                labels={"kueue.x-k8s.io/queue-name": "vision"},
                spec={"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]},
                conditions=unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"),
            ),
        ],
        "KueueTopologyPending",
        JOB,
    ),
    ("ports", [node("a"), waits("1 node(s) didn't have free ports for the requested pod ports")], "HostPortTaken", JOB),
    (
        "kueue",
        [
            node("a"),
            pod(
                "train-0",
                owner=("Job", "train"),
                labels={"kueue.x-k8s.io/queue-name": "vision"},
                spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
                conditions=unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"),
            ),
        ],
        "KueueHoldsPod",
        "localqueue/team/vision",
    ),
    ("kueue, in line for long", [node("a"), queued("Pending", IN_LINE)], "KueueHoldsPod", "localqueue/team/vision"),
    (
        "kueue, and what it says",
        [node("a"), queued("Inadmissible", "LocalQueue vision doesn't exist")],
        "KueueHoldsPod",
        "localqueue/team/vision",
    ),
    (
        "another gate",
        [
            node("a"),
            pod(
                "train-0",
                owner=("Job", "train"),
                spec={"schedulingGates": [{"name": "example.com/cache-warm"}]},
                conditions=unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"),
            ),
        ],
        "SchedulingGateHeld",
        JOB,
    ),
    (
        "no such scheduler",
        [
            node("a"),
            lease("kube-scheduler", 0),
            pod("train-0", owner=("Job", "train"), spec={"schedulerName": "gpu-sched"}),
        ],
        "SchedulerNotThere",
        JOB,
    ),
    (
        "the cluster's scheduler crashes",
        [node("a"), scheduler("kube-scheduler-cp1", "kube-system"), unlooked("default-scheduler")],
        "SchedulerNotThere",
        "scheduler/default-scheduler",
    ),
    (
        "another scheduler crashes, and its controllers run",
        [
            node("a"),
            scheduler("volcano-scheduler-0", "volcano-system"),
            runs("volcano-controllers-0", 0, "a", namespace="volcano-system"),
            unlooked("volcano"),
        ],
        "SchedulerNotThere",
        JOB,
    ),
    (
        "gang",
        [
            node("a"),
            pod(
                "train-0",
                8,
                owner=("Job", "train"),
                spec={"schedulerName": "volcano"},
                conditions=unscheduled("pod group is not ready, 1 Pending, 2 minAvailable; Pending: 1 Undetermined"),
            ),
        ],
        "GangIncomplete",
        JOB,
    ),
    ("volcano, in line for long", [node("a"), group(), queue()], HELD, "podgroup/team/train-x"),
    ("volcano, a closed queue", [node("a"), group(age=4), queue(0, state="Closed")], HELD, "queue/vision"),
    ("volcano, no such queue", [node("a"), group(age=4)], HELD, "queue/vision"),
    ("volcano, more than its queue may have", [node("a"), group(gpus=16, age=4), queue(0)], HELD, "queue/vision"),
    (
        "DRA behind a resource",
        [node("a", None), by_resource(), devices("gpu-0"), taken("gpu-0"), waits("1 cannot fit resource")],
        "DevicesAllAllocated",
        "deviceclass/gpu.nvidia.com",
    ),
    ("DRA: no slices", [node("a", None), *claimed()], "NoDevicesPublished", "deviceclass/gpu.nvidia.com"),
    (
        "DRA: all allocated",
        [node("a", None), *claimed(), devices("gpu-0"), taken("gpu-0")],
        "DevicesAllAllocated",
        "deviceclass/gpu.nvidia.com",
    ),
    (
        "DRA: the free one is on a node with our taint",
        [
            node("a", None, taints=[{"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}]),
            node("b", None),
            *claimed(),
            devices("gpu-0", "gpu-1"),
            taken("gpu-1"),
        ],
        "NodeKeptFromWork",
        "node/a",
    ),
    (
        "DRA: the free one is tainted by our rule",
        [node("a", None), *claimed(), devices("gpu-0", "gpu-1"), taken("gpu-1"), taint_rule()],
        "DevicesTainted",
        "deviceclass/gpu.nvidia.com",
    ),
    (
        "DRA: tainted by another's rule on all devices",
        [node("a", None), *claimed(), devices("gpu-0"), taint_rule(name="maintenance", deviceSelector={})],
        "DevicesTainted",
        "deviceclass/gpu.nvidia.com",
    ),
    (
        "DRA: tainted by its driver",
        [node("a", None), *claimed(), tainted(devices("gpu-0"), "NoExecute")],
        "DevicesTainted",
        "deviceclass/gpu.nvidia.com",
    ),
    (
        "DRA: all allocated, and tainted too",
        [node("a", None), *claimed(), devices("gpu-0"), taken("gpu-0"), taint_rule()],
        "DevicesAllAllocated",
        "deviceclass/gpu.nvidia.com",
    ),
    (
        "DRA: a rule of another device",
        [node("a", None), *claimed(), devices("gpu-0"), taint_rule("gpu-7")],
        "ClaimNotSatisfied",
        JOB,
    ),
    (
        "DRA: a rule that selects nothing",
        [node("a", None), *claimed(), devices("gpu-0"), taint_rule(deviceSelector=None)],
        "ClaimNotSatisfied",
        JOB,
    ),
    (
        "DRA: a rule that selects in words of an older version",
        [node("a", None), *claimed(), devices("gpu-0"), taint_rule(deviceSelector={"deviceClassName": "x"})],
        "ClaimNotSatisfied",
        JOB,
    ),
    (
        "DRA: a taint of no effect",
        [node("a", None), *claimed(), tainted(devices("gpu-0"), "None")],
        "ClaimNotSatisfied",
        JOB,
    ),
    (
        "DRA: no such product",
        [
            node("a", None),
            *claimed("device.attributes['gpu.nvidia.com'].productName == 'NVIDIA A100'"),
            devices("gpu-0"),
        ],
        "NoDeviceMatchesClaim",
        "resourceclaim/team/one-gpu",
    ),
    (
        "DRA: no class",
        [node("a", None), *claimed()[:2], devices("gpu-0")],
        "DeviceClassMissing",
        "deviceclass/gpu.nvidia.com",
    ),
]


@pytest.mark.parametrize(("state", "cause", "subject"), [pair[1:] for pair in STATES], ids=[pair[0] for pair in STATES])
def test_each_state_tells_its_cause_and_no_other(state: list[Object], cause: str, subject: str) -> None:
    assert results(judged(*state)) == [(cause, subject)]


@pytest.mark.parametrize("state", [pair[1] for pair in STATES], ids=[pair[0] for pair in STATES])
def test_once_placed_nothing_is_wrong(state: list[Object]) -> None:
    """The twin: the same objects a moment later, the pod on a node that takes it."""
    healthy = [entry for entry in state if entry["kind"] != "Pod" and not _is_sick(entry)]
    others = [
        entry
        for entry in state
        if entry["kind"] == "Pod" and entry["status"]["phase"] == "Running" and not _goes(entry)
    ]
    placed = pod("train-0", 1, on="z", owner=("Job", "train"))
    assert results(judged(*healthy, *others, node("z"), placed)) == []


def _is_sick(entry: Object) -> bool:
    taints = [taint["key"] for taint in entry["spec"].get("taints", ())] if entry["kind"] == "Node" else []
    allocatable = entry.get("status", {}).get("allocatable", {})
    conditions = entry.get("status", {}).get("conditions", ()) if entry["kind"] == "Node" else ()
    silent = any(condition["type"] == "Ready" and condition["status"] != "True" for condition in conditions)
    return (
        entry["kind"] in ("Workload", "PodGroup")
        or silent
        or UNHEALTHY in taints
        or allocatable != entry.get("status", {}).get("capacity", allocatable)
    )


def _goes(entry: Object) -> bool:
    return "deletionTimestamp" in entry["metadata"]


SILENT: list[tuple[str, list[Object]]] = [
    (
        "a sweep of ours waits for its node",
        [node("a"), runs("busy", 8, "a"), waits(SHORT, 8, spec={"priorityClassName": "gpu-healthcheck-sweep"})],
    ),
    (
        "its volume is bound by now",
        [
            node("a"),
            obj("PersistentVolumeClaim", "data", "team", spec={"volumeName": "pv-1"}, status={"phase": "Bound"}),
            waits(
                "pod has unbound immediate PersistentVolumeClaims",
                spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
            ),
        ],
    ),
    (
        "there is room by now",
        [node("a"), pod("web", 0, on="a", namespace="shop"), waits(SHORT, age=4)],
    ),
    (
        "its place is left to it in a rollout",
        [node("a"), runs("old", 8, "a", metadata={"deletionTimestamp": ago(-0.4)}), waits(SHORT, 8)],
    ),
    (
        "in Kueue's line for what others use",
        [node("a"), queued("Pending", IN_LINE, age=5)],
    ),
    ("in Volcano's line for what others use", [node("a"), group(age=5), queue()]),
    ("let in by Volcano", [node("a"), group("Inqueue"), queue(0)]),
    ("a group of another scheduler", [node("a"), group(api="scheduling.x-k8s.io/v1alpha1")]),
    (
        "its gate for Kueue's topology is young",
        [node("a"), pod("new", age=0.5, spec={"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]})],
    ),
    ("admitted by Kueue", [node("a"), queued("QuotaReserved", "Quota reserved in ClusterQueue main", "True")]),
    ("made just now", [node("a"), pod("new", age=0.5)]),
    (
        "its scheduler leads, and a second one of it is not ready",
        [node("a"), lease("kube-scheduler", 0), scheduler("kube-scheduler-1", "kube-system"), unlooked("")],
    ),
    ("gated just now", [node("a"), pod("new", age=0.5, spec={"schedulingGates": [{"name": "x.io/y"}]})]),
    (
        "a node is being made for it",
        [
            node("a"),
            runs("busy", 8, "a"),
            one := waits(SHORT),
            event(
                one,
                "TriggeredScaleUp",
                "pod triggered scale-up: [{gpu 1->2 (max: 4)}]",
                warning=False,
                by="cluster-autoscaler",
            ),
        ],
    ),
    (
        "no GPU pod",
        [node("a", None), pod("web", 0, conditions=unscheduled("0/1 nodes are available: 1 Insufficient cpu."))],
    ),
    ("being deleted", [node("a"), runs("busy", 8, "a"), waits(SHORT, metadata={"deletionTimestamp": ago(-1)})]),
    ("failed", [node("a"), waits(SHORT, phase="Failed")]),
    ("terminating in time", [node("a"), runs("old", 8, "a", metadata={"deletionTimestamp": ago(0.5)})]),
    ("cordoned, and nobody waits", [node("a", cordoned=True), node("b")]),
    (
        "HAMi's judgement",
        [
            node("a", 80),
            pod(
                "train-0",
                spec={"schedulerName": "hami-scheduler"},
                conditions=unscheduled("0/1 nodes are available: 1 NodeUnfitPod."),
            ),
        ],
    ),
    (
        "an old event about a pod that runs",
        [node("a"), one := runs("x", 1, "a"), event(one, "FailedScheduling", f"0/1 nodes are available: {SHORT}.")],
    ),
]


@pytest.mark.parametrize("state", [pair[1] for pair in SILENT], ids=[pair[0] for pair in SILENT])
def test_what_is_on_its_way_or_meant_so_is_no_cause(state: list[Object]) -> None:
    assert results(judged(*state)) == []


@pytest.mark.parametrize(
    ("of_scheduler", "step"),
    [
        ([], "Start kube-scheduler, a part of the control plane: `kubectl get pods -A -o wide`"),
        (
            [scheduler("kube-scheduler-1", "kube-system")],
            "Find the reason: `kubectl -n kube-system describe pod kube-scheduler-1`",
        ),
    ],
)
def test_no_advice_names_a_missing_scheduler(of_scheduler: list[Object], step: str) -> None:
    (problem,) = judged(node("a"), runs("busy", 1, "a"), *of_scheduler, unlooked("default-scheduler")).problems
    assert problem.found.remedy == (step,)


def test_many_pods_for_one_reason_are_one_cause() -> None:
    pods = [waits(SHORT, name=f"train-{number}") for number in range(20)]
    (problem,) = judged(node("a"), runs("busy", 8, "a"), *pods).problems
    assert len(problem.found.affected) == 20


def test_a_bound_volume_and_the_nodes_on_both_sides_are_named() -> None:
    (problem,) = judged(IN_A, IN_B, runs("busy", 8, "b"), *volume("data", "b"), mounts("data")).problems

    assert problem.found.certainty is Certainty.PROVEN
    assert problem.found.evidence == (
        f"persistentvolumeclaim/team/data is bound to persistentvolume/pv-data, only for nodes with {ZONE} In b",
        "nodes with room but without the volume: node/a",
        "nodes with the volume have the requested resources, but no room: node/b",
    )


def test_more_pods_than_a_rollout_makes_room_for_still_wait() -> None:
    leaves = runs("old", 1, "a", metadata={"deletionTimestamp": ago(-0.4)})
    pods = [waits(SHORT, name=f"train-{number}") for number in range(2)]
    assert results(judged(node("a"), leaves, runs("busy", 7, "a"), *pods)) == [("GpusAllInUse", f"resource/{GPU}")]


def test_without_the_nodes_the_scheduler_is_quoted() -> None:
    diagnosis = judged(waits(SHORT), missing=["Node"])
    assert results(diagnosis) == [("InsufficientResource", f"resource/{GPU}")]


def test_that_a_node_without_gpus_is_short_of_them_is_no_cause() -> None:
    text = f"1 Insufficient {GPU}, 1 node(s) had untolerated taint {{dedicated: vision}}"
    assert results(judged(node("a"), node("cpu", None), waits(text))) == [("TaintNotTolerated", JOB)]
    assert results(judged(node("a"), node("b"), waits(text))) == [("InsufficientResource", f"resource/{GPU}")]


@pytest.mark.parametrize("build", [lambda: waits(SELECTOR, spec=SELECTS_A100)])
def test_the_nearest_label_is_named(build: Callable[[], Object]) -> None:
    (problem,) = judged(node("a", labels=SHARED), build()).problems
    assert any("NVIDIA-A100-SXM4-80GB-SHARED" in step for step in problem.found.remedy)


def test_pods_that_nobody_made_and_that_wait_for_each_other_are_one_group() -> None:
    conditions = unscheduled(
        "pod group is not ready, 2 Pending, 2 minAvailable; Pending: 1 Unschedulable, 1 Schedulable"
    )
    of_group = {"scheduling.k8s.io/group-name": "ring"}
    pods = [pod(f"ring-{i}", 8, annotations=of_group, conditions=conditions) for i in range(2)]
    diagnosis = judged(node("a"), *pods)

    assert results(diagnosis) == [("GangIncomplete", "podgroup/team/ring")]
    assert (
        "2 pods that request 16 nvidia.com/gpu wait; 8 free on eligible nodes" in diagnosis.problems[0].found.evidence
    )


@pytest.mark.parametrize("switch", [PLUGIN, "nvidia.com/gpu.deploy.operands"])
def test_the_label_that_keeps_the_device_plugin_off_is_named(switch: str) -> None:
    off = node("a", None, labels=HAS_GPU | {switch: "false", "nvidia.com/gpu.deploy.driver": "paused"})
    found = judged(off, waits(SHORT)).problems[0].found

    assert f"node/a: a GPU node that offers no {GPU}: its label {switch}=false keeps the device plugin off" in (
        found.evidence
    )
    assert found.remedy[0].endswith(f"`kubectl label node a {switch}=true --overwrite`")


def test_who_should_offer_what_no_node_has() -> None:
    both = [container("main", 8, resources={EFA: "4"})]
    found = judged(node("a"), waits(f"2 Insufficient {EFA}", containers=both)).problems[0].found

    assert (found.cause.name, found.subject) == ("GpuResourceAbsent", f"resource/{EFA}")
    assert found.remedy[0] == "Run the EFA device plugin on the nodes with such devices."
    assert r"vpc\.amazonaws\.com/efa" in found.remedy[1]


def test_a_claim_waits_for_the_driver_that_is_down() -> None:
    waits_for = waiting("CrashLoopBackOff", "back-off", "gpus", lastState={"terminated": terminated(1)})
    driver = pod(
        "plugin-a",
        0,
        on="a",
        labels={"app.kubernetes.io/name": "nvidia-dra-driver-gpu"},
        owner=("DaemonSet", "plugin"),
        containers=[container("gpus")],
        phase="Running",
        states=[waits_for],
    )
    diagnosis = judged(node("a", None), driver, *claimed(), missing=["ResourceSlice"])

    assert results(diagnosis) == [("DraDriverNotReady", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("ClaimNotSatisfied", JOB)]


def test_without_the_nodes_what_keeps_gpus_stands_above() -> None:
    going = runs("old", 8, "a", metadata=GONE)
    diagnosis = judged(waits(f"1 Insufficient cpu, {SHORT}", 8), going, missing=["Node"])

    assert results(diagnosis) == [("TerminatingPodHoldsGpus", "pod/team/old")]
    assert consequences(diagnosis.problems[0]) == [("InsufficientResource", f"resource/{GPU}")]


def test_a_node_that_goes_is_nobodys_to_uncordon() -> None:
    leaves = [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]
    diagnosis = judged(node("a", cordoned=True, taints=leaves), waits("2 node(s) were unschedulable"))

    assert results(diagnosis) == [("NodeUnderMaintenance", "node/a")]


@pytest.mark.parametrize(
    ("kind", "causes"), [("p5.48xlarge", []), ("m7i.large", [("GpusAllInUse", f"resource/{GPU}")])]
)
def test_a_node_with_gpus_that_joins_is_waited_for(kind: str, causes: list[tuple[str, str]]) -> None:
    joins = node("b", None, age=2, labels={"node.kubernetes.io/instance-type": kind})
    young = waits("1 Insufficient nvidia.com/gpu", 8, age=4)

    assert results(judged(node("a"), runs("busy", 8, "a"), joins, young)) == causes


@pytest.mark.parametrize(
    ("count", "certainty", "anew"),
    [
        (1, Certainty.PROVEN, ()),
        (2, Certainty.LIKELY, ("the driver is publishing its pool gpu.nvidia.com/a again: 1 of 2 ResourceSlices",)),
    ],
)
def test_what_a_driver_published_before_is_not_free(count: int, certainty: Certainty, anew: tuple[str, ...]) -> None:
    old, new = devices("gpu-0"), devices("gpu-1", generation=2, count=count)
    diagnosis = judged(node("a", None), *claimed(), old, new, taken("gpu-1"))

    (problem,) = diagnosis.problems
    assert results(diagnosis) == [("DevicesAllAllocated", "deviceclass/gpu.nvidia.com")]
    assert (problem.found.certainty, problem.found.evidence[2:]) == (certainty, anew)
