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
    """Running Jobs with the claim of their node: an earlier sweep ended before them."""
    stray: tuple[JobState, ...]
    """Running Jobs without a claim on their node."""
    marked: tuple[str, ...]
    """Names of nodes with marks of an ended run, of a run with an ended Job, or with unreadable marks."""


def find_leftovers(marked: Sequence[NodeState], jobs: Iterable[JobState], now: datetime) -> Leftovers:
    """Return the leftovers. `marked` are the nodes with any mark of a deep run, listed before the Jobs."""
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
    """Whether the Job may have pods on the node."""
    return not job.outcome
