"""The words that everything else is written in. They look at nothing and decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

T = TypeVar("T")

PREFIX = "gpu-healthcheck.aws-samples.io"


class Severity(IntEnum):
    """What an operator has to do about a finding, mildest first."""

    PASS = 0
    MONITOR = 1
    RESET = 2
    REBOOT = 3
    ISOLATE = 4


class Status(StrEnum):
    """What a node, or a group of checks, is said to be."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_CONFIGURED = "not-configured"


class Nature(StrEnum):
    """How long a finding stands: while a look still shows it, or until its written exit."""

    LEVEL = "level"
    EVENT = "event"


class ProbeError(Exception):
    """A source could not be read. Says nothing about the hardware."""


@dataclass(frozen=True, slots=True)
class Now:
    """One moment, on both clocks: `wall` is UTC, `monotonic` the seconds of CLOCK_MONOTONIC since boot."""

    wall: datetime
    monotonic: float


@dataclass(frozen=True, slots=True)
class Reason:
    """A fault that a check can find. `name` is PascalCase and an API."""

    name: str
    severity: Severity
    meaning: str
    action: str
    """What an operator does about it, in one sentence."""
    flickers: bool = False
    """Seen during a reset or a boot on healthy hardware too: counts only after it was seen again."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault at one place. `subject` is kind/name, for instance `gpu/0000:18:00.0`."""

    reason: str
    severity: Severity
    subject: str
    detail: str
    about: Mapping[str, str] = field(default_factory=dict)
    """Other names of the subject: index, uuid, serial."""
    rule: str = ""
    """The row or constant that fired, for instance `xid.csv:79`."""
    source: str = ""
    """Where the evidence came from, for instance `FILE:LINE`."""
    seq: int = -1
    """Kernel log sequence number of an event, -1 for a level."""
    at: float | None = None
    """Seconds of CLOCK_MONOTONIC at which an event happened; None for a level."""
    flickers: bool = False
    escalates: bool = True
    """Coming back after resets or reboots makes it ISOLATE; never so for what NVIDIA puts down to an application."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one record of the kernel's log says of the hardware, whether it is a fault or not."""

    reason: str
    """`Xid79`; for a line that names no fault, what it says: `DriverLoaded`, `GpuNamed`."""
    subject: str
    seq: int
    at: float
    """Seconds of CLOCK_MONOTONIC, as the record has them."""
    finding: Finding | None = None
    """None: counted, but no fault by itself."""
    detail: str = ""
    known: bool = True
    """The catalogue has a row for it."""
    process: str = ""
    """Whose work it hit, as pid and name; '' when the driver named none."""
    place: str = ""
    """Where on the GPU: `GPC 1, TPC 3`."""
    follows: bool = False
    """The driver itself calls it the consequence of another Xid."""
    recovered: bool = False
    """The GPU's recovery action went back to None."""
    driver_loaded: bool = False
    uuid: str = ""
    """What the line itself calls the GPU."""
    source: str = ""
    """Where the evidence came from, for instance `FILE:LINE`."""


@dataclass(frozen=True, slots=True)
class Unobserved:
    """A check could not look. `cause` is PascalCase, `detail` a sentence."""

    cause: str
    detail: str


@dataclass(frozen=True, slots=True)
class NotConfigured:
    """What the check looks at does not belong to this node."""

    detail: str


Judgement = Finding | Sighting | Unobserved | NotConfigured


@dataclass(frozen=True, slots=True)
class Host:
    """The machine looked at: `root` is its `/` as we see it, `nvml` asks the driver under a deadline."""

    root: Path
    ask_driver: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Probe(Generic[T]):
    """One source of facts. `read` raises ProbeError when it could not look."""

    name: str
    read: Callable[[Host], T]

    def __hash__(self) -> int:
        return hash(self.name)


class Evidence:
    """What was seen in one look: per probe its facts, or why it could not be read."""

    def __init__(self, seen: Mapping[Probe[Any], Any]) -> None:
        self._seen = dict(seen)

    def __getitem__(self, probe: Probe[T]) -> T:
        """The facts of a probe that was read. Judges are only called when all they need was."""
        facts: T = self._seen[probe]
        return facts

    def unread(self, probe: Probe[Any]) -> Unobserved | None:
        facts = self._seen.get(probe)
        if probe not in self._seen:
            return Unobserved("NotLooked", f"{probe.name} was not read")
        return facts if isinstance(facts, Unobserved) else None


@dataclass(frozen=True, slots=True)
class Check:
    """A small question about the node. `judge` is pure; `group` is the name that the record shows."""

    name: str
    group: str
    needs: tuple[Probe[Any], ...]
    judge: Callable[[Evidence, Any], Iterator[Judgement]]
    reasons: tuple[Reason, ...]
    nature: Nature = Nature.LEVEL
    begins: tuple[str, ...] = ()
    """How a line of the kernel's log begins that an event check reads, in plain ASCII: others are not shown to it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check said in one look."""

    check: str
    group: str
    findings: tuple[Finding, ...] = ()
    sightings: tuple[Sighting, ...] = ()
    """What an event check read in the log, oldest first."""
    unobserved: tuple[Unobserved, ...] = ()
    configured: bool = True

    @property
    def observed(self) -> bool:
        return not self.unobserved
