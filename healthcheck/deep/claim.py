"""Claim on a node for a deep diagnostic, quarantine or reset: the annotation `run` with its label and taint.

These functions only compute patches. One patch of the Node with its `resourceVersion` creates or removes a claim, so
only one of two competing runs gets the node. A claim expires at its `until`, and any run may then remove it.

A `Claimant` acquires, renews and releases the claim of a run, of any kind. Each write is computed from the current
Node, and computed again after a concurrent change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct

from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, MODE, RUN, NodeState, PatchFor, annotated
from gpu_healthcheck.healthcheck.text.boundary import JsonObject, as_json, read_row
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RecordError

_EFFECT = "NoSchedule"
_LONGEST_HOLDER = 320


class RunKind(StrEnum):
    """Kind of a run, as written in the label `mode`."""

    L2 = "l2"
    SWEEP = "sweep"
    QUARANTINE = "quarantine"
    RESET = "reset"


LONGEST: Mapping[RunKind, timedelta] = {
    RunKind.L2: timedelta(days=1, hours=1),
    RunKind.SWEEP: timedelta(days=2, hours=1),
    RunKind.QUARANTINE: timedelta(days=1, hours=1),
    RunKind.RESET: timedelta(hours=3),
}
"""Longest time until the end of a claim, by kind, with an hour for clocks that differ.

A later `until` is of no run of this project, and could block the node, or all automatic resets. Such a claim counts as
none, for all readers: cut to this time, it would never end. A run that is at work nonetheless has its lock on the node
and uses the GPUs.
"""


class Claim(Struct, frozen=True):
    """Claim of one run on a node. `holder` identifies the run within its kind; for a sweep it is the Job."""

    kind: RunKind
    holder: str
    until: datetime

    def is_same_run(self, other: Self) -> bool:
        """Whether both claims belong to the same run.

        Their `until` may differ, because a running run renews it.
        """
        return (self.kind, self.holder) == (other.kind, other.holder)


class _ClaimRow(JsonObject, frozen=True):
    """Fields of the annotation."""

    kind: RunKind | None = None
    holder: str | None = None
    until: datetime | None = None


GivesWay = Callable[[Claim], bool]
"""Whether a claim does not block the caller, regardless of `until`: the run is the caller's, or known to be dead."""


def never_gives_way(_: Claim) -> bool:
    """Return False: the caller knows only the claim's `until`."""
    return False


def claim_on(node: NodeState, now: datetime, gives_way: GivesWay = never_gives_way) -> Claim | None:
    """Return the claim that blocks the node; None: there is none, or it is expired, gives way, or is unreadable."""
    annotation = node.annotations.get(RUN)
    claim = claim_in(annotation, now) if annotation else None
    return claim if claim is not None and not gives_way(claim) else None


def claim_in(annotation: str, now: datetime) -> Claim | None:
    """Return the claim in the annotation `run`; None if it is expired or unreadable."""
    try:
        claim = _parse(annotation)
    except RecordError:
        return None
    return claim if now < claim.until <= now + LONGEST[claim.kind] else None


def why_unread(node: NodeState) -> Iterator[str]:
    """Yield the error in an unreadable annotation `run`, which the next run removes."""
    try:
        if RUN in node.annotations:
            _parse(node.annotations[RUN])
    except RecordError as error:
        yield f"annotation {RUN}: {error}; it is removed"


def is_marked(node: NodeState) -> bool:
    """Whether the Node has an annotation, label or taint of a run."""
    return RUN in node.annotations or MODE in node.labels or any(map(_is_maintenance, node.taints))


def acquire(
    node: NodeState, claim: Claim, now: datetime, gives_way: GivesWay = never_gives_way
) -> dict[str, Any] | None:
    """Return the patch that makes the claim; None if another claim blocks the node.

    A sweep sets no taint: its Job requests the GPUs, and a taint would keep real work from preempting it.
    """
    if claim_on(node, now, gives_way) is not None:
        return None
    kept = [taint for taint in node.taints if not _is_maintenance(taint)]
    if claim.kind is not RunKind.SWEEP:
        kept.append({"key": MAINTENANCE, "value": claim.kind.value, "effect": _EFFECT})
    return _patch(node, _text(claim), claim.kind.value, kept)


def release(node: NodeState, claim: Claim, gives_way: GivesWay = never_gives_way) -> dict[str, Any] | None:
    """Return the patch that releases the claim of this run, or a claim that gives way.

    Return None if the Node has neither.
    """
    try:
        present = _parse(node.annotations.get(RUN, ""))
    except RecordError:
        return None
    return _without_marks(node) if present.is_same_run(claim) or gives_way(present) else None


def is_written(node: NodeState, claim: Claim) -> bool:
    """Whether the Node has exactly this claim, with the same `until`."""
    return node.annotations.get(RUN) == _text(claim)


