"""Find GPU pods that run on a GPU with an active fault, and pods that the kubelet restarts there again and again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import command, explain, pods_on
from gpu_healthcheck.diagnosis.facts.components import role_of
from gpu_healthcheck.diagnosis.facts.gpu_nodes import GPU_DRIVERS, is_device
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_claims, gpu_pods, gpus_of, is_deep_test
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.facts.ranks import RANK_KEYS, REPLICA, REPLICA_TYPE, marks_of
from gpu_healthcheck.diagnosis.facts.symptoms import ended_of, older, shortened, since_and_detail
from gpu_healthcheck.diagnosis.model import Certainty, Family, FoundCause, Link, Search
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.dra import ResourceClaim, SliceDevice
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import AllocatedDevice, Container, ContainerState, Pod
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT
from gpu_healthcheck.healthcheck.memory.findings import gpu_address
from gpu_healthcheck.healthcheck.node.device_pools import address_of
from gpu_healthcheck.healthcheck.node.evictions import EvictionState, PodEviction, evictions_on
from gpu_healthcheck.healthcheck.node.state import CONDITION, GPU_UNHEALTHY, SEVERITY, UNHEALTHY, NodeState
from gpu_healthcheck.healthcheck.text.naming import named

_running = Family(Link.RUNNING)
FAULTY = _running(
    "PodOnFaultyGpu",
    "GPU pods run on a GPU or a node with an active fault: their work may hang, fail or be wrong, and the other ranks "
    "of their jobs wait for them.",
    "Move the pods to healthy nodes in a way that does not fail their jobs, then follow the finding's action.",
    source="A finding of the agent with severity RESET or worse; KEP-4680, `allocatedResourcesStatus` of a container",
    urgent=True,
)
_MILD = ("PASS", "MONITOR")
_OPEN_NODE = "Keep new pods off the node first: "
_PLUGIN = (
    "Check the GPU on the node; when it is healthy, restart the device plugin or DRA driver there, which reports it "
    "unhealthy until then: "
)
_ASK = "Name the node to an administrator of the cluster, who sees the fault and its fix with "
_MOST_FINDINGS, _MOST_JOBS, _MOST_PODS, _LONGEST, _LONGEST_EVENT = 3, 4, 8, 160, 400
_INDEPENDENT = frozenset(("pod", "deployment", "replicaset", "statefulset", "daemonset"))
"""Kinds whose pods do not depend on each other."""
IN_PLACE = _running(
    "RestartsOnFaultyNode",
    "A container fails on a node with an active fault, and the pod's restartPolicy starts it there again and again: a "
    "taint keeps new pods off, but does not move this one.",
    "Move the pod to a healthy node in a way that does not fail its job. For a Job, `restartPolicy: Never` makes each "
    "retry a new pod.",
    source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy",
    urgent=True,
)
_POLICIES = ("OnFailure", "Always")
_TIMES = 2
_LATELY = 10.0
"""Minutes after a failure in which a running container may fail again."""
_MOST = 4
_BOUND = "DaemonSet"
"""Kind whose pods belong to their node."""
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
"""Pattern of a device plugin's ID; a replica of a shared GPU has a suffix."""
_UNHEALTHY = "Unhealthy"


class AllocatedGpu(Struct, frozen=True):
    """One GPU, or a part of one.

    `uuids` has the UUID of the GPU or MIG instance; for an instance also the UUID of the GPU, if known.
    """

    shown: str
    uuids: frozenset[str] = frozenset()
    address: str = ""

    def has(self, finding: RecordFinding) -> bool | None:
        """Whether the finding is about this GPU; None if the two have no identifier to compare."""
        uuid, address = finding.about.get("uuid", "").lower(), gpu_address(finding.subject)
        if uuid in self.uuids or (address and address == self.address):
            return True
        comparable = any(text[:4] == uuid[:4] for text in self.uuids) or (address and self.address)
        return False if comparable else None


