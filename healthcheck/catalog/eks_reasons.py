"""Mapping of reasons to those of the EKS node monitoring agent (its pkg/reasons/reasons.yaml).

The repair overrides of a managed node group use a condition and one of these reasons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows

_XID = re.compile(r"Xid(\d+)\Z", re.ASCII)
_FAMILIES = {"SXid": "NvidiaNVLinkError", "Dcgm": "DCGMDiagnosticFailure"}


def eks_reason(reason: str) -> str:
    """Return the agent's reason; this project's reason if the agent has none."""
    if xid := _XID.match(reason):
        return f"NvidiaXID{xid[1]}Error"
    family = next((theirs for ours, theirs in _FAMILIES.items() if reason.startswith(ours)), reason)
    return eks_words().get(reason, family)


@cache
def eks_words() -> Mapping[str, str]:
    return {row["reason"]: row["eks"] for _, row in read_rows("eks_reasons.csv")}
