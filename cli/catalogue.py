"""Explanation of one code or reason: its meaning, NVIDIA's advice, and the settings of this cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from gpu_healthcheck.cli.index import Declared
from gpu_healthcheck.healthcheck.catalog import nvlink
from gpu_healthcheck.healthcheck.catalog.dcgm import LADDER, dcgm_table, rule_dcgm
from gpu_healthcheck.healthcheck.catalog.policy import Policy, Ruling, step_for
from gpu_healthcheck.healthcheck.catalog.sxid import ADVICE, CLASSES, SWITCH, rule_sxid, sxid_table
from gpu_healthcheck.healthcheck.catalog.xid import (
    RECOVERY_CODE,
    actions,
    recovery_actions,
    rule_by_catalogue,
    rule_xid,
    xid_table,
)
from gpu_healthcheck.healthcheck.model import Severity

NVLINK4_CODE = 74
NVLINK5_CODES = range(144, 151)
NO_ADVICE = ("", "")
UNUSED = "Current GPUs do not report it any more."
NOT_LISTED = "Not in the catalogue, possibly from a newer driver. It is monitored and counted as unknown."


class Explanation(Struct, frozen=True):
    """Explanation of one code or reason. `details` are further lines, each with its label."""

    name: str
    mnemonic: str
    meaning: str
    advice: tuple[str, str]
    """Source and text of the general advice; '' without any."""
    here: Ruling
    """Severity and rule in this cluster."""
    otherwise: Severity
    """Severity without the cluster's overrides."""
    source: str
    details: tuple[tuple[str, str], ...] = ()
    kind: str = "gpu"
    """Kind of the subjects of its findings; '' if the advice names the step."""

    @property
    def step(self) -> str:
        """Step of the operator for a finding of this severity."""
        severity = self.here.severity
        is_in_advice = not self.kind and (
            severity is Severity.RESET or (severity is Severity.MONITOR and self.otherwise is Severity.MONITOR)
        )
        return "the action above" if is_in_advice else step_for(severity, (self.kind,))


def explain_xid(code: int, words: Sequence[int], policy: Policy) -> Explanation:
    """Explain an Xid, and decode the data words of its line."""
    row = xid_table().get(code)
    ruling, plain = rule_xid(code, "", policy), rule_by_catalogue(code, "", policy)
    details = tuple(_threshold(f"Xid{code}", "GPU", policy))
    if code == RECOVERY_CODE:
        details = (*details, *_recovery())
    elif words:
        decoded = _decoded(code, words, policy)
        ruling = ruling if ruling.rule == "severity-overrides" else decoded
        plain, details = decoded, (*details, *_decoding(code, words))
    elif code == NVLINK4_CODE or code in NVLINK5_CODES:
        details = (
            *details,
            ("decode", f"to decode the line, also pass the words in its brackets: explain {code} 0x... 0x..."),
        )
    if row is None:
        return Explanation(f"Xid{code}", "", NOT_LISTED, NO_ADVICE, ruling, plain.severity, "", details)
    if row.why:
        details = (*details, ("deviation", f"{row.why} ({row.why_source})"))
    action = actions()[row.immediate_action]
    message = f"{action.name}: {action.meaning}" if action.name else action.meaning
    # Several depend on other Xids, as the text of the action describes.
    if row.investigatory_action not in ("", action.name) and ";" not in row.investigatory_action:
        message += f"; to find the cause: {row.investigatory_action}"
    meaning, advice = row.meaning or UNUSED, ("NVIDIA", message)
    return Explanation(f"Xid{code}", row.mnemonic, meaning, advice, ruling, plain.severity, row.source, details)


def explain_sxid(code: int, policy: Policy) -> Explanation:
    row = sxid_table().get(code)
    name, ruling, plain = f"SXid{code}", rule_sxid(code, "", policy), rule_sxid(code, "", Policy())
    details = (*_threshold(name, "switch", policy), *(() if ruling.rule == "severity-overrides" else _SXID_WORDS))
    advice = ("do", ADVICE)
    if row is None:
        return Explanation(name, "", NOT_LISTED, advice, ruling, plain.severity, "", details, SWITCH)
    unit = row.mnemonic.partition("_")[0]
    kind = CLASSES[row.kind][1]
    meaning = f"An NVSwitch reported an error of its unit {unit}. The driver's source classifies it as {kind}."
    if row.why:
        details = (*details, ("no word", row.why))
    return Explanation(name, row.mnemonic, meaning, advice, ruling, plain.severity, row.source, details, SWITCH)


