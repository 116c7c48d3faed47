"""Types of a diagnosis: possible causes, causes that were found, and parts that could not be checked."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from diagnosis.snapshot import Snapshot


class CauseSeverity(IntEnum):
    """Severity of a cause: how much work it prevents."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Certainty(IntEnum):
    """Certainty of a cause: how it is known."""

    LIKELY = 1
    """A text or a pattern says so; what would prove it can't be seen in the cluster."""
    PROVEN = 2
    """The objects themselves show it."""


class Link(Enum):
    """Link in the chain of a GPU workload, in the order in which the chain can break.

    The value is the text that people read.
    """

    ADMITTED = "a pod is made"
    QUEUED = "its queue and gates let it go"
    SCHEDULED = "a scheduler finds a node"
    ACCEPTED = "the kubelet takes it and gives it devices"
    RUNTIME = "its node makes it a sandbox: volumes, network, container runtime"
    PREPARED = "its images are there"
    STARTED = "its containers start, with the GPU in them"
    RUNNING = "CUDA works in it"


class Cause(Struct, frozen=True):
    """Possible cause of a problem. Its name is PascalCase, and an API.

    `link` is the link at which the cause breaks a workload's chain. It is None for a fault of a node or component
    alone.
    """

    name: str
    severity: CauseSeverity
    link: Link | None
    means: str
    """One sentence."""
    remedy: str
    """What a person does about it, in general; a find names the objects."""
    source: str = ""
    urgent: bool = False
    """Running work is failing: listed before all others of its severity."""


class FoundCause(Struct, frozen=True):
    """Cause that was found. Two with the same cause and subject are merged, and their texts are combined.

    Subjects and affected objects have the form kind/name or kind/namespace/name, as in `node/a` and
    `pod/team/trainer-0`.
    """

    cause: Cause
    subject: str
    """What has to be changed to mend it."""
    evidence: tuple[str, ...]
    remedy: tuple[str, ...] = ()
    """Sentences, the first thing to do first; a command stands in backticks, whole and quoted for a shell."""
    affected: tuple[str, ...] = ()
    """What does not work because of it, where that is not the subject."""
    certainty: Certainty = Certainty.PROVEN
    because_of: tuple[tuple[Cause, str], ...] = ()
    """Causes, each with its subject, of which this is only a consequence where they are found too."""


class Unchecked(Struct, frozen=True):
    """Part of the cluster that could not be checked.

    `why` is the reason; `hides` describes the results that are missing as a consequence.
    """

    kind: str
    why: str
    hides: str


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
    """Whether the cluster has what the search is about; where it has not, nothing is asked and nothing told."""


def command(*words: str) -> str:
    """Return a command as a remedy contains it: complete, in backticks, and quoted for a shell."""
    return f"`{shlex.join(words)}`"
