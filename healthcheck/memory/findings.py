"""Data types of the memory, and the age of its findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.model import Finding, Nature, Now, Printable
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware
from gpu_healthcheck.healthcheck.probes.pci import normalise_address

K = TypeVar("K")
V = TypeVar("V")

MOST_GPUS = 64
"""Most GPUs in the memory: more than any machine has."""
MOST_STANDING = 512
"""Most active findings, however many the log reports; the worst are kept."""

Key = tuple[str, str]
"""Reason and subject of a finding, which identify it."""


class Acknowledgement(Printable, frozen=True):
    """One event finding that a person released, as a record on the Node showed it.

    A later event of the same reason and subject is a different event. It is distinguished by its boot and by the
    record's cursor (the last kernel log record judged). An event without a position in the log (`cursor` None) is
    distinguished by its time.
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
        """Whether it covers an event with its key at this log position (-1: none), observed at that time."""
        if self.cursor is not None and seq >= 0:
            return boot_id == self.boot_id and seq <= self.cursor
        return seen <= self.last_seen


class Release(Printable, frozen=True):
    """A person's statement that a node is healthy: author, reason, time, and the findings it covers."""

    by: str
    reason: str
    at: datetime
    findings: tuple[Acknowledgement, ...]


class FirstObservation(Struct, frozen=True):
    """First observation by this agent of a release or a passed quarantine run on the Node.

    It covers nothing later, whatever time the release or run states.
    """

    name: str
    """Distinguishes it from a later release or run on the Node."""
    at: datetime
    boot_id: str = ""
    """'': written by an earlier version, which recorded no log position."""
    cursor: int = -1
    """Last log position read by then: records after it are newer, even if the clock was set back."""


class CountedProcess(Struct, frozen=True):
    """A process that had an event, and the time of its last line in seconds of the finding's boot.

    `process` is its pid and name, or '' for lines in which the driver names no process. The name is only for earlier
    versions, which compare it too: they may read this after a rollback.
    """

    process: str
    at: float


class ActiveFinding(Struct, frozen=True):
    """A finding and its observation times. `last_at` is monotonic, in seconds of the boot `boot_id`."""

    finding: Finding
    check: str
    nature: Nature
    first_seen: datetime
    last_seen: datetime
    count: int
    boot_id: str
    last_at: float
    seq: int = -1
    """Kernel log sequence number of the last event; -1 for a finding without one."""
    processes: tuple[CountedProcess, ...] = ()
    """Last processes with this event, oldest first, for thresholds of `severity-overrides`."""

    @property
    def key(self) -> Key:
        return (self.finding.reason, self.finding.subject)


class Suspect(Struct, frozen=True):
    """A finding that can flicker and is not confirmed yet by further check cycles."""

    cycles: int
    """Number of check cycles that observed it."""
    unobserved_cycles: int = 0
    """Number of cycles in a row since then that could not check its subject."""


class ProcessHit(Struct, frozen=True):
    """A process that an Xid affected, and its place on the GPU. Both are '' if the driver did not name them.

    `process` is as in `CountedProcess`.
    """

    process: str
    place: str
    at: float
    seen: datetime


ProcessEntry = TypeVar("ProcessEntry", CountedProcess, ProcessHit)


class Memory(Struct, frozen=True):
    """State across check cycles. `cursor` is the last kernel record judged in the boot `boot_id`; None: none yet."""

    machine: str = ""
    boot_id: str = ""
    cursor: int | None = None
    driver_loaded_at: float | None = None
    """Time of the driver load by the log, in seconds of this boot's monotonic clock."""
    active: tuple[ActiveFinding, ...] = ()
    suspects: Mapping[tuple[str, Key], Suspect] = field(default_factory=dict)
    """Findings that can flicker and are not confirmed yet, by check, reason and subject."""
    released: Release | None = None
    """The last release, for the record."""
    acknowledged: tuple[Acknowledgement, ...] = ()
    """Events that people released: an event that one of these covers does not count when it is read again."""
    gpus: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Index, uuid and serial of the GPU that last answered at each address, by address."""
    gpus_boot_id: str = ""
    """Boot in which NVML last answered for `gpus`: in a later boot, another GPU may be at an address."""
    recovery: Mapping[str, int] = field(default_factory=dict)
    """Pending recovery action by address, from NVML's last answer or a later Xid 154."""
    last_xid: Mapping[str, float] = field(default_factory=dict)
    """Time of the last Xid other than 45 by address, in seconds of this boot: an Xid 45 is its consequence."""
    hits: Mapping[Key, tuple[ProcessHit, ...]] = field(default_factory=dict)
    """Affected processes, by reason and address, of the Xids that indicate a hardware fault only if they recur."""
    ended: Mapping[Key, tuple[datetime, ...]] = field(default_factory=dict)
    """Times at which a reset or a reboot ended a fault, by reason and GPU (serial or UUID) (docs/rules.md 6)."""
    first: EarlierHardware = field(default_factory=EarlierHardware)
    """Hardware that this machine once had, in any boot."""
    instance_type: str = ""
    """Instance type in the last check cycle; '' if unknown so far."""
    adopted_records: Mapping[str, str] = field(default_factory=dict)
    """Timestamp of the last adopted deep record by the name of its annotation; its findings are or were in
    `active`."""
    first_observations: Mapping[str, FirstObservation] = field(default_factory=dict)
    """First observations of the last release and of the last passed quarantine run, by kind."""