_SXID_WORDS = (("the line", "the word in it decides: Fatal is RESET, Non-fatal and Correctable are MONITOR"),)


def explain_dcgm(error_id: int, policy: Policy) -> Explanation:
    row = dcgm_table().get(error_id)
    ruling, plain = rule_dcgm(error_id, None, policy), rule_dcgm(error_id, None, Policy())
    if row is None:
        return Explanation(f"Dcgm{error_id}", "", NOT_LISTED, NO_ADVICE, ruling, plain.severity, "")
    meaning = f"DCGM's diagnostic reported error {error_id}, {row.name}."
    if row.could_not_run:
        meaning += " The test could not run: this is no result about the hardware."
    details = (("deviation", row.why),) if row.why else ()
    advice = ("DCGM", f"{row.severity}, which is {LADDER[row.severity].name} on our ladder")
    return Explanation(f"Dcgm{error_id}", row.name, meaning, advice, ruling, plain.severity, row.source, details)


def explain_reason(declared: Declared, policy: Policy) -> Explanation:
    reason = declared.reason
    severity = policy.severity_of(reason.name, reason.severity)
    rule = "severity-overrides" if reason.name in policy.overrides else f"docs/checks.md, {declared.check}"
    details = [
        ("check", f"{declared.check}, group {declared.group}"),
        ("more", f"docs/findings.md#{reason.name.lower()}"),
    ]
    if reason.threshold:
        details.append(("fault", reason.threshold))
    if reason.flickers:
        details.append(("counts", "once 3 further checks, 10 s apart, confirm it"))
    if reason.grace:
        details.append(("grace", f"not judged in the first {reason.grace.seconds:g} s after {reason.grace.since}"))
    reading = "or worse, depending on the error in its detail (see `explain dcgm`)" if declared.by_error else ""
    here, advice = Ruling(severity, rule, reading), ("do", reason.action)
    return Explanation(
        reason.name, "", reason.meaning, advice, here, reason.severity, reason.source, tuple(details), ""
    )


def _threshold(reason: str, subject: str, policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield the cluster's threshold for this code, if it has one."""
    if threshold := policy.thresholds.get(reason):
        window = f"{threshold.seconds / 60:g} minutes"
        words = f"{threshold.severity.name} from {threshold.count} processes on one {subject} within {window}"
        yield "repeated", f"{words} (severity-overrides)"


def _recovery() -> Iterator[tuple[str, str]]:
    for action in recovery_actions():
        since = f" (drivers {action.drivers})" if action.drivers else ""
        severity = action.severity.name if action.severity else "no finding"
        yield f"0x{action.number:x}", f"{action.name}{since}: {severity}; {action.meaning}"


def _decoded(code: int, words: Sequence[int], policy: Policy) -> Ruling:
    if code == NVLINK4_CODE:
        return nvlink.rule_registers(words, policy.nvlink_default)
    return nvlink.rule_words(code, "", words, policy.nvlink5_default)


def _decoding(code: int, words: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Decode each data word: all bits of Xid 74, all matching rows of other codes."""
    if code == NVLINK4_CODE:
        yield from _registers(words)
        return
    status = words[1] if len(words) > 1 else None
    rows = nvlink.matching_rows(code, "", words[0], status)
    for layout, name in enumerate(nvlink.LAYOUTS):
        claimed = [row for row in rows if layout in row.layouts_of(words[0])]
        if not claimed:
            yield name, "no row of NVIDIA's sheet has these words"
        for row in claimed:
            yield name, f"{row.units[layout]}: {row.grade}, {row.action} ({row.rule})"


def _registers(words: Sequence[int]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(words, 1):
        for bit in (bit for bit in range(32) if word >> bit & 1):
            row = nvlink.nvlink4_table().get((number, bit))
            yield f"{number}, bit {bit}", row.meaning if row else "not in NVIDIA's table; report it"
