"""Changes to the severities of the catalogue, from the settings of a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from healthcheck.model import Severity

_CODE = re.compile(r"(xid|sxid|dcgm)\s+(\d{1,5})\Z", re.IGNORECASE)
_PREFIXES = {"xid": "Xid", "sxid": "SXid", "dcgm": "Dcgm"}
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{1,62}\Z")
OVERRIDDEN = "severity-overrides"
"""Rule of a severity from the cluster's settings."""
_ALLOWED = " or ".join((", ".join(s.name for s in Severity if s < Severity.ISOLATE), Severity.ISOLATE.name))


class Policy(Struct, frozen=True):
    """Severity settings of a cluster.

    `overrides` maps a reason (`Xid13`, `GpuCountLow`) to its severity on this cluster.
    """

    overrides: Mapping[str, Severity] = field(default_factory=dict)
    nvlink_default: Severity = Severity.RESET
    nvlink5_default: Severity = Severity.MONITOR
    strict_pshc: bool = False

    def severity_of(self, reason: str, default: Severity) -> Severity:
        return self.overrides.get(reason, default)


def parse_overrides(text: str) -> dict[str, Severity]:
    """Parse lines of the form `Reason = SEVERITY` or `xid 13 = RESET`. Raises ValueError, which names the line."""
    overrides: dict[str, Severity] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        left, equals, right = (part.strip() for part in line.partition("="))
        reason = _reason(left)
        if not equals or reason is None:
            raise ValueError(f"line {number}: {line[:60]!r}; write `Reason = SEVERITY` or `xid 13 = RESET`")
        if right not in Severity.__members__:
            raise ValueError(f"line {number}: severity {right[:40]!r}; allowed are {_ALLOWED}")
        overrides[reason] = Severity[right]
    return overrides


def _reason(word: str) -> str | None:
    code = _CODE.match(word)
    if code:
        return _PREFIXES[code[1].lower()] + str(int(code[2]))
    return word if _REASON.match(word) else None
