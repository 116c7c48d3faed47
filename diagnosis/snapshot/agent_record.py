"""Our agent's record of a node, from its annotation: observations beyond the reach of the API."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from msgspec import field

from diagnosis.snapshot.json_fields import LONGEST_MESSAGE, LONGEST_NAME, Fields
from healthcheck.text.json_rows import JsonObject, row_in, rows
from healthcheck.text.moments import moment_or_none
from healthcheck.text.printable import printable
from healthcheck.verdict.inventory import Inventory, read
from healthcheck.verdict.record import RecordError, load


def _name(value: object) -> str:
    return printable(value, LONGEST_NAME) if isinstance(value, str) else ""


def _message(value: object) -> str:
    return printable(value, LONGEST_MESSAGE) if isinstance(value, str) else ""


def _about(value: object) -> dict[str, str]:
    return Fields({"about": value}).words("about")


def _inventory(value: object) -> Inventory:
    return read(value if isinstance(value, dict) else {})


def _checks(value: object) -> dict[str, str]:
    return {fields.text("check"): fields.text("status") for fields in Fields({"checks": value}).each("checks")}


class RecordFinding(JsonObject, frozen=True):
    """Finding of a record. `about`: other names of the subject: a GPU's index, UUID and serial number."""

    reason: Annotated[str, _name] = ""
    severity: Annotated[str, _name] = ""
    subject: Annotated[str, _name] = ""
    detail: Annotated[str, _message] = ""
    about: Annotated[Mapping[str, str], _about] = field(default_factory=dict)
    first_seen: Annotated[datetime | None, moment_or_none] = None


class NodeRecord(JsonObject, frozen=True):
    """Record of a node. `inventory`: from the agent's last check cycle; empty if the agent writes none."""

    status: Annotated[str, _name] = ""
    severity: Annotated[str, _name] = ""
    timestamp: Annotated[datetime | None, moment_or_none] = None
    findings: Annotated[tuple[RecordFinding, ...] | None, rows(RecordFinding)] = ()
    taint: Annotated[str, _name] = ""
    """State of our taint: `set`, `devices`, `withheld`, `off`, or ''."""
    inventory: Annotated[Inventory, _inventory] = field(default_factory=Inventory)
    checks: Annotated[Mapping[str, str], _checks] = field(default_factory=dict)
    """Status by name of a group of checks."""


def read_record(annotation: str) -> NodeRecord | None:
    """Read the record; None if there is none or it can't be parsed, so that nothing is known from it."""
    try:
        return row_in(NodeRecord, load(annotation)) if annotation else None
    except RecordError:
        return None
