"""State of a Node from the API server, and the names of this project's fields on it.

Data types, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.model.node_facts import PodRuntimeClass
from gpu_healthcheck.healthcheck.node.devices import AllocatedDevices, NodeDevices
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, moment_or_none
from gpu_healthcheck.healthcheck.text.printable import printable

STATUS, SEVERITY, LAST_CHECK = (f"{PREFIX}/{key}" for key in ("status", "severity", "last-check"))
RESULTS, SWEEP_RESULT, QUARANTINE_RESULT, RESET_RESULT, RELEASE = (
    f"{PREFIX}/{key}" for key in ("results", "sweep-result", "quarantine-result", "reset-result", "release")
)
MODE, RUN = f"{PREFIX}/mode", f"{PREFIX}/run"
EVICT = f"{PREFIX}/evict"
"""Annotation of the evict program: its announced, requested and refused evictions on this Node."""
RESET_COMMAND = f"{PREFIX}/reset-command"
CORDONED_BY, ENABLED = f"{PREFIX}/cordoned-by", f"{PREFIX}/enabled"
DEVICE_CORDON = f"{PREFIX}/device-cordon"
"""UUIDs of GPUs that the agent added to HAMi's list of cordoned cards, separated by commas."""
UNHEALTHY, STARTUP, MAINTENANCE = (f"{PREFIX}/{key}" for key in ("unhealthy", "startup", "maintenance"))
TAINT = {"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}
KEEPS_AWAY = ("NoSchedule", "NoExecute")
"""Taint effects that keep new work off a Node or device."""
CONDITION = "GpuHealthy"
GPU_UNHEALTHY = "GpuUnhealthy"
"""Reason of the agent's Events about pods that use a faulty GPU."""
REPAIR_CONDITIONS = (REBOOT_REQUIRED, REPLACEMENT_REQUIRED, HARDWARE_READY) = (
    "GpuRebootRequired",
    "GpuReplacementRequired",
    "AcceleratedHardwareReady",
)
"""Conditions for repair programs, written if the settings name them.

The EKS node monitoring agent also writes HARDWARE_READY.
"""
EFA_RESOURCE = "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
DEEP_CHECK = "sagemaker.amazonaws.com/deep-health-check-status"
WATCHED_LABELS = (DEEP_CHECK,)
"""Labels of other programs that change the plan."""
MOST_FIELD_MANAGERS = 64
"""Entries of `metadata.managedFields` on a Node. Clusters have 5 to 20; each slows every write of the Node."""
FIELD_MANAGER = "gpu-healthcheck"
"""Field manager of our writes in a Node's `managedFields`."""
OUR_WORD = f"{FIELD_MANAGER}: "
"""Prefix of the message in our repair conditions: other programs may write conditions of the same type."""


class FieldManager(Struct, frozen=True):
    """The last writer of a field, as the API server recorded it, and the time of the write, to the second."""

    name: str
    at: datetime


class NodeState(Struct, frozen=True):
    """The Node as the API server last showed it. `taints` and `conditions` are plain API objects."""

    name: str
    uid: str = ""
    resource_version: str = ""
    machine: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, Any]] = ()
    conditions: Sequence[Mapping[str, Any]] = ()
    status_managers: tuple[FieldManager, ...] = ()
    """Owners of the label `status`."""
    efa_allocatable: int | None = None
    """Number of EFA devices that pods can request; None: the Node lists no such resource."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Number of GPUs or MIG instances that pods can request, by resource name."""
    gpu_capacity: Mapping[str, int] = field(default_factory=dict)
    """The same with the unhealthy ones, which pods can't request."""
    devices: NodeDevices | None = None
    """Devices that pods can claim by DRA; None: none, or not read."""
    has_device_plugin: bool = False
    """Whether a device plugin allocates GPUs here; it ignores taints of DRA devices."""
    cordoned: bool = False
    cordon_managers: tuple[FieldManager, ...] = ()
    """Owners of `spec.unschedulable`."""
    mark_managers: tuple[FieldManager, ...] = ()
    """Owners of the annotation `cordoned-by`."""
    repair_managers: Mapping[str, tuple[FieldManager, ...]] = field(default_factory=dict)
    """Owners of fields of existing repair conditions, by type."""
    provider_id: str = ""
    boot_id: str = ""
    """Boot of the node's kernel, as the kubelet reports it; '' if unknown, and in listings."""
    created: datetime | None = None
    field_managers: int = 0
    """Entries of `metadata.managedFields`."""

    def condition(self, kind: str = CONDITION) -> Mapping[str, Any] | None:
        return next((condition for condition in self.conditions if condition.get("type") == kind), None)

    @property
    def is_ready(self) -> bool:
        """Whether the kubelet reports that it can run pods."""
        return (self.condition("Ready") or {}).get("status") == "True"

    def our_conditions(self) -> list[Mapping[str, Any]]:
        return [condition for condition in self.conditions if is_our_condition(condition)]

    def tainted(self) -> bool:
        return any(is_our_taint(taint) for taint in self.taints)


