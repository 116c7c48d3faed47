"""Find nodes with room that exclude the pod: by taints, cordons or maintenance, or by the pod's own selector."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum

from gpu_healthcheck.diagnosis.causes.components import NOT_READY as COMPONENT_NOT_READY
from gpu_healthcheck.diagnosis.causes.device_plugins import MIG_PENDING, OFFERS_NONE
from gpu_healthcheck.diagnosis.causes.node_labels import UNLABELLED, UPGRADE_FAILED
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting
from gpu_healthcheck.diagnosis.causes.verdicts import IN_MAINTENANCE, KEPT_FROM_WORK, NOT_LOOKED, release_of
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, pods_on
from gpu_healthcheck.diagnosis.facts.components import Role, components
from gpu_healthcheck.diagnosis.facts.cordons import cordon_marks, uncordon_steps
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject, UnfitReason
from gpu_healthcheck.diagnosis.facts.gpu_nodes import SETTLES, changes, devices_in, has_nvidia
from gpu_healthcheck.diagnosis.facts.placement import UNSCHEDULABLE, expression_takes, selects, tolerates, untolerated
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Family, FoundCause, Link, Origin, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, Taint
from gpu_healthcheck.diagnosis.snapshot.pods import PodSpec, Toleration
from gpu_healthcheck.healthcheck.node.label_selector import Expression
from gpu_healthcheck.healthcheck.node.state import CORDONED_BY, MAINTENANCE, STARTUP, UNHEALTHY
from gpu_healthcheck.healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
CORDONED = _scheduled(
    "NodeCordoned",
    "A node that suits waiting pods is cordoned.",
    "Let the owner of the cordon finish; when its reason has ended, `kubectl uncordon` returns the node to service.",
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
UNMATCHED = _scheduled(
    "NodeSelectorMatchesNoNode",
    "A workload's node selector or required affinity excludes every node with its resources.",
    "Change the selector to labels that the nodes have, or label the nodes.",
    severity=CauseSeverity.HIGH,
)
CAUSES = (CORDONED, NOT_READY, LEAVING, STARTING, TAINTED, UNMATCHED)

_K8S = "node.kubernetes.io/"
_NOT_READY = frozenset(
    _K8S + one
    for one in ("not-ready", "unreachable", "network-unavailable", "memory-pressure", "disk-pressure", "pid-pressure")
)
_LEAVING = (
    *("sagemaker.amazonaws.com/", "karpenter.sh/disrupt", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler"),
    *("DeletionCandidateOfClusterAutoscaler", "aws-node-termination-handler/", "cloud.google.com/impending-node"),
    *("remediator.kubernetes.azure.com/", "node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shut"),
    *("medik8s.io/", "nodemaintenance.", "node.kubernetes.io/maintenance", "nvidia.com/gpu-driver-upgrade"),
    "AggregatedNodeHealth",
)
"""Key prefixes: HyperPod, Karpenter, the autoscaler, termination notices of clouds, medik8s, NVSentinel."""
_STARTING = (
    *("node.cloudprovider.kubernetes.io/uninitialized", "karpenter.sh/unregistered", "karpenter.sh/not-ready"),
    *("startup-taint.cluster-autoscaler.kubernetes.io/", "status-taint.cluster-autoscaler.kubernetes.io/"),
    *("ignore-taint.cluster-autoscaler.kubernetes.io/", "node.cilium.io/agent-not-ready", "readiness.k8s.io/"),
)
_STARTING_SUFFIXES = ("agent-not-ready", "/unregistered", "/uninitialized")
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
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_BECOMES_READY = timedelta(minutes=5)
"""Time until a new node is ready."""
_MOST_TAINTS, _MOST_LABELS = 8, 4
_NAME = "metadata.name"
_DISCOVERERS = (Role.GPU_FEATURES, Role.NODE_FEATURES)
_DISCOVERED = frozenset(
    f"nvidia.com/{one}"
    for one in (
        *("gpu.product", "gpu.memory", "gpu.count", "gpu.family", "gpu.machine", "gpu.present", "gpu.replicas"),
        *("gpu.compute.major", "gpu.compute.minor", "cuda.driver.major", "cuda.runtime.major", "mig.capable"),
    )
)
"""Labels of GPU feature discovery: if one is absent, it is not a typing error."""


class TaintOwner(Enum):
    """Class of a taint by its owner, which decides the object to change."""

    OURS = "gpu-healthcheck's"
    CORDON = "a person's"
    NOT_READY = "the cluster's own"
    LEAVING = "the platform's"
    STARTING = "a component's"
    DEDICATED = "the node's purpose"


def owner_of(key: str) -> TaintOwner:
    """Return the class of a taint with this key."""
    if key in (UNHEALTHY, MAINTENANCE, STARTUP):
        return TaintOwner.OURS
    if key == UNSCHEDULABLE:
        return TaintOwner.CORDON
    if key in _NOT_READY:
        return TaintOwner.NOT_READY
    if key.startswith(_LEAVING):
        return TaintOwner.LEAVING
    if key.startswith(_STARTING) or key.endswith(_STARTING_SUFFIXES):
        return TaintOwner.STARTING
    return TaintOwner.DEDICATED


_OURS = {UNHEALTHY: KEPT_FROM_WORK, MAINTENANCE: LEAVING, STARTUP: NOT_LOOKED}
_BY_OWNER = {
    TaintOwner.CORDON: CORDONED,
    TaintOwner.NOT_READY: NOT_READY,
    TaintOwner.LEAVING: LEAVING,
    TaintOwner.STARTING: STARTING,
    TaintOwner.DEDICATED: TAINTED,
}


def taint_texts() -> Iterator[tuple[str, Cause]]:
    """Yield a pattern of each owner's taints, as a scheduler's text has them after the word taint, and the cause."""
    keys = {
        TaintOwner.CORDON: (UNSCHEDULABLE,),
        TaintOwner.NOT_READY: sorted(_NOT_READY),
        TaintOwner.LEAVING: _LEAVING,
        TaintOwner.STARTING: _STARTING,
    }
    owned = {owner: "|".join(map(re.escape, some)) for owner, some in keys.items()}
    owned[TaintOwner.STARTING] += rf"|[^:{{}}]{{1,300}}(?:{'|'.join(_STARTING_SUFFIXES)}):"
    patterns = {pattern: _BY_OWNER[owner] for owner, pattern in owned.items()}
    patterns |= {re.escape(key): cause for key, cause in _OURS.items()}
    for pattern, cause in patterns.items():
        yield rf" \{{(?:{pattern})", cause
    yield rf"(?! \{{(?:{'|'.join(patterns)}))", _BY_OWNER[TaintOwner.DEDICATED]


def by_taint(reason: UnfitReason) -> tuple[Cause, tuple[str, ...]]:
    """Return the cause for the taint that a scheduler's text names, and its steps; () for those of the cause."""
    if not is_ours(reason):
        return _BY_OWNER[owner_of(_key_in(reason))], ()
    cause = _OURS[_key_in(reason)]
    status = f"{command('gpu-healthcheck', 'status')} lists the nodes with their findings, tests and resets"
    return cause, (status,) if cause is LEAVING else (status, cause.remedy)


