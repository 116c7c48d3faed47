"""Check: Xid errors, which the driver writes to the kernel log for a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.policy import Ruling
from gpu_healthcheck.healthcheck.catalog.xid import (
    NONE,
    RECOVERY_CODE,
    fixed_ruling,
    recovery_action_in,
    recovery_of,
    rule_by_catalogue,
    xid_table,
)
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Finding, Judgement, KernelEvent, Nature, Reason, Severity
from gpu_healthcheck.healthcheck.probes import diagnostics, kernel_log
from gpu_healthcheck.healthcheck.probes.pci import normalise_address

_BEGINS, _XID_BEGINS = "NVRM: ", "NVRM: Xid ("
_GLUED = re.compile(r"NVRM: (?:GPU\d{1,3} )?\w{10,64}: [^\n]{0,1024}?(?=NVRM: Xid \()")
"""A message of the driver without a newline at its end, so that the next one is in the same record (driver 610).

The message begins with the name of a function, which is longer than any process name.
"""
_XID = re.compile(
    r"NVRM: Xid \((?P<address>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)"
    r"(?: GPU-I:(?P<gi>\d{1,3}))?(?: GPU-CI:(?P<ci>\d{1,3}))?\): (?P<code>\d{1,5})(?:,\s*(?P<text>.*))?\Z",
    re.IGNORECASE | re.DOTALL,
)
"""Xid line of any driver version. The pattern is anchored, because text that quotes such a line is not an Xid."""
_MESSAGE = r"(?=, (?:[A-Z0-9]|channel 0x))"
_SHORT = rf"(?:\\x[0-9a-f]{{2}}|.){{0,15}}{_MESSAGE}"
"""Maximum length of a process name in the kernel (TASK_COMM_LEN). A byte that is not UTF-8 takes four characters."""
_PROCESS = re.compile(
    r"pid=(?P<pid>'<unknown>'|[^\s,]{1,20})"
    rf"(?:, name=(?P<name>(?:{_SHORT}|.{{0,64}}?{_MESSAGE}|.{{0,64}}?(?=, |\Z))))?(?:, |\Z)",
    re.DOTALL,
)
"""A process name may contain commas and words like the driver's, so the longest possible name is matched.

