"""JSON rows of the memory. They are identical in its file and in the record on the Node.

Pure functions, no I/O.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from msgspec import Meta, convert
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import MOST_COUNTED
from gpu_healthcheck.healthcheck.memory.exit_table import exit_words
from gpu_healthcheck.healthcheck.memory.findings import (
    Acknowledgement,
    ActiveFinding,
    CountedProcess,
    Release,
    distinct,
)
from gpu_healthcheck.healthcheck.model import Finding, Nature, Severity
from gpu_healthcheck.healthcheck.text.boundary import NULL, JsonObject
from gpu_healthcheck.healthcheck.text.moments import held

_LONGEST_WORD = 200
Seconds = Annotated[float, Meta(ge=-1e13, le=1e13)]
"""Seconds of a monotonic clock."""


def _processes(value: object) -> tuple[tuple[str, float], ...]:
    return convert(value, tuple[tuple[str, Seconds], ...])[-MOST_COUNTED:]


class FindingRow(JsonObject, frozen=True):
    """A finding.

    A record on the Node contains the boot only if it is not the current boot; the file always contains it.
    """

    reason: str | None = None
    severity: Severity | None = None
    subject: str | None = None
    about: Mapping[str, str] | None = None
    detail: str | None = None
    first_seen: datetime | None = None
    last_seen: datetime | None = None
    count: int | None = None
    exit: str | None = None
    check: str | None = None
    nature: Nature | None = None
    at: float | None = None
    seq: int | None = None
    rule: str | None = None
    source: str | None = None
    boot_id: str | None = None
    escalates: bool | None = None
    catalogued: Severity | None = None
    catalogued_rule: str | None = None
    processes: Annotated[tuple[tuple[str, float], ...] | None, _processes] = None
    """Only in the file: name and time of each counted process."""

    def active_finding(self, boot_id: str = "") -> ActiveFinding:
        """Return the finding, with the given boot if the row has none.

        Raises ValueError if the row is not a complete finding.
        """
        self.must_have("reason", "severity", "subject", "detail", "first_seen", "last_seen", "count", "check", "nature")
        finding = Finding(
            reason=self.reason or "",
            severity=self.severity or Severity.PASS,
            subject=self.subject or "",
            detail=self.detail or "",
            about=self.about or {},
            rule=self.rule or "",
            source=self.source or "",
            escalates=self.escalates is not False,
            catalogued=self.catalogued,
            catalogued_rule=self.catalogued_rule or "",
        )
        assert self.first_seen is not None
        assert self.last_seen is not None
        assert self.nature is not None
        return ActiveFinding(
            finding,
            self.check or "",
            self.nature,
            self.first_seen,
            self.last_seen,
            self.count or 0,
            boot_id if self.boot_id is None else self.boot_id,
            self.at or 0.0,
            -1 if self.seq is None else self.seq,
            distinct(CountedProcess(process, at) for process, at in self.processes or ()),
        )


class ReleaseRow(JsonObject, frozen=True):
    """Author, reason and time of a release, for people. The findings that it covers have separate rows."""

    by: str | None = None
    reason: str | None = None
    at: datetime | None = None

    def release(self) -> Release:
        """Return the release. Raises ValueError if the row is not complete."""
        self.must_have("by", "reason", "at")
        assert self.at is not None
        return Release(self.by or "", self.reason or "", self.at, ())


class AcknowledgementRow(JsonObject, frozen=True):
    """One finding that a person released."""

    reason: str | None = None
    subject: str | None = None
    boot_id: str | None = None
    cursor: Annotated[int | None, NULL] = None
    last_seen: datetime | None = None

    def acknowledgement(self) -> Acknowledgement:
        """Return the acknowledgement. Raises ValueError if the row is not complete."""
        self.must_have("reason", "subject", "boot_id", "last_seen")
        assert self.last_seen is not None
        return Acknowledgement(self.reason or "", self.subject or "", self.boot_id or "", self.cursor, self.last_seen)


def row_of(finding: Finding, nature: Nature) -> FindingRow:
    """Return the row of a finding, without its times and its check."""
    return FindingRow(
        reason=finding.reason,
        severity=finding.severity,
        subject=finding.subject,
        about=finding.about,
        detail=finding.detail,
        nature=nature,
        rule=finding.rule or None,
        source=finding.source or None,
        catalogued=finding.catalogued,
        catalogued_rule=finding.catalogued_rule or None,
    )


def whole_row(active: ActiveFinding) -> FindingRow:
    """Return the row of a recorded finding with full precision, for the file."""
    return replace(
        row_of(active.finding, active.nature),
        first_seen=active.first_seen,
        last_seen=active.last_seen,
        count=active.count,
        exit=exit_words(active),
        check=active.check,
        at=active.last_at,
        seq=active.seq if active.seq >= 0 else None,
        boot_id=active.boot_id,
        escalates=active.finding.escalates,
        processes=tuple((counted.process, counted.at) for counted in active.processes) or None,
    )


def finding_row(active: ActiveFinding) -> FindingRow:
    """Return the row of a recorded finding for the Node's record, without its boot and with rounded times."""
    first, last = _second(active.first_seen), _second(active.last_seen)
    at = round(active.last_at, 3)
    row = replace(whole_row(active), first_seen=first, last_seen=last, at=at, boot_id=None)
    return replace(row, escalates=None, catalogued_rule=None, processes=None)


def release_row(release: Release) -> ReleaseRow:
    return ReleaseRow(release.by, release.reason, release.at)


def short_release_row(release: Release) -> ReleaseRow:
    """Return the row of a release for the record, whose length is limited."""
    return ReleaseRow(release.by[:_LONGEST_WORD], release.reason[:_LONGEST_WORD], _second(release.at))


def acknowledgement_row(acknowledgement: Acknowledgement) -> AcknowledgementRow:
    return AcknowledgementRow(
        acknowledgement.reason,
        acknowledgement.subject,
        acknowledgement.boot_id,
        acknowledgement.cursor,
        acknowledgement.last_seen,
    )


def _second(at: datetime) -> datetime:
    return held(at).replace(microsecond=0)