def is_ours(reason: UnfitReason) -> bool:
    """Whether the taint that a scheduler's text names is gpu-healthcheck's."""
    return _key_in(reason) in _OURS


def keeps_all_off(reason: UnfitReason) -> bool:
    """Whether a reason about a taint or cordon is a state of nodes that ends, and that no workload should tolerate."""
    owner = owner_of(_key_in(reason))
    return reason.about is not ReasonSubject.TAINT or owner not in (TaintOwner.OURS, TaintOwner.DEDICATED)


def _key_in(reason: UnfitReason) -> str:
    """Read the key in a text such as `{node.kubernetes.io/not-ready: }`."""
    return reason.what.strip("{} ").partition(":")[0]


def closed_by(spec: PodSpec, node: Node) -> list[Taint]:
    """Return the node's taints that keep the pod off, including a cordon."""
    cordon = Taint(UNSCHEDULABLE, "", "NoSchedule")
    closed = [cordon] if node.cordoned and not tolerates(spec.tolerations, cordon) else []
    closed += untolerated(spec, node)
    if not closed and any(condition.type == "Ready" and condition.status != "True" for condition in node.conditions):
        # The controller taints such a node moments later.
        closed.append(Taint(f"{_K8S}not-ready", "", "NoSchedule"))
    return closed


