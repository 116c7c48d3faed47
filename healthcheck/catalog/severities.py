"""Severity of a finding on this cluster: from the tables, or from an override. Without side effects."""

from __future__ import annotations

import re

from msgspec.structs import replace

from healthcheck.catalog.policy import OVERRIDDEN, Policy
from healthcheck.catalog.xid import fixed_ruling
from healthcheck.model import Finding, Severity

ESCALATED = "ESCALATE_AFTER"
"""Rule of a finding that recurred too often."""
_XID = re.compile(r"Xid(\d{1,5})\Z", re.ASCII)
_BY_THE_TABLE = ("xid.csv:", "xid_overrides.csv:", "STRICT_PSHC")


def ruled(finding: Finding, policy: Policy) -> Finding:
    """Return the finding with the severity that this policy gives; the same object if nothing changes."""
    base, rule = _base(finding, policy)
    new: tuple[Severity, str, Severity | None, str] = (base, rule, None, "")
    override = policy.overrides.get(finding.reason)
    is_escalated = rule == ESCALATED and override in (Severity.RESET, Severity.REBOOT)
    if override is not None and not is_escalated:
        new = (override, OVERRIDDEN, base, rule)
    if new == (finding.severity, finding.rule, finding.catalogued, finding.catalogued_rule):
        return finding
    severity, rule, catalogued, catalogued_rule = new
    return replace(finding, severity=severity, rule=rule, catalogued=catalogued, catalogued_rule=catalogued_rule)


def is_ignored(finding: Finding) -> bool:
    """Whether the tables, without an override, say that the finding is not a fault.

    A finding that an override sets to PASS is not ignored but remembered.
    """
    return finding.severity is Severity.PASS and finding.catalogued is None


def _base(finding: Finding, policy: Policy) -> tuple[Severity, str]:
    """Return severity and rule of the current tables, which may differ from those at the time of the finding."""
    severity, rule = finding.base
    defaults = {"NVLINK_DEFAULT": policy.nvlink_default, "NVLINK5_DEFAULT": policy.nvlink5_default}
    if rule in defaults:
        return defaults[rule], rule
    code = _XID.match(finding.reason)
    # A record of version 0.3.0 holds only the severity of the override, not that of the tables.
    if code and (rule.startswith(_BY_THE_TABLE) or (rule == OVERRIDDEN and finding.catalogued is None)):
        ruling = fixed_ruling(int(code[1]), policy)
        return (severity, rule) if ruling is None else (ruling.severity, ruling.rule)
    return severity, rule
