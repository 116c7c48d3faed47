"""Xid errors: what the driver writes into the kernel's log about a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from healthcheck.catalog.xid import XidRow, severity_of, xid_table
from healthcheck.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, Nature, Reason, Severity, Sighting
from healthcheck.probes import kernel_log
from healthcheck.probes.pci import normalise_address

_XID = re.compile(
    r"NVRM: Xid \((?P<address>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)"
    r"(?: GPU-I:(?P<gi>\d{1,3}))?(?: GPU-CI:(?P<ci>\d{1,3}))?\): (?P<code>\d{1,5})(?:,\s*(?P<text>.*))?\Z",
    re.IGNORECASE | re.DOTALL,
)
"""Every form of hardware.md 2.1. Anchored: text that merely quotes such a line is no Xid."""
_LONGEST_DETAIL = 200

FAMILY = Reason(
    "Xid",
    Severity.MONITOR,
    "The driver reported an Xid error; the finding is named after its code, for instance Xid79.",
    "What NVIDIA's catalogue says for the code: the severity of the finding stands for it.",
)


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    for record in seen[kernel_log.RING]:
        sighting = read_xid(record, expected)
        if sighting:
            yield sighting


def read_xid(record: kernel_log.Record, expected: Expectation) -> Sighting | None:
    """What one kernel record says, whatever it means; None when it is no Xid."""
    found = _XID.match(record.text) if record.text.startswith("NVRM: Xid") else None
    if found is None:
        return None
    code, text = int(found["code"]), found["text"] or ""
    address = normalise_address(found["address"])
    if address is None:
        return None
    row = xid_table().get(code)
    name = row.mnemonic if row else "not in the catalogue"
    instance = f"/gi{int(found['gi'])}" if found["gi"] else ""
    reason, subject = f"Xid{code}", f"gpu/{address}{instance}"
    detail = f"{name}: {text}"[:_LONGEST_DETAIL] if text else name
    severity = severity_of(code, text, expected.policy)
    finding = Finding(
        reason=reason,
        severity=severity,
        subject=subject,
        detail=detail,
        rule=_rule(code, row, expected),
        seq=record.seq,
        at=record.at,
    )
    return Sighting(
        reason=reason,
        subject=subject,
        seq=record.seq,
        at=record.at,
        finding=None if severity is Severity.PASS else finding,
        detail=detail,
        known=row is not None,
    )


def _rule(code: int, row: XidRow | None, expected: Expectation) -> str:
    if f"Xid{code}" in expected.policy.overrides:
        return "severity-overrides"
    return row.rule if row else "xid.csv: no such code"


CHECK = Check("xid", "0-nvidia-smi", (kernel_log.RING,), judge, (FAMILY,), Nature.EVENT)