def is_joining(snapshot: Snapshot, spec: PodSpec, node: Node) -> bool:
    """Whether a new GPU node offers no GPUs yet, and only its start-up keeps such a pod off."""
    if not (snapshot.is_new(node.meta, SETTLES) and has_nvidia(node)) or devices_in(node.allocatable):
        return False
    starts = (TaintOwner.NOT_READY, TaintOwner.STARTING)
    return selects(spec, node) and all(owner_of(taint.key) in starts for taint in closed_by(spec, node))


def is_dedicated(spec: PodSpec, node: Node) -> bool:
    """Whether the node is dedicated to other pods: a taint for its purpose keeps the pod off."""
    return any(owner_of(taint.key) is TaintOwner.DEDICATED for taint in closed_by(spec, node))


def find_closed(snapshot: Snapshot, waiting: Waiting, nodes: Iterable[Node]) -> Iterator[FoundCause]:
    """Yield the causes for nodes, each of which has a taint that keeps the pods off."""
    owned = [(node, _owned(waiting.spec, node)) for node in nodes]
    # If a toleration alone opens one node, other obstacles on similar nodes need no fix.
    enough = any({owner for _, owner in taints} == {TaintOwner.DEDICATED} for _, taints in owned)
    dedicated: defaultdict[str, list[str]] = defaultdict(list)
    for node, taints in owned:
        tolerable = [taint for taint, owner in taints if owner is TaintOwner.DEDICATED]
        for taint in tolerable:
            dedicated[str(taint)].append(node.name)
        for taint, owner in taints if not (enough and tolerable) else ():
            starts = owner in (TaintOwner.NOT_READY, TaintOwner.STARTING)
            if owner is not TaintOwner.DEDICATED and not (starts and snapshot.is_new(node.meta, _BECOMES_READY)):
                yield _closed(node, taint, owner, waiting.names)
    if dedicated:
        yield _untolerated(waiting, dedicated)


def find_changed(node: Node, resource: str, affected: tuple[str, ...]) -> FoundCause:
    """Return the result for a node that offers nothing while the operator is changing it."""
    evidence = f"{node.subject} offers no {resource} during a change: {', '.join(changes(node))}"
    remedy = f"Wait for the operator; if these labels no longer change, check its pods there: {pods_on(node.name)}"
    above = origins((UPGRADE_FAILED, MIG_PENDING, *OFFERS_NONE), node.subject)
    return FoundCause(LEAVING, node.subject, (evidence,), (remedy,), affected, because_of=above)


def _owned(spec: PodSpec, node: Node) -> list[tuple[Taint, TaintOwner]]:
    """Return the taints that close the node, each with its owner.

    A platform that removes a node also cordons it. That cordon is left out, because it must not be lifted.
    """
    owned = [(taint, owner_of(taint.key)) for taint in closed_by(spec, node)]
    leaves = any(owner is TaintOwner.LEAVING for _, owner in owned)
    return [(taint, owner) for taint, owner in owned if not (leaves and owner is TaintOwner.CORDON)]


def _closed(node: Node, taint: Taint, owner: TaintOwner, affected: tuple[str, ...]) -> FoundCause:
    evidence, upgrade = f"taint {taint}", node.meta.labels.get(_UPGRADE, "")
    match owner:
        case TaintOwner.OURS:
            cause = {UNHEALTHY: KEPT_FROM_WORK, MAINTENANCE: IN_MAINTENANCE}.get(taint.key, NOT_LOOKED)
            return FoundCause(cause, node.subject, (), (), affected)
        case TaintOwner.CORDON if upgrade not in ("", "upgrade-done"):
            evidence = f"cordoned while its GPU driver is upgraded: {_UPGRADE}={upgrade}"
            see = f"check the driver's pod there: {kubectl('describe', node.meta)}"
            remedy = f"Wait for the upgrade; if its state no longer changes, {see}"
            failed = origins((UPGRADE_FAILED,), node.subject)
            return FoundCause(LEAVING, node.subject, (evidence,), (remedy,), affected, because_of=failed)
        case TaintOwner.CORDON:
            return _cordoned(node, affected)
        case TaintOwner.NOT_READY:
            # The family of nodes reports the condition and the fix; only pressure is reported here.
            pressure = (condition for condition in _conditions(node) if "Pressure" in condition)
            return FoundCause(NOT_READY, node.subject, (evidence, *pressure), tuple(_relief(node, taint)), affected)
        case TaintOwner.LEAVING:
            labels = (
                f"label {key}={value}"
                for key, value in sorted(node.meta.labels.items())
                if key.startswith("sagemaker.amazonaws.com/") and ("health" in key or "fault" in key)
            )
            return FoundCause(LEAVING, node.subject, (evidence, *labels), tuple(_until_gone(node, taint)), affected)
    remedy = f"Check the component that should remove {taint.key} on {node.name}: {pods_on(node.name)}"
    return FoundCause(STARTING, node.subject, (evidence,), (remedy,), affected)


