"""The words of a diagnosis: what may be wrong, what was found to be wrong, and what nobody could see."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from diagnosis.snapshot import Snapshot


class Severity(IntEnum):
    """How much it keeps from work."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Certainty(IntEnum):
    """How a cause is known."""

    LIKELY = 1
    """A text or a pattern says so; what would prove it can't be seen in the cluster."""
    PROVEN = 2
    """The objects themselves show it."""


class Link(Enum):
    """The chain of a GPU workload, in the order in which it can break. The value is what a person reads."""

    ADMITTED = "a pod is made"
    QUEUED = "its queue and gates let it go"
    SCHEDULED = "a scheduler finds a node"
    ACCEPTED = "the kubelet takes it and gives it devices"
    RUNTIME = "its node makes it a sandbox: volumes, network, container runtime"
    PREPARED = "its images are there"
    STARTED = "its containers start, with the GPU in them"
    RUNNING = "CUDA works in it"


class Cause(Struct, frozen=True):
    """Something that may be wrong. Its name is PascalCase, and an API.

    `link` is where it breaks a workload's chain; None for what is wrong with a node or a component by itself.
    """

    name: str
    severity: Severity
    link: Link | None
    means: str
    """One sentence."""
    remedy: str
    """What a person does about it, in general; a find names the objects."""
    source: str = ""
    urgent: bool = False
    """Running work is failing: listed before all others of its severity."""


class Found(Struct, frozen=True):
    """A cause that was found. Two of the same cause and subject are one; what they say is put together.

    Subjects and what is affected are kind/name or kind/namespace/name, as `node/a`, `pod/team/trainer-0`.
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


class Unseen(Struct, frozen=True):
    """What could not be looked at, why, and what stays unsaid for that."""

    kind: str
    why: str
    hides: str


Find = Callable[["Snapshot"], Iterable[Found]]


class Search(Struct, frozen=True):
    """One look for causes of one kind. Pure. Where a kind in `needs` is not visible, it is not asked, and that is told.

    A kind that it can do without it asks the snapshot for: `snapshot.sees(kind)`.
    """

    causes: tuple[Cause, ...]
    needs: tuple[str, ...]
    find: Find
    concerns: Callable[[Snapshot], bool] | None = None
    """Whether the cluster has what the search is about; where it has not, nothing is asked and nothing told."""


def command(*words: str) -> str:
    """As a remedy has it: whole, and quoted for a shell."""
    return f"`{shlex.join(words)}`"
