"""For each cause of an unscheduled pod one state that yields it, and a twin that yields nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.model import Certainty
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, STARTUP, UNHEALTHY
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

JOB, ON_A, GPUS = "job/team/train", "node/a", f"resource/{GPU}"
MIG, EFA = "nvidia.com/mig-1g.10gb", "vpc.amazonaws.com/efa"
KNATIVE = "serving.knative.dev/"
ZONE = "topology.kubernetes.io/zone"
_PREEMPTION = " preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."


def unscheduled(message: str, reason: str = "Unschedulable") -> list[Object]:
    return [condition("PodScheduled", "False", reason, message, minutes=30)]


def waits(reasons: str, gpus: int = 1, /, name: str = "train-0", **changes: Any) -> Object:
    """A pod of the Job `train` that the scheduler refuses for these reasons."""
    message = f"0/2 nodes are available: {reasons}.{_PREEMPTION}"
    return pod(name, gpus, owner=("Job", "train"), conditions=unscheduled(message), **changes)


def asks(resource: str, amount: str = "1", gpus: int = 0) -> Object:
    """A pod that also requests this resource, of which the scheduler finds too little."""
    containers = [container("main", gpus, resources={resource: amount})]
    return waits(f"2 Insufficient {resource}", 0, containers=containers)


def runs(name: str, gpus: int, on: str, **changes: Any) -> Object:
    return pod(name, gpus, on=on, **changes)


def holds(resource: str, amount: str) -> Object:
    return pod("etl", 0, on="a", containers=[container("main", 0, resources={resource: amount})])


def offers(resource: str, amount: str, gpus: int | None = None, **changes: Any) -> Object:
    return node("a", gpus, allocatable={resource: amount}, capacity={resource: amount}, **changes)


def tainted_node(key: str, effect: str = "NoSchedule", **changes: Any) -> Object:
    return node("a", taints=[{"key": key, "value": "true", "effect": effect}], **changes)


def labelled(**labels: str) -> Object:
    """A GPU node without GPUs in its capacity, with labels of the operator."""
    labels = {f"nvidia.com/gpu.deploy.{key.replace('_', '-')}": text for key, text in labels.items()}
    return node("a", None, labels={"nvidia.com/gpu.present": "true"} | labels)


SHORT = "2 Insufficient nvidia.com/gpu"
UNTOLERATED = "2 node(s) had untolerated taint {nvidia.com/gpu: present}"
SELECTOR = "2 node(s) didn't match Pod's node affinity/selector"
CORDON = "1 node(s) were unschedulable"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
LOST = 'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv-1"'
LOST_BY_NODE = "1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
IN_USE_ELSEWHERE = (
    "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
TOO_FEW_GPUS = "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs."
INCOMPLETE = "pod group is not ready, 1 Pending, 2 minAvailable; Pending: 1 Undetermined"
GONE = {"deletionTimestamp": ago(40), "deletionGracePeriodSeconds": 30}
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
SHARED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"}
SELECTS_A100 = {"nodeSelector": A100}
CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one-gpu"}]}
CLASS = "deviceclass/gpu.nvidia.com"


def claimed(selector: str = "", **changes: Any) -> list[Object]:
    """A pod with a claim of one GPU, the claim and its class."""
    request: Object = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
    if selector:
        request["selectors"] = [{"cel": {"expression": selector}}]
    claim = obj(
        "ResourceClaim", "one-gpu", "team", spec={"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    )
    entry = waits("2 cannot allocate all claims", 0, spec=CLAIMS, **changes)
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    return [entry, claim, device_class(expression)]


def device_class(expression: str, **spec: str) -> Object:
    return obj("DeviceClass", "gpu.nvidia.com", spec={"selectors": [{"cel": {"expression": expression}}], **spec})


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
    metadata = {"ownerReferences": [{"kind": "Job", "name": "train", "uid": "x", "controller": True}]}
    fields = {"conditions": [condition("QuotaReserved", status, reason, message)]}
    return obj("Workload", "job-train-1", "team", metadata=metadata, spec=spec, status=fields, age=age)


def gated(gate: str, **changes: Any) -> Object:
    spec, labels = {"schedulingGates": [{"name": gate}]}, {"kueue.x-k8s.io/queue-name": "vision"}
    message = unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated")
    return pod("train-0", owner=("Job", "train"), labels=labels, spec=spec, conditions=message, **changes)


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


def volume(name: str, zone: str, *, old: bool = False) -> list[Object]:
    """A claim of that name, bound to a volume in the zone; `old`: only the volume's label shows the zone."""
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec: Object = {} if old else {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    claim = obj("PersistentVolumeClaim", name, "team", spec={"volumeName": f"pv-{name}"}, status={"phase": "Bound"})
    labels = {"labels": {ZONE: zone}} if old else {}
    return [claim, obj("PersistentVolume", f"pv-{name}", metadata=labels, spec=spec)]


def mounts(
    *names: str, reasons: str = "1 node(s) had volume node affinity conflict, 1 Insufficient x", **more: Any
) -> Object:
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    return waits(reasons, 8, spec={"volumes": volumes}, **more)


def claim(phase: str, **spec: str) -> Object:
    return obj("PersistentVolumeClaim", "data", "team", spec=spec, status={"phase": phase})


def lease(name: str, minutes: float) -> Object:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": ago(minutes)}
    return obj("Lease", name, "kube-system", spec=spec)


def scheduler(name: str, namespace: str = "kube-system") -> Object:
    """Its pod is Running between two crashes, and not ready."""
    crashes = [waiting("CrashLoopBackOff", "back-off", name="scheduler", restartCount=30)]
    return pod(name, 0, on="a", namespace=namespace, states=crashes, conditions=[condition("Ready", "False")])


def untried(by: str) -> Object:
    return pod("train-0", owner=("Job", "train"), spec={"schedulerName": by})


def refused(message: str, reason: str = "Unschedulable", gpus: int = 8, **changes: Any) -> Object:
    return pod("train-0", gpus, owner=("Job", "train"), conditions=unscheduled(message, reason), **changes)


A, NO_GPUS, BUSY = node("a"), node("a", None), runs("busy", 8, "a")
B, FULL_B = node("b"), [node("b"), runs("busy", 8, "b")]
IN_A, IN_B = (node(name, labels={ZONE: name}) for name in "ab")
IN_OTHER_ZONE = "VolumeInAnotherZone"
H100 = "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA A100'"
DRA = [NO_GPUS, *claimed()]
PROVIDES = device_class("device.driver == 'gpu.nvidia.com'", extendedResourceName=GPU)
UNREACHABLE = "node.kubernetes.io/unreachable"
CONTROLLERS = runs("volcano-controllers-0", 0, "a", namespace="volcano-system")
UPGRADED = {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}
ALL_IN_USE, MISSPELLED, TOO_MUCH = "GpusAllInUse", "ResourceNameUnknown", "MoreCpuOrMemoryThanAnyGpuNodeHas"
ABSENT, CHANGING, CLOSED = "GpuResourceAbsent", "NodeUnderMaintenance", "TaintNotTolerated"
UNMATCHED, AFFINITY, NO_SCHEDULER = "NodeSelectorMatchesNoNode", "PodAffinityUnmet", "SchedulerNotThere"
KUEUE, HELD, UNMET = "KueueHoldsPod", "VolcanoHoldsGroup", "ClaimNotSatisfied"
STATES: dict[tuple[str, str], dict[str, list[Object]]] = {
    (ALL_IN_USE, GPUS): {
        "all in use": [A, BUSY, waits(SHORT)],
        "others have room": [tainted_node("dedicated"), *FULL_B, waits(f"{UNTOLERATED}, {SHORT}")],
    },
    ("GpusFragmented", GPUS): {"fragmented": [A, B, runs("x", 6, "a"), runs("y", 6, "b"), waits(SHORT, 4)]},
    ("MoreGpusThanAnyNodeHas", JOB): {"more than any": [A, B, waits(SHORT, 16)]},
    ("TerminatingPodHoldsGpus", "pod/team/old"): {
        "stuck terminating": [
            A,
            runs("old", 8, "a", metadata=GONE | {"finalizers": ["example.com/keep"]}),
            waits(SHORT, 8),
        ]
    },
    ("UnhealthyGpus", ON_A): {"unhealthy": [node("a", allocatable={GPU: "7"}), runs("busy", 7, "a"), waits(SHORT)]},
    ("CpuOrMemoryUsedUp", "resource/cpu"): {"cpu used up": [A, holds("cpu", "95"), asks("cpu", "8", 1)]},
    (TOO_MUCH, JOB): {
        "more cpu than any": [A, asks("cpu", "128", 1)],
        "more cpu than any, while all GPUs are in use": [A, BUSY, asks("cpu", "128", 1)],
    },
    (ABSENT, GPUS): {
        "no GPUs anywhere": [NO_GPUS, waits(SHORT)],
        "the device plugin switched off": [labelled(device_plugin="false"), waits(SHORT)],
        "the driver of another model is upgraded": [
            labelled(device_plugin="paused-for-driver-upgrade"),
            waits(SHORT, spec=SELECTS_A100),
        ],
        "no nodes at all": [waits("no nodes available to schedule pods")],
    },
    (MISSPELLED, JOB): {
        "misspelled": [A, asks("nvidia.com/gpus")],
        "vendor misspelled": [A, asks("nividia.com/gpu")],
        "of another vendor": [A, asks("amd.com/gpu")],
    },
    ("MigProfileAbsent", JOB): {
        "mig profile absent": [offers("nvidia.com/mig-3g.40gb", "2", 0), asks(MIG)],
        "mig single": [node("a", labels={"nvidia.com/mig.strategy": "single"}), asks(MIG)],
    },
    ("GpusOnlyAsMigSlices", JOB): {"only mig": [offers(MIG, "7"), waits(SHORT)]},
    ("SharedGpuResourceRenamed", JOB): {
        "renamed by sharing": [offers(f"{GPU}.shared", "32"), waits(SHORT)],
        "renamed just now": [
            node("a", capacity={f"{GPU}.shared": "32"}, allocatable={GPU: "0", f"{GPU}.shared": "32"}),
            waits(SHORT),
        ],
    },
    (CLOSED, JOB): {
        "taint": [tainted_node(GPU), waits(UNTOLERATED)],
        "newest taint text": [tainted_node(GPU), waits("1 node(s) had untolerated taint(s)")],
    },
    ("NodeCordoned", ON_A): {
        "cordoned": [node("a", cordoned=True), waits(CORDON)],
        "cordoned beside a full one": [node("a", cordoned=True), *FULL_B, waits(f"{CORDON}, {SHORT}")],
        "cordoned beside an open one that is too small": [
            node("a", cordoned=True),
            node("b", 4),
            runs("busy", 4, "b"),
            waits(f"{CORDON}, 1 Insufficient {GPU}", 8),
        ],
    },
    (CHANGING, ON_A): {
        "driver upgrade": [node("a", cordoned=True, labels=UPGRADED), waits(CORDON)],
        "hyperpod": [tainted_node("sagemaker.amazonaws.com/node-health-status"), waits(UNTOLERATED)],
        "a cordon by an autoscaler that removes the node": [
            tainted_node("ToBeDeletedByClusterAutoscaler", cordoned=True),
            waits(CORDON),
        ],
        "its driver is upgraded": [labelled(device_plugin="paused-for-driver-upgrade"), waits(SHORT)],
    },
    ("NodeStartupUnfinished", ON_A): {
        "startup taint": [tainted_node("ebs.csi.aws.com/agent-not-ready", "NoExecute"), waits(UNTOLERATED)]
    },
    ("NodeNotReady", ON_A): {
        "not ready": [tainted_node(UNREACHABLE, ready="Unknown"), waits(UNTOLERATED)],
        "no pods and no CPU reported by its kubelet": [
            node("a", allocatable={"pods": "0", "cpu": "0"}),
            waits("1 Insufficient cpu, 1 Too many pods", containers=[container("main", 1, resources={"cpu": "4"})]),
        ],
        "not ready, and not tainted yet": [node("a", ready="Unknown"), waits(SHORT)],
        "held on a node that does not respond": [
            *(tainted_node(UNREACHABLE, ready="Unknown"), runs("x", 8, "a", metadata=GONE)),
            *(*FULL_B, waits(f"{SHORT}, 1 node(s) had untolerated taint {{{UNREACHABLE}: }}", 8)),
        ],
    },
    ("NodeKeptFromWork", ON_A): {
        "ours": [tainted_node(UNHEALTHY), waits(UNTOLERATED)],
        "DRA: the free one is on a node with our taint": [
            tainted_node(UNHEALTHY),
            node("b", None),
            *claimed(),
            devices("gpu-0", "gpu-1"),
            taken("gpu-1"),
        ],
    },
    (UNMATCHED, JOB): {
        "selector value": [node("a", labels=SHARED), waits(SELECTOR, spec=SELECTS_A100)],
        "selector label": [A, waits(SELECTOR, spec=SELECTS_A100)],
        "selector of others": [
            A,
            node("b", None, labels={"pool": "cpu"}),
            waits(SELECTOR, spec={"nodeSelector": {"pool": "cpu"}}),
        ],
    },
    ("CpuOrMemoryUsedUp", f"resource/{EFA}"): {
        "EFA used up": [offers(EFA, "32", 8), holds(EFA, "32"), asks(EFA, "32", 8)]
    },
    ("SchedulerFailed", JOB): {"an error": [A, refused("binding volumes: timeout", "SchedulerError")]},
    ("VolumeClaimNotBound", "persistentvolumeclaim/team/data"): {
        "volume unbound": [A, claim("Pending", storageClassName="fast"), mounts("data", reasons=UNBOUND)],
        "volume lost": [A, claim("Lost", volumeName="pv-1"), mounts("data", reasons=LOST)],
        "volume lost, in words of a node": [A, claim("Lost", volumeName="pv-1"), mounts("data", reasons=LOST_BY_NODE)],
    },
    ("VolumeClaimMissing", "persistentvolumeclaim/team/data"): {
        "volume missing": [A, mounts("data", reasons='persistentvolumeclaim "data" not found')]
    },
    (IN_OTHER_ZONE, JOB): {
        "volume zone": [A, waits("1 node(s) had volume node affinity conflict")],
        "a volume beside full GPUs": [IN_A, IN_B, FULL_B[1], *volume("data", "b"), mounts("data")],
        "a volume whose zone is a label of its own": [
            IN_A,
            IN_B,
            FULL_B[1],
            *volume("data", "b__c", old=True),
            mounts("data"),
        ],
        "two volumes in different zones": [
            IN_A,
            IN_B,
            *volume("data", "a"),
            *volume("more", "b"),
            mounts("data", "more"),
        ],
    },
    ("VolumeInUse", JOB): {"a volume that is in use": [A, waits(IN_USE_ELSEWHERE)]},
    (AFFINITY, JOB): {
        "anti-affinity": [A, waits("1 node(s) didn't match pod anti-affinity rules")],
        "spread": [A, waits("1 node(s) didn't match pod topology spread constraints")],
    },
    ("HostPortTaken", JOB): {"ports": [A, waits("1 node(s) didn't have free ports for the requested pod ports")]},
    ("NoNodeFits", JOB): {
        "an unknown reason": [A, waits("1 node(s) were not blessed")],
        "a fraction of a GPU by KAI": [A, refused(TOO_FEW_GPUS, gpus=0)],
    },
    ("KueueTopologyPending", JOB): {"topology of Kueue": [A, gated("kueue.x-k8s.io/topology")]},
    (KUEUE, "localqueue/team/vision"): {
        "Kueue": [A, gated("kueue.x-k8s.io/admission")],
        "Kueue, in line for long": [A, queued("Pending", IN_LINE)],
        "Kueue, and its message": [A, queued("Inadmissible", "LocalQueue vision doesn't exist")],
    },
    ("SchedulingGateHeld", JOB): {"another gate": [A, gated("example.com/cache-warm")]},
    (NO_SCHEDULER, JOB): {
        "no such scheduler": [A, lease("kube-scheduler", 0), untried("gpu-sched")],
        "another scheduler crashes, and its controllers run": [
            A,
            scheduler("volcano-scheduler-0", "volcano-system"),
            CONTROLLERS,
            untried("volcano"),
        ],
    },
    (NO_SCHEDULER, "scheduler/default-scheduler"): {
        "the cluster's scheduler crashes": [A, scheduler("kube-scheduler-cp1"), untried("default-scheduler")]
    },
    ("GangIncomplete", JOB): {"gang": [A, refused(INCOMPLETE, spec={"schedulerName": "volcano"})]},
    (HELD, "podgroup/team/train-x"): {"Volcano, in line for long": [A, group(), queue()]},
    (HELD, "queue/vision"): {
        "Volcano, a closed queue": [A, group(age=4), queue(0, state="Closed")],
        "Volcano, no such queue": [A, group(age=4)],
        "Volcano, more than its queue may have": [A, group(gpus=16, age=4), queue(0)],
    },
    ("ResourceClaimMissing", "resourceclaim/team/one-gpu"): {
        "DRA: no such claim": [NO_GPUS, *claimed()[:1]],
        "DRA: no such claim, and so no message of the scheduler": [
            A,
            pod("train-0", 0, owner=("Job", "train"), spec=CLAIMS),
        ],
    },
    ("DeviceClassMissing", CLASS): {"DRA: no class": [NO_GPUS, *claimed()[:2], devices("gpu-0")]},
    ("NoDevicesPublished", CLASS): {"DRA: no slices": [*DRA], "DRA: a slice without devices": [*DRA, devices()]},
    ("NoDeviceMatchesClaim", "resourceclaim/team/one-gpu"): {
        "DRA: no such product": [NO_GPUS, *claimed(H100), devices("gpu-0")]
    },
    ("DevicesAllAllocated", CLASS): {
        "DRA: all allocated": [*DRA, devices("gpu-0"), taken("gpu-0")],
        "DRA: behind a resource": [NO_GPUS, PROVIDES, devices("gpu-0"), taken("gpu-0"), waits("1 cannot fit resource")],
        "DRA: all allocated, and tainted too": [*DRA, devices("gpu-0"), taken("gpu-0"), taint_rule()],
    },
    ("DevicesTainted", CLASS): {
        "DRA: the free one is tainted by our rule": [*DRA, devices("gpu-0", "gpu-1"), taken("gpu-1"), taint_rule()],
        "DRA: tainted by another's rule on all devices": [
            *DRA,
            devices("gpu-0"),
            taint_rule(name="maintenance", deviceSelector={}),
        ],
        "DRA: tainted by its driver": [*DRA, tainted(devices("gpu-0"), "NoExecute")],
    },
    (UNMET, JOB): {
        "DRA: free devices": [*DRA, devices("gpu-0")],
        "DRA: a rule of another device": [*DRA, devices("gpu-0"), taint_rule("gpu-7")],
        "DRA: a rule that selects nothing": [*DRA, devices("gpu-0"), taint_rule(deviceSelector=None)],
        "DRA: a rule that selects in terms of an older version": [
            *DRA,
            devices("gpu-0"),
            taint_rule(deviceSelector={"deviceClassName": "x"}),
        ],
        "DRA: a taint of no effect": [*DRA, tainted(devices("gpu-0"), "None")],
    },
}
ROWS = [(cause, state) for cause, states in STATES.items() for state in states.values()]
IDS = [name for states in STATES.values() for name in states]


@pytest.mark.parametrize(("cause", "state"), ROWS, ids=IDS)
def test_unscheduled_pod_has_exactly_its_cause(cause: tuple[str, str], state: list[Object]) -> None:
    assert results(judged(*state)) == [cause]


@pytest.mark.parametrize("state", [state for _, state in ROWS], ids=IDS)
def test_placed_pod_has_no_cause(state: list[Object]) -> None:
    """The twin: the same objects a moment later, the pod on a node that takes it."""
    kept = [entry for entry in state if not _is_obstacle(entry)]
    assert results(judged(*kept, node("z"), pod("train-0", 1, on="z", owner=("Job", "train")))) == []


def _is_obstacle(entry: Object) -> bool:
    if entry["kind"] == "Pod":
        return entry["status"]["phase"] != "Running" or "deletionTimestamp" in entry["metadata"]
    if entry["kind"] != "Node":
        return entry["kind"] in ("Workload", "PodGroup")
    status = entry["status"]
    silent = any(each["type"] == "Ready" and each["status"] != "True" for each in status["conditions"])
    ours = UNHEALTHY in [taint["key"] for taint in entry["spec"]["taints"]]
    return silent or ours or status["allocatable"] != status["capacity"]


SOON, YOUNG_GATE = {"deletionTimestamp": ago(-0.4)}, {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}
SILENT: list[tuple[str, list[Object]]] = [
    ("a sweep of ours", [A, BUSY, waits(SHORT, 8, spec={"priorityClassName": "gpu-healthcheck-sweep"})]),
    ("its volume is bound by now", [A, claim("Bound", volumeName="pv-1"), mounts("data", reasons=UNBOUND)]),
    ("there is room by now", [A, pod("web", 0, on="a", namespace="shop"), waits(SHORT, age=4)]),
    ("a rollout leaves room", [A, runs("old", 8, "a", metadata=SOON), waits(SHORT, 8)]),
    ("in Kueue's line for resources in use", [A, queued("Pending", IN_LINE, age=5)]),
    ("admitted by Kueue", [A, queued("QuotaReserved", "Quota reserved in ClusterQueue main", "True")]),
    ("in Volcano's line for resources in use", [A, group(age=5), queue()]),
    ("admitted by Volcano", [A, group("Inqueue"), queue(0)]),
    ("a group of another scheduler", [A, group(api="scheduling.x-k8s.io/v1alpha1")]),
    ("a new gate", [A, pod("new", age=0.5, spec=YOUNG_GATE)]),
    ("a new pod", [A, pod("new", age=0.5)]),
    (
        "its scheduler leads, and a second replica is not ready",
        [A, lease("kube-scheduler", 0), scheduler("kube-scheduler-1"), untried("")],
    ),
    (
        "a node is being created for it",
        [A, BUSY, one := waits(SHORT), event(one, "TriggeredScaleUp", "[{gpu 1->2 (max: 4)}]", warning=False)],
    ),
    ("no GPU pod", [NO_GPUS, pod("web", 0, conditions=unscheduled("0/1 nodes are available: 1 Insufficient cpu."))]),
    ("no GPU pod, kept off GPU nodes", [tainted_node(GPU), waits(UNTOLERATED, 0)]),
    ("being deleted", [A, BUSY, waits(SHORT, metadata={"deletionTimestamp": ago(-1)})]),
    ("failed", [A, waits(SHORT, phase="Failed")]),
    ("terminating in time", [A, runs("old", 8, "a", metadata={"deletionTimestamp": ago(0.5)})]),
    ("cordoned, and no pod waits", [node("a", cordoned=True), B]),
    (
        "HAMi's judgement",
        [node("a", 80), refused("0/1 nodes are available: 1 NodeUnfitPod.", spec={"schedulerName": "hami-scheduler"})],
    ),
    (
        "an old event about a pod that runs",
        [A, one := runs("x", 1, "a"), event(one, "FailedScheduling", f"0/1 nodes are available: {SHORT}.")],
    ),
]


@pytest.mark.parametrize("state", [row[1] for row in SILENT], ids=[row[0] for row in SILENT])
def test_pod_that_waits_as_intended_has_no_cause(state: list[Object]) -> None:
    assert results(judged(*state)) == []


@pytest.mark.parametrize(
    ("pods", "step"),
    [
        ([], "Start kube-scheduler, a part of the control plane: `kubectl get pods -A -o wide`"),
        ([scheduler("kube-scheduler-1")], "Find the reason: `kubectl -n kube-system describe pod kube-scheduler-1`"),
    ],
)
def test_remedy_names_no_missing_scheduler(pods: list[Object], step: str) -> None:
    (problem,) = judged(A, runs("busy", 1, "a"), *pods, untried("default-scheduler")).problems
    assert problem.found.remedy == (step,)


def test_pods_of_one_reason_are_one_cause() -> None:
    pods = [waits(SHORT, name=f"train-{number}") for number in range(20)]
    (problem,) = judged(A, BUSY, *pods).problems
    assert len(problem.found.affected) == 20


def test_bound_volume_names_the_nodes_on_both_sides() -> None:
    (problem,) = judged(IN_A, IN_B, FULL_B[1], *volume("data", "b"), mounts("data")).problems

    assert problem.found.certainty is Certainty.PROVEN
    assert problem.found.evidence == (
        f"persistentvolumeclaim/team/data is bound to persistentvolume/pv-data, only for nodes with {ZONE} In b",
        "nodes with room but without the volume: node/a",
        "nodes with the volume have the requested resources, but no room: node/b",
    )


def test_rollout_that_leaves_too_little_room_is_reported() -> None:
    pods = [waits(SHORT, name=f"train-{number}") for number in range(2)]
    state = [A, runs("old", 1, "a", metadata=SOON), runs("busy", 7, "a"), *pods]
    assert results(judged(*state)) == [(ALL_IN_USE, GPUS)]


@pytest.mark.parametrize("reasons", [SHORT, f"1 Insufficient cpu, {SHORT}"])
def test_message_is_quoted_without_the_nodes(reasons: str) -> None:
    short = [("InsufficientResource", GPUS)]
    assert results(judged(waits(reasons, 8), missing=["Node"])) == short

    diagnosis = judged(waits(reasons, 8), runs("old", 8, "a", metadata=GONE), missing=["Node"])
    assert results(diagnosis) == [("TerminatingPodHoldsGpus", "pod/team/old")]
    assert consequences(diagnosis.problems[0]) == short


@pytest.mark.parametrize(
    ("taint", "cause"),
    [
        ("{sku: gpu}", [(CLOSED, JOB)]),
        ("{nvidia.com/gpu: present}", [(CLOSED, JOB)]),
        ("{node-role.kubernetes.io/control-plane: }", [("InsufficientResource", GPUS)]),
        (f"{{{UNHEALTHY}: true}}", [("NodeKeptFromWork", JOB), ("InsufficientResource", GPUS)]),
    ],
)
def test_taint_of_gpu_nodes_explains_the_nodes_without_gpus(taint: str, cause: list[tuple[str, str]]) -> None:
    text = f"1 node(s) had untolerated taint {taint}, 2 Insufficient {GPU}"
    assert results(judged(waits(text, 8), missing=["Node"])) == cause


@pytest.mark.parametrize(
    ("taint", "cause", "words", "not_said"),
    [
        (f"{UNHEALTHY}: true", "NodeKeptFromWork", "`gpu-healthcheck status` lists the nodes", "toleration"),
        (f"{MAINTENANCE}: true", CHANGING, "`gpu-healthcheck status` lists the nodes", "fault"),
        (f"{STARTUP}: true", "NodeAwaitsFirstLook", "Check the agent pod", "fault"),
        ("node.kubernetes.io/not-ready: ", "NodeNotReady", "kubelet", "toleration"),
        ("node.kubernetes.io/unschedulable: ", "NodeCordoned", "kubectl uncordon", "toleration"),
        ("karpenter.sh/disrupted: ", CHANGING, "Wait until the platform", "toleration"),
        ("node.cilium.io/agent-not-ready: true", "NodeStartupUnfinished", "the component that owns", "toleration"),
        ("dedicated: vision", CLOSED, "Add the toleration", "gpu-healthcheck"),
    ],
)
def test_text_alone_gives_the_step_of_the_taints_owner(taint: str, cause: str, words: str, not_said: str) -> None:
    text = f"2 node(s) had untolerated taint {{{taint}}}"
    (problem,) = judged(waits(text, 8), missing=["Node"]).problems

    steps = " ".join(problem.found.remedy or (problem.found.cause.remedy,))
    assert (problem.found.cause.name, words in steps, not_said in steps) == (cause, True, False)


@pytest.mark.parametrize(
    ("waits", "of", "step"),
    [
        (group(), queue(), "raise its capability: `kubectl patch queues.scheduling.volcano.sh vision --type=merge"),
        (group(gpus=16, age=4), queue(0), '"nvidia.com/gpu":"16"'),
        (group(age=4), queue(0, state="Closed"), "vcctl queue operate -a open -n vision"),
        (group(age=4), None, "Name an existing queue in `spec.queue`"),
    ],
    ids=["in line", "too large", "closed", "no queue"],
)
def test_group_that_volcano_holds_gets_the_step_that_ends_it(waits: Object, of: Object | None, step: str) -> None:
    (problem,) = judged(A, waits, *filter(None, [of])).problems
    assert step in problem.found.remedy[0]


def test_capability_without_pods_is_completed_where_volcano_finds_no_room() -> None:
    """Version 1.9 takes an amount that the capability does not name for 0."""
    text = "queue resource quota insufficient"
    about = event(group(), "Unschedulable", text, warning=False, by="volcano")
    of_queue = queue(0)
    (problem,) = judged(A, group(), of_queue, about).problems
    assert "pods" in problem.found.remedy[0]

    of_queue["spec"]["capability"]["pods"] = "10000"
    (problem,) = judged(A, group(), of_queue, about).problems
    assert problem.found.remedy[0].startswith("Check its queue's quota")


TOO_LARGE = (
    "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor h, previously considered "
    "podsets requests (0) + current podset request (16) > maximum capacity (8)"
)


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (IN_LINE, "or raise its nominalQuota of nvidia.com/gpu in flavor h by 2: `kubectl edit"),
        (TOO_LARGE, "Request at most 8 nvidia.com/gpu, or raise its nominalQuota in flavor h"),
        ("resource nvidia.com/gpu unavailable in ClusterQueue", "Add nvidia.com/gpu to `coveredResources`"),
        ("ClusterQueue main is inactive", "Make the ClusterQueue active"),
        ("Workload namespace doesn't match ClusterQueue selector", "Let the ClusterQueue's `namespaceSelector` match"),
    ],
)
def test_refusal_by_kueue_names_the_quota_to_change(message: str, step: str) -> None:
    local = obj("LocalQueue", "vision", "team", spec={"clusterQueue": "main"}) | {
        "apiVersion": "kueue.x-k8s.io/v1beta1"
    }
    (problem,) = judged(A, queued("Pending", message), local).problems
    assert step in problem.found.remedy[0]
    assert "clusterqueues.kueue.x-k8s.io main`" in problem.found.remedy[0]


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ("untolerated taint {dedicated gpu NoSchedule <nil>} in flavor h", "key: dedicated, value: gpu, effect: NoSch"),
        (
            "untolerated taint &Taint{Key:dedicated,Value:,Effect:NoExecute,TimeAdded:<nil>,} in flavor h",
            "key: dedicated, value: , effect: NoExecute",
        ),
        ("flavor h doesn't match node affinity", "`kubectl get resourceflavors.kueue.x-k8s.io h -o yaml`"),
        ('topology "default" allows to fit only 2 out of 4 pod(s)', "podset-preferred-topology"),
    ],
)
def test_refusal_by_a_flavor_of_kueue_names_what_the_job_lacks(message: str, step: str) -> None:
    (problem,) = judged(A, queued("Pending", f"couldn't assign flavors to pod set main: {message}")).problems
    assert any(step in text for text in problem.found.remedy)


