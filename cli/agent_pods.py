"""Reasons why nodes have no running agent, from the agent's DaemonSet, its Events and its pods. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.operations.agent_start import start_fix
from gpu_healthcheck.healthcheck.text.printable import printable

_LONGEST_MESSAGE, _LONGEST_NAME = 400, 253
NO_HEARTBEAT = "NoHeartbeat"
_UNREADY = "NodeNotReady", "the kubelet has stopped reporting"
_NO_POD = "NoPod", "the DaemonSet has no pod there"
_DESCRIBE = "`kubectl describe pod -n gpu-healthcheck {}` shows its progress"
_FIXES = {
    NO_HEARTBEAT: "Read its log: `kubectl logs -n gpu-healthcheck {}`",
    _UNREADY[0]: "Repair or remove the node",
    _NO_POD[0]: (
        "Compare labels and taints of the node with the DaemonSet's: `kubectl get daemonset -n gpu-healthcheck"
        " gpu-healthcheck-agent -o yaml`"
    ),
    "Terminating": _DESCRIBE,
    **dict.fromkeys(("Pending", "Scheduled", "Pulling", "Pulled", "Created", "Started"), _DESCRIBE),
}


class StartFailure(Struct, frozen=True):
    """One reason, the nodes that it keeps without an agent, and the fix. No nodes: no pod shows which."""

    reason: str
    message: str
    fix: str
    nodes: tuple[str, ...] = ()


class SilentNodes(Struct, frozen=True):
    """Nodes without a heartbeat of their agent, those among them that are not ready, and the last Event of each pod."""

    names: Collection[str]
    unready: Collection[str] = ()
    events: Mapping[str, str] = {}
    """By pod name, as `reason: message`."""


def start_failures(
    daemon_set: Mapping[str, Any], warnings: Sequence[str], pods: Iterable[Mapping[str, Any]], silent: SilentNodes
) -> list[StartFailure]:
    """Return the reason of each silent node and of each pod that fails; most affected nodes first.

    `warnings` are the Events of the DaemonSet as `reason: message`, the newest last.
    """
    found: dict[str, StartFailure] = {}
    unexplained = set(silent.names)
    for pod in pods:
        node = _node_of(pod)
        name = printable(str((pod.get("metadata") or {}).get("name") or "POD"), _LONGEST_NAME)
        problem = _problem(pod) or (_silence(pod, silent.events.get(name, "")) if node in unexplained else None)
        if node in silent.unready:
            problem = _UNREADY
        if problem is not None:
            unexplained.discard(node)
            _add(found, *problem, name, (node,))
    status = daemon_set.get("status") or {}
    if _number(status, "currentNumberScheduled") < _number(status, "desiredNumberScheduled"):
        refused = [warning for warning in warnings if warning.startswith("FailedCreate")]
        for warning in refused[-1:]:
            reason, _, message = warning.partition(": ")
            _add(found, reason, message, "POD", tuple(sorted(unexplained)))
            unexplained.clear()
    if unexplained:
        _add(found, *_NO_POD, "POD", tuple(sorted(unexplained)))
    return sorted(found.values(), key=lambda failure: -len(failure.nodes))


def selected(daemon_set: Mapping[str, Any]) -> int:
    """Return the number of nodes that the DaemonSet selects."""
    return _number(daemon_set.get("status") or {}, "desiredNumberScheduled")


def outdated(daemon_set: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of agents of an earlier pod template, and of all agents.

    Before the DaemonSet's controller has observed a new template, all agents are of an earlier one.
    """
    status = daemon_set.get("status") or {}
    current = _number(status, "currentNumberScheduled")
    is_observed = _number(status, "observedGeneration") >= _number(daemon_set.get("metadata") or {}, "generation")
    return max(current - _number(status, "updatedNumberScheduled") * is_observed, 0), current


def _add(found: dict[str, StartFailure], reason: str, message: str, pod: str, nodes: tuple[str, ...]) -> None:
    others = found[reason].nodes if reason in found else ()
    found[reason] = StartFailure(
        reason, printable(message, _LONGEST_MESSAGE), _fix(reason, message, pod), (*others, *nodes)
    )


def _problem(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return reason and message of a pod that does not run; None if it runs or is about to start."""
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return str(status.get("reason") or "Failed"), str(status.get("message") or "the pod has failed")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason") or "Unschedulable"), str(condition.get("message") or "")
    return next(_waiting(status), None)


def _silence(pod: Mapping[str, Any], event: str) -> tuple[str, str]:
    """Return why a pod that shows no failure sends no heartbeat. `event`: the pod's last one."""
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return "Terminating", "the pod is being deleted"
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    if not any((container.get("state") or {}).get("running") is not None for container in containers):
        reason, _, message = event.partition(": ")
        return (reason, message) if event else ("Pending", "the pod has not started yet")
    ended = next((_exit(text) for each in containers if (text := (each.get("lastState") or {}).get("terminated"))), "")
    return NO_HEARTBEAT, "the agent runs and sends no heartbeat" + (f"; its previous run: {ended}" if ended else "")


def _waiting(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        if (over := state.get("terminated") or {}).get("exitCode"):
            yield str(over.get("reason") or "Error"), _exit(over)
        waiting = state.get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            ended = (container.get("lastState") or {}).get("terminated") or {}
            yield reason, _exit(ended) or str(waiting.get("message") or "")


def _exit(ended: Mapping[str, Any]) -> str:
    """Return exit code and last words of the container's previous run; '' if there was none."""
    if not ended:
        return ""
    message = str(ended.get("message") or "").strip()
    return f"exit code {ended.get('exitCode')} ({ended.get('reason') or 'Error'})" + (f": {message}" if message else "")


def _node_of(pod: Mapping[str, Any]) -> str:
    """Return the pod's node. The DaemonSet's controller names it in the affinity before a scheduler places the pod."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    fields = (field for term in terms for field in term.get("matchFields") or ())
    return next((str(name) for field in fields for name in field.get("values") or ()), "?")


def _number(status: Mapping[str, Any], key: str) -> int:
    value = status.get(key)
    return value if isinstance(value, int) else 0


def _fix(reason: str, message: str, pod: str) -> str:
    """Return the known fix, else where to read more."""
    words = f"{reason}: {message}".lower()
    if reason in _FIXES:
        return _FIXES[reason].format(pod)
    if not (known := start_fix(reason, message)) and ("crashloopbackoff" in words or "exit code" in words):
        return f"Read its log: `kubectl logs -n gpu-healthcheck {pod} --previous`"
    return known or "Read its Events: `kubectl describe pods -n gpu-healthcheck -l app.kubernetes.io/component=agent`"