def given_gpus(snapshot: Snapshot, pod: Pod) -> tuple[AllocatedGpu, ...] | None:
    """Return the pod's GPUs; None if a container has GPUs and no source identifies them."""
    by_hami = tuple(_by_uuid(share.card) for share in pod.shares)
    if by_hami:
        return by_hami
    found: list[AllocatedGpu] = []
    for container in pod.spec.containers:
        if container.init and not container.sidecar:
            continue
        own = [*_by_kubelet(snapshot, pod, container), *_by_claims(snapshot, pod, container)]
        claims = ((pod.meta.namespace, pod.spec.claims.get(claim, "")) for claim in container.claims)
        if not own and (gpus_of(container) or any(claim in gpu_claims(snapshot) for claim in claims)):
            return None
        found += own
    return tuple(dict.fromkeys(found)) or None


def unhealthy_gpus(pod: Pod) -> Iterator[AllocatedDevice]:
    """Yield the pod's GPUs that the kubelet reports as unhealthy.

    Their device plugin or DRA driver reported them to the kubelet.
    """
    for state in pod.states:
        yield from (each for each in state.devices if state.running and _is_gpu(each) and each.health == _UNHEALTHY)


def _by_kubelet(snapshot: Snapshot, pod: Pod, container: Container) -> Iterator[AllocatedGpu]:
    for state in pod.states:
        if state.name == container.name:
            for device in filter(_is_gpu, state.devices):
                yield (
                    _by_device(snapshot, device.name) if device.resource.startswith("claim:") else _by_uuid(device.name)
                )


def _by_claims(snapshot: Snapshot, pod: Pod, container: Container) -> Iterator[AllocatedGpu]:
    for name in container.claims:
        claim = _claims(snapshot).get((pod.meta.namespace, pod.claim_names.get(name, pod.spec.claims.get(name, ""))))
        devices = claim.devices if claim is not None else ()
        yield from (_by_device(snapshot, device) for device in devices if device.partition("/")[0] in GPU_DRIVERS)


def _is_gpu(device: AllocatedDevice) -> bool:
    if device.resource.startswith("claim:"):
        return device.name.partition("/")[0] in GPU_DRIVERS
    return is_device(device.resource)


def _by_uuid(name: str) -> AllocatedGpu:
    found = _UUID.search(name)
    uuid = found[0] if found else name.partition("::")[0]
    return AllocatedGpu(uuid, frozenset((uuid.lower(),)))


def _by_device(snapshot: Snapshot, name: str) -> AllocatedGpu:
    device = _devices(snapshot).get(name)
    if device is None:
        return AllocatedGpu(name)
    attributes = {key.rpartition("/")[2]: value for key, value in device.attributes.items()}
    named = [uuid for key in ("uuid", "parentUUID") if (uuid := attributes.get(key, ""))]
    return AllocatedGpu(
        next(iter(named), name), frozenset(text.lower() for text in named), address_of(device.attributes)
    )


@lru_cache(maxsize=1)
def _claims(snapshot: Snapshot) -> Mapping[tuple[str, str], ResourceClaim]:
    """Return claims that have devices, by namespace and name."""
    return {(claim.meta.namespace, claim.meta.name): claim for claim in snapshot.claims if claim.devices}


@lru_cache(maxsize=1)
def _devices(snapshot: Snapshot) -> Mapping[str, SliceDevice]:
    """Return the devices by driver/pool/device."""
    slices = (resource_slice for pool in snapshot.pools.values() for resource_slice in pool)
    return {
        f"{resource_slice.driver}/{resource_slice.pool}/{device.name}": device
        for resource_slice in slices
        for device in resource_slice.devices
    }


class AffectedPod(Struct, frozen=True):
    """Pod affected by findings of its node, or of its own GPUs if `gpus` are known.

    `warnings` are those of the agent about the pod. They count only while the Node's record is not visible.
    """

    pod: Pod
    findings: tuple[RecordFinding, ...]
    unhealthy: tuple[AllocatedDevice, ...] = ()
    gpus: tuple[AllocatedGpu, ...] | None = None
    warnings: tuple[Event, ...] = ()