PatchFor = Callable[[NodeState], Mapping[str, Any] | None]
"""Function that returns the patch for a Node, with its `resourceVersion`; None: no patch."""


def annotated(
    node: NodeState, annotations: Mapping[str, str | None], patch: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the patch with these annotations added; None removes one.

    Without a patch, return one with the annotations only.
    """
    metadata = (patch or {}).get("metadata", {"resourceVersion": node.resource_version})
    both = {**metadata.get("annotations", {}), **annotations}
    return {**(patch or {}), "metadata": {**metadata, "annotations": both}}


def with_devices(node: NodeState, given_out: AllocatedDevices) -> NodeState:
    """Return the Node with its DRA devices.

    If a device plugin also serves the Node and there is no template for sweeps, return the Node unchanged: a sweep does
    not need the template there.
    """
    devices = given_out.of(node.name)
    if devices is None or (node.gpus and not given_out.has_template):
        return node
    return replace(node, devices=devices)


class SelectiveClass(Struct, frozen=True):
    """A RuntimeClass as the API server shows it, with the labels that it requires of a node."""

    name: str
    handler: str
    node_selector: Mapping[str, str] = field(default_factory=dict)


def runtime_classes(classes: Iterable[SelectiveClass], labels: Mapping[str, str]) -> tuple[PodRuntimeClass, ...]:
    """Return the RuntimeClasses that a pod can use on a node with these labels."""
    return tuple(
        PodRuntimeClass(selective_class.name, selective_class.handler, bool(selective_class.node_selector))
        for selective_class in classes
        if selective_class.node_selector.items() <= labels.items()
    )


def is_tested(node: NodeState) -> bool:
    """Whether HyperPod tests the node now."""
    return node.labels.get(DEEP_CHECK) == "InProgress"


def is_of_another_machine(machine: str | None, node: NodeState) -> bool:
    """Whether the Node has another machine id. Letter case is ignored: the kernel and the kubelet differ in it.

    An unknown id, '' or None, is not another machine.
    """
    return bool(node.machine and machine) and str(machine).lower() != node.machine.lower()


def is_our_taint(taint: Mapping[str, Any]) -> bool:
    # Key and effect identify a taint. A taint with another effect belongs to another owner and must not be lifted here.
    return (taint.get("key"), taint.get("effect")) == (TAINT["key"], TAINT["effect"])


def removed_condition(kind: str) -> dict[str, Any]:
    """Return the entry that removes a condition in a strategic merge patch."""
    return {"type": kind, "$patch": "delete"}


def is_our_condition(condition: Mapping[str, Any]) -> bool:
    """Whether this project wrote the condition, judged by its message.

    The field manager is not evidence: a client that writes the whole list back becomes the manager of every entry.
    """
    kind = condition.get("type")
    return kind == CONDITION or (kind in REPAIR_CONDITIONS and str(condition.get("message")).startswith(OUR_WORD))


def managers_of_label(managed_fields: object, label: str) -> tuple[FieldManager, ...]:
    """Return the owners of a label from `metadata.managedFields`. Entries of another shape are skipped."""
    return _managers_of(managed_fields, "f:metadata", "f:labels", f"f:{label}")


def managers_of_cordon(managed_fields: object) -> tuple[FieldManager, ...]:
    """Return the owners of `spec.unschedulable`, in the same way."""
    return _managers_of(managed_fields, "f:spec", "f:unschedulable")


def managers_of_mark(managed_fields: object) -> tuple[FieldManager, ...]:
    """Return the owners of the annotation `cordoned-by`, in the same way."""
    return _managers_of(managed_fields, "f:metadata", "f:annotations", f"f:{CORDONED_BY}")


def managers_of_condition(managed_fields: object, kind: str) -> tuple[FieldManager, ...]:
    """Return the owners of a condition, in the same way."""
    return _managers_of(managed_fields, "f:status", "f:conditions", f'k:{{"type":"{kind}"}}')


def _managers_of(managed_fields: object, *path: str) -> tuple[FieldManager, ...]:
    if not isinstance(managed_fields, list):
        return ()
    return tuple(_manager(managed) for managed in managed_fields if _owns(managed, path))


def _owns(managed: object, path: Sequence[str]) -> bool:
    subtree: object = managed
    for key in ("fieldsV1", *path[:-1]):
        subtree = subtree.get(key) if isinstance(subtree, Mapping) else None
    return isinstance(subtree, Mapping) and path[-1] in subtree


def _manager(managed: Mapping[str, Any]) -> FieldManager:
    # An entry without a time counts as older than anything that it could refer to.
    return FieldManager(printable(str(managed.get("manager", ""))), moment_or_none(managed.get("time")) or EARLIEST)
