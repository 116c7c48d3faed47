"""Find nodes that have room but exclude the pod by taints, cordons or maintenance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import Enum

from diagnosis.causes.device_plugins import MIG_PENDING, OFFERS_NONE
from diagnosis.causes.node_labels import UPGRADE_FAILED
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting
from diagnosis.causes.verdicts import IN_MAINTENANCE, KEPT_FROM_WORK, NOT_LOOKED, release_of
from diagnosis.facts.commands import command, kubectl, pods_on
from diagnosis.facts.gpu_nodes import changes
from diagnosis.facts.placement import UNSCHEDULABLE, tolerates, untolerated
from diagnosis.model import CauseSeverity, Family, FoundCause, Link, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node, Taint
from diagnosis.snapshot.pods import PodSpec
from healthcheck.node.state import CORDONED_BY, MAINTENANCE, STARTUP, UNHEALTHY
from healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
CORDONED = _scheduled(
    "NodeCordoned",
    "A node that suits waiting pods is cordoned.",
    "Find out who cordoned it and why; `kubectl uncordon` returns it to service.",
)
NOT_READY = _scheduled(
    "NodeNotReady",
    "A GPU node is not ready, does not respond, or is short of memory, disk or PIDs.",
    "Check the node's conditions, its kubelet and container runtime; free the disk or memory that it lacks.",
    severity=CauseSeverity.HIGH,
    follows=("RuntimeConfigMalformed", "RuntimeCriDisabled", "DefaultRuntimeUndefined"),
)
LEAVING = _scheduled(
    "NodeUnderMaintenance",
    "The platform is replacing, upgrading, checking or removing a node that suits waiting pods.",
    "Wait until the platform has removed or returned the node; if that lasts, find the pod that blocks its drain.",
)
STARTING = _scheduled(
    "NodeStartupUnfinished",
    "A suitable node still has a start-up taint that its owner has not removed.",
    "Check the component that owns the taint, on that node.",
)
TAINTED = _scheduled(
    "TaintNotTolerated",
    "All nodes that could take a workload have a taint that it does not tolerate.",
    "Add the toleration to the workload if it may run there, or remove the taint.",
    severity=CauseSeverity.HIGH,
    follows=("KueueReplacesOnTaintedNode",),
)
CAUSES = (CORDONED, NOT_READY, LEAVING, STARTING, TAINTED)

_K8S = "node.kubernetes.io/"
_NOT_READY = frozenset(
    _K8S + one
    for one in ("not-ready", "unreachable", "network-unavailable", "memory-pressure", "disk-pressure", "pid-pressure")
)
_SILENT = _K8S + "not-ready"
_LEAVING = (
    *("sagemaker.amazonaws.com/", "karpenter.sh/disrupt", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler"),
    *("DeletionCandidateOfClusterAutoscaler", "aws-node-termination-handler/", "cloud.google.com/impending-node"),
    *("remediator.kubernetes.azure.com/", "node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shut"),
    *("medik8s.io/", "nodemaintenance.", "node.kubernetes.io/maintenance", "nvidia.com/gpu-driver-upgrade"),
)
"""Key prefixes: HyperPod, Karpenter, the autoscaler, termination notices of clouds, medik8s."""
_STARTING = (
    *("node.cloudprovider.kubernetes.io/uninitialized", "karpenter.sh/unregistered", "readiness.k8s.io/"),
    *("startup-taint.cluster-autoscaler.kubernetes.io/", "status-taint.cluster-autoscaler.kubernetes.io/"),
    *("ignore-taint.cluster-autoscaler.kubernetes.io/", "node.cilium.io/agent-not-ready"),
)
_REMOVERS = (("karpenter.sh/", "Karpenter"), ("ToBeDeletedByCluster", "the Cluster Autoscaler"))
_RELIEF = {
    f"{_K8S}disk-pressure": "Free disk space on the node: `crictl rmi --prune` removes unused images, "
    "`du -xh --max-depth=2 /var` finds large folders. CUDA images need a disk of 100 GiB or more.",
    f"{_K8S}memory-pressure": "Move or limit the pods that use the most memory on the node; give each pod a memory "
    "request and limit.",
    f"{_K8S}pid-pressure": "Find the program that starts too many processes on the node: "
    "`ps -eo user,comm | sort | uniq -c | sort -n`.",
}
"""Fixes by the taint of a kubelet that is short of something."""
_AGENT = ("agent-not-ready", "/unregistered", "/uninitialized")
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_UPGRADED = frozenset(("", "upgrade-done"))
_YOUNG = timedelta(minutes=5)
"""Time until a new node is ready."""
SETTLES = timedelta(minutes=10)
"""Time until a new node offers its GPUs; a driver may be built first."""
_MOST = 8


class TaintOwner(Enum):
    """Class of a taint by its owner, which decides the object to change."""

    OURS = "gpu-healthcheck's"
    CORDON = "a person's"
    NOT_READY = "the cluster's own"
    LEAVING = "the platform's"
    STARTING = "a component's"
    DEDICATED = "the node's purpose"


def class_of(key: str) -> TaintOwner:
    if key in (UNHEALTHY, MAINTENANCE, STARTUP):
        return TaintOwner.OURS
    if key == UNSCHEDULABLE:
        return TaintOwner.CORDON
    if key in _NOT_READY:
        return TaintOwner.NOT_READY
    if key.startswith(_LEAVING):
        return TaintOwner.LEAVING
    if key.startswith(_STARTING) or key.endswith(_AGENT):
        return TaintOwner.STARTING
    return TaintOwner.DEDICATED


def closed_by(spec: PodSpec, node: Node) -> list[Taint]:
    """Return the node's taints that keep the pod off, including a cordon."""
    cordon = Taint(UNSCHEDULABLE, "", "NoSchedule")
    own = [cordon] if node.cordoned and not tolerates(spec.tolerations, cordon) else []
    closed = [*own, *untolerated(spec, node)]
    if not closed and any(condition.type == "Ready" and condition.status != "True" for condition in node.conditions):
        # The controller taints such a node moments later.
        return [Taint(_SILENT, "", "NoSchedule")]
    return closed


