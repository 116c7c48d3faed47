"""The words that everything else is written in. They look at nothing and decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr

from healthcheck.text.printable import printable

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

T = TypeVar("T")

PREFIX = "gpu-healthcheck.aws-samples.io"
_LONGEST_CAUSE = 64


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


class Told(Struct, frozen=True):
    """What is told to people and programs: whatever its text is made from, all of it can be shown (`printable`).

    Logs, files, names of processes and answers of tools are read as they are, so that a path still opens and a line is
    recognised; what anybody says of them is made of these.
    """

    _texts: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._texts = tuple(name for name, kind in cls.__annotations__.items() if kind == "str")

    def __post_init__(self) -> None:
        for name in self._texts:
            text = getattr(self, name)
            shown = printable(text)
            if shown is not text:
                force_setattr(self, name, shown)


class Cause:
    """Why a check could not look, declared beside what says so. `name` is PascalCase and an API.

    Records and saved evidence hold the name alone: two causes of one name are the same. No Struct for that: a file has
    a Struct's fields.
    """

    __slots__ = ("action", "meaning", "name")

    def __init__(self, name: str, meaning: str, action: str) -> None:
        self.name: Final = printable(name)
        self.meaning: Final = printable(meaning)
        """What happened, in one sentence."""
        self.action: Final = printable(action)
        """What a person does about it, in one sentence."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cause) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Cause(name={self.name!r})"

    @classmethod
    def named(cls, name: str) -> Cause:
        """The cause of this name as JSON has it: another version's perhaps, or a stranger's."""
        return cls(printable(name, _LONGEST_CAUSE), "", "")


NOT_LOOKED = Cause(
    "NotLooked", "The look left out the source that the check needs.", "Look again: the next look asks for it."
)
PROBE_FAILED = Cause(
    "ProbeFailed",
    "A source of facts on the node could not be read.",
    "Look at the message: it names the source, and what the system said.",
)


class ProbeError(Exception):
    """A source could not be read. Says nothing about the hardware."""

    def __init__(self, detail: str, cause: Cause = PROBE_FAILED) -> None:
        super().__init__(detail)
        self.cause = cause


class Shortage(ProbeError):
    """We lack what it takes to look, such as a file descriptor. No OSError: those can say that a thing is absent."""


class Now(Struct, frozen=True):
    """One moment, on both clocks: `wall` is UTC, `monotonic` the seconds of CLOCK_MONOTONIC since boot."""

    wall: datetime
    monotonic: float


class Grace(Struct, frozen=True):
    """So long after `since` a fault is not judged: what it looks at is still coming up."""

    seconds: float
    since: str
    """As a sentence goes on: `the driver was loaded`."""


class Reason(Struct, frozen=True):
    """A fault that a check can find. `name` is PascalCase and an API."""

    name: str
    severity: Severity
    meaning: str
    action: str
    """What an operator does about it, in one sentence."""
    flickers: bool = False
    """Seen during a reset or a boot on healthy hardware too: counts only after it was seen again."""
    threshold: str = ""
    """From where on it is a fault, made from the constants that the judge compares with."""
    source: str = ""
    """Who says that it is one: a header, a document, another project's tried rule."""
    grace: Grace | None = None


class Finding(Told, frozen=True):
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
    catalogued: Severity | None = None
    """Its severity before this cluster's overrides; None: no override applies."""
    catalogued_rule: str = ""
    """The rule of `catalogued`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.about:
            force_setattr(self, "about", {printable(key): printable(one) for key, one in self.about.items()})

    @property
    def base(self) -> tuple[Severity, str]:
        """Severity and rule before this cluster's overrides."""
        if self.catalogued is None:
            return self.severity, self.rule
        return self.catalogued, self.catalogued_rule

    @property
    def tier(self) -> Severity:
        """The severity that decides how it ends: one that an override sets to PASS ends as the catalogue has it."""
        return self.base[0] if self.severity is Severity.PASS else self.severity


class Sighting(Told, frozen=True):
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
    recovery_action: int | None = None
    """The GPU's recovery action from now on (NVML field 230); 0: None, the GPU was recovered."""
    driver_loaded: bool = False
    of_a_test: bool = False
    """It hit a process of a deep test that runs: counted, and no sign of anything."""
    uuid: str = ""
    """What the line itself calls the GPU."""
    source: str = ""
    """Where the evidence came from, for instance `FILE:LINE`."""


class Unobserved(Told, frozen=True, tag=True):
    """A check could not look. `detail` is a sentence."""

    cause: Cause
    detail: str
    subject: str = ""
    """Where alone it could not look; '' is everywhere."""


class Passed(Told, frozen=True):
    """A deep test ran and found nothing: what it had found there before is past (docs/rules.md 4)."""

    reason: str
    subject: str = ""
    """Where; '' is everywhere."""


class NotConfigured(Told, frozen=True):
    """What the check looks at does not belong to this node."""

    detail: str


class TooEarly(Told, frozen=True):
    """It can't be told yet: a rate needs an earlier reading. What stands of it stays; nobody counts as blind."""

    detail: str
    subject: str = ""
    """Where alone it can't be told; '' is everywhere."""
    reasons: tuple[str, ...] = ()
    """The faults that alone can't be told; `()` is all that the check can find."""