The driver's text then begins with a capital letter or a number, since R580 also with a channel. Older drivers print no
name: `pid=7194, Contained: ...` (NVIDIA's memory error management of the A100).
"""
_PID = re.compile(r"NVRM: Xid \([^)]{1,48}\): \d{1,5}, pid=(\d{1,10})\b", re.ASCII)
_UNKNOWN = "<unknown>"
_PLACE = re.compile(r"\((GPC \d{1,3}, TPC \d{1,3})\b")
_FOLLOWS = re.compile(r"\bcaused by previous Xid (\d{1,5})\s*\Z")
_GRAPHICS_EXCEPTION = 13
_LONGEST_DETAIL = 200
TEST_XIDS = frozenset({13, 31, 43, 45})
"""Xids that a test can cause by itself (docs/rules.md 13)."""

FAMILY = Reason(
    "Xid",
    Severity.MONITOR,
    "The driver reported an Xid error; the finding has the error's code, for instance Xid79.",
    "Follow NVIDIA's catalogue for the code: the severity of the finding is taken from it.",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    for record in evidence[kernel_log.RING]:
        # The substring test comes first, because a log has thousands of other lines for each Xid line.
        if _XID_BEGINS in record.text and (event := read_xid(record, expected)):
            yield event


def read_xid(record: kernel_log.Record, expected: Expectation) -> KernelEvent | None:
    """Parse one kernel record into an event with the severity of the tables; None if it is not an Xid."""
    glued = _GLUED.match(record.text)
    found = None if kernel_log.is_packet_filters(record.text) else _XID.match(record.text, glued.end() if glued else 0)
    address = normalise_address(found["address"]) if found else None
    if found is None or address is None:
        return None
    code = int(found["code"])
    pid, name, text = _split_process(found["text"] or "")
    process = f"{pid} {name}" if pid and name else pid or name
    instance = f"/gi{int(found['gi'])}" if found["gi"] else ""
    ruling = rule_by_catalogue(code, text, expected.policy)
    subject = f"gpu/{address}{instance}"
    finding = _finding(record, code, _place_of(code, subject, text), _detail(code, process, text), ruling)
    recovery_action = recovery_of(code, text)
    place = _PLACE.search(text) if code == _GRAPHICS_EXCEPTION else None
    of_a_test = _is_of_a_test(code, pid, name, record.at, expected)
    age, cause = expected.ages.get(pid), _FOLLOWS.search(text)
    return KernelEvent(
        reason=finding.reason,
        subject=subject,
        seq=record.seq,
        at=record.at,
        finding=None if recovery_action == NONE or of_a_test else finding,
        detail=finding.detail,
        known=code in xid_table(),
        process=process if pid else "",
        began=None if age is None else record.at - age,
        place=place[1] if place else "",
        follows=int(cause[1]) if cause else 0,
        recovery_action=recovery_action,
        of_a_test=of_a_test,
    )


def may_be_of_a_test(record: kernel_log.Record) -> bool:
    """Whether the record names a process with the name of a DCGM test.

    The caller must check to which run the process belongs.
    """
    return _XID_BEGINS in record.text and any(f"name={name}" in record.text for name in diagnostics.NAMES)


def may_need_reset(code: int, expected: Expectation) -> bool:
    """Whether an Xid of this code can be RESET or worse, depending on the words of its line."""
    ruling = fixed_ruling(code, expected.policy)
    return ruling is None or ruling.severity >= Severity.RESET


def named_pid(record: kernel_log.Record) -> str:
    """Return the pid of the process that a record names as that of an Xid; '' if it names none at once."""
    found = _PID.match(record.text)
    return found[1] if found else ""


def _is_of_a_test(code: int, pid: str, name: str, at: float, expected: Expectation) -> bool:
    run = expected.deep_run
    if run is None or code not in TEST_XIDS or name not in diagnostics.NAMES or not pid:
        return False
    return run.is_by_a_test(int(pid), at)


def _place_of(code: int, subject: str, text: str) -> str:
    """Return the GPU as the subject, or the node if all GPUs report the state of the same IMEX domain."""
    recovery = recovery_action_in(text) if code == RECOVERY_CODE else None
    return "node" if recovery is not None and recovery.is_of_imex else subject


def _finding(record: kernel_log.Record, code: int, subject: str, detail: str, ruling: Ruling) -> Finding:
    row = xid_table().get(code)
    return Finding(
        reason=f"Xid{code}",
        severity=ruling.severity,
        subject=subject,
        detail=detail,
        rule=ruling.rule,
        seq=record.seq,
        at=record.at,
        escalates=row is None or row.escalates,
    )


def _split_process(text: str) -> tuple[str, str, str]:
    """Split a message into the pid and the name that the driver prints, and the rest of the message.

    The pid is the number of the process on the host (`current->tgid`, os-interface.c), also for a process of a
    container. The name is that of the thread that opened the GPU (client.c). Both are empty if the driver has none.
    """
    found = _PROCESS.match(text)
    if found is None:
        return "", "", text
    pid, name = found["pid"].strip("'"), found["name"] or ""
    is_number = pid.isascii() and pid.isdecimal()
    return pid if is_number else "", "" if name == _UNKNOWN else name, text[found.end() :]


def _detail(code: int, process: str, text: str) -> str:
    row = xid_table().get(code)
    name = row.mnemonic if row else "not in the catalogue"
    description = f"{name}: {text}" if text else name
    by = f" (process {process})" if process else ""
    return description[: _LONGEST_DETAIL - len(by)] + by


CHECK = Check("xid", "0-nvidia-smi", (kernel_log.RING,), judge, (FAMILY,), Nature.EVENT, (_BEGINS,))