def _cordoned(node: Node, affected: tuple[str, ...]) -> FoundCause:
    evidence = (f"{node.subject} is cordoned (spec.unschedulable)", *cordon_marks(node), *_conditions(node))
    steps = tuple(uncordon_steps(node))
    if CORDONED_BY in node.meta.annotations:
        steps = (f"If the run that cordoned it is over, return the node to service: {release_of(node.name)}",)
    return FoundCause(CORDONED, node.subject, evidence, steps, affected)


def _conditions(node: Node) -> Iterator[str]:
    for condition in node.conditions:
        pressed = condition.type.endswith("Pressure") and condition.status == "True"
        if pressed or (condition.type == "Ready" and condition.status != "True"):
            yield f"condition {condition}".rstrip(": ,")


def _relief(node: Node, taint: Taint) -> Iterator[str]:
    """Yield what ends the pressure; nothing for a node that is not ready, which has its own result."""
    if taint.key in _RELIEF:
        yield _RELIEF[taint.key]
        yield f"The kubelet then removes the taint in about five minutes. The node's pods: {pods_on(node.name)}"


def _until_gone(node: Node, taint: Taint) -> Iterator[str]:
    """Yield what a person can do while a platform removes or repairs the node."""
    by = next((name for key, name in _REMOVERS if taint.key.startswith(key)), "")
    if by:
        yield (
            f"Wait: {by} drains this node and removes it, and adds another if the pods still need one. A taint that "
            "is removed by hand comes back."
        )
        yield f"If that lasts, find the pod that it can't evict (a budget, or do-not-disrupt): {pods_on(node.name)}"
    else:
        yield LEAVING.remedy
    yield f"Check the node's conditions and events: {kubectl('describe', node.meta)}"


def _untolerated(waiting: Waiting, dedicated: dict[str, list[str]]) -> FoundCause:
    evidence, remedy = [], []
    for taint, names in sorted(dedicated.items())[:_MOST_TAINTS]:
        key_value, _, effect = taint.rpartition(":")
        key, _, value = key_value.partition("=")
        near = "".join(f"; it tolerates {_tolerated(each)}" for each in waiting.spec.tolerations if each.key == key)
        evidence.append(f"taint {taint} on {named(names, _MOST_TAINTS)}, not tolerated{near}")
        equal = f"operator: Equal, value: {value}" if value else "operator: Exists"
        remedy.append(f"Add to the pod's tolerations: key: {key}, {equal}, effect: {effect}.")
    if len(dedicated) > _MOST_TAINTS:
        evidence.append(f"and {len(dedicated) - _MOST_TAINTS} more taints, each on other nodes")
    remedy.append("Only if no workload should be kept off: remove the taint from the nodes.")
    return waiting.found(TAINTED, *evidence, remedy=tuple(remedy))


def _tolerated(toleration: Toleration) -> str:
    key = f"{toleration.key}={toleration.value}" if toleration.value else toleration.key
    return f"{key}:{toleration.effect or 'any effect'}"


def find_unmatched(snapshot: Snapshot, waiting: Waiting, nodes: Sequence[Node], others: Sequence[Node]) -> FoundCause:
    """Return the result for a selector that matches none of the nodes, which have the requested resources.

    `others` are the remaining nodes.
    """
    wanted = list(_requirements(waiting.spec))
    failing = [each for each in wanted if not any(expression_takes(each, node) for node in nodes)]
    names = " and ".join(sorted(waiting.devices)) or "room"
    pairs = [_unmatched(expression, nodes, others, names) for expression in failing]
    if not failing:
        parts = "; ".join(map(_shown, wanted))
        each_matches = f"each part of it matches some of them, all parts together match none: {parts}"
        pairs.append((each_matches, "Loosen the part of the selector that is not needed."))
    evidence, remedy = zip(*pairs, strict=True)
    first = f"{counted(len(nodes), 'node')} with {names}; the selector matches none of them"
    unlabelled = any(each.key in _DISCOVERED and not _values(each.key, nodes) for each in failing)
    above = tuple(_why_unlabelled(snapshot, nodes)) if unlabelled else ()
    return waiting.found(UNMATCHED, first, *evidence, remedy=remedy, because_of=above)


