"""Decision for each pod on a node before its test: evict it, keep it, or ask the user first.

Pure functions, no I/O. Rules and flag names are the same as in kubectl (kubectl drain: filters.go), so that users need
to learn only one set.

Only the cordon of a quarantine run may be lifted automatically. The run writes the annotation `cordoned-by` in the same
patch that sets `unschedulable`. `kubectl uncordon` leaves the annotation behind. A cordon that a person sets later
belongs to that person: the API server records the last writer of the field. If it records no writer, the cordon is not
ours. Any client can empty `managedFields`, and later writes are then not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.deep.claim import RunKind, claim_on
from gpu_healthcheck.healthcheck.node.gpu_resources import gpu_pod
from gpu_healthcheck.healthcheck.node.state import CORDONED_BY, FIELD_MANAGER, NodeState
from gpu_healthcheck.healthcheck.operations.pod_removal import Fate, RemovalEffect
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.printable import printable

_LONGEST = 320


def cordon(node: NodeState, by: str) -> dict[str, Any] | None:
    """Return the patch that cordons the node for this run; None if it is cordoned already, by any owner."""
    if node.cordoned:
        return None
    metadata = {"resourceVersion": node.resource_version, "annotations": {CORDONED_BY: by}}
    return {"metadata": metadata, "spec": {"unschedulable": True}}


def cordoned_by(node: NodeState) -> str:
    """Return the quarantine run that set the cordon.

    Return '' if there is no cordon, if a person set it, or if its owner is unknown.
    """
    is_ours = (
        {manager.name for manager in node.cordon_managers}
        == {manager.name for manager in node.mark_managers}
        == {FIELD_MANAGER}
    )
    by = printable(node.annotations.get(CORDONED_BY, ""), _LONGEST)
    return by if node.cordoned and is_ours else ""


def why_kept(node: NodeState, now: datetime) -> str:
    """Return the reason why the cordon must not be lifted; '' if it may be lifted, or if there is none."""
    if not node.cordoned:
        return ""
    if not cordoned_by(node):
        is_noted = node.cordon_managers or CORDONED_BY not in node.annotations
        return "it was not cordoned by a quarantine run" if is_noted else "the Node does not show who cordoned it"
    run = claim_on(node, now)
    if run is not None and run.kind is RunKind.QUARANTINE:
        return f"the quarantine run {run.holder} owns it until {timestamp(run.until)}"
    return ""


def lift(node: NodeState, now: datetime) -> dict[str, Any] | None:
    """Return the merge patch that lifts our cordon; None if there is nothing to lift.

    The patch removes the annotation `cordoned-by` together with the cordon. It removes only the annotation if a person
    has lifted the cordon or now owns it.
    """
    ours = cordoned_by(node)
    if CORDONED_BY not in node.annotations or (ours and why_kept(node, now)):
        return None
    metadata = {"resourceVersion": node.resource_version, "annotations": {CORDONED_BY: None}}
    return {"metadata": metadata, "spec": {"unschedulable": None}} if ours else {"metadata": metadata}


_OURS = "gpu-healthcheck"
_DRA_DRIVERS = frozenset({"nvidia-dra-driver-gpu", "dra-driver-nvidia-gpu", "nvidia-dra-driver"})
_PLUGINS = frozenset(
    {*("nvidia-device-plugin-daemonset", "nvidia-device-plugin", "nvidia-device-plugin-ds", "hami-device-plugin")}
)
_OPERANDS = _PLUGINS | {
    *("nvidia-dcgm", "nvidia-dcgm-exporter", "dcgm-exporter", "gpu-feature-discovery", "nvsm", "nvidia-mig-manager")
}
"""Values of the labels below of NVIDIA's and HAMi's components that open every GPU."""
_LABELS = ("app", "name", "app.kubernetes.io/name", "app.kubernetes.io/component")


class HolderKind(Enum):
    """How the GPU becomes free of a holder."""

    WORKLOAD = "workload"
    """A pod with GPUs: the command evicts it."""
    OPERAND = "operand"
    """A component of NVIDIA or HAMi: the operator's label ends it, or the command evicts its pod."""
    OURS = "ours"
    """A program of this project: it closes NVML by itself."""
    FOREIGN = "foreign"
    """Anything else: the reset stops."""


def holder_kind(pod: Mapping[str, Any]) -> HolderKind:
    """Return how the GPU becomes free of this API Pod."""
    labels = _labels(pod)
    if pod["metadata"].get("namespace") == _OURS and labels.get(_LABELS[2]) == _OURS:
        return HolderKind.OURS
    if any(labels.get(key) in _OPERANDS for key in _LABELS) or is_dra_plugin(pod):
        return HolderKind.OPERAND
    return HolderKind.WORKLOAD if gpu_pod(pod) is not None else HolderKind.FOREIGN


def is_device_plugin(pod: Mapping[str, Any]) -> bool:
    """Whether this API Pod is NVIDIA's or HAMi's device plugin, which does not re-advertise a GPU by itself."""
    labels = _labels(pod)
    return any(labels.get(key) in _PLUGINS for key in _LABELS)


def is_dra_plugin(pod: Mapping[str, Any]) -> bool:
    """Whether this API Pod is the kubelet plugin of NVIDIA's DRA driver, whose taint of a GPU ends by a restart.

    The driver's controller has the same name, and belongs to no DaemonSet.
    """
    owners = pod["metadata"].get("ownerReferences") or ()
    is_of_driver = any(_labels(pod).get(key) in _DRA_DRIVERS for key in _LABELS)
    return is_of_driver and any(owner.get("kind") == "DaemonSet" for owner in owners)


def title(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata'].get('name', '')}"


def _labels(pod: Mapping[str, Any]) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}


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
        if why := why_stays(pod):
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


def why_stays(pod: Mapping[str, Any]) -> str:
    """Return why the pod is never evicted; '' if it may be."""
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