def find_faulty(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each node with faulty GPUs that pods use."""
    for name, struck in affected_pods(snapshot).items():
        yield _found(snapshot, name, struck)


def find_reported(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield one result for each node on which the kubelet or the agent reports pods' GPUs as unhealthy.

    This needs no Nodes: for users who see only their own namespace.
    """
    if snapshot.sees("Node"):
        return
    reported = []
    for pod in filter(_is_at_work, gpu_pods(snapshot)):
        events = tuple(each for each in snapshot.events_of(pod) if each.by == COMPONENT)
        is_faulty = any(each.reason == GPU_UNHEALTHY for each in events)
        affected = AffectedPod(pod, (), tuple(unhealthy_gpus(pod)), warnings=events if is_faulty else ())
        reported += [(pod.spec.node, affected)] if affected.unhealthy or affected.warnings else []
    yield from (_found(snapshot, name, pods) for name, pods in grouped(reported).items())


@lru_cache(maxsize=1)
def affected_pods(snapshot: Snapshot) -> Mapping[str, Sequence[AffectedPod]]:
    """Return, by node, the pods that run on one of its faulty GPUs."""
    by_node: defaultdict[str, list[AffectedPod]] = defaultdict(list)
    for pod in gpu_pods(snapshot):
        node = snapshot.by_node.get(pod.spec.node)
        if node is not None and _is_at_work(pod) and (struck := affected_on(snapshot, pod, node)):
            by_node[node.name].append(struck)
    return by_node


def is_gang(workload: str) -> bool:
    """Whether the pods of a workload such as `job/team/train` wait for each other, as far as its kind shows."""
    return workload.partition("/")[0] not in _INDEPENDENT


def affected_on(snapshot: Snapshot, pod: Pod, node: Node) -> AffectedPod | None:
    """Return the pod with the faults of its node that concern it; None if there are none."""
    unhealthy, faults = tuple(unhealthy_gpus(pod)), _faults(node)
    if not faults and not unhealthy:
        return None
    gpus = given_gpus(snapshot, pod)
    own = tuple(fault for fault in faults if concerns(fault, gpus))
    return AffectedPod(pod, own, unhealthy, gpus) if own or unhealthy else None


def _is_at_work(pod: Pod) -> bool:
    """Whether a container with GPUs runs in the pod; our deep diagnostics and components do not count as work."""
    if pod.phase != "Running" or pod.meta.deleted is not None or is_deep_test(pod):
        return False
    asking = {container.name for container in pod.spec.containers if gpus_of(container) or container.claims}
    runs = not pod.states or any(state.running and state.name in asking for state in pod.states)
    return runs and role_of(pod.meta, {}, pod.spec) is None


def _faults(node: Node) -> tuple[RecordFinding, ...]:
    """Return the node's active findings of RESET or worse.

    If our taint is active and no record names a finding, use the finding named by the Node's condition.
    """
    if node.faults:
        return node.faults
    stated = node.record.severity if node.record is not None else node.meta.labels.get(SEVERITY, "")
    if not node.withheld or stated in _MILD:
        return ()
    condition = node.condition(CONDITION, "False")
    if condition is None:
        return (RecordFinding(reason=f"taint {UNHEALTHY}", severity=stated, subject=node.subject),)
    own = RecordFinding(
        reason=condition.reason,
        severity=stated,
        subject=node.subject,
        detail=condition.message,
        first_seen=condition.since,
    )
    return (own,)


def concerns(finding: RecordFinding, gpus: tuple[AllocatedGpu, ...] | None) -> bool:
    """Whether the finding is about one of these GPUs.

    A finding that is not about a GPU concerns all pods of the node.
    """
    if gpus is None or not finding.subject.startswith("gpu/"):
        return True
    return any(gpu.has(finding) is not False for gpu in gpus)


def _found(snapshot: Snapshot, name: str, struck: Sequence[AffectedPod]) -> FoundCause:
    node = snapshot.by_node.get(name)
    faults = _faults(node) if node is not None else ()
    findings = [each for each in faults if any(each in affected_pod.findings for affected_pod in struck)]
    workloads = [snapshot.line(affected_pod.pod.meta)[-1] for affected_pod in struck]
    affected = (*(affected_pod.pod.subject for affected_pod in struck), *dict.fromkeys(filter(is_gang, workloads)))
    if node is not None:
        # The kubelet repeats the last report of a device plugin or driver, which may be older than our verdict.
        doubted = not findings and node.record is not None and node.record.status == "pass"
    else:  # the fault that an Event reports may have ended
        doubted = not any(affected.unhealthy for affected in struck)
    return FoundCause(
        FAULTY,
        f"node/{name}",
        (*_evidence(snapshot, findings, struck), *map(_eviction, _evictions(snapshot, node, struck))),
        tuple(_remedy(snapshot, name, node, findings, struck)),
        affected,
        Certainty.LIKELY if doubted else Certainty.PROVEN,
    )


def _evidence(snapshot: Snapshot, findings: Sequence[RecordFinding], struck: Sequence[AffectedPod]) -> Iterator[str]:
    yield from map(_shown, findings[:_MOST_FINDINGS])
    if len(findings) > _MOST_FINDINGS:
        yield f"and {len(findings) - _MOST_FINDINGS} more findings of RESET or worse"
    for affected in struck[:_MOST_PODS]:
        for device in affected.unhealthy[:_MOST_FINDINGS]:
            message = f": {shortened(device.message, _LONGEST)}" if device.message else ""
            yield f"the kubelet reports {device.resource} {device.name} of {affected.pod.subject} as Unhealthy{message}"
        for warning in affected.warnings[-_MOST_FINDINGS:]:
            yield f"{affected.pod.subject}: Event {warning.reason}: {shortened(warning.message, _LONGEST_EVENT)}"
    jobs = grouped((snapshot.line(affected.pod.meta)[-1], affected) for affected in struck)
    for workload, some in list(jobs.items())[:_MOST_JOBS]:
        yield _job(snapshot, workload, some)
    if len(jobs) > _MOST_JOBS:
        yield f"and pods of {len(jobs) - _MOST_JOBS} more workloads"
    is_on_gpus = all(finding.subject.startswith("gpu/") for finding in findings)
    if findings and is_on_gpus and any(each.gpus is None for each in struck):
        yield "the GPUs of each pod are unknown, so every GPU pod on the node is listed"


def _evictions(
    snapshot: Snapshot, node: Node | None, struck: Sequence[AffectedPod]
) -> Iterator[tuple[Pod, PodEviction]]:
    """Yield these pods' evictions by the evict program."""
    annotations = node.meta.annotations if node is not None else {}
    pods = {affected.pod.meta.uid: affected.pod for affected in struck}
    for eviction in evictions_on(NodeState("", annotations=annotations), snapshot.now).pods:
        if (pod := pods.get(eviction.uid or "")) is not None:
            yield pod, eviction


def _eviction(found: tuple[Pod, PodEviction]) -> str:
    pod, eviction = found
    if eviction.state is EvictionState.SLURM:
        return f"{pod.subject} is a Slurm node, which Slurm must drain: it is not evicted"
    if eviction.state is EvictionState.REFUSED:
        return f"the eviction of {pod.subject} waits: refused by {eviction.obstacle}"
    due = f" for {eviction.due:%H:%M}Z" if eviction.state is EvictionState.ANNOUNCED and eviction.due else ""
    return f"the eviction of {pod.subject} is {eviction.state}{due}"


def _shown(finding: RecordFinding) -> str:
    uuid = finding.about.get("uuid", "")
    where = f"{finding.subject} ({uuid})" if uuid else finding.subject
    severity = f" {finding.severity}" if finding.severity else ""
    return f"{finding.reason}{severity} on {where}{since_and_detail(finding)}"


def _job(snapshot: Snapshot, workload: str, some: Sequence[AffectedPod]) -> str:
    every = [pod for pod in snapshot.pods_under.get(workload, ()) if not pod.over]
    owner = named((f"{affected.pod.subject}{_rank(affected.pod)}{_given(affected)}" for affected in some), _MOST_PODS)
    return (
        f"{workload}: {len(some)} of its {counted(len(every), 'pod')} there: {owner}" if every else f"running: {owner}"
    )


def _given(affected: AffectedPod) -> str:
    """Return the pod's faulty GPUs, as far as they are known."""
    hit = [gpu.shown for gpu in affected.gpus or () if any(gpu.has(finding) for finding in affected.findings)]
    return f" on {', '.join(hit)}" if hit else ""


def _rank(pod: Pod) -> str:
    """Return the pod's number in its workload; a pod with several GPUs has one rank for each."""
    marks = marks_of(pod)
    if REPLICA in marks:
        return f" ({marks.get(REPLICA_TYPE, 'replica')} {marks[REPLICA]})"
    number = next((marks[key] for key in RANK_KEYS if key in marks), "")
    if not number:
        return ""
    alone = [*(value for container in pod.spec.containers for value in gpus_of(container).values())] in (["1"], [])
    return f" (rank {number})" if alone else f" (node rank {number})"


def _remedy(
    snapshot: Snapshot, name: str, node: Node | None, findings: Sequence[RecordFinding], struck: Sequence[AffectedPod]
) -> Iterator[str]:
    for reason in dict.fromkeys(finding.reason for finding in findings[:_MOST_FINDINGS] if finding.reason.isalnum()):
        yield f"See the action for {reason}: {explain(reason)}"
    if node is not None and not node.withheld and not node.cordoned:
        yield f"{_OPEN_NODE}{command('kubectl', 'cordon', node.name)}"
    for pod, eviction in _evictions(snapshot, node, struck):
        if eviction.state is EvictionState.REFUSED:
            yield f"Let {eviction.budget or 'what refuses it'} allow the eviction of {pod.subject}, or move the pod:"
    yield from steps_to_move(snapshot, [affected.pod for affected in struck], "healthy nodes")
    if node is None:
        yield f"{_ASK}{command('gpu-healthcheck', 'status', name)}"
    elif not findings:
        yield f"{_PLUGIN}{pods_on(name)}"


def find_in_place(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield workloads with pods that fail again and again on a faulty node."""
    failing = []
    for pod in gpu_pods(snapshot):
        node, state = snapshot.by_node.get(pod.spec.node), _failing(snapshot, pod)
        if node is not None and state is not None and _can_move(pod) and (struck := affected_on(snapshot, pod, node)):
            failing.append((snapshot.line(pod.meta)[-1], (struck, state, node)))
    for workload, some in grouped(failing).items():
        yield _restarting(snapshot, workload, some)


def _can_move(pod: Pod) -> bool:
    """Whether the owner creates another pod, for any node, in place of this one."""
    owner = pod.meta.owner
    if pod.over or pod.meta.deleted is not None or pod.spec.restart_policy not in _POLICIES:
        return False
    owned = owner is not None and owner.kind != _BOUND
    return owned and not is_deep_test(pod) and role_of(pod.meta, {}, pod.spec) is None


def _failing(snapshot: Snapshot, pod: Pod) -> ContainerState | None:
    """Return the container that has failed repeatedly and does not work since."""
    for state in pod.states:
        ended = ended_of(state)
        if state.restarts < _TIMES or ended is None or not ended.exit_code:
            continue
        if state.waiting == "CrashLoopBackOff" or state.ended is not None or not older(snapshot, ended.at, _LATELY):
            return state
    return None


def _restarting(snapshot: Snapshot, workload: str, some: list[tuple[AffectedPod, ContainerState, Node]]) -> FoundCause:
    evidence = []
    for struck, state, node in some[:_MOST]:
        ended, pod = ended_of(state), struck.pod
        code = ended.exit_code if ended is not None else None
        why = f"exit code {code}" + (f": {shortened(ended.message)}" if ended is not None and ended.message else "")
        policy = f"restartPolicy {pod.spec.restart_policy}"
        evidence.append(
            f"{pod.subject}: {policy}, container {state.name} restarted {state.restarts} times on {node.subject}, {why}"
        )
        evidence += (f"{node.subject}: {each.reason} {each.severity} on {each.subject}" for each in struck.findings[:2])
        evidence += (f"the kubelet reports {each.name} of {pod.subject} as Unhealthy" for each in struck.unhealthy[:2])
    first, node = some[0][0].pod, some[0][2]
    there = [struck.pod for struck, _, _ in some if struck.pod.spec.node == node.name]
    remedy = [*steps_to_move(snapshot, there, "healthy nodes")]
    if not node.withheld and not node.cordoned:
        remedy.insert(0, f"Keep new pods off the node first: {command('kubectl', 'cordon', node.name)}")
    if is_gang(workload) and first.spec.restart_policy == "OnFailure":
        remedy.append(f"In the manifest of {workload}, set `restartPolicy: Never`: then each retry is a new pod.")
    affected = tuple(struck.pod.subject for struck, _, _ in some)
    return FoundCause(IN_PLACE, workload, tuple(dict.fromkeys(evidence)), tuple(remedy), affected)


SEARCHES = (
    Search((FAULTY,), ("Node", "Pod"), find_faulty),
    Search((FAULTY,), ("Pod",), find_reported),
    Search((IN_PLACE,), ("Node", "Pod"), find_in_place),
)
