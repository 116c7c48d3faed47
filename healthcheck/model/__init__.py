"""Types shared by the whole project, without I/O and without decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr

from gpu_healthcheck.healthcheck.text.printable import printable

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

T = TypeVar("T")

PREFIX = "gpu-healthcheck.aws-samples.io"
_LONGEST_CAUSE = 64


class Severity(IntEnum):
    """Action that an operator must take for a finding, mildest first."""

    PASS = 0
    MONITOR = 1
    RESET = 2
    REBOOT = 3
    ISOLATE = 4


class Status(StrEnum):
    """Status of a node or of a group of checks."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_CONFIGURED = "not-configured"


class Nature(StrEnum):
    """Lifetime of a finding: as long as check cycles show it, or until its written exit."""

    LEVEL = "level"
    EVENT = "event"


class Printable(Struct, frozen=True):
    """Base class of objects shown to people and programs: all their text is made printable (`printable`).

    Logs, files, process names and answers of tools are read unchanged, so that paths can be opened and lines are still
    recognised. Text about them is in subclasses of this class.
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


class UnobservedCause:
    """Reason why a check could not run, declared next to the code that uses it.

    `name` is PascalCase and part of the API. Records and saved evidence contain only the name, so two causes with the
    same name are equal. The class is not a Struct, because files contain all fields of a Struct.
    """

    __slots__ = ("action", "meaning", "name")

    def __init__(self, name: str, meaning: str, action: str) -> None:
        self.name: Final = printable(name)
        self.meaning: Final = printable(meaning)
        """Description of the cause, in one sentence."""
        self.action: Final = printable(action)
        """Advice for a person, in one sentence."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnobservedCause) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"UnobservedCause(name={self.name!r})"

    @classmethod
    def named(cls, name: str) -> UnobservedCause:
        """Return the cause with this name, from JSON that another version or another program may have written."""
        return cls(printable(name, _LONGEST_CAUSE), "", "")


NOT_LOOKED = UnobservedCause(
    "NotLooked", "The check cycle did not read the source that the check needs.", "Wait for the next check cycle."
)
PROBE_FAILED = UnobservedCause(
    "ProbeFailed",
    "A source of facts on the node could not be read.",
    "Read the message: it names the source and the system's error.",
)


class ProbeError(Exception):
    """A source could not be read. This is not a result about the hardware."""

    def __init__(self, detail: str, cause: UnobservedCause = PROBE_FAILED) -> None:
        super().__init__(detail)
        self.cause = cause


class Shortage(ProbeError):
    """Lack of a resource in this process to read a source, such as a file descriptor.

    It is not an OSError, because an OSError can mean that a file does not exist.
    """


class Now(Struct, frozen=True):
    """One moment on two clocks: `wall` is UTC, `monotonic` is the seconds of CLOCK_MONOTONIC since boot."""

    wall: datetime
    monotonic: float


class Grace(Struct, frozen=True):
    """Period after `since` in which a fault is not judged, because its subject is still initialising."""

    seconds: float
    since: str
    """Start of the period, as part of a sentence: `the driver was loaded`."""


class Reason(Struct, frozen=True):
    """A fault that a check can detect. `name` is PascalCase and part of the API."""

    name: str
    severity: Severity
    meaning: str
    action: str
    """Advice for an operator, in one sentence."""
    flickers: bool = False
    """Whether healthy hardware shows it during a reset or a boot too: it counts only after repeated observations."""
    threshold: str = ""
    """Limit from which it is a fault, as text built from the judge's constants."""
    source: str = ""
    """Source of the rule: a header, a document, or a proven rule of another project."""
    grace: Grace | None = None

    def on(self, subject: str, detail: str, source: str = "") -> Finding:
        """Return a finding with this reason on this subject."""
        return Finding(self.name, self.severity, subject, detail, source=source, flickers=self.flickers)


class Threshold(Struct, frozen=True):
    """Severity of an event from the time when several processes had it on one subject within a time window."""

    severity: Severity
    count: int
    seconds: int


class Recurrence(Struct, frozen=True):
    """Condition under which an event is a fault: at least `count` lines over at least `seconds`, without a `pause`."""

    count: int
    seconds: float
    pause: float
    """Time without the event after which its lines are counted anew."""