def test_shortage_of_nodes_without_gpus_is_no_cause() -> None:
    text = f"1 Insufficient {GPU}, 1 node(s) had untolerated taint {{dedicated: vision}}"
    assert results(judged(A, node("cpu", None), waits(text))) == [(CLOSED, JOB)]
    assert results(judged(A, B, waits(text))) == [("InsufficientResource", GPUS)]


@pytest.mark.parametrize(
    ("config", "state", "step"),
    [
        ("all-1g.10gb", "failed", "Leave the workload: it starts once node/a has its profiles"),
        ("all-1g.10gb", "pending", "Leave the workload: it starts once node/a has its profiles"),
        ("all-balanced", "rebooting", "Leave the workload: it starts once node/a has its profiles"),
        ("all-3g.40gb", "failed", "Without MIG: set `nvidia.com/mig.config` on a node"),
        ("all-1g.10gb", "success", "Without MIG: set `nvidia.com/mig.config` on a node"),
    ],
)
def test_slice_that_waits_for_the_mig_manager_gets_no_advice_on_strategies(config: str, state: str, step: str) -> None:
    labels = {"nvidia.com/mig.config": config, "nvidia.com/mig.config.state": state}
    every = judged(node("a", labels=labels), asks(MIG)).problems
    found = [each.found for problem in every for each in (problem, *problem.consequences)]
    (slice_waits,) = (each for each in found if each.cause.name == "MigProfileAbsent")
    assert any(step in text for text in slice_waits.remedy)


