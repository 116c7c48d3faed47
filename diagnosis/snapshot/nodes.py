"""Nodes of the API, with our agent's record of each: observations beyond the reach of the API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Annotated

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.snapshot.hami_node import HamiNode, read_hami_node
from gpu_healthcheck.diagnosis.snapshot.meta import ApiObject, read_object
from gpu_healthcheck.diagnosis.snapshot.pods import Condition, Conditions, condition_in
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.state import DEEP_CHECK, KEEPS_AWAY, RESULTS, UNHEALTHY
from gpu_healthcheck.healthcheck.text.boundary import At, JsonObject, by_name, names, read_row, text, texts
from gpu_healthcheck.healthcheck.verdict.inventory import Inventory
from gpu_healthcheck.healthcheck.verdict.record import RecordError, load
from gpu_healthcheck.healthcheck.verdict.taint_decision import WITHHELD
from gpu_healthcheck.healthcheck.verdict.work import WorkRow, read_work

_HEALTHY = ("pass", "warn")
_FAULTS = frozenset(one.name for one in Severity if one > Severity.MONITOR)


class RecordFinding(JsonObject, frozen=True):
    """Finding of a record. `about`: other names of the subject: a GPU's index, UUID and serial number."""

    reason: Annotated[str, text] = ""
    severity: Annotated[str, text] = ""
    subject: Annotated[str, text] = ""
    detail: str = ""
    about: Annotated[Mapping[str, str], texts] = field(default_factory=dict)
    first_seen: datetime | None = None


class NodeRecord(JsonObject, frozen=True):
    """Record of a node. `inventory`: from the agent's last check cycle; empty if the agent writes none."""

    status: Annotated[str, text] = ""
    severity: Annotated[str, text] = ""
    timestamp: datetime | None = None
    findings: tuple[RecordFinding, ...] = ()
    taint: Annotated[str, text] = ""
    """State of our taint: `set`, `devices`, `withheld`, `off`, or ''."""
    inventory: Inventory = field(default_factory=Inventory)
    checks: Annotated[Mapping[str, str], by_name("check", "status")] = field(default_factory=dict)
    """Status by name of a group of checks."""
    work: Annotated[Mapping[str, WorkRow], read_work] = field(default_factory=dict)
    """GPUs that wait or idle, by UUID."""


def read_record(annotation: str) -> NodeRecord | None:
    """Read the record; None if there is none or it can't be parsed, so that nothing is known from it."""
    try:
        return read_row(NodeRecord, load(annotation)) if annotation else None
    except RecordError:
        return None


class Taint(Struct, frozen=True):
    """Taint of a Node."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


def _handlers(value: object) -> frozenset[str]:
    return frozenset(names(value))


class Node(ApiObject, frozen=True, dict=True):
    """Node. `handlers` are its container runtime's handlers; None if the kubelet does not report them."""

    taints: Annotated[tuple[Taint, ...], At("spec.taints")] = ()
    cordoned: Annotated[bool, At("spec.unschedulable")] = False
    capacity: Annotated[Mapping[str, str], At("status.capacity")] = field(default_factory=dict)
    allocatable: Annotated[Mapping[str, str], At("status.allocatable")] = field(default_factory=dict)
    conditions: Conditions = ()
    runtime: Annotated[str, At("status.nodeInfo.containerRuntimeVersion")] = ""
    """Container runtime and version, as `containerd://2.1.4`."""
    kubelet: Annotated[str, At("status.nodeInfo.kubeletVersion")] = ""
    kernel: Annotated[str, At("status.nodeInfo.kernelVersion")] = ""
    system: Annotated[str, At("status.nodeInfo.osImage")] = ""
    """Operating system, as `Ubuntu 22.04.5 LTS`."""
    handlers: Annotated[frozenset[str] | None, At("status.runtimeHandlers"), _handlers] = None
    cut: Annotated[tuple[str, ...], At("metadata.cut")] = ()
    """Annotations of which a text shows only the beginning."""
    probed: Annotated[NodeRecord | None, At()] = None
    """Record of a check that was run for this diagnosis; None if there was none."""

    @property
    def name(self) -> str:
        return self.meta.name

    @cached_property
    def record(self) -> NodeRecord | None:
        """Return the record of that check, or of the node's agent; None if it has written none."""
        return self.probed or read_record(self.meta.annotations.get(RESULTS, ""))

    @cached_property
    def hami(self) -> HamiNode:
        return read_hami_node(self.meta.annotations)

    @property
    def findings(self) -> tuple[RecordFinding, ...]:
        """Return the findings of the agent's record."""
        return (self.record.findings or ()) if self.record is not None else ()

    @property
    def faults(self) -> tuple[RecordFinding, ...]:
        """Return the findings of RESET or worse."""
        return tuple(finding for finding in self.findings if finding.severity in _FAULTS)

    @property
    def inventory(self) -> Inventory:
        """Return the inventory of the agent's record; an empty one if there is none."""
        return self.record.inventory if self.record is not None else Inventory()

    def finding(self, *reasons: str) -> RecordFinding | None:
        """Return the agent's first finding with one of these reasons."""
        return next((finding for finding in self.findings if finding.reason in reasons), None)

    @property
    def withheld(self) -> bool:
        """Whether our own taint keeps new pods off the node."""
        return any(taint.key == UNHEALTHY and taint.effect in KEEPS_AWAY for taint in self.taints)

    @property
    def lacks_taint(self) -> bool:
        """Whether the agent's verdict requires our taint, and the fleet budget has no slot for it."""
        is_refused = self.record is not None and self.record.taint == WITHHELD
        return is_refused and not self.withheld and self.meta.labels.get(DEEP_CHECK) != "InProgress"

    @property
    def accepts_work_on_faults(self) -> bool:
        """Whether new pods start on the node although its verdict requires our taint."""
        return self.lacks_taint and self.ready and not self.cordoned

    @property
    def ready(self) -> bool:
        return self.condition("Ready", "True") is not None

    def condition(self, kind: str, status: str = "") -> Condition | None:
        return condition_in(self.conditions, kind, status)


def read_node(raw: object) -> Node:
    """Read a Node. Raises ValueError if it has no name, or a value of the wrong type."""
    return read_object(Node, "Node", raw)


def recorded_gpus(node: Node) -> str:
    """Return the record's time and counts of GPUs as evidence; '' if it has no counts."""
    pci, nvml = node.inventory.pci, node.inventory.nvml
    if pci is None and nvml is None:
        return ""
    at = node.record.timestamp if node.record is not None else None
    shown = ("?" if number is None else number for number in (pci, nvml))
    return "agent's record{}: {} GPUs on PCI, {} respond to NVML".format(f" of {at:%H:%M}Z" if at else "", *shown)


def all_respond_since(node: Node, at: datetime | None) -> bool:
    """Whether a record newer than `at` has no fault, and all GPUs respond."""
    record = node.record
    if record is None or node.faults or record.status not in _HEALTHY or at is None or record.timestamp is None:
        return False
    pci, nvml = node.inventory.pci, node.inventory.nvml
    return record.timestamp > at and bool(nvml) and pci in (None, nvml)