class Finding(Printable, frozen=True):
    """One fault of one subject. `subject` is kind/name, for instance `gpu/0000:18:00.0`."""

    reason: str
    severity: Severity
    subject: str
    detail: str
    about: Mapping[str, str] = field(default_factory=dict)
    """Other names of the subject: index, uuid, serial."""
    rule: str = ""
    """Rule that matched: a table row or a constant, for instance `xid.csv:79`."""
    source: str = ""
    """Where the evidence came from, for instance `FILE:LINE`."""
    seq: int = -1
    """Kernel log sequence number of an event, -1 for a level."""
    at: float | None = None
    """Seconds of CLOCK_MONOTONIC at which an event happened; None for a level."""
    flickers: bool = False
    escalates: bool = True
    """Whether its recurrence after resets or reboots makes it ISOLATE; false for faults that NVIDIA attributes to an
    application."""
    catalogued: Severity | None = None
    """Severity before this cluster's overrides; None: no override applies."""
    catalogued_rule: str = ""
    """The rule of `catalogued`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.about:
            force_setattr(self, "about", {printable(key): printable(text) for key, text in self.about.items()})

    @property
    def base(self) -> tuple[Severity, str]:
        """Return severity and rule before this cluster's overrides."""
        if self.catalogued is None:
            return self.severity, self.rule
        return self.catalogued, self.catalogued_rule

    @property
    def tier(self) -> Severity:
        """Return the severity that decides how the finding ends.

        If an override sets PASS, this is the severity in the catalogue.
        """
        return self.base[0] if self.severity is Severity.PASS else self.severity


class KernelEvent(Printable, frozen=True):
    """Content of one kernel log record about the hardware, with or without a fault."""

    reason: str
    """Reason such as `Xid79`; for a line that is not a fault, its kind: `DriverLoaded`, `GpuNamed`."""
    subject: str
    seq: int
    at: float
    """Time of the record, in seconds of CLOCK_MONOTONIC."""
    finding: Finding | None = None
    """None: the event is counted, but is not a fault by itself."""
    detail: str = ""
    known: bool = True
    """Whether the catalogue has a row for it."""
    process: str = ""
    """Affected process, as pid and name; '' if the driver named no pid. Only the pid identifies it: each thread chooses
    its name."""
    began: float | None = None
    """Earliest possible start of this process, in seconds of the record's clock; None: unknown."""
    place: str = ""
    """Position on the GPU: `GPC 1, TPC 3`."""
    follows: int = 0
    """Code of the Xid that the driver names as its cause; 0 if it names none."""
    recovery_action: int | None = None
    """The GPU's recovery action from now on (NVML field 230); 0: None, the GPU was recovered."""
    driver_loaded: bool = False
    of_a_test: bool = False
    """Whether it affected a process of a running deep test: it is counted, but is not a fault."""
    uuid: str = ""
    """UUID of the GPU in the line."""
    source: str = ""
    """Where the evidence came from, for instance `FILE:LINE`."""
    threshold: Threshold | None = None
    """This cluster's threshold for its reason."""
    recurs: Recurrence | None = None
    """Condition under which it is a fault; None: a single line is one."""
    devices: int = 1
    """Number of GPUs that the line is about."""


class Unobserved(Printable, frozen=True, tag=True):
    """A check that could not run, and the cause. `detail` is a sentence."""

    cause: UnobservedCause
    detail: str
    subject: str = ""
    """The only subject that could not be checked; '' means all subjects."""


class Passed(Printable, frozen=True):
    """A deep test that ran without a finding, which ends its earlier findings (docs/rules.md 4)."""

    reason: str
    subject: str = ""
    """The tested subject; '' means all subjects."""


class NotConfigured(Printable, frozen=True):
    """The subject of the check does not exist on this node."""

    detail: str


class TooEarly(Printable, frozen=True):
    """The check cannot judge yet, for instance because a rate needs an earlier reading.

    Active findings stay, and the check does not count as unobserved.
    """

    detail: str
    subject: str = ""
    """The only subject that can't be judged yet; '' means all subjects."""
    reasons: tuple[str, ...] = ()
    """The only reasons that can't be judged yet; `()` means all reasons of the check."""


