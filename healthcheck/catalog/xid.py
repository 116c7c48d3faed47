"""NVIDIA's Xid catalogue, and where each of its actions stands on our ladder."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from healthcheck.catalog.policy import Policy
from healthcheck.model import Severity

LADDER: Mapping[str, Severity] = {
    "": Severity.MONITOR,
    "CHECK_MECHANICALS": Severity.ISOLATE,
    "CHECK_UVM": Severity.MONITOR,
    "CONTACT_SUPPORT": Severity.MONITOR,
    "IGNORE": Severity.PASS,
    "RESET_GPU": Severity.RESET,
    "RESTART_APP": Severity.MONITOR,
    "RESTART_BM": Severity.REBOOT,
    "RESTART_VM": Severity.REBOOT,
    "UPDATE_SWFW": Severity.MONITOR,
    "WORKFLOW_XID_45": Severity.MONITOR,  # alone: RESTART_FM
    "WORKFLOW_XID_48": Severity.RESET,  # alone RESET_GPU, with 63 or 64 DRAIN_AND_RESET
    "XID_154": Severity.MONITOR,  # where the line's own action is not one we know
}
"""Contract, section 2. The two NVLink workflows are settings, and stand in `severity_of`."""

RECOVERY: Mapping[int, Severity] = {
    0: Severity.PASS,
    1: Severity.RESET,
    2: Severity.REBOOT,
    3: Severity.RESET,
    4: Severity.RESET,
    5: Severity.RESET,
    6: Severity.RESET,
    7: Severity.REBOOT,
}
"""nvmlDeviceGpuRecoveryAction_t (nvml.h, field 230) on our ladder; Xid 154 prints the same numbers."""

_RECOVERY_TEXT = re.compile(
    r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]{1,8}) \(", re.IGNORECASE
)
_PSHC = range(162, 166)


@dataclass(frozen=True, slots=True)
class XidRow:
    """One code of NVIDIA's table. `override` is our own severity where we depart from NVIDIA's bucket."""

    code: int
    mnemonic: str
    immediate_action: str
    source: str
    override: Severity | None = None
    why: str = ""

    @property
    def rule(self) -> str:
        return f"{'xid_overrides' if self.override is not None else 'xid'}.csv:{self.code}"


@cache
def xid_table() -> Mapping[int, XidRow]:
    """The whole catalogue by code. Raises ValueError for a row that a build should never have let through."""
    overrides = {int(row["code"]): row for row in _rows("xid_overrides.csv")}
    table: dict[int, XidRow] = {}
    for row in _rows("xid.csv"):
        code, action = int(row["code"]), row["immediate_action"]
        if action not in LADDER and action not in ("WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR"):
            raise ValueError(f"xid.csv: code {code}: unknown action {action!r}")
        if code in table:
            raise ValueError(f"xid.csv: code {code} stands twice")
        ours = overrides.pop(code, None)
        table[code] = XidRow(
            code,
            row["mnemonic"],
            action,
            row["source"],
            Severity[ours["severity"]] if ours else None,
            ours["why"] if ours else "",
        )
    if overrides:
        raise ValueError(f"xid_overrides.csv: no such code in xid.csv: {sorted(overrides)}")
    return table


def severity_of(code: int, text: str, policy: Policy) -> Severity:
    """What an Xid means on this cluster. PASS: NVIDIA says to ignore it. Unknown codes are MONITOR."""
    return policy.severity_of(f"Xid{code}", _catalogue_severity(code, text, policy))


def _catalogue_severity(code: int, text: str, policy: Policy) -> Severity:
    row = xid_table().get(code)
    if row is None:
        return Severity.MONITOR
    if row.override is not None:
        return row.override
    if code in _PSHC and policy.strict_pshc:
        return Severity.RESET
    ours = {"WORKFLOW_NVLINK_ERR": policy.nvlink_default, "WORKFLOW_NVLINK5_ERR": policy.nvlink5_default}
    action = _RECOVERY_TEXT.search(text) if row.immediate_action == "XID_154" else None
    if action:
        return RECOVERY.get(int(action[1], 16), Severity.MONITOR)
    return ours.get(row.immediate_action) or LADDER[row.immediate_action]


def _rows(name: str) -> list[dict[str, str]]:
    text = files("healthcheck.catalog").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
