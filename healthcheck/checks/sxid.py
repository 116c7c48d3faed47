"""Check: SXid errors, which the driver writes to the kernel log for an NVSwitch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.sxid import ADVICE, SWITCH, rule_by_table, sxid_table
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Finding, Judgement, KernelEvent, Nature, Reason, Severity
from gpu_healthcheck.healthcheck.probes import kernel_log
from gpu_healthcheck.healthcheck.probes.pci import normalise_address

_BEGINS = "nvidia-nvswitch"
_SXID = re.compile(
    r"nvidia-nvswitch\d{0,4}: SXid \((?P<address>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)\): "
    r"(?P<code>\d{1,5})(?:,\s*(?P<text>.*))?\Z",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"(Fatal|Non-fatal|Correctable)\b(?:,\s*)?", re.IGNORECASE)
_MORE_OF_THE_SAME = re.compile(r"Severity \d+ Engine instance|Data \{", re.IGNORECASE)
"""Continuation lines of the previous error, with its number: severity number, engine and raw data."""
_LONGEST_DETAIL = 200

FAMILY = Reason(
    "SXid",
    Severity.MONITOR,
    "The driver reported an SXid error of an NVSwitch; the finding has the error's number, for instance SXid20034.",
    ADVICE,
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    for record in evidence[kernel_log.RING]:
        if record.text.startswith(_BEGINS) and (event := read_sxid(record)):
            yield event


def read_sxid(record: kernel_log.Record) -> KernelEvent | None:
    """Parse one kernel record into an event with the severity of the tables.

    None if it is not an SXid, or only continues the previous one.
    """
    found = None if kernel_log.is_packet_filters(record.text) else _SXID.match(record.text)
    address = normalise_address(found["address"]) if found else None
    if found is None or address is None or _MORE_OF_THE_SAME.match(found["text"] or ""):
        return None
    code, text = int(found["code"]), found["text"] or ""
    word = _WORD.match(text)
    ruling = rule_by_table(code, word[1] if word else "")
    row = sxid_table().get(code)
    name = row.mnemonic if row else "not in the catalogue"
    reason, subject = f"SXid{code}", f"{SWITCH}/{address}"
    detail = (f"{name}: {text}" if text else name)[:_LONGEST_DETAIL]
    finding = Finding(reason, ruling.severity, subject, detail, rule=ruling.rule, seq=record.seq, at=record.at)
    return KernelEvent(
        reason=reason,
        subject=subject,
        seq=record.seq,
        at=record.at,
        finding=finding,
        detail=detail,
        known=row is not None,
    )


def continued_reason(text: str) -> str:
    """Return the reason of the SXid that a line continues, as SXid20034; '' for another line."""
    found = _SXID.match(text) if text.startswith(_BEGINS) else None
    return f"SXid{int(found['code'])}" if found and _MORE_OF_THE_SAME.match(found["text"] or "") else ""


CHECK = Check("sxid", "0-nvidia-smi", (kernel_log.RING,), judge, (FAMILY,), Nature.EVENT, (_BEGINS,))