def test_slice_of_gpus_that_cannot_be_partitioned_becomes_a_whole_gpu() -> None:
    (problem,) = judged(node("a", labels={"nvidia.com/mig.capable": "false"}), asks(MIG)).problems
    assert problem.found.remedy[0].startswith(f"Request {GPU}: no GPU of these nodes can be partitioned")


def test_node_without_any_pods_in_its_status_is_named() -> None:
    silent = node("a")
    del silent["status"]["allocatable"]["pods"]
    (problem,) = judged(silent, waits("1 Too many pods")).problems
    assert problem.found.evidence == (f"node/a offers no pods; 8 {GPU} free",)
    assert "maxPods" in problem.found.remedy[0]


def test_absent_mig_profile_of_a_mixed_cluster_names_the_partition() -> None:
    (problem,) = judged(node("a", labels={"nvidia.com/mig.strategy": "mixed"}), asks(MIG)).problems
    (step,) = problem.found.remedy
    assert step.startswith("Partition a node into 1g.10gb by its label `nvidia.com/mig.config`")


def test_cordon_shows_its_author() -> None:
    labels = {"k8saas.nvidia.com/cordon-by": "NVSentinel", "pool": "a"}
    (problem,) = judged(node("a", cordoned=True, labels=labels), waits(CORDON)).problems
    assert problem.found.evidence[1:] == ("label k8saas.nvidia.com/cordon-by=NVSentinel",)


