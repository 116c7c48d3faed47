"""Reasons why nodes have no running agent, from the agent's DaemonSet, its Events and its pods. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from healthcheck.operations.agent_start import start_fix
from healthcheck.text.printable import printable

_LONGEST_MESSAGE, _LONGEST_NAME = 400, 253


class StartFailure(Struct, frozen=True):
    """One reason, the nodes that it keeps without an agent, and the fix. No nodes: no pod shows which."""

    reason: str
    message: str
    fix: str
    nodes: tuple[str, ...] = ()


def start_failures(
    daemon_set: Mapping[str, Any], warnings: Sequence[str], pods: Iterable[Mapping[str, Any]]
) -> list[StartFailure]:
    """Return the failures, most affected nodes first.

    `warnings` are the Events of the DaemonSet as `reason: message`, the newest last.
    """
    found: dict[str, StartFailure] = {}
    for pod in pods:
        problem = _problem(pod)
        if problem is not None:
            reason, message = problem
            others = found[reason].nodes if reason in found else ()
            name = printable(str((pod.get("metadata") or {}).get("name") or "POD"), _LONGEST_NAME)
            found[reason] = _start_failure(reason, message, name, (*others, _node_of(pod)))
    status = daemon_set.get("status") or {}
    if _number(status, "currentNumberScheduled") < _number(status, "desiredNumberScheduled"):
        refused = [warning for warning in warnings if warning.startswith("FailedCreate")]
        for warning in refused[-1:]:
            reason, _, message = warning.partition(": ")
            found[reason] = _start_failure(reason, message)
    return sorted(found.values(), key=lambda failure: -len(failure.nodes))


def outdated(daemon_set: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of agents of an earlier pod template, and of all agents."""
    status = daemon_set.get("status") or {}
    current = _number(status, "currentNumberScheduled")
    return max(current - _number(status, "updatedNumberScheduled"), 0), current


def _start_failure(reason: str, message: str, pod: str = "POD", nodes: tuple[str, ...] = ()) -> StartFailure:
    return StartFailure(reason, printable(message, _LONGEST_MESSAGE), _fix(reason, message, pod), nodes)


def _problem(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return reason and message of a pod that does not run; None if it runs or is about to start."""
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return str(status.get("reason") or "Failed"), str(status.get("message") or "the pod has failed")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason") or "Unschedulable"), str(condition.get("message") or "")
    return next(_waiting(status), None)


def _waiting(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
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
    if not (known := start_fix(reason, message)) and ("crashloopbackoff" in words or "exit code" in words):
        return f"Read its log: `kubectl logs -n gpu-healthcheck {pod} --previous`"
    return known or "Read its Events: `kubectl describe pods -n gpu-healthcheck -l app.kubernetes.io/component=agent`"
