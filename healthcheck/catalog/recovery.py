"""What the driver says a GPU needs: Xid 154 prints it, NVML's field 230 has the same numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from healthcheck.catalog.rows import read_rows
from healthcheck.model import Severity

NONE = 0
_TEXT = re.compile(
    r"GPU\s+recovery\s+action\s+changed\s+from\s+0x[0-9a-f]+\s+\([^)]*\)\s+to\s+0x([0-9a-f]{1,8})\s+\(", re.IGNORECASE
)
"""The number counts: its words differ from driver to driver. A saved log may have the line wrapped."""


class RecoveryAction(Struct, frozen=True):
    """One value of nvmlDeviceGpuRecoveryAction_t. `since` is the driver branch that brought it."""

    number: int
    name: str
    severity: Severity
    since: str
    meaning: str
    source: str


@cache
def recovery_actions() -> Mapping[int, RecoveryAction]:
    return {
        int(row["number"]): RecoveryAction(
            int(row["number"]), row["name"], Severity[row["severity"]], row["since"], row["meaning"], row["source"]
        )
        for _, row in read_rows("recovery_actions.csv")
    }


def severity_of_recovery(number: int) -> Severity:
    """A number that a newer driver brought is only watched."""
    action = recovery_actions().get(number)
    return action.severity if action else Severity.MONITOR


def recovery_in(text: str) -> int | None:
    """The action that the text of an Xid 154 changed to; None when it can't be read."""
    found = _TEXT.search(text)
    return int(found[1], 16) if found else None
