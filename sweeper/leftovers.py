"""Leftovers of earlier sweeps: running Jobs, and marks and Jobs without an owner. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from healthcheck.deep.claim import RunKind, claim_on, clear
from healthcheck.deep.job import JobState
from healthcheck.node.state import NodeState


class Leftovers(Struct, frozen=True):
    """Leftovers at the start of a sweep. All except `alive` are read again before they are changed."""

    alive: tuple[JobState, ...]
    """Jobs at work on a node whose run is theirs: an earlier sweep was ended before them."""
    stray: tuple[JobState, ...]
    """Jobs at work for which no run stands on their node."""
    marked: tuple[str, ...]
    """Names of nodes with marks of a run that is over, whose Job is, or that nobody can read."""


def find_leftovers(marked: Sequence[NodeState], jobs: Iterable[JobState], now: datetime) -> Leftovers:
    """`marked` are the nodes on which anything says that a deep run uses them, listed before the Jobs were."""
    working = {(job.node, job.name): job for job in jobs if is_working(job)}
    runs = {node.name: run for node in marked if (run := claim_on(node, now)) is not None}
    held = {(name, run.holder) for name, run in runs.items() if run.kind is RunKind.SWEEP}
    over = {name for name, holder in held if (name, holder) not in working}
    return Leftovers(
        alive=tuple(job for key, job in working.items() if key in held),
        stray=tuple(job for key, job in working.items() if key not in held),
        marked=tuple(node.name for node in marked if node.name in over or clear(node, now) is not None),
    )


def is_working(job: JobState) -> bool:
    """Whether pods of it may be on the node."""
    return not job.outcome
