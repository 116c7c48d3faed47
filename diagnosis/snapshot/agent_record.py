"""Our agent's record of a node, from its annotation: observations beyond the reach of the API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from msgspec import field

from healthcheck.text.boundary import JsonObject, by_name, read_row, text, texts
from healthcheck.verdict.inventory import Inventory
from healthcheck.verdict.record import RecordError, load


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


def read_record(annotation: str) -> NodeRecord | None:
    """Read the record; None if there is none or it can't be parsed, so that nothing is known from it."""
    try:
        return read_row(NodeRecord, load(annotation)) if annotation else None
    except RecordError:
        return None