class Observation(Printable, frozen=True):
    """An observation of a check for people.

    It has the observed value `what`, the `expected` value, and the source of the expectation.
    """

    what: str
    expected: str = ""
    source: str = ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: `1 GPU`, `8 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


Judgement = Finding | KernelEvent | Passed | Unobserved | NotConfigured | TooEarly | Observation


class Host(Struct, frozen=True, eq=False):
    """The machine to check. `root` is the path of its `/` in this process. All calls have deadlines."""

    root: Path
    ask_driver: Callable[[], Any] | None = None
    ask_libfabric: Callable[[], Any] | None = None
    """None: `root` is not this machine, and libfabric can only check this machine."""
    ask_container_runtime: Callable[[Any], Any] | None = None
    """Queries the running container runtime, given the facts from its files. None: `root` is not this machine."""
    ask_dcgm: Callable[[int], Any] | None = None
    """Runs DCGM's diagnostic of the given level to its end. None: this is not a deep diagnostic."""
    ask_efa_loopback: Callable[[], Any] | None = None
    """Sends data through every EFA device, which takes minutes. None: this is not a deep diagnostic."""
    ask_rdma_loopback: Callable[[], Any] | None = None
    """Sends data through every active RDMA port, which takes minutes. None: this is not a deep diagnostic."""
    ask_all_reduce: Callable[[], Any] | None = None
    """Runs NCCL's all-reduce over all GPUs, which takes minutes. None: this is not a deep diagnostic."""
    ask_gpu_pods: Callable[[], Any] | None = None
    """Returns the pods of the GPUs at the last reads of the driver. None: this is a single check cycle."""
    ask_gpu_load: Callable[[], Any] | None = None
    """Loads every GPU with arithmetic and copies, which takes minutes. None: this is not a deep diagnostic."""
    read_once: dict[Any, Any] = field(default_factory=dict)
    """Results of `once` in this check cycle."""

    def once(self, read: Callable[[Path], T]) -> T:
        """Return the result of `read` for the root, called once in a check cycle. The probes share the result."""
        if read not in self.read_once:
            self.read_once[read] = read(self.root)
        shared: T = self.read_once[read]
        return shared


class Probe(Struct, Generic[T], frozen=True):
    """One source of facts. `read` raises ProbeError if the source could not be read."""

    name: str
    read: Callable[[Host], T]
    facts: Any
    """Type of the facts: plain data that can be written to a file and read back (`--save-evidence`)."""
    causes: tuple[UnobservedCause, ...] = ()
    """Causes for which its facts, or the result of a check that uses them, are unavailable."""

    def __hash__(self) -> int:
        return hash(self.name)


class Evidence:
    """Facts of one check cycle: for each probe its facts, or the reason why it could not be read.

    `at` is the time of the cycle, in seconds of CLOCK_MONOTONIC. `before` is the previous cycle in the same boot, for
    values that need the difference of two readings; it has no `before` itself. `seconds` is the duration of each probe,
    by its name.
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
        """Return the facts of a probe that was read. Judges are called only if all their probes were read."""
        facts: T = self._seen[probe]
        return facts

    @property
    def probes(self) -> tuple[Probe[Any], ...]:
        """Return the probes that the check cycle read or tried to read, in that order."""
        return tuple(self._seen)

    def alone(self) -> Evidence:
        """Return the same evidence without the previous cycle."""
        return Evidence(self._seen, self.at, seconds=self.seconds) if self.before is not None else self

    def earlier(self, probe: Probe[T]) -> tuple[T, float] | None:
        """Return the facts of a probe in the previous cycle and their age in seconds, or None if unknown."""
        if self.before is None or self.at <= self.before.at or self.before.unread(probe) is not None:
            return None
        return self.before[probe], self.at - self.before.at

    def unread(self, probe: Probe[Any]) -> Unobserved | None:
        facts = self._seen.get(probe)
        if probe not in self._seen:
            return Unobserved(NOT_LOOKED, f"{probe.name} was not read")
        return facts if isinstance(facts, Unobserved) else None


class Check(Struct, frozen=True):
    """One health check of the node. `judge` is pure; `group` is the name that the record shows."""

    name: str
    group: str
    needs: tuple[Probe[Any], ...]
    judge: Callable[[Evidence, Any], Iterator[Judgement]]
    reasons: tuple[Reason, ...]
    nature: Nature = Nature.LEVEL
    begins: tuple[str, ...] = ()
    """Prefixes, in plain ASCII, of the kernel log lines that an event check reads; it gets no other lines."""
    causes: tuple[UnobservedCause, ...] = ()
    """Causes for which the judge could not check, in addition to the causes of the check's probes."""


class Outcome(Struct, frozen=True):
    """Result of one check in one check cycle."""

    check: str
    group: str
    findings: tuple[Finding, ...] = ()
    events: tuple[KernelEvent, ...] = ()
    """Events that an event check read in the log, oldest first."""
    unobserved: tuple[Unobserved, ...] = ()
    configured: bool = True
    seen: tuple[Observation, ...] = ()
    too_early: tuple[TooEarly, ...] = ()
    """Judgements that are not possible yet: such a fault is neither detected nor shown to be gone."""
    passed: tuple[Passed, ...] = ()
    """Deep tests without a finding."""
    seconds: float = 0.0
    """Duration of the judge, in seconds."""

    @property
    def observed(self) -> bool:
        return not self.unobserved

    def shows(self, reason: str, subject: str) -> bool:
        """Whether the subject was checked for this reason, so that a missing finding proves that there is no fault."""
        early_subjects = [early.subject for early in self.too_early if reason in (early.reasons or (reason,))]
        return not {"", subject} & {*(unobserved.subject for unobserved in self.unobserved), *early_subjects}
