"""NVIDIA's Xid catalogue, and the mapping of its actions to the severities of this project.

Xid 154 prints the driver's recovery action for a GPU, and NVML's field 230 has the same numbers. The meaning of a
number depends on the version of the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from gpu_healthcheck.healthcheck.catalog.nvlink import rule_nvlink4, rule_nvlink5
from gpu_healthcheck.healthcheck.catalog.policy import OVERRIDDEN, Policy, Ruling
from gpu_healthcheck.healthcheck.model import Severity

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


_PSHC = range(163, 166)
"""Codes for power smoothing that is disabled or worn. Code 162 means that power smoothing works again."""
RECOVERY_CODE = 154
_THE_APPLICATIONS = ("RESTART_APP", "IGNORE")


class Action(Struct, frozen=True):
    """One of NVIDIA's action buckets. `severity` is None if the text of the line decides."""

    name: str
    severity: Severity | None
    meaning: str


class XidRow(Struct, frozen=True):
    """One code of NVIDIA's table.

    `override` is the severity of this project if it differs from that of NVIDIA's bucket.
    """

    code: int
    mnemonic: str
    unused: bool
    immediate_action: str
    investigatory_action: str
    meaning: str
    source: str
    override: Severity | None = None
    why: str = ""
    why_source: str = ""

    @property
    def rule(self) -> str:
        return f"{'xid_overrides' if self.override is not None else 'xid'}.csv:{self.code}"

    @property
    def is_decoded(self) -> bool:
        """Whether the severity depends on the text of the line or on an accompanying Xid 154."""
        return self.immediate_action in ("WORKFLOW_NVLINK_ERR", "XID_154")

    @property
    def escalates(self) -> bool:
        """Whether a recurrence of this Xid raises its severity.

        It does not if NVIDIA attributes the Xid to the application.
        """
        return self.immediate_action not in _THE_APPLICATIONS


@cache
def actions() -> Mapping[str, Action]:
    """Return NVIDIA's buckets with the severities of this project (docs/rules.md 15)."""
    return {
        row["action"]: Action(row["action"], Severity[row["severity"]] if row["severity"] else None, row["says"])
        for _, row in read_rows("xid_actions.csv")
    }


@cache
def xid_table() -> Mapping[int, XidRow]:
    """Return the rows by code. Raises ValueError for an invalid row, which the build should reject."""
    overrides = {int(row["code"]): row for _, row in read_rows("xid_overrides.csv")}
    table: dict[int, XidRow] = {}
    for line, row in read_rows("xid.csv"):
        code, action = int(row["code"]), row["immediate_action"]
        if action not in actions() or code in table:
            raise ValueError(f"xid.csv:{line}: code {code}, action {action!r}")
        ours = overrides.pop(code, None)
        table[code] = XidRow(
            code,
            row["mnemonic"],
            row["unused"] == "yes",
            action,
            row["investigatory_action"],
            row["meaning"],
            row["source"],
            Severity[ours["severity"]] if ours else None,
            ours["why"] if ours else "",
            ours["source"] if ours else "",
        )
    if overrides:
        raise ValueError(f"xid_overrides.csv: no such code in xid.csv: {sorted(overrides)}")
    return table


def severity_of(code: int, text: str, policy: Policy) -> Severity:
    """Return the severity of an Xid on this cluster.

    It is PASS if NVIDIA's action is to ignore the Xid, and MONITOR for an unknown code.
    """
    return rule_xid(code, text, policy).severity


def rule_xid(code: int, text: str, policy: Policy) -> Ruling:
    """Return the ruling for an Xid on this cluster: its severity and the row or setting that gives it."""
    if recovery_of(code, text) == NONE:
        # An override never turns a report of success into a fault.
        return Ruling(Severity.PASS, f"xid.csv:{code}")
    reason = f"Xid{code}"
    if reason in policy.overrides:
        return Ruling(policy.overrides[reason], OVERRIDDEN)
    return rule_by_catalogue(code, text, policy)


def recovery_of(code: int, text: str) -> int | None:
    """Return the number of the recovery action that the line announces (Xid 154); None if it announces none."""
    return recovery_in(text) if code == RECOVERY_CODE else None


def fixed_ruling(code: int, policy: Policy) -> Ruling | None:
    """Return the ruling of a code that does not depend on the text of the line.

    None if the line has to be decoded, or if no row has the code.
    """
    row = xid_table().get(code)
    if row is None or (row.override is None and (actions()[row.immediate_action].severity is None or row.is_decoded)):
        return None
    return rule_by_catalogue(code, "", policy)


def rule_by_catalogue(code: int, text: str, policy: Policy) -> Ruling:
    """Return the catalogue's ruling for a code, for a cluster without its own severity for the code."""
    row = xid_table().get(code)
    if row is None:
        return Ruling(Severity.MONITOR, "xid.csv: no such code")
    if row.override is not None:
        return Ruling(row.override, row.rule)
    if code in _PSHC and policy.strict_pshc:
        return Ruling(Severity.RESET, "STRICT_PSHC")
    if row.immediate_action == "WORKFLOW_NVLINK_ERR":
        return rule_nvlink4(text, policy.nvlink_default)
    severity = actions()[row.immediate_action].severity
    if severity is None:
        return rule_nvlink5(code, text, policy.nvlink5_default)
    recovery = recovery_action_in(text) if row.immediate_action == "XID_154" else None
    return Ruling(severity if recovery is None else recovery.severity, row.rule)