def is_joining(snapshot: Snapshot, spec: PodSpec, node: Node) -> bool:
    """Whether the node is new, and only its start-up keeps such a pod off."""
    young = snapshot.is_new(node.meta, SETTLES)
    starts = (TaintOwner.NOT_READY, TaintOwner.STARTING)
    return young and all(class_of(taint.key) in starts for taint in closed_by(spec, node))


def is_dedicated(spec: PodSpec, room: NodeUse) -> bool:
    """Whether the node is dedicated to other pods: a taint for its purpose keeps the pod off."""
    return any(class_of(taint.key) is TaintOwner.DEDICATED for taint in closed_by(spec, room.node))


def find_refused(snapshot: Snapshot, waiting: Waiting, rooms: Iterable[NodeUse]) -> Iterator[FoundCause]:
    """Yield the causes for `rooms`, each of which has a taint that keeps the pods off."""
    dedicated: defaultdict[str, list[NodeUse]] = defaultdict(list)
    classed = [(room, _classed(waiting.spec, room.node)) for room in rooms]
    # If a toleration alone opens one node, other obstacles on similar nodes need no fix.
    enough = any({kind for _, kind in some} == {TaintOwner.DEDICATED} for _, some in classed)
    for room, some in classed:
        others = enough and any(kind is TaintOwner.DEDICATED for _, kind in some)
        for taint, kind in some:
            if kind is TaintOwner.DEDICATED:
                dedicated[str(taint)].append(room)
            elif not others and not _is_new(snapshot, room.node, kind):
                yield _of_node(room.node, taint, kind, waiting.names)
    if dedicated:
        yield _untolerated(waiting, dedicated)


def find_changed(node: Node, resource: str, affected: tuple[str, ...]) -> FoundCause:
    """Return the result for a node that offers nothing while the operator is changing it."""
    evidence = f"{node.subject} offers no {resource} during a change: {', '.join(changes(node))}"
    remedy = f"Wait for the operator; if these labels no longer change, check its pods there: {_pods_on(node)}"
    above = origins((UPGRADE_FAILED, MIG_PENDING, *OFFERS_NONE), node.subject)
    return FoundCause(LEAVING, node.subject, (evidence,), (remedy,), affected, because_of=above)


def _classed(spec: PodSpec, node: Node) -> list[tuple[Taint, TaintOwner]]:
    """Return the taints that close the node, each with its class.

    A platform that removes a node also cordons it. That cordon is left out, because it must not be lifted.
    """
    classed = [(taint, class_of(taint.key)) for taint in closed_by(spec, node)]
    leaves = any(kind is TaintOwner.LEAVING for _, kind in classed)
    return [(taint, kind) for taint, kind in classed if not (leaves and kind is TaintOwner.CORDON)]


def _is_new(snapshot: Snapshot, node: Node, kind: TaintOwner) -> bool:
    starts = kind in (TaintOwner.NOT_READY, TaintOwner.STARTING)
    return starts and snapshot.is_new(node.meta, _YOUNG)


