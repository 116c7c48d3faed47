"""State of a Job's pod as the API server shows it, with the reason why it waits or ended.

Pure functions, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.text.printable import printable

_LONGEST = 500


class PodState(Struct, frozen=True):
    """State of a pod. `container` is its first container, which runs the test."""

    namespace: str
    name: str
    uid: str
    created: str = ""
    container: str = ""
    node: str = ""
    """Node of the scheduled pod; '' before that."""
    waits_for: str = ""
    """Reason why the container has not started; '' once it has."""
    ended: str = ""
    """Failure of the container, as text; '' while it runs, and after success."""

    @property
    def waiting(self) -> str:
        """Return what the pod waits for, as the end of a sentence about it; '' once its container has started."""
        return self.waits_for and f"waits{'' if self.node else ' to be scheduled'}: {self.waits_for}"


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Return the parts of a pod's state that a user who follows the pod needs."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    spec = pod.get("spec") or {}
    containers = spec.get("containers") or [{}]
    name = str(containers[0].get("name", ""))
    state = next((entry.get("state") or {} for entry in _entries(status, "containerStatuses", name)), {})
    return PodState(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        created=str(metadata.get("creationTimestamp") or ""),
        container=name,
        node=str(spec.get("nodeName") or ""),
        waits_for="" if {"running", "terminated"} & state.keys() else printable(_waits_for(pod, state), _LONGEST),
        ended=printable(_ended(status, state), _LONGEST),
    )


def _waits_for(pod: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    if not (pod.get("spec") or {}).get("nodeName"):
        placed = next(iter(_entries(pod.get("status") or {}, "conditions", "PodScheduled", key="type")), {})
        return _words(placed) or "no scheduler has tried it yet"
    return _words(state.get("waiting") or {}) or "its node's kubelet has not started it"


def _ended(status: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    message = _words(status)  # pod level: Evicted, DeadlineExceeded
    terminated = state.get("terminated") or {}
    code = terminated.get("exitCode")
    if code:
        return message or f"{terminated.get('reason') or 'Error'}, exit code {code}"
    return message


def _words(state: Mapping[str, Any]) -> str:
    return ": ".join(str(state[key]) for key in ("reason", "message") if state.get(key))


def _entries(status: Mapping[str, Any], kind: str, name: str, *, key: str = "name") -> Iterable[Mapping[str, Any]]:
    return (entry for entry in status.get(kind) or () if entry.get(key) == name)
