"""Fields that an uninstallation removes from a Node, and fields that it keeps.

Pure functions, no I/O. Settings of a person are kept: the cordon, the label `enabled`, taints with our keys that only
another client can have set, and other clients' entries in HAMi's list of cordoned cards. The taint `startup` is
removed, although the creator of the node sets it: without this system no check cycle would ever lift it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.deep.reset_command import switched_off
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.node.hami import cordon_change, our_cordons
from gpu_healthcheck.healthcheck.node.state import (
    ENABLED,
    MAINTENANCE,
    MOST_FIELD_MANAGERS,
    SEVERITY,
    STARTUP,
    UNHEALTHY,
    NodeState,
)
from gpu_healthcheck.healthcheck.operations.drain import cordoned_by
from gpu_healthcheck.healthcheck.verdict.taint_decision import says_devices

SELECTOR = "app.kubernetes.io/name=gpu-healthcheck"
"""Selector of all objects of the manifests, and of their Jobs and pods."""
STOP_GATE = f"kubectl delete mutatingadmissionpolicybindings,mutatingadmissionpolicies -l {SELECTOR}"
"""Command that ends the injection of the gate. Without the image, pods with an injected gate would not start."""
STOP = f"kubectl delete daemonsets,deployments,cronjobs,jobs --all-namespaces -l {SELECTOR}"
"""Command that ends all writers of Nodes."""
_SCOPED = "namespaces,clusterroles,clusterrolebindings,priorityclasses"
_POLICIES = "validatingadmissionpolicies,validatingadmissionpolicybindings"
DELETE_REST = f"kubectl delete roles,rolebindings,{_SCOPED},{_POLICIES} --all-namespaces -l {SELECTOR}"
"""Command that deletes the other objects of the manifests; objects in our namespaces are deleted with them."""
SHOW_RULES = f"kubectl get devicetaintrules -l {SELECTOR}"
DELETE_FILES = "rm -rf /var/lib/gpu-healthcheck /var/log/gpu-healthcheck"
"""Command for the remains of hostPath volumes on a node, which no command of this project can reach."""


class Removal(Struct, frozen=True):
    """Fields to remove from one Node: names of labels and annotations, and taints in kubectl's notation."""

    node: str
    labels: tuple[str, ...]
    annotations: tuple[str, ...]
    taints: tuple[str, ...]
    cordons: tuple[str, ...]
    """UUIDs of the GPUs that an agent cordoned in HAMi's list."""
    conditions: tuple[str, ...]
    uncordoned: str
    """Quarantine run that set the cordon, which is removed too; '' if none did."""
    switched_on: tuple[str, ...]
    """Labels of the GPU operator that a reset switched off and did not switch on again; they are switched on."""
    verdict: str
    """Severity of the node if the removal makes it accept work again; '' if none of our marks kept work away."""
    kept: tuple[str, ...]
    """Kept fields under our prefix, as text."""
    has_rules: bool
    """Whether the Node's record lists DeviceTaintRules that replace the Node's taint."""
    field_managers: int
    """Number of `managedFields` entries to clear, as created by server-side apply with a stolen token; 0: none."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.taints or self.conditions or self.field_managers)


def removal(node: NodeState) -> Removal:
    """Return the fields to remove from this Node; the result is false if none of ours are on it."""
    uncordoned = cordoned_by(node)
    barred = uncordoned or any(map(_goes, node.taints))
    return Removal(
        node=node.name,
        labels=tuple(key for key in sorted(node.labels) if _is_ours(key)),
        annotations=tuple(key for key in sorted(node.annotations) if _is_ours(key)),
        taints=tuple(_written(taint) for taint in node.taints if _goes(taint)),
        cordons=tuple(sorted(our_cordons(node))),
        conditions=tuple(str(condition["type"]) for condition in node.our_conditions()),
        uncordoned=uncordoned,
        switched_on=switched_off(node.labels, node.annotations),
        verdict=node.labels.get(SEVERITY, "") if barred else "",
        kept=(
            *(f"label {key}={value}" for key, value in node.labels.items() if key == ENABLED),
            *(f"taint {_written(taint)}" for taint in node.taints if _stays(taint)),
        ),
        has_rules=says_devices(node) and not our_cordons(node),
        field_managers=node.field_managers if node.field_managers > MOST_FIELD_MANAGERS else 0,
    )


def patch(node: NodeState) -> dict[str, Any] | None:
    """Return the merge patch that removes the fields, without the conditions; None if there are none."""
    gone = removal(node)
    if not (gone.labels or gone.annotations or gone.taints or gone.field_managers):
        return None
    spec: dict[str, Any] = {}
    if gone.taints:
        spec["taints"] = [taint for taint in node.taints if not _goes(taint)]
    if gone.uncordoned:
        spec["unschedulable"] = None
    metadata: dict[str, Any] = {
        "resourceVersion": node.resource_version,
        "labels": {**dict.fromkeys(gone.labels), **dict.fromkeys(gone.switched_on, "true")},
        "annotations": {**cordon_change(node, ()), **dict.fromkeys(gone.annotations)},
    }
    if gone.field_managers:
        metadata["managedFields"] = [{}]  # Kubernetes' way to clear them (docs: server-side apply)
    return {"metadata": metadata, "spec": spec} if spec else {"metadata": metadata}


def _is_ours(key: str) -> bool:
    return key.startswith(f"{PREFIX}/") and key != ENABLED


def _goes(taint: Mapping[str, Any]) -> bool:
    if taint.get("key") == STARTUP:
        return True
    # The same key with another effect is a different taint with another owner.
    return taint.get("key") in (UNHEALTHY, MAINTENANCE) and taint.get("effect") == "NoSchedule"


def _stays(taint: Mapping[str, Any]) -> bool:
    return str(taint.get("key")).startswith(f"{PREFIX}/") and not _goes(taint)


def _written(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"