class Seen(Told, frozen=True):
    """What a check saw, for a person: `what` was there, what was `expected`, and where the expectation comes from."""

    what: str
    expected: str = ""
    source: str = ""


def counted(number: int, noun: str) -> str:
    """As a person says it: `1 GPU`, `8 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


Judgement = Finding | Sighting | Passed | Unobserved | NotConfigured | TooEarly | Seen


class Host(Struct, frozen=True, eq=False):
    """The machine looked at: `root` is its `/` as we see it. Whom we ask has a deadline."""

    root: Path
    ask_driver: Callable[[], Any] | None = None
    ask_libfabric: Callable[[], Any] | None = None
    """None: `root` is not the machine that we run on, and libfabric speaks of no other."""
    ask_container_runtime: Callable[[Any], Any] | None = None
    """Given what the files say of it. None: `root` is not the machine that we run on."""
    ask_dcgm: Callable[[int], Any] | None = None
    """Runs DCGM's diagnostic of the level given, to its end. None: this look is no deep one."""
    ask_efa_loopback: Callable[[], Any] | None = None
    """Sends data through every EFA device, which takes minutes. None: this look is no deep one."""
    ask_all_reduce: Callable[[], Any] | None = None
    """Runs NCCL's all-reduce over all GPUs, which takes minutes. None: this look is no deep one."""
    read_once: dict[Any, Any] = field(default_factory=dict)
    """What `once` has read in this look."""

    def once(self, read: Callable[[Path], T]) -> T:
        """What `read` makes of the root: the first probe of a look that needs it reads it, the others share it."""
        if read not in self.read_once:
            self.read_once[read] = read(self.root)
        shared: T = self.read_once[read]
        return shared


class Probe(Struct, Generic[T], frozen=True):
    """One source of facts. `read` raises ProbeError when it could not look."""

    name: str
    read: Callable[[Host], T]
    facts: Any
    """The type of what it reads, plain data: it is written to a file and read back (`--save-evidence`)."""
    causes: tuple[Cause, ...] = ()
    """Why its facts, or a judge of them, could not look."""

    def __hash__(self) -> int:
        return hash(self.name)


class Evidence:
    """What was seen in one look: per probe its facts, or why it could not be read.

    `at` is when, in seconds of CLOCK_MONOTONIC. `before` is the look before it in the same boot, for what only the
    difference of two readings tells; it knows none before itself. `seconds` is, by the name of a probe, how long it
    took.
    """

    def __init__(
        self,
        seen: Mapping[Probe[Any], Any],
        at: float = 0.0,
        before: Evidence | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        self._seen = dict(seen)
        self.at = at
        self.before = before.alone() if before is not None else None
        self.seconds = dict(seconds or {})

    def __getitem__(self, probe: Probe[T]) -> T:
        """The facts of a probe that was read. Judges are only called when all they need was."""
        facts: T = self._seen[probe]
        return facts

    @property
    def probes(self) -> tuple[Probe[Any], ...]:
        """What the look read or tried to, in that order."""
        return tuple(self._seen)

    def alone(self) -> Evidence:
        """The same without what came before it."""
        return Evidence(self._seen, self.at, seconds=self.seconds) if self.before is not None else self

    def earlier(self, probe: Probe[T]) -> tuple[T, float] | None:
        """What the probe read in the look before, and how many seconds ago; None where nobody knows."""
        if self.before is None or self.at <= self.before.at or self.before.unread(probe) is not None:
            return None
        return self.before[probe], self.at - self.before.at

    def unread(self, probe: Probe[Any]) -> Unobserved | None:
        facts = self._seen.get(probe)
        if probe not in self._seen:
            return Unobserved(NOT_LOOKED, f"{probe.name} was not read")
        return facts if isinstance(facts, Unobserved) else None


class Check(Struct, frozen=True):
    """A small question about the node. `judge` is pure; `group` is the name that the record shows."""

    name: str
    group: str
    needs: tuple[Probe[Any], ...]
    judge: Callable[[Evidence, Any], Iterator[Judgement]]
    reasons: tuple[Reason, ...]
    nature: Nature = Nature.LEVEL
    begins: tuple[str, ...] = ()
    """How a line of the kernel's log begins that an event check reads, in plain ASCII: others are not shown to it."""
    causes: tuple[Cause, ...] = ()
    """Why its judge could not look, beside the causes of its probes."""


class Outcome(Struct, frozen=True):
    """What one check said in one look."""

    check: str
    group: str
    findings: tuple[Finding, ...] = ()
    sightings: tuple[Sighting, ...] = ()
    """What an event check read in the log, oldest first."""
    unobserved: tuple[Unobserved, ...] = ()
    configured: bool = True
    seen: tuple[Seen, ...] = ()
    too_early: tuple[TooEarly, ...] = ()
    """What it can't tell yet: it neither finds such a fault nor shows one gone."""
    passed: tuple[Passed, ...] = ()
    """Which deep tests found nothing."""
    seconds: float = 0.0
    """How long its judge took."""

    @property
    def observed(self) -> bool:
        return not self.unobserved

    def shows(self, reason: str, subject: str) -> bool:
        """Whether it saw enough of this subject that this fault is not there when it does not find it."""
        untold = [one.subject for one in self.too_early if reason in (one.reasons or (reason,))]
        return not {"", subject} & {*(one.subject for one in self.unobserved), *untold}
