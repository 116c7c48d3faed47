"""What stands from before: pure steps from one memory to the next. Nothing leaves but by a written exit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from healthcheck.model import Finding, Nature, Now, Outcome, Severity

LOOKS_TO_CONFIRM = 4
"""A finding that can flicker counts once three looks after the first saw it too (contract, section 2 rule 3)."""
_MOST_STANDING = 512
"""What stands is bounded, whatever the log brings; the worst are kept."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One event finding that a person released, as a record on the Node showed it.

    A later event of the same reason and subject is another one: told apart by boot and by the record's cursor, the
    last kernel log record judged; for what has no place in the log (`cursor` None), by time.
    """

    reason: str
    subject: str
    boot_id: str
    cursor: int | None
    last_seen: datetime

    @property
    def key(self) -> Key:
        return (self.reason, self.subject)

    def covers(self, boot_id: str, seq: int, seen: datetime) -> bool:
        """Whether it speaks of an event of its key with this place in the log (-1: none), seen then."""
        if self.cursor is not None and seq >= 0:
            return boot_id == self.boot_id and seq <= self.cursor
        return seen <= self.last_seen


@dataclass(frozen=True, slots=True)
class Release:
    """A person's word that a node is well: who, why, when, and of which findings."""

    by: str
    reason: str
    at: datetime
    findings: tuple[Acknowledgement, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """A finding and when it was seen. `last_at` is monotonic, in seconds of the boot `boot_id`."""

    finding: Finding
    check: str
    nature: Nature
    first_seen: datetime
    last_seen: datetime
    count: int
    boot_id: str
    last_at: float
    seq: int = -1
    """Of the last event in the kernel's log; -1 for what has no place there."""

    @property
    def key(self) -> Key:
        return (self.finding.reason, self.finding.subject)

    @property
    def exit(self) -> str:
        """What ends it, for the record."""
        if self.nature is Nature.LEVEL:
            return "a look that shows it gone"
        if self.finding.severity is Severity.ISOLATE:
            return "a person's release, or another machine"
        return "time or a reboot" if self.finding.severity is Severity.MONITOR else "a reboot"


@dataclass(frozen=True, slots=True)
class Memory:
    """`cursor` is the last kernel record judged in the boot `boot_id`; None: none yet."""

    machine: str = ""
    boot_id: str = ""
    cursor: int | None = None
    driver_loaded_at: float | None = None
    """Seconds of this boot's monotonic clock at which the log says that the driver was loaded."""
    standing: tuple[Standing, ...] = ()
    suspects: Mapping[tuple[str, Key], int] = field(default_factory=dict)
    """By check: findings that can flicker and are being looked at again, and how many looks saw them."""
    released: Release | None = None
    """The last release, for the record."""
    acknowledged: tuple[Acknowledgement, ...] = ()
    """What people released: an event that one of them covers counts no more, whoever reads it again."""


def begin(before: Memory, machine: str, boot_id: str) -> Memory:
    """The memory at the start of a program on this machine and boot.

    Another machine inherits nothing. Another boot ends the events below ISOLATE; a level stays until a look shows it
    gone.
    """
    if before.machine and machine and before.machine != machine:
        return Memory(machine, boot_id)
    if before.boot_id == boot_id:
        return replace(before, machine=machine or before.machine)
    kept = tuple(
        standing
        for standing in before.standing
        if standing.nature is Nature.LEVEL or standing.finding.severity is Severity.ISOLATE
    )
    return Memory(machine or before.machine, boot_id, standing=kept)


def noticed(memory: Memory, outcomes: Iterable[Outcome], now: Now) -> Memory:
    """The memory after events came from the log: a new one stands, a known one is counted."""
    by_key = {standing.key: standing for standing in memory.standing}
    sightings = [(one, outcome.check) for outcome in outcomes for one in outcome.sightings]
    for sighting, check in sorted(sightings, key=lambda pair: pair[0].seq):
        finding = sighting.finding
        if finding is None:
            continue
        at = now.monotonic if finding.at is None else finding.at
        # The log's own time, never before it and never in the future: the wall clock may have jumped.
        seen = now.wall - timedelta(seconds=max(now.monotonic - at, 0.0))
        known = by_key.get((finding.reason, finding.subject))
        if known is None:
            standing = Standing(finding, check, Nature.EVENT, seen, seen, 1, memory.boot_id, at)
        else:
            # The same reason can be milder the next time (Xid 154 names an action): the worse one has not left yet.
            worse = known.finding if known.finding.severity > finding.severity else finding
            standing = replace(
                known,
                finding=replace(worse, about=finding.about or known.finding.about),
                last_seen=max(known.last_seen, seen),
                count=known.count + 1,
                boot_id=memory.boot_id,
                last_at=at,
            )
        by_key[standing.key] = standing
    return replace(memory, standing=_worst_first(by_key.values()))


def looked(memory: Memory, outcomes: Iterable[Outcome], now: Now, looks_to_confirm: int = LOOKS_TO_CONFIRM) -> Memory:
    """The memory after a look of the level checks. A check that could not look changes nothing that it said before."""
    standing = {one.key: one for one in memory.standing}
    suspects = dict(memory.suspects)
    for outcome in outcomes:
        shown = {(finding.reason, finding.subject): finding for finding in outcome.findings}
        if outcome.observed:
            gone = [key for key, one in standing.items() if _is_level_of(one, outcome.check) and key not in shown]
            for key in gone:
                del standing[key]
        for check, key in list(suspects):
            if check == outcome.check and key not in shown and outcome.observed:
                del suspects[check, key]
        for key, finding in shown.items():
            known = standing.get(key)
            looks = suspects.pop((outcome.check, key), 0) + 1
            if known is None and finding.flickers and looks < looks_to_confirm:
                suspects[outcome.check, key] = looks
                continue
            standing[key] = _seen_again(known, finding, outcome.check, memory.boot_id, now)
    return replace(memory, standing=_worst_first(standing.values()), suspects=suspects)


def expired(memory: Memory, now: Now, monitor_ttl_seconds: float) -> Memory:
    """The memory without the MONITOR events whose time has passed; nothing worse ever passes by time."""
    kept = tuple(one for one in memory.standing if not _has_passed(one, memory.boot_id, now, monitor_ttl_seconds))
    return memory if len(kept) == len(memory.standing) else replace(memory, standing=kept)


def without_checks(memory: Memory, selected: Iterable[str]) -> Memory:
    """The memory without the levels of checks that nobody runs any more."""
    names = set(selected)
    kept = tuple(one for one in memory.standing if one.nature is Nature.EVENT or one.check in names)
    return memory if len(kept) == len(memory.standing) else replace(memory, standing=kept)


def _is_level_of(standing: Standing, check: str) -> bool:
    return standing.nature is Nature.LEVEL and standing.check == check


def _seen_again(known: Standing | None, finding: Finding, check: str, boot_id: str, now: Now) -> Standing:
    first = known.first_seen if known else now.wall
    return Standing(finding, check, Nature.LEVEL, first, now.wall, 1, boot_id, now.monotonic)


def _has_passed(standing: Standing, boot_id: str, now: Now, ttl_seconds: float) -> bool:
    if standing.nature is Nature.LEVEL or standing.finding.severity is not Severity.MONITOR:
        return False
    if standing.boot_id == boot_id:
        return now.monotonic - standing.last_at >= ttl_seconds
    return (now.wall - standing.last_seen).total_seconds() >= ttl_seconds


def _worst_first(standing: Iterable[Standing]) -> tuple[Standing, ...]:
    ordered = sorted(standing, key=lambda one: (-one.finding.severity, one.first_seen, one.key))
    return tuple(ordered[:_MOST_STANDING])
