"""Find faults that the labels of GPU nodes show: discovery, MIG, and driver upgrades."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from diagnosis.causes.components import NOT_READY
from diagnosis.causes.device_plugins import GEOMETRY, MIG_FAILED, MIG_PENDING
from diagnosis.facts.commands import command, kubectl, logs
from diagnosis.facts.components import Component, Role, components, is_for, is_ready
from diagnosis.facts.gpu_nodes import MIG, has_nvidia, is_for_machines, is_judged
from diagnosis.facts.gpu_requests import gpus_of
from diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Search, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod

_PRODUCT, _CONFIG, _STATE = "nvidia.com/gpu.product", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_LABELLED = timedelta(minutes=10)
_RECONFIGURED = timedelta(minutes=30)
_fault = Family(None, severity=CauseSeverity.LOW)
UNLABELLED = _fault(
    "GpuLabelsMissing",
    "GPU feature discovery runs on a node without its labels: selectors by these labels find no node.",
    "Check node feature discovery: its worker reads the output of GPU feature discovery, its master sets the labels.",
)
UPGRADE_FAILED = _fault(
    "DriverUpgradeFailed",
    "The operator's driver upgrade failed on a node, so the node stays cordoned.",
    "Fix the failed driver pod or drain, then let the operator retry.",
    severity=CauseSeverity.HIGH,
    source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-driver-upgrades.html",
    follows=("DriverNotReady",),
)


def find(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Check the labels of each node with NVIDIA GPUs."""
    every = components(snapshot)
    managers = [component for component in every if component.role is Role.MIG_MANAGER]
    for node in snapshot.nodes:
        if not has_nvidia(node) or is_for_machines(node) or node.meta.deleted is not None:
            continue
        labels = node.meta.labels
        if labels.get(_PRODUCT, "").endswith("-MIG-INVALID"):
            yield _invalid(node)
        if labels.get(_STATE) == "failed":
            yield _failed(node, managers)
        elif labels.get(_STATE) in ("pending", "rebooting") and node.ready:
            yield from _pending(node, managers, snapshot)
        if labels.get(_UPGRADE) == "upgrade-failed":
            yield _upgrade(node)


def find_unlabelled(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes on which discovery runs but whose labels are missing."""
    every = components(snapshot)
    discovery = [component for component in every if component.role is Role.GPU_FEATURES]
    above = tuple((NOT_READY[each.role].name, each.subject) for each in every if each.role is Role.NODE_FEATURES)
    for node in snapshot.nodes:
        if not has_nvidia(node) or _PRODUCT in node.meta.labels or not is_judged(node, snapshot.now):
            continue
        for component in discovery:
            pod = component.pod_on(node.name)
            if pod is not None and is_ready(pod) and not snapshot.is_new(pod.meta, _LABELLED):
                evidence = (f"{pod.subject} is ready on {node.subject}, which has no label {_PRODUCT}",)
                remedy = (f"Read its log: {logs(pod.meta, '--tail=30')}", UNLABELLED.remedy)
                yield FoundCause(UNLABELLED, node.subject, evidence, remedy, because_of=above)


def _invalid(node: Node) -> FoundCause:
    labels = node.meta.labels
    keys = (_PRODUCT, "nvidia.com/mig.strategy", _CONFIG, _STATE, "nvidia.com/gpu.count")
    evidence = tuple(f"{node.subject}: {key}={labels[key]}" for key in keys if key in labels)
    wanted = kubectl("label", node.meta, f"{_CONFIG}=all-disabled", "--overwrite")
    remedy = (
        f"Set the same profiles on all its cards by the label `{_CONFIG}`, for example {wanted}",
        "Or set mig.strategy to mixed, and request nvidia.com/mig-… by profile.",
    )
    return FoundCause(GEOMETRY, node.subject, evidence, remedy, (node.subject,))


def _failed(node: Node, managers: list[Component]) -> FoundCause:
    labels = node.meta.labels
    evidence = (f"{node.subject}: {_STATE}=failed, {_CONFIG}={labels.get(_CONFIG, '')}",)
    remedy = [f"Read why: {_manager_logs(node, managers)}"]
    remedy.append(
        "Delete the pods that use its GPUs. The manager acts on changes only: set another value, then this one: "
        + command(
            "kubectl", "label", "node", node.name, f"{_CONFIG}={labels.get(_CONFIG, 'all-disabled')}", "--overwrite"
        )
    )
    return FoundCause(MIG_FAILED, node.subject, evidence, tuple(remedy), (node.subject,))


def _pending(node: Node, managers: list[Component], snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield a pending change of MIG profiles without a manager, or with a pod that has waited long for it."""
    if not snapshot.sees("Pod") or not any(is_for(manager.spec, node) for manager in managers):
        return
    pods = [pod for manager in managers if (pod := manager.pod_on(node.name)) is not None]
    working = any(is_ready(pod) for pod in pods)
    new = any(snapshot.is_new(pod.meta, _LABELLED) for pod in pods)
    waiting = [one for one in snapshot.pods if _waits_for_slice(one) and not snapshot.is_new(one.meta, _RECONFIGURED)]
    if new or (working and not waiting):
        return
    labels = node.meta.labels
    state = f"{node.subject}: {_STATE}={labels[_STATE]}, {_CONFIG}={labels.get(_CONFIG, '')}"
    owner = (
        f"{pods[0].subject} of the MIG manager is {'ready' if working else 'not ready'}" if pods else "no MIG manager"
    )
    above = origins((NOT_READY[Role.MIG_MANAGER],), node.subject, *(manager.subject for manager in managers))
    yield FoundCause(
        MIG_PENDING,
        node.subject,
        (state, owner),
        (f"Read why it waits: {_manager_logs(node, managers)}",),
        tuple(one.subject for one in waiting) or (node.subject,),
        Certainty.LIKELY if working else Certainty.PROVEN,
        above,
    )


def _upgrade(node: Node) -> FoundCause:
    evidence = (f"{node.subject}: {_UPGRADE}=upgrade-failed",)
    again = kubectl("label", node.meta, f"{_UPGRADE}=upgrade-required", "--overwrite")
    remedy = (
        "Find out why the driver pod there, or the drain before it, failed.",
        f"When that is fixed, let the operator retry: {again}",
    )
    return FoundCause(UPGRADE_FAILED, node.subject, evidence, remedy, (node.subject,))


def _manager_logs(node: Node, managers: list[Component]) -> str:
    for manager in managers:
        pod = manager.pod_on(node.name)
        if pod is not None:
            return logs(pod.meta, "--tail=50")
    field = f"--field-selector=spec.nodeName={node.name}"
    return command("kubectl", "get", "pods", "-A", "-l", "app=nvidia-mig-manager", field)


def _waits_for_slice(pod: Pod) -> bool:
    if pod.spec.node or pod.phase != "Pending":
        return False
    return any(name.startswith(MIG) for container in pod.spec.containers for name in gpus_of(container))


SEARCHES = (
    Search((GEOMETRY, MIG_FAILED, MIG_PENDING, UPGRADE_FAILED), ("Node",), find),
    Search((UNLABELLED,), ("Node", "Pod"), find_unlabelled),
)