def test_remedy_names_the_nearest_label() -> None:
    (problem,) = judged(node("a", labels=SHARED), waits(SELECTOR, spec=SELECTS_A100)).problems
    assert any("NVIDIA-A100-SXM4-80GB-SHARED" in step for step in problem.found.remedy)


def test_bare_pods_of_a_group_are_one_gang() -> None:
    message = unscheduled("pod group is not ready, 2 Pending, 2 minAvailable; Pending: 1 Unschedulable, 1 Schedulable")
    annotations = {"scheduling.k8s.io/group-name": "ring"}
    pods = [pod(f"ring-{i}", 8, annotations=annotations, conditions=message) for i in range(2)]
    diagnosis = judged(A, *pods)

    assert results(diagnosis) == [("GangIncomplete", "podgroup/team/ring")]
    numbers = "2 pods that request 16 nvidia.com/gpu wait; 8 free on eligible nodes"
    assert numbers in diagnosis.problems[0].found.evidence


@pytest.mark.parametrize("switch", ["device-plugin", "operands"])
def test_label_that_disables_the_device_plugin_is_named(switch: str) -> None:
    found = judged(labelled(**{switch: "false", "driver": "paused"}), waits(SHORT)).problems[0].found
    label = f"nvidia.com/gpu.deploy.{switch}"

    evidence = f"node/a: a GPU node that offers no {GPU}: its label {label}=false keeps the device plugin off"
    assert evidence in found.evidence
    assert found.remedy[0].endswith(f"`kubectl label node a {label}=true --overwrite`")


