"""Find faults that the labels of GPU nodes show: discovery, MIG, and driver upgrades."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.device_plugins import GEOMETRY, MIG_FAILED, MIG_PENDING
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import Component, Role, components, is_for, is_ready
from gpu_healthcheck.diagnosis.facts.gpu_nodes import MIG, has_nvidia, is_for_machines, is_judged
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods_on, gpus_of
from gpu_healthcheck.diagnosis.facts.log_lines import telling_lines
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.safe_steps import keep_off
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Search, found_on, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod

_PRODUCT, _CONFIG, _STATE = "nvidia.com/gpu.product", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
_PAUSED = "paused-for-mig-change"
_OFF, _UPGRADE = "all-disabled", "nvidia.com/gpu-driver-upgrade-state"
_CHANGES_ONLY = "The manager acts on changes of the label only. First set another value: "
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
    managers = [component for component in components(snapshot) if component.role is Role.MIG_MANAGER]
    for node in snapshot.nodes:
        if not has_nvidia(node) or is_for_machines(node) or node.meta.deleted is not None:
            continue
        labels = node.meta.labels
        if labels.get(_PRODUCT, "").endswith("-MIG-INVALID"):
            yield _invalid(node)
        if labels.get(_STATE) == "failed":
            yield _failed(snapshot, node, managers)
        elif labels.get(_STATE) in ("pending", "rebooting") and node.ready:
            yield from _pending(node, managers, snapshot)
        if labels.get(_UPGRADE) == "upgrade-failed":
            again = f"When that is fixed, let the operator retry: {_label(node, _UPGRADE, 'upgrade-required')}"
            why = "Find out why the driver pod there, or the drain before it, failed."
            yield found_on(node.subject, UPGRADE_FAILED, (_shown(node, _UPGRADE),), (why, again))


def find_unlabelled(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes on which discovery runs but whose labels are missing."""
    every = components(snapshot)
    above = tuple((NOT_READY[each.role].name, each.subject) for each in every if each.role is Role.NODE_FEATURES)
    for discovery in (component for component in every if component.role is Role.GPU_FEATURES):
        for node in snapshot.nodes:
            pod = discovery.pod_on(node.name)
            is_expected = has_nvidia(node) and _PRODUCT not in node.meta.labels and is_judged(node, snapshot.now)
            if is_expected and pod is not None and is_ready(pod) and not snapshot.is_new(pod.meta, _LABELLED):
                evidence = (f"{pod.subject} is ready on {node.subject}, which has no label {_PRODUCT}",)
                remedy = (f"Read its log: {logs(pod.meta, '--tail=30')}", UNLABELLED.remedy)
                yield FoundCause(UNLABELLED, node.subject, evidence, remedy, because_of=above)


def _invalid(node: Node) -> FoundCause:
    keys = (_PRODUCT, "nvidia.com/mig.strategy", _CONFIG, _STATE, "nvidia.com/gpu.count")
    same = f"Set the same profiles on all its cards by the label `{_CONFIG}`, for example "
    remedy = (
        f"{same}{_label(node, _CONFIG, _another(node))}",
        "Or set mig.strategy to mixed, and request nvidia.com/mig-… by profile.",
    )
    return found_on(node.subject, GEOMETRY, [_shown(node, key) for key in keys if key in node.meta.labels], remedy)


def _another(node: Node) -> str:
    """Return a value of the label that the node does not have, of every configuration of the manager."""
    return "all-enabled" if node.meta.labels.get(_CONFIG) == _OFF else _OFF