def clear(node: NodeState, now: datetime, gives_way: GivesWay = never_gives_way) -> dict[str, Any] | None:
    """Return the patch that removes the marks of runs that have ended; None if there are none.

    These are expired and unreadable claims, claims that give way, and labels or taints without a claim. A taint
    `maintenance=sweep` is removed in any case. The scripts that this system replaces left it behind when they were
    killed, and this project's sweeps do not set it.
    """
    claim = claim_on(node, now, gives_way)
    if claim is None:
        return _without_marks(node) if is_marked(node) else None
    kept = [taint for taint in node.taints if not _is_maintenance(taint) or taint.get("value") != RunKind.SWEEP.value]
    return _patch(node, node.annotations[RUN], claim.kind.value, kept) if len(kept) < len(node.taints) else None


def _without_marks(node: NodeState) -> dict[str, Any]:
    return _patch(node, None, None, [taint for taint in node.taints if not _is_maintenance(taint)])


def _patch(
    node: NodeState, annotation: str | None, mode: str | None, taints: list[Mapping[str, Any]]
) -> dict[str, Any]:
    metadata = {
        "resourceVersion": node.resource_version,
        "annotations": {RUN: annotation},
        "labels": {MODE: mode},
    }
    changed = taints != list(node.taints)
    return {"metadata": metadata, "spec": {"taints": taints}} if changed else {"metadata": metadata}


def _is_maintenance(taint: Mapping[str, Any]) -> bool:
    # The same key with another effect is a different taint, of another tool.
    return (taint.get("key"), taint.get("effect")) == (MAINTENANCE, _EFFECT)


def _text(claim: Claim) -> str:
    return json.dumps(as_json(_ClaimRow(claim.kind, claim.holder, claim.until)), separators=(",", ":"))


def _parse(text: str) -> Claim:
    row = read_row(_ClaimRow, records.load(text))
    try:
        row.must_have("kind", "holder", "until")
    except ValueError as error:
        raise RecordError(f"no run ({{kind, holder, until}}): {error}") from None
    assert row.kind is not None
    assert row.until is not None
    return Claim(row.kind, (row.holder or "")[:_LONGEST_HOLDER], row.until)


Annotations = Callable[[NodeState], Mapping[str, str]]
"""Returns further annotations for the same patch."""


def nothing(_: NodeState) -> Mapping[str, str]:
    return {}


class Claimant(Struct, frozen=True):
    """A run that claims one Node under a given name. Its methods raise the errors of `write`.

    `write` is the cluster's `update_node` of that Node.
    """

    kind: RunKind
    name: str
    write: Callable[[PatchFor], NodeState | None]
    now: Callable[[], datetime]
    gives_way: GivesWay = never_gives_way

    def claim_on(self, node: NodeState) -> Claim | None:
        """Return the claim that is active on the node now."""
        return claim_on(node, self.now(), self.gives_way)

    def has(self, node: NodeState) -> bool:
        """Whether this run owns the node."""
        claim = self.claim_on(node)
        return claim is not None and self.is_own(claim)

    def acquire(self, until: datetime, why_not: Callable[[NodeState], str]) -> NodeState | None:
        """Acquire the node and return its state.

        Returns None if `why_not` gives a reason or another run has the claim. If an earlier write succeeded but its
        answer was lost, the claim is not written again.
        """
        claim, written = self._claim(until), None

        def acquiring(node: NodeState) -> dict[str, Any] | None:
            nonlocal written
            written = node if is_written(node, claim) else None
            if written is not None or why_not(node):
                return None
            return acquire(node, claim, self.now(), self.gives_way)

        return self.write(acquiring) or written

    def acquire_or_renew(self, until: datetime, annotations: Annotations = nothing) -> NodeState | None:
        """Acquire or renew the claim until this time; None if another run has it."""

        def acquiring(node: NodeState) -> dict[str, Any] | None:
            patch = acquire(
                node, self._claim(until), self.now(), lambda held: self.is_own(held) or self.gives_way(held)
            )
            return patch and annotated(node, annotations(node), patch)

        return self.write(acquiring)

    def release(self, annotations: Annotations = nothing) -> NodeState | None:
        """Release the claim. The annotations are written even if another run now has the node."""

        def giving_back(node: NodeState) -> dict[str, Any] | None:
            patch, more = release(node, self._claim(self.now()), self.gives_way), annotations(node)
            return annotated(node, more, patch) if more else patch

        return self.write(giving_back)

    def is_to_clear(self, node: NodeState) -> bool:
        """Whether the Node has marks of a run that has ended."""
        return clear(node, self.now(), self.gives_way) is not None

    def clear(self) -> NodeState | None:
        """Remove the marks of runs that have ended."""
        return self.write(lambda node: clear(node, self.now(), self.gives_way))

    def is_own(self, claim: Claim) -> bool:
        return claim.is_same_run(self._claim(claim.until))

    def _claim(self, until: datetime) -> Claim:
        return Claim(self.kind, self.name, until)