def test_absent_resource_names_its_plugin() -> None:
    found = judged(A, asks(EFA, "4", 8)).problems[0].found

    assert (found.cause.name, found.subject) == (ABSENT, f"resource/{EFA}")
    assert found.remedy[0] == "Run the EFA device plugin on the nodes with such devices."
    assert r"vpc\.amazonaws\.com/efa" in found.remedy[1]


def test_claim_is_a_consequence_of_its_failing_driver() -> None:
    crashes = waiting("CrashLoopBackOff", "back-off", "gpus", lastState={"terminated": terminated(1)})
    labels = {"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}
    kept: Any = {"labels": labels, "owner": ("DaemonSet", "plugin"), "phase": "Running", "states": [crashes]}
    driver = pod("plugin-a", 0, on="a", containers=[container("gpus")], **kept)
    diagnosis = judged(NO_GPUS, driver, *claimed(), missing=["ResourceSlice"])

    assert results(diagnosis) == [("DraDriverNotReady", ON_A)]
    assert consequences(diagnosis.problems[0]) == [(UNMET, JOB)]


@pytest.mark.parametrize(("kind", "causes"), [("p5.48xlarge", []), ("m7i.large", [(ALL_IN_USE, GPUS)])])
def test_young_pod_waits_for_a_joining_gpu_node(kind: str, causes: list[tuple[str, str]]) -> None:
    joins = node("b", None, age=2, labels={"node.kubernetes.io/instance-type": kind})
    young = waits("1 Insufficient nvidia.com/gpu", 8, age=4)

    assert results(judged(A, BUSY, joins, young)) == causes


@pytest.mark.parametrize(
    ("count", "certainty", "anew"),
    [
        (1, Certainty.PROVEN, ()),
        (2, Certainty.LIKELY, ("the driver is publishing its pool gpu.nvidia.com/a again: 1 of 2 ResourceSlices",)),
    ],
)
def test_devices_of_an_older_generation_are_not_free(count: int, certainty: Certainty, anew: tuple[str, ...]) -> None:
    old, new = devices("gpu-0"), devices("gpu-1", generation=2, count=count)
    diagnosis = judged(NO_GPUS, *claimed(), old, new, taken("gpu-1"))

    (problem,) = diagnosis.problems
    assert results(diagnosis) == [("DevicesAllAllocated", CLASS)]
    assert (problem.found.certainty, problem.found.evidence[2:]) == (certainty, anew)


def test_dra_driver_that_found_no_gpu_gets_a_new_pod() -> None:
    labels = {"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}
    driver = pod("plugin-a", 0, on="a", namespace="dra", labels=labels, owner=("DaemonSet", "plugin"))

    (problem,) = judged(*DRA, devices(), driver).problems

    assert "the ResourceSlices of node/a list no device of driver gpu.nvidia.com" in problem.found.evidence[1]
    assert "`kubectl -n dra delete pod plugin-a`" in problem.found.steps[0]


def test_missing_class_of_nvidia_names_the_value_of_its_chart() -> None:
    (problem,) = judged(NO_GPUS, *claimed()[:2], devices("gpu-0")).problems

    assert "resources.gpus.enabled=true" in problem.found.steps[0]


NO_GPU_LEFT = unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")


def of_deployment(name: str, template: str, on: str = "", **changes: Any) -> Object:
    """A pod of a ReplicaSet of the Deployment `llm`."""
    changes |= {} if on else {"conditions": NO_GPU_LEFT}
    labels, owner = {"pod-template-hash": template}, ("ReplicaSet", f"llm-{template}")
    return pod(name, 2, on=on, labels=labels, owner=owner, **changes)


def steps_of(*objects: Object) -> str:
    return " ".join(judged(*objects).problems[0].found.steps)


def test_update_that_waits_for_its_old_pod_lets_that_end_first() -> None:
    new = of_deployment("new", "7f4b8")
    state = (node("a", 2), of_deployment("old", "5d9c7", on="a"), new)

    assert results(judged(*state)) == [(ALL_IN_USE, GPUS)]
    assert "`kubectl -n team patch deployment llm --type=merge -p" in steps_of(*state)
    assert '"maxSurge":0,"maxUnavailable":1' in steps_of(*state)
    ended = of_deployment("old", "5d9c7", on="a", phase="Succeeded", states=[])
    assert ALL_IN_USE not in dict(results(judged(node("a", 2), ended, new)))


def test_revision_of_knative_that_waits_for_the_old_one_deletes_that() -> None:
    old, new = ({f"{KNATIVE}service": "llm", f"{KNATIVE}revision": f"llm-0000{number}"} for number in (1, 2))

    steps = steps_of(node("a", 2), runs("old", 2, "a", labels=old), pod("new", 2, conditions=NO_GPU_LEFT, labels=new))
    assert "`kubectl -n team delete revisions.serving.knative.dev llm-00001`" in steps


@pytest.mark.parametrize(
    "holder",
    [
        of_deployment("other-replica", "7f4b8", on="a"),
        of_deployment("elsewhere", "5d9c7", on="a", namespace="prod"),
        runs("notebook", 2, "a"),
    ],
    ids=["same revision", "other namespace", "other workload"],
)
def test_gpus_of_another_workload_are_no_update(holder: Object) -> None:
    steps = steps_of(node("a", 2), holder, of_deployment("new", "7f4b8"))

    assert "patch deployment" not in steps
    assert "--allocation" in steps