def _failed(snapshot: Snapshot, node: Node, managers: list[Component]) -> FoundCause:
    off = [*keep_off(snapshot, node.name)]
    steps = [
        f"Read why: {_manager_logs(node, managers)}",
        "If its ConfigMap lacks the name, set one that it has. Otherwise free the GPUs:",
        *off,
        *steps_to_move(snapshot, gpu_pods_on(snapshot).get(node.name, ()), "other nodes"),
        "Then stop host programs that use the GPUs, and reset the GPUs, or drain and reboot the node.",
    ]
    if _CONFIG in node.meta.labels:
        path = _STATE.replace(".", "\\.")
        wait = kubectl("wait", node.meta, f"--for=jsonpath={{.metadata.labels.{path}}}=success", "--timeout=20m")
        steps += [
            f"{_CHANGES_ONLY}{_label(node, _CONFIG, _another(node))}",
            f"Wait until it is applied: {wait}",
            f"Then set the requested value again: {_label(node, _CONFIG, node.meta.labels[_CONFIG])}",
        ]
    if off:
        uncordon = command("kubectl", "uncordon", node.name)
        steps.append(f"When the state is success, let pods start there again: {uncordon}")
    pods = [pod for manager in managers if (pod := manager.pod_on(node.name)) is not None]
    return found_on(node.subject, MIG_FAILED, (_state(node), *_log_lines(snapshot, pods)), steps)


def _pending(node: Node, managers: list[Component], snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield a pending change of MIG profiles without a manager, or with a pod that has waited long for it."""
    if not snapshot.sees_all_pods or not any(is_for(manager.spec, node) for manager in managers):
        return
    pods = [pod for manager in managers if (pod := manager.pod_on(node.name)) is not None]
    is_working = any(is_ready(pod) for pod in pods)
    is_new = any(snapshot.is_new(pod.meta, _LABELLED) for pod in pods)
    waiting = [pod for pod in snapshot.pods if _waits_for_mig(pod) and not snapshot.is_new(pod.meta, _RECONFIGURED)]
    if is_new or (is_working and not waiting):
        return
    ready = "ready" if is_working else "not ready"
    manager = f"{pods[0].subject} of the MIG manager is {ready}" if pods else "no MIG manager"
    steps = [f"Read why it waits: {_manager_logs(node, managers)}"]
    if is_working:
        steps.append(
            "If its last lines are an error, or wait for a change of the label, it has given up, and what it paused "
            f"stays away. Restart it: it applies the label when it starts: {kubectl('delete', pods[0].meta)}"
        )
    yield FoundCause(
        MIG_PENDING,
        node.subject,
        (_state(node), manager, *_paused(node), *_log_lines(snapshot, pods)),
        tuple(steps),
        tuple(pod.subject for pod in waiting) or (node.subject,),
        Certainty.LIKELY if is_working else Certainty.PROVEN,
        origins((NOT_READY[Role.MIG_MANAGER],), node.subject, *(each.subject for each in managers)),
    )


def _paused(node: Node) -> Iterator[str]:
    paused = [key.rpartition(".")[2] for key, value in node.meta.labels.items() if value == _PAUSED]
    if paused:
        yield f"{node.subject}: {_PAUSED} are {', '.join(paused)}"


def _log_lines(snapshot: Snapshot, pods: list[Pod]) -> Iterator[str]:
    """Yield the lines of the manager's log that report why it fails."""
    for (subject, _), text in snapshot.logs.items():
        if subject in [pod.subject for pod in pods]:
            yield from (f"its log: {line}" for line in telling_lines(text, ended=True))


def _shown(node: Node, key: str) -> str:
    return f"{node.subject}: {key}={node.meta.labels[key]}"


def _state(node: Node) -> str:
    return f"{_shown(node, _STATE)}, {_CONFIG}={node.meta.labels.get(_CONFIG, '')}"


def _label(node: Node, key: str, value: str) -> str:
    return kubectl("label", node.meta, f"{key}={value}", "--overwrite")


def _manager_logs(node: Node, managers: list[Component]) -> str:
    pods = (manager.pod_on(node.name) for manager in managers)
    pod = next(filter(None, pods), None)
    if pod is not None:
        return logs(pod.meta, "--tail=50")
    field = f"--field-selector=spec.nodeName={node.name}"
    return command("kubectl", "get", "pods", "-A", "-l", "app=nvidia-mig-manager", field)


def _waits_for_mig(pod: Pod) -> bool:
    is_waiting = pod.phase == "Pending" and not pod.spec.node
    return is_waiting and any(name.startswith(MIG) for container in pod.spec.containers for name in gpus_of(container))


SEARCHES = (
    Search((GEOMETRY, MIG_FAILED, MIG_PENDING, UPGRADE_FAILED), ("Node",), find),
    Search((UNLABELLED,), ("Node", "Pod"), find_unlabelled),
)
