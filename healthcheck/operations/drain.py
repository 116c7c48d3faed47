"""Decision for each pod on a node before its test: evict it, keep it, or ask the user first.

Pure functions, no I/O. Rules and flag names are the same as in kubectl (kubectl drain: filters.go), so that users need
to learn only one set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from healthcheck.operations.pod_removal import Fate, RemovalEffect

_MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the kubelet on a static pod's API object. Deleting such an object has no effect."""
_FINISHED = ("Succeeded", "Failed")
FORCE, EMPTY_DIR = "--force", "--delete-emptydir-data"


class DrainPermissions(Struct, frozen=True):
    """Permissions that a person grants beyond plain evictions."""

    force: bool = False
    """Also evict pods that are not recreated: without a controller, or of a workload that the eviction fails."""
    empty_dir: bool = False
    """Also evict pods with an emptyDir: its data is lost."""


class EvictedPod(Struct, frozen=True):
    """A pod to evict. `warning` describes the loss that this causes; '' if there is none."""

    namespace: str
    name: str
    uid: str
    terminating: bool = False
    """The pod is being deleted already, so the drain only waits for it."""
    warning: str = ""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


class DrainPlan(Struct, frozen=True):
    """Decisions for all pods. `refused` has each pod that needs a flag, with the flag. Unless empty, evict no pod."""

    leaving: tuple[EvictedPod, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    """Pods that stay, as namespace/name, with the reason."""
    refused: tuple[tuple[str, str], ...] = ()


def plan_drain(
    pods: Iterable[Mapping[str, Any]], allowed: DrainPermissions, effects: Mapping[str, RemovalEffect]
) -> DrainPlan:
    """Decide for each pod of one node, given as API objects, whether it is evicted, kept or refused.

    `effects`: the effect of the evictions on the pod's workload, by the UID of the pod.
    """
    leaving: list[EvictedPod] = []
    left: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for pod in pods:
        metadata = pod.get("metadata") or {}
        title = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        if why := _stays(pod):
            left.append((title, why))
            continue
        losses = list(_losses(pod, effects.get(str(metadata.get("uid", "")))))
        granted = {"": True, FORCE: allowed.force, EMPTY_DIR: allowed.empty_dir}
        missing = [flag for flag, _ in losses if not granted[flag]]
        if missing:
            message = ", ".join(f"{loss} (needs {flag})" for flag, loss in losses if flag in missing)
            refused.append((title, message))
            continue
        leaving.append(
            EvictedPod(
                str(metadata.get("namespace", "")),
                str(metadata.get("name", "")),
                str(metadata.get("uid", "")),
                terminating="deletionTimestamp" in metadata,
                warning=", ".join(loss for _, loss in losses),
            )
        )
    return DrainPlan(tuple(leaving), tuple(left), tuple(refused))


def what_holds(pod: Mapping[str, Any]) -> str:
    """Return why a pod that should be evicted still exists, as far as its object shows."""
    metadata = pod.get("metadata") or {}
    if "deletionTimestamp" not in metadata:
        return "its eviction was not requested"
    finalizers = metadata.get("finalizers") or ()
    if finalizers:
        return f"it is terminating, and waits for its finalizers: {', '.join(map(str, finalizers))}"
    return f"its grace period ended at {metadata['deletionTimestamp']}, and the kubelet has not confirmed its end"


def _stays(pod: Mapping[str, Any]) -> str:
    """Return why the pod is not evicted; '' if it is."""
    metadata = pod.get("metadata") or {}
    if _MIRROR in (metadata.get("annotations") or {}):
        return "a static pod, which ends only when its file on the node is removed"
    controller = _controller(pod)
    # kubectl checks whether the DaemonSet still exists. The garbage collector deletes the pods of a deleted DaemonSet.
    if controller.get("kind") == "DaemonSet" and not _is_finished(pod):
        return f"of DaemonSet {controller.get('name', '')}"
    return ""


def _losses(pod: Mapping[str, Any], effect: RemovalEffect | None) -> Iterable[tuple[str, str]]:
    """Yield each loss that the eviction causes or may cause, with the flag that allows it; '' if none is needed.

    Evicting a finished pod causes no loss.
    """
    if has_ended(pod):
        return
    if not _controller(pod):
        yield FORCE, "no controller recreates it"
    elif effect is not None and effect.text:
        yield FORCE if effect.fate is Fate.FAILS else "", effect.text
    volumes = (pod.get("spec") or {}).get("volumes") or []
    if any(isinstance(volume, Mapping) and "emptyDir" in volume for volume in volumes):
        yield EMPTY_DIR, "the data of its emptyDir is lost"


def _controller(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = (pod.get("metadata") or {}).get("ownerReferences") or []
    return next((owner for owner in owners if isinstance(owner, Mapping) and owner.get("controller")), {})


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is finished, or is being deleted already."""
    return _is_finished(pod) or "deletionTimestamp" in (pod.get("metadata") or {})


def _is_finished(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in _FINISHED
