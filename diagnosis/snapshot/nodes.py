"""Read Nodes of the API."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

from msgspec import Struct, field

from diagnosis.snapshot.agent_record import NodeRecord, RecordFinding, read_record
from diagnosis.snapshot.hami_node import HamiNode, read_hami_node
from diagnosis.snapshot.meta import ApiObject, read_object
from diagnosis.snapshot.pods import Condition, Conditions, condition_in
from healthcheck.model import Severity
from healthcheck.node.state import DEEP_CHECK, KEEPS_AWAY, RESULTS, UNHEALTHY
from healthcheck.text.boundary import At, entries, text, value_at
from healthcheck.verdict.inventory import Inventory
from healthcheck.verdict.taint_decision import WITHHELD

_FAULTS = frozenset(one.name for one in Severity if one > Severity.MONITOR)


class Taint(Struct, frozen=True):
    """Taint of a Node."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


def _handlers(value: object) -> frozenset[str]:
    return frozenset(text(value_at(entry, "name") or "") for entry in entries(value))


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
    system: Annotated[str, At("status.nodeInfo.osImage")] = ""
    """Operating system, as `Ubuntu 22.04.5 LTS`."""
    handlers: Annotated[frozenset[str] | None, At("status.runtimeHandlers"), _handlers] = None

    @property
    def name(self) -> str:
        return self.meta.name

    @cached_property
    def record(self) -> NodeRecord | None:
        """Return the record of the node's agent; None if it has written none."""
        return read_record(self.meta.annotations.get(RESULTS, ""))

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
