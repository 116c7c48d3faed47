"""Read Nodes of the API."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from diagnosis.snapshot.agent_record import NodeRecord, RecordFinding, read_record
from diagnosis.snapshot.hami_node import HamiNode, read_hami_node
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta
from diagnosis.snapshot.pods import Condition, condition_in, read_conditions
from healthcheck.model import Severity
from healthcheck.node.state import DEEP_CHECK, KEEPS_AWAY, RESULTS, UNHEALTHY
from healthcheck.verdict.inventory import Inventory
from healthcheck.verdict.taint_decision import WITHHELD

_FAULTS = frozenset(one.name for one in Severity if one > Severity.MONITOR)


class Taint(Struct, frozen=True):
    """Taint of a Node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Node(Struct, frozen=True):
    """Node. `handlers` are its container runtime's handlers; None if the kubelet does not report them."""

    meta: Meta
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    runtime: str = ""
    """Container runtime and version, as `containerd://2.1.4`."""
    kubelet: str = ""
    system: str = ""
    """Operating system, as `Ubuntu 22.04.5 LTS`."""
    handlers: frozenset[str] | None = None
    record: NodeRecord | None = None
    """Record of the node's agent; None if it has written none."""
    hami: HamiNode = field(default_factory=HamiNode)

    @property
    def name(self) -> str:
        return self.meta.name

    @property
    def subject(self) -> str:
        return self.meta.subject

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


def read_node(raw: Fields) -> Node:
    """Read a Node. Raises ValueError if it has no name."""
    meta, status = read_meta("Node", raw), raw.at("status")
    handlers = frozenset(fields.text("name") for fields in status.each("runtimeHandlers"))
    return Node(
        meta,
        tuple(Taint(each.text("key"), each.text("value"), each.text("effect")) for each in raw.each("spec", "taints")),
        raw.flag("spec", "unschedulable"),
        status.words("capacity"),
        status.words("allocatable"),
        read_conditions(raw),
        status.text("nodeInfo", "containerRuntimeVersion"),
        status.text("nodeInfo", "kubeletVersion"),
        status.text("nodeInfo", "osImage"),
        handlers if status.has("runtimeHandlers") else None,
        read_record(meta.annotations.get(RESULTS, "")),
        read_hami_node(meta.annotations),
    )
