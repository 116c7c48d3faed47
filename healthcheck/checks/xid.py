"""Xid errors: what the driver writes into the kernel's log about a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from healthcheck.catalog.xid import XidRow, severity_of, xid_table
from healthcheck.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, Nature, Reason, Severity
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


def code_of(record: kernel_log.Record) -> int | None:
    """The code of a record that is an Xid, whatever it means."""
    found = _match(record)
    return int(found["code"]) if found else None


def _match(record: kernel_log.Record) -> re.Match[str] | None:
    return _XID.match(record.text) if record.text.startswith("NVRM: Xid") else None


def read_xid(record: kernel_log.Record, expected: Expectation) -> Finding | None:
    """The finding that one kernel record gives; None when it is no Xid or NVIDIA says to ignore it."""
    found = _match(record)
    if found is None:
        return None
    code, text = int(found["code"]), found["text"] or ""
    severity = severity_of(code, text, expected.policy)
    address = normalise_address(found["address"])
    if severity is Severity.PASS or address is None:
        return None
    row = xid_table().get(code)
    name = row.mnemonic if row else "not in the catalogue"
    instance = f"/gi{int(found['gi'])}" if found["gi"] else ""
    return Finding(
        reason=f"Xid{code}",
        severity=severity,
        subject=f"gpu/{address}{instance}",
        detail=f"{name}: {text}"[:_LONGEST_DETAIL] if text else name,
        rule=_rule(code, row, expected),
        seq=record.seq,
        at=record.at,
    )


def _rule(code: int, row: XidRow | None, expected: Expectation) -> str:
    if f"Xid{code}" in expected.policy.overrides:
        return "severity-overrides"
    return row.rule if row else "xid.csv: no such code"


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    for record in seen[kernel_log.RING]:
        finding = read_xid(record, expected)
        if finding:
            yield finding


CHECK = Check("xid", "0-nvidia-smi", (kernel_log.RING,), judge, (FAMILY,), Nature.EVENT)
