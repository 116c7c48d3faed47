"""Texts about a change: Events, and the condition's reason and message. Pure functions, no I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping

from gpu_healthcheck.healthcheck import checks
from gpu_healthcheck.healthcheck.catalog.plain_words import plain_words
from gpu_healthcheck.healthcheck.memory.findings import Release
from gpu_healthcheck.healthcheck.memory.reason_names import STOPS_PODS
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.model import Printable, Severity, Status
from gpu_healthcheck.healthcheck.node.state import DEEP_CHECK, STATUS, NodeState, is_tested
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.acknowledgement import UNEXPLAINED
from gpu_healthcheck.healthcheck.verdict.budget import SlotGrant
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict

_LONGEST_MESSAGE = 1024
_STOPPED = "GPU pods can't start. "
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,62}\Z", re.ASCII)
_EVENT_REASONS = {
    Status.PASS: "GpuHealthPass",
    Status.WARN: "GpuHealthWarn",
    Status.FAIL: "GpuHealthFail",
    Status.UNKNOWN: "GpuHealthUnknown",
}
CONDITION_STATUS = {Status.PASS: "True", Status.WARN: "True", Status.FAIL: "False", Status.UNKNOWN: "Unknown"}


class InvolvedPod(Printable, frozen=True):
    """Pod that an Event is about."""

    namespace: str
    name: str
    uid: str


class NodeEvent(Printable, frozen=True):
    """An Event about the Node, or about one of its pods.

    `name` is derived from its content, so that reporting it twice creates one Event.
    """

    name: str
    type: str
    reason: str
    message: str
    pod: InvolvedPod | None = None
    """None: the Event is about the Node."""


def headline(
    status: Status,
    severity: Severity,
    verdict: Verdict,
    kept: Iterable[FindingRow] = (),
    undescribed: Iterable[str] = (),
) -> tuple[str, str]:
    """Return the condition's reason and message: worst finding first, then checks that could not run.

    A finding begins with plain words, because tables show only the beginning of a message.

    Of findings with the same severity, those that keep GPU pods from starting come first. `kept` are the ended findings
    for which the taint stays. `undescribed` names the deep records with a worse severity than all findings.
    """
    findings = sorted(
        (active.finding for active in verdict.active),
        key=lambda finding: (-finding.severity, finding.reason not in STOPS_PODS),
    )
    messages = [
        f"{_STOPPED if finding.reason in STOPS_PODS else ''}{_words(finding.reason, finding.subject, finding.about)} "
        f"({finding.reason} on {finding.subject}): {finding.detail}"
        for finding in findings
    ]
    unobserved = [f"{row.check} could not check: {row.cause.detail}" for row in verdict.unobserved]
    kept_taints = [
        f"the taint stays for {finding.reason} on {finding.subject} until it can be checked again" for finding in kept
    ]
    if status is Status.UNKNOWN and verdict.unobserved:
        return verdict.unobserved[0].cause.cause.name, cut("; ".join(kept_taints + unobserved + messages))
    if findings and verdict.severity is severity:
        return _reason(findings[0].reason), cut("; ".join(messages + unobserved))
    if severity > Severity.PASS:
        return UNEXPLAINED, cut("; ".join([*undescribed, *messages]))
    return "NoFault", "every check that applies to this node ran and found no fault"


def _words(reason: str, subject: str, about: Mapping[str, str]) -> str:
    return plain_words(reason, subject, about, checks.MEANINGS)


def cut(message: str) -> str:
    """Return the message, cut to the size limit of a condition or an Event in bytes."""
    raw = message.encode("utf-8", "replace")
    if len(raw) <= _LONGEST_MESSAGE:
        return raw.decode()
    return raw[: _LONGEST_MESSAGE - 3].decode("utf-8", "ignore") + "..."


def _reason(reason: str) -> str:
    """Return the reason if its format is valid, else a placeholder.

    The reason can come from a record that any client may write. The admission policy accepts only valid reasons.
    """
    return reason if _REASON.match(reason) else UNEXPLAINED


def new_findings(record: AgentRecord, before: AgentRecord | None, node: NodeState) -> Iterator[NodeEvent]:
    known = {_identity(finding) for finding in before.findings or ()} if before else set()
    for finding in record.findings or ():
        if _identity(finding) not in known:
            severity = finding.severity or Severity.PASS
            words = _words(str(finding.reason), str(finding.subject), finding.about or {})
            message = cut(f"{words} ({severity.name}, {finding.subject}): {finding.detail}")
            yield NodeEvent(
                event_name(node.name, *_identity(finding)), "Warning", _reason(str(finding.reason)), message
            )


def _identity(finding: FindingRow) -> tuple[str, str, str]:
    seen = timestamp(finding.first_seen) if finding.first_seen else ""
    return (str(finding.reason), str(finding.subject), seen)


def transition(
    status: Status, message: str, record: AgentRecord, before: AgentRecord | None, node: NodeState
) -> Iterator[NodeEvent]:
    label = node.labels.get(STATUS)
    # Without labels, the condition shows the merge of all records, although it cannot express `warn`.
    is_shown = (node.condition() or {}).get("status") == CONDITION_STATUS[status] and before is not None
    if status.value == label or (label is None and is_shown):
        return
    kind = "Normal" if status in (Status.PASS, Status.WARN) else "Warning"
    name = event_name(node.name, status.value, str(record.timestamp), str(record.boot_id))
    yield NodeEvent(name, kind, _EVENT_REASONS[status], message)


def switched_off(node: NodeState, *, taint: bool, labels: bool) -> Iterator[NodeEvent]:
    """Yield an Event if ENABLE_TAINT or ENABLE_LABEL became false: the taint or labels are removed once."""
    removed = [
        word
        for word, off in (
            ("taint", not taint and node.tainted()),
            ("labels", not labels and STATUS in node.labels),
        )
        if off
    ]
    if removed:
        name = event_name(node.name, "switched-off", *removed, node.resource_version)
        yield NodeEvent(
            name, "Normal", "SwitchedOff", f"removed this program's {' and '.join(removed)}: the settings disable them"
        )


def withheld(record: AgentRecord, before: AgentRecord | None, node: NodeState, grant: SlotGrant) -> Iterator[NodeEvent]:
    """Yield an Event when a taint becomes withheld, but none for the retries of later check cycles."""
    if record.taint != "withheld" or (before is not None and before.taint == "withheld"):
        return
    why = f"{DEEP_CHECK} is InProgress" if is_tested(node) else grant.why
    name = event_name(node.name, "withheld", str(record.timestamp), str(record.boot_id))
    yield NodeEvent(
        name, "Warning", "TaintWithheld", cut(f"the node is not tainted: {why}; the agent retries in each cycle")
    )


def released_event(node: NodeState, release: Release) -> NodeEvent:
    """Return the Event of a release: author, findings and reason.

    The same release always has the same name.
    """
    released = [f"{finding.reason} on {finding.subject}" for finding in release.findings]
    name = event_name(node.name, "released", release.by, release.reason, release.at.isoformat(), *released)
    findings = ", ".join(released) or "nothing"
    return NodeEvent(name, "Normal", "Released", cut(f"{release.by} released {findings}: {release.reason}"))


def event_name(node: str, *parts: str) -> str:
    """Return an Event name. The same parts give the same name, so that a repeated report is one Event."""
    digest = hashlib.blake2s("\0".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()
    return f"{node[:200]}.{digest}"
