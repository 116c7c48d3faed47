"""Severity of a finding on this cluster: from the tables, or from an override. Without side effects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import OVERRIDDEN, Policy
from gpu_healthcheck.healthcheck.catalog.xid import fixed_ruling
from gpu_healthcheck.healthcheck.model import Finding, Severity, Threshold

ESCALATED = "ESCALATE_AFTER"
"""Rule of a finding that recurred too often."""
_XID = re.compile(r"Xid(\d{1,5})\Z", re.ASCII)
_REACHED = re.compile(rf"{OVERRIDDEN}: after (\d{{1,4}}) in (\d{{1,6}})s\Z", re.ASCII)
"""Rule of a finding that reached a threshold: the count and the window are evidence for a later threshold."""
_BY_THE_TABLE = ("xid.csv:", "xid_overrides.csv:", "STRICT_PSHC")


def with_overrides(finding: Finding, policy: Policy) -> Finding:
    """Return the finding with the severity that this policy gives to one event; the same object if nothing changes.

    A code that the tables ignore is remembered with severity PASS if this policy counts it.
    """
    base, rule = _base(finding, policy)
    new: tuple[Severity, str, Severity | None, str] = (base, rule, None, "")
    override = policy.overrides.get(finding.reason)
    if override is None and base is Severity.PASS and finding.reason in policy.thresholds:
        override = Severity.PASS
    is_escalated = rule == ESCALATED and override in (Severity.RESET, Severity.REBOOT)
    if override is not None and not is_escalated:
        new = (override, OVERRIDDEN, base, rule)
    if new == (finding.severity, finding.rule, finding.catalogued, finding.catalogued_rule):
        return finding
    severity, rule, catalogued, catalogued_rule = new
    return replace(finding, severity=severity, rule=rule, catalogued=catalogued, catalogued_rule=catalogued_rule)


def at_threshold(finding: Finding, threshold: Threshold) -> Finding:
    """Return the finding at the severity of a threshold that its processes reached. It never becomes milder."""
    if threshold.severity <= finding.severity:
        return finding
    base, rule = finding.base
    reached = f"{OVERRIDDEN}: after {threshold.count} in {threshold.seconds}s"
    return replace(finding, severity=threshold.severity, rule=reached, catalogued=base, catalogued_rule=rule)


def is_reached(threshold: Threshold, finding: Finding, times: Iterable[float]) -> bool:
    """Whether so many processes had the event within the window.

    `times` are those of the last processes. The rule of the finding shows an earlier threshold that was reached.
    """
    earlier = _REACHED.match(finding.rule)
    if earlier and int(earlier[1]) >= threshold.count and int(earlier[2]) <= threshold.seconds:
        return True
    ordered = sorted(times)
    pairs = zip(ordered, ordered[threshold.count - 1 :], strict=False)
    return any(last - first <= threshold.seconds for first, last in pairs)


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
