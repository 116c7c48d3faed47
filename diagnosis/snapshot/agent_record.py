"""Our agent's record of a node, from its annotation: observations beyond the reach of the API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from diagnosis.snapshot.json_fields import Fields
from healthcheck.model import Severity
from healthcheck.verdict.inventory import Inventory, read
from healthcheck.verdict.record import RecordError, load

_FAULTS = frozenset(one.name for one in Severity if one > Severity.MONITOR)


class RecordFinding(Struct, frozen=True):
    """Finding of a record. `about`: other names of the subject: a GPU's index, UUID and serial number."""

    reason: str
    severity: str
    subject: str
    detail: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    last_seen: datetime | None = None
    first_seen: datetime | None = None


class NodeRecord(Struct, frozen=True):
    """Record of a node. `inventory`: from the agent's last check cycle; empty if the agent writes none."""

    status: str
    severity: str
    at: datetime | None = None
    findings: tuple[RecordFinding, ...] = ()
    inventory: Inventory = field(default_factory=Inventory)
    checks: Mapping[str, str] = field(default_factory=dict)
    """Status by name of a group of checks."""

    @property
    def faults(self) -> tuple[RecordFinding, ...]:
        """Return the findings of RESET or worse."""
        return tuple(finding for finding in self.findings if finding.severity in _FAULTS)

    def finding(self, *reasons: str) -> RecordFinding | None:
        """Return the first finding with one of these reasons."""
        return next((record_finding for record_finding in self.findings if record_finding.reason in reasons), None)


def read_record(annotation: str) -> NodeRecord | None:
    """Read the record; None if there is none or it can't be parsed, so that nothing is known from it."""
    if not annotation:
        return None
    try:
        record = load(annotation)
    except RecordError:
        return None
    raw, seen = Fields(record), record.get("inventory")
    return NodeRecord(
        raw.text("status"),
        raw.text("severity"),
        raw.moment("timestamp"),
        tuple(map(_finding, raw.each("findings"))),
        read(seen if isinstance(seen, dict) else {}),
        {fields.text("check"): fields.text("status") for fields in raw.each("checks")},
    )


def _finding(raw: Fields) -> RecordFinding:
    return RecordFinding(
        raw.text("reason"),
        raw.text("severity"),
        raw.text("subject"),
        raw.message("detail"),
        raw.words("about"),
        raw.moment("last_seen"),
        raw.moment("first_seen"),
    )
