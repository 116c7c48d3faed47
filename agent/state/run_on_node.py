"""Start and end of the last deep run on the node, of any kind."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from healthcheck.deep.claim import Claim, claim_on
from healthcheck.model import Now
from healthcheck.model.node_facts import DeepDiagnostic
from healthcheck.node.state import NodeState


class RunOnNode(Struct, frozen=True):
    """Deep run on the node, from the changes of the Node so far."""

    held: Claim | None = None
    deep_run: DeepDiagnostic | None = None
    node_was_seen: bool = False

    def seen(self, node: NodeState | None, now: Now) -> RunOnNode:
        """Return the state after one more change of the Node; None: it is deleted."""
        held, deep_run = claim_on(node, now.wall) if node is not None else None, self.deep_run
        if held is not None and not (self.held is not None and held.is_same_run(self.held)):
            # A claim that existed before this agent: its start is unknown.
            deep_run = DeepDiagnostic(held.kind.value, now.monotonic if self.node_was_seen else 0.0)
        elif held is None:
            deep_run = _ended(deep_run, now.monotonic)
        return RunOnNode(held, deep_run, self.node_was_seen or node is not None)

    def at(self, now: Now) -> DeepDiagnostic | None:
        """Return the current run or the last one.

        A run has ended at its `until`, even if the Node still has its claim.
        """
        if self.held is None or now.wall < self.held.until:
            return self.deep_run
        return _ended(self.deep_run, now.monotonic - (now.wall - self.held.until).total_seconds())


def _ended(run: DeepDiagnostic | None, at: float) -> DeepDiagnostic | None:
    return replace(run, until=at) if run is not None and run.until is None else run
