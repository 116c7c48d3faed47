"""Recovery actions that the driver reports for a GPU.

Xid 154 prints them, and NVML's field 230 has the same numbers. The meaning of a number depends on the version of the
driver.
"""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct

from healthcheck.catalog.csv_rows import read_rows
from healthcheck.model import Severity

NONE = 0
_IMEX = "Recover IMEX Domain"
_TEXT = re.compile(
    r"GPU\s+recovery\s+action\s+changed\s+from\s+0x[0-9a-f]+\s+\([^)]*\)\s+to\s+0x([0-9a-f]{1,8})\s+\(([^)]{0,64})",
    re.IGNORECASE,
)
"""The number decides, because the words differ between drivers. In a saved log, the line can be wrapped."""
_NEWEST = 1 << 16
_BRANCH = re.compile(r"(\d{1,4})\.")


class RecoveryAction(Struct, frozen=True):
    """One value of nvmlDeviceGpuRecoveryAction_t, as drivers of the branches `first` to `last` define it."""

    number: int
    name: str
    severity: Severity
    first: int
    last: int
    meaning: str
    source: str

    @property
    def is_of_imex(self) -> bool:
        """Whether the action concerns the IMEX domain of the node, not a single GPU."""
        return self.name == _IMEX

    @property
    def drivers(self) -> str:
        """Return the driver branches with this meaning as text; '' for all."""
        first = f"from R{self.first} on" if self.first else ""
        return first or (f"up to R{self.last}" if self.last < _NEWEST else "")


@cache
def recovery_actions() -> tuple[RecoveryAction, ...]:
    """Return the whole table. A number has one row per meaning."""
    return tuple(
        RecoveryAction(
            int(row["number"]),
            row["name"],
            Severity[row["severity"]],
            int(row["first_driver"] or 0),
            int(row["last_driver"] or _NEWEST),
            row["meaning"],
            row["source"],
        )
        for _, row in read_rows("recovery_actions.csv")
    )


def recovery_action(number: int, driver_version: str) -> RecoveryAction | None:
    """Return the number's meaning in that driver; None if it has no meaning there.

    Also None if the number has several meanings and the driver's version is unknown.
    """
    branch = _BRANCH.match(driver_version)
    meanings = [action for action in recovery_actions() if action.number == number]
    if branch is None:
        return meanings[0] if len(meanings) == 1 else None
    return next((meaning for meaning in meanings if meaning.first <= int(branch[1]) <= meaning.last), None)


def recovery_in(text: str) -> int | None:
    """Return the number of the new action in the text of an Xid 154; None if it can't be parsed."""
    found = _TEXT.search(text)
    return int(found[1], 16) if found else None


def recovery_action_in(text: str) -> RecoveryAction | None:
    """Return the new action in the text of an Xid 154; None if it is unknown.

    The line does not contain the driver's version. If a number has several meanings, the words decide: a driver prints
    "Unknown" for a number that its kernel module does not name.
    """
    found = _TEXT.search(text)
    if found is None:
        return None
    meanings = [action for action in recovery_actions() if action.number == int(found[1], 16)]
    words = set(found[2].lower().split())
    named = [meaning for meaning in meanings if len(meanings) == 1 or words & set(meaning.name.lower().split())]
    return named[0] if named else None