def _of_node(node: Node, taint: Taint, kind: TaintOwner, affected: tuple[str, ...]) -> FoundCause:
    evidence, upgrade = f"taint {taint}", node.meta.labels.get(_UPGRADE, "")
    match kind:
        case TaintOwner.OURS:
            cause = {UNHEALTHY: KEPT_FROM_WORK, MAINTENANCE: IN_MAINTENANCE}.get(taint.key, NOT_LOOKED)
            return FoundCause(cause, node.subject, (), (), affected)
        case TaintOwner.CORDON if upgrade not in _UPGRADED:
            message = f"cordoned while its GPU driver is upgraded: {_UPGRADE}={upgrade}"
            failed = origins((UPGRADE_FAILED,), node.subject)
            return FoundCause(LEAVING, node.subject, (message,), _upgrade(node), affected, because_of=failed)
        case TaintOwner.CORDON:
            return FoundCause(CORDONED, node.subject, tuple(_cordon(node)), _uncordon(node), affected)
        case TaintOwner.NOT_READY:
            # The family of nodes reports the condition and the fix; only pressure is reported here.
            pressure = tuple(condition for condition in _conditions(node) if "Pressure" in condition)
            return FoundCause(NOT_READY, node.subject, (evidence, *pressure), tuple(_relief(node, taint)), affected)
        case TaintOwner.LEAVING:
            steps = (*_until_gone(node, taint), *_describe(node))
            return FoundCause(LEAVING, node.subject, (evidence, *_platform(node)), steps, affected)
    remedy = f"Check the component that should remove {taint.key} on {node.name}: {_pods_on(node)}"
    return FoundCause(STARTING, node.subject, (evidence,), (remedy,), affected)


def _relief(node: Node, taint: Taint) -> Iterator[str]:
    """Yield what ends the pressure; nothing for a node that is not ready, which has its own result."""
    if taint.key in _RELIEF:
        yield _RELIEF[taint.key]
        yield f"The kubelet then removes the taint in about five minutes. The node's pods: {_pods_on(node)}"


def _until_gone(node: Node, taint: Taint) -> Iterator[str]:
    """Yield what a person can do while a platform removes or repairs the node."""
    by = next((name for key, name in _REMOVERS if taint.key.startswith(key)), "")
    if by:
        yield (
            f"Wait: {by} drains this node and removes it, and adds another if the pods still need one. A taint that "
            "is removed by hand comes back."
        )
        yield f"If that lasts, find the pod that it can't evict (a budget, or do-not-disrupt): {_pods_on(node)}"
    else:
        yield LEAVING.remedy


def _untolerated(waiting: Waiting, dedicated: dict[str, list[NodeUse]]) -> FoundCause:
    evidence, remedy = [], []
    for taint, rooms in sorted(dedicated.items())[:_MOST]:
        names = named((room.node.name for room in rooms), _MOST)
        key, _, effect = taint.rpartition(":")
        name, _, value = key.partition("=")
        near = "".join(f"; it tolerates {message}" for message in _tolerated(waiting.spec, name))
        evidence.append(f"taint {taint} on {names}, not tolerated{near}")
        equal = f"operator: Equal, value: {value}" if value else "operator: Exists"
        remedy.append(f"Add to the pod's tolerations: key: {name}, {equal}, effect: {effect}.")
    if len(dedicated) > _MOST:
        evidence.append(f"and {len(dedicated) - _MOST} more taints, each on other nodes")
    remedy.append("Only if no workload should be kept off: remove the taint from the nodes.")
    return waiting.found(TAINTED, *evidence, remedy=tuple(remedy))


def _tolerated(spec: PodSpec, key: str) -> Iterator[str]:
    """Yield tolerations with the same key that still do not cover this taint."""
    for toleration in spec.tolerations:
        if toleration.key == key:
            yield (
                f"{toleration.key}={toleration.value}:{toleration.effect or 'any effect'}"
                if toleration.value
                else f"{toleration.key}:{toleration.effect}"
            )


def _cordon(node: Node) -> Iterator[str]:
    yield f"{node.subject} is cordoned (spec.unschedulable)"
    if CORDONED_BY in node.meta.annotations:
        yield f"annotation {CORDONED_BY}={node.meta.annotations[CORDONED_BY][:100]}"
    yield from _conditions(node)


def _uncordon(node: Node) -> tuple[str, ...]:
    if CORDONED_BY in node.meta.annotations:
        release = release_of(node.name)
        return (f"If the run that cordoned it is over, return the node to service: {release}",)
    return (f"Find out who cordoned it; if it may work again: {command('kubectl', 'uncordon', node.name)}",)


def _upgrade(node: Node) -> tuple[str, ...]:
    look = kubectl("describe", node.meta)
    return (f"Wait for the upgrade; if its state no longer changes, check the driver's pod there: {look}",)


def _conditions(node: Node) -> Iterator[str]:
    for condition in node.conditions:
        bad = "True" if condition.type != "Ready" else "False"
        if (condition.type == "Ready" and condition.status != "True") or (
            condition.type.endswith("Pressure") and condition.status == bad
        ):
            yield f"condition {condition}".rstrip(": ,")


def _platform(node: Node) -> Iterator[str]:
    for key, value in sorted(node.meta.labels.items()):
        if key.startswith("sagemaker.amazonaws.com/") and ("health" in key or "fault" in key):
            yield f"label {key}={value}"


def _describe(node: Node) -> tuple[str, ...]:
    return (f"Check the node's conditions and events: {kubectl('describe', node.meta)}",)


def _pods_on(node: Node) -> str:
    return pods_on(node.name)
