"""Types of a diagnosis: possible causes, causes that were found, and parts that could not be checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum, IntEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypedDict, Unpack

from msgspec import Struct

if TYPE_CHECKING:
    from gpu_healthcheck.diagnosis.snapshot import Snapshot


class CauseSeverity(IntEnum):
    """Severity of a cause: how much work it prevents."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Certainty(IntEnum):
    """Certainty of a cause: how it is known."""

    LIKELY = 1
    """A text or a pattern indicates it; a proof is not visible in the cluster."""
    PROVEN = 2
    """The objects themselves show it."""


class Link(Enum):
    """Link in the chain of a GPU workload, in the order in which the chain can break.

    The value is the text that people read.
    """

    ADMITTED = "its pod is created"
    QUEUED = "queue and scheduling gates admit it"
    SCHEDULED = "a scheduler finds a node"
    ACCEPTED = "the kubelet accepts it and allocates devices"
    RUNTIME = "its sandbox is created: volumes, network, container runtime"
    PREPARED = "its images are pulled"
    STARTED = "its containers start with the GPU"
    RUNNING = "CUDA works in its containers"


class TextSource(Enum):
    """Source of a text. The value is shown to people."""

    POD = "pod"
    EVENT = "event"
    WAITING = "waiting"
    ENDED = "ended"
    LOG = "log"


class Signature(Struct, frozen=True):
    """Text that identifies a cause: a pattern, the programs that write it, and the sources in which it may occur."""

    pattern: str
    writer: str
    sources: frozenset[TextSource]
    literals: tuple[str, ...] = ()
    """Texts in lower case of which every match has one; () if unknown. Most texts have none, and need no search."""

    def search(self, text: str) -> re.Match[str] | None:
        """Search without regard to letter case, which differs between versions."""
        if self.literals and not any(literal in _lowered(text) for literal in self.literals):
            return None
        return _compiled(self.pattern).search(text)


def starting(pattern: str, writer: str) -> Signature:
    """Return a text about a container that does not start."""
    return Signature(pattern, writer, frozenset((TextSource.WAITING, TextSource.ENDED, TextSource.EVENT)))


def failing(pattern: str, writer: str) -> Signature:
    """Return a text about a container that ran and failed."""
    return Signature(pattern, writer, frozenset((TextSource.ENDED, TextSource.LOG)))


def rejecting(pattern: str, writer: str) -> Signature:
    """Return a text about a pod that the kubelet rejected."""
    return Signature(pattern, writer, frozenset((TextSource.POD,)))


@lru_cache(maxsize=4)
def _lowered(text: str) -> str:
    return text.lower()


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile the pattern at its first use, because most diagnoses need few patterns."""
    return re.compile(pattern, re.IGNORECASE)


class Cause(Struct, frozen=True, eq=False):
    """Possible cause of a problem. Its name is PascalCase, and an API.

    `link` is the link at which the cause breaks a workload's chain. It is None for a fault of a node or component
    alone.
    """

    name: str
    severity: CauseSeverity
    link: Link | None
    means: str
    """Meaning, in one sentence."""
    remedy: str
    """General fix; a result names the objects."""
    source: str = ""
    texts: tuple[Signature, ...] = ()
    """Texts by which it is recognised."""
    of_node: bool = False
    """Whether the pod's node has to be changed; otherwise the object that a person wrote."""
    follows: tuple[str, ...] = ()
    """Names of causes that explain this one if they are found on the same object."""
    urgent: int = 0
    """1: running work is failing; 2: new work is placed on a fault. Listed before all others of its severity."""


class RowFields(TypedDict, total=False):
    """Fields of a cause that a row may state in addition to its family."""

    severity: CauseSeverity
    source: str
    of_node: bool
    follows: tuple[str, ...]
    urgent: int


class Family:
    """Constructor of rows: causes that break the same link. A row states only what differs from its family."""

    def __init__(self, link: Link | None, **common: Unpack[RowFields]) -> None:
        self._link = link
        self._common = common

    def __call__(self, name: str, means: str, remedy: str, *texts: Signature, **fields: Unpack[RowFields]) -> Cause:
        given = RowFields(severity=CauseSeverity.HIGH) | self._common | fields
        return Cause(name=name, link=self._link, means=means, remedy=remedy, texts=texts, **given)


Origin = tuple[str, str]
"""Name and subject of a cause that explains another one."""


class FoundCause(Struct, frozen=True):
    """Cause that was found. Two with the same cause and subject are merged, and their texts are combined.

    Subjects and affected objects have the form kind/name or kind/namespace/name, as in `node/a` and
    `pod/team/trainer-0`.
    """

    cause: Cause
    subject: str
    """Object to change."""
    evidence: tuple[str, ...]
    remedy: tuple[str, ...] = ()
    """Sentences in the order of the steps; commands are in backticks, complete and quoted for a shell."""
    affected: tuple[str, ...] = ()
    """Objects that do not work because of it, other than the subject."""
    certainty: Certainty = Certainty.PROVEN
    because_of: tuple[Origin, ...] = ()
    """If one of these is found too, this result is its consequence."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Return the remedy, or the general fix of the cause without one."""
        return self.remedy or (self.cause.remedy,)


def found_on(
    subject: str,
    cause: Cause,
    evidence: Iterable[str],
    remedy: Iterable[str] = (),
    because_of: tuple[Origin, ...] = (),
    certainty: Certainty = Certainty.PROVEN,
) -> FoundCause:
    """Return a result about a node or workload that itself does not work because of it."""
    return FoundCause(cause, subject, tuple(evidence), tuple(remedy), (subject,), certainty, because_of)


class Unchecked(Struct, frozen=True):
    """Part of the cluster that could not be checked.

    `why` is the reason; `hides` describes the results that are missing as a consequence. `denied`: the user lacks the
    permission.
    """

    kind: str
    why: str
    hides: str
    denied: bool = False


Find = Callable[["Snapshot"], Iterable[FoundCause]]


class Search(Struct, frozen=True):
    """Search for causes of one kind. Pure.

    If a kind in `needs` is not visible, the search is skipped, and that is reported. To read a kind that it does not
    need, a search first asks the snapshot: `snapshot.sees(kind)`.
    """

    causes: tuple[Cause, ...]
    needs: tuple[str, ...]
    find: Find
    concerns: Callable[[Snapshot], bool] | None = None
    """Whether the search applies to the cluster; otherwise it is skipped without a report."""


def origins(causes: Iterable[Cause | str], *subjects: str) -> tuple[Origin, ...]:
    """Return each cause, or name of a cause, on each of the subjects."""
    names = (cause if isinstance(cause, str) else cause.name for cause in causes)
    return tuple((name, subject) for name in names for subject in subjects)
