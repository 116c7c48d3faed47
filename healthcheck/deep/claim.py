"""Who holds a node for a deep run: the annotation `run`, with the label and the taint that go with it. Pure.

A claim is made and given up by one patch of the Node that carries its `resourceVersion`, so that of two who want the
node only one gets it. Past its `until` it is nobody's, and whoever comes may clear it away.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from msgspec import Struct

from healthcheck.node.state import MAINTENANCE, MODE, RUN, NodeState
from healthcheck.text.json_rows import Row, as_json, one_of, row_in, word
from healthcheck.text.moments import moment_or_none
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RecordError

FARTHEST = timedelta(days=3)
"""No deep run takes longer: an `until` beyond it was never ours, and would hold the node for ever."""
_EFFECT = "NoSchedule"
_LONGEST_HOLDER = 320


class Kind(StrEnum):
    """What runs, as the label `mode` says it."""

    L2 = "l2"
    SWEEP = "sweep"
    QUARANTINE = "quarantine"


class Claim(Struct, frozen=True):
    """Of one deep run on a node. `holder` names it among those of its kind: of a sweep, its Job."""

    kind: Kind
    holder: str
    until: datetime

    def is_same_run(self, other: Self) -> bool:
        """A run that goes on moves its `until` on."""
        return (self.kind, self.holder) == (other.kind, other.holder)


class _ClaimRow(Row, frozen=True):
    """The annotation's keys."""

    kind: Annotated[Kind | None, one_of({one.value: one for one in Kind})] = None
    holder: Annotated[str | None, word] = None
    until: Annotated[datetime | None, moment_or_none] = None


GivesWay = Callable[[Claim], bool]
"""Whether a claim holds nothing against whoever asks, whatever its `until`: its run is his own, or known to be dead."""


def never_gives_way(_: Claim) -> bool:
    """To whoever knows no more than its `until`."""
    return False


def claim_on(node: NodeState, now: datetime, gives_way: GivesWay = never_gives_way) -> Claim | None:
    """The claim that holds the node; None: there is none, it is over its time, gives way, or can't be read."""
    annotation = node.annotations.get(RUN)
    claim = claim_in(annotation, now) if annotation else None
    return claim if claim is not None and not gives_way(claim) else None


def claim_in(annotation: str, now: datetime) -> Claim | None:
    """The claim that the annotation `run` holds, unless it is over its time or can't be read."""
    try:
        claim = _parse(annotation)
    except RecordError:
        return None
    return claim if now < claim.until <= now + FARTHEST else None


def why_unread(node: NodeState) -> Iterator[str]:
    """What is wrong with an annotation `run` that nobody can read, and whoever comes clears away."""
    try:
        if RUN in node.annotations:
            _parse(node.annotations[RUN])
    except RecordError as error:
        yield f"annotation {RUN}: {error}; it is removed"


def is_marked(node: NodeState) -> bool:
    """Whether anything on the Node says that a deep run uses it."""
    return RUN in node.annotations or MODE in node.labels or any(map(_is_maintenance, node.taints))


def take(node: NodeState, claim: Claim, now: datetime, gives_way: GivesWay = never_gives_way) -> dict[str, Any] | None:
    """The patch that makes the claim; None where another one holds the node.

    A sweep sets no taint: its Job requests the GPUs, and a taint would keep real work from preempting it.
    """
    if claim_on(node, now, gives_way) is not None:
        return None
    kept = [taint for taint in node.taints if not _is_maintenance(taint)]
    if claim.kind is not Kind.SWEEP:
        kept.append({"key": MAINTENANCE, "value": claim.kind.value, "effect": _EFFECT})
    return _patch(node, _text(claim), claim.kind.value, kept)


def give_back(node: NodeState, claim: Claim, gives_way: GivesWay = never_gives_way) -> dict[str, Any] | None:
    """The patch that takes away the claim of this run, or one that gives way; None where neither stands there."""
    try:
        standing = _parse(node.annotations.get(RUN, ""))
    except RecordError:
        return None
    return _without_marks(node) if standing.is_same_run(claim) or gives_way(standing) else None


def is_written(node: NodeState, claim: Claim) -> bool:
    """Whether this claim stands on the Node, to the second."""
    return node.annotations.get(RUN) == _text(claim)


def clear(node: NodeState, now: datetime, gives_way: GivesWay = never_gives_way) -> dict[str, Any] | None:
    """The patch that takes away what no living run answers for; None where nothing of it stands.

    A claim that is over its time, gives way or can't be read, a label or taint without one; and `maintenance=sweep` in
    any case: the scripts that this system replaces left it behind when they were killed, and no sweep of ours sets it.
    """
    claim = claim_on(node, now, gives_way)
    if claim is None:
        return _without_marks(node) if is_marked(node) else None
    kept = [taint for taint in node.taints if not _is_maintenance(taint) or taint.get("value") != Kind.SWEEP.value]
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
    # With another effect it is another taint, and somebody else's.
    return (taint.get("key"), taint.get("effect")) == (MAINTENANCE, _EFFECT)


def _text(claim: Claim) -> str:
    return json.dumps(as_json(_ClaimRow(claim.kind, claim.holder, claim.until)), separators=(",", ":"))


def _parse(text: str) -> Claim:
    row = row_in(_ClaimRow, records.load(text))
    try:
        row.must_have("kind", "holder", "until")
    except ValueError as error:
        raise RecordError(f"no run ({{kind, holder, until}}): {error}") from None
    assert row.kind is not None
    assert row.until is not None
    return Claim(row.kind, (row.holder or "")[:_LONGEST_HOLDER], row.until)