def requirements(spec: PodSpec) -> Iterator[str]:
    """Yield the requirements of a selector as evidence."""
    return map(_shown, _requirements(spec))


def _why_unlabelled(snapshot: Snapshot, nodes: Iterable[Node]) -> Iterator[Origin]:
    """Yield all possible reasons why feature discovery has written no labels."""
    for component in components(snapshot):
        if component.role in _DISCOVERERS:
            yield COMPONENT_NOT_READY[component.role].name, component.subject
    for node in nodes:
        yield from origins((UNLABELLED, *(COMPONENT_NOT_READY[role] for role in _DISCOVERERS)), node.subject)


def _requirements(spec: PodSpec) -> Iterator[Expression]:
    """Yield all requirements of the spec, without separating alternative affinity terms."""
    for key, value in spec.node_selector.items():
        yield Expression(key, "In", (value,))
    for term in spec.affinity or ():
        yield from term


def _unmatched(wanted: Expression, nodes: Sequence[Node], others: Sequence[Node], names: str) -> tuple[str, str]:
    """Return the labels that the nodes have instead, as evidence, and the correction to make."""
    key, requirement = wanted.key, _shown(wanted)
    if elsewhere := [node.name for node in others if expression_takes(wanted, node)]:
        evidence = f"{requirement}: only nodes without {names} match ({', '.join(elsewhere[:_MOST_LABELS])})"
        return evidence, f"Drop {key} from the selector, or select the nodes with {names} by a label that they have."
    if values := _values(key, nodes):
        existing = ", ".join(f"{value} ({number})" for value, number in values.most_common(_MOST_LABELS))
        near = _near_value(wanted.values, values) if wanted.operator in ("In", "Gt", "Lt") else ""
        change = f"Set {key} to {near} in the selector, if that fits." if near else ""
        return f"{requirement}: these nodes have {key}={existing}", (
            change or f"Change {key} in the selector to a value that the nodes have."
        )
    evidence = f"{requirement}: no node has the label {key}"
    keys = {label for node in nodes for label in node.meta.labels}
    if key not in _DISCOVERED and (close := get_close_matches(key, keys, 1, 0.85)):
        return f"{evidence}; they have {close[0]}", f"Write {close[0]} instead of {key} in the selector."
    if key.startswith("nvidia.com/"):
        pods = command("kubectl", "get", "pods", "-A", "-o", "wide", "-l", "app=gpu-feature-discovery")
        check = f"GPU feature discovery writes such labels; check whether it runs: {pods}"
        return evidence, f"{check}; if not needed, remove {key} from the selector."
    label = kubectl("label", nodes[0].meta, f"{key}={wanted.values[0]}") if wanted.values else ""
    return evidence, f"Remove {key} from the selector." + (f" Or label the intended nodes: {label}" if label else "")


def _values(key: str, nodes: Iterable[Node]) -> Counter[str]:
    """Return the values of the label, or the names of the nodes, each with the number of nodes."""
    if key == _NAME:
        return Counter(node.name for node in nodes)
    return Counter(node.meta.labels[key] for node in nodes if key in node.meta.labels)


def _near_value(wanted: Iterable[str], existing: Iterable[str]) -> str:
    """Return the value that extends a requested one; else a similar or the only value.

    GPU feature discovery adds -SHARED or the MIG profile to a product.
    """
    known = list(existing)
    for value in wanted:
        extended = [each for each in known if each.startswith(value) or value.startswith(each)]
        if close := extended or get_close_matches(value, known, 1, 0.7):
            return close[0]
    return known[0] if len(known) == 1 else ""


def _shown(expression: Expression) -> str:
    values = ", ".join(expression.values[:_MOST_LABELS])
    if expression.operator == "In" and len(expression.values) == 1:
        return f"{expression.key}={values}"
    return f"{expression.key} {expression.operator} {values}".rstrip()
