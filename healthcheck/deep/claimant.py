"""Claims on a node for all kinds of runs: acquire, renew, release, and remove stale claims.

Each write is computed from the current Node, and computed again after a concurrent change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from healthcheck.deep.claim import (
    Claim,
    GivesWay,
    RunKind,
    acquire,
    claim_on,
    clear,
    is_written,
    never_gives_way,
    release,
)
from healthcheck.node.state import NodeState, PatchFor, annotated

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