def pid_of(process: str) -> str:
    """Return the pid of `900 python`, which alone identifies the process, whatever its threads are called."""
    return process.partition(" ")[0]


def distinct(entries: Iterable[ProcessEntry]) -> tuple[ProcessEntry, ...]:
    """Return the last entry of each process at each place: files of 0.3.0 have several if its threads have names."""
    last: dict[object, ProcessEntry] = {}
    for index, entry in enumerate(entries):
        position = entry.place if isinstance(entry, ProcessHit) else ""
        key = (pid_of(entry.process), position) if entry.process else index
        last.pop(key, None)
        last[key] = entry
    return tuple(last.values())


def gpu_address(subject: str) -> str:
    """Return `0000:18:00.0` for `gpu/0000:18:00.0` and for `gpu/0000:18:00.0/gi5`; '' for other subjects."""
    kind, _, rest = subject.partition("/")
    return rest.partition("/")[0] if kind == "gpu" else ""


def gpu_identity(about: Mapping[str, str]) -> str:
    """Return the serial or UUID that identifies the GPU; '' if both are unknown."""
    return about.get("serial") or about.get("uuid") or ""


def differs(known: Mapping[str, str], seen: Mapping[str, str]) -> bool:
    """Whether the names belong to different GPUs. A name that is missing on one side is no evidence."""
    return any(known.get(key) and seen.get(key) and known[key] != seen[key] for key in ("serial", "uuid"))


def located(gpus: Mapping[str, Mapping[str, str]], subject: str, about: Mapping[str, str] | None = None) -> str:
    """Return the subject with its GPU's address instead of its index, UUID or serial.

    `gpus` are the GPUs that answered, by address. The subject is returned unchanged if it matches none of them, or more
    than one.
    """
    kind, _, name = subject.partition("/")
    if kind != "gpu" or gpu_address(subject) in gpus:
        return subject
    gpu_name, slash, instance = name.partition("/")
    if address := normalise_address(gpu_name):
        return f"gpu/{address}{slash}{instance}"
    names = dict(about or {})
    names.setdefault("uuid" if name.startswith("GPU-") else "index", name)
    candidates = {address: known for address, known in gpus.items() if not differs(names, known)}
    for key in ("uuid", "serial", "index"):
        places = [address for address, known in candidates.items() if names.get(key) and known.get(key) == names[key]]
        if len(places) == 1:
            return f"gpu/{places[0]}"
    return subject


def age_seconds(memory: Memory, now: Now, boot_id: str, at: float, seen: datetime) -> float:
    """Return the age by the monotonic clock in one boot, else by the wall clock; never below 0 (docs/rules.md 12)."""
    age = now.monotonic - at if boot_id == memory.boot_id else (now.wall - seen).total_seconds()
    return max(age, 0.0)


def with_newest(known: Mapping[K, V], key: K, value: V, most: int) -> dict[K, V]:
    """Return the mapping with this entry as the newest; beyond `most` entries, the oldest are dropped."""
    others = [(other, kept) for other, kept in known.items() if other != key]
    return dict([*others[-(most - 1) :], (key, value)])


def worst_first(findings: Iterable[ActiveFinding]) -> tuple[ActiveFinding, ...]:
    ordered = sorted(findings, key=lambda finding: (-finding.finding.severity, finding.first_seen, finding.key))
    return tuple(ordered[:MOST_STANDING])
