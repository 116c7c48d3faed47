"""Since when a deep run has had the node, whoever runs it, and until when one had it last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from healthcheck.checks.expectation import DeepRun
from healthcheck.deep.claim import Claim, claim_on
from healthcheck.model import Now
from healthcheck.node.state import NodeState


class Runs:
    """Told the Node at each change of it, on one thread; asked from others."""

    def __init__(self, clock: Callable[[], Now]) -> None:
        self._clock = clock
        self._held: Claim | None = None
        self._run: DeepRun | None = None
        self._has_seen = False

    def saw(self, node: NodeState | None) -> None:
        now = self._clock()
        held = claim_on(node, now.wall) if node is not None else None
        if held is not None and not _is_same(held, self._held):
            # One that was there before us: nobody knows since when.
            self._run = DeepRun(held.kind.value, now.monotonic if self._has_seen else 0.0)
        elif held is None:
            self._run = _ended(self._run, now.monotonic)
        self._held = held
        self._has_seen = self._has_seen or node is not None

    def now(self) -> DeepRun | None:
        """The run that has the node, or had it last. One past its `until` has ended then, whatever the Node says."""
        now, held = self._clock(), self._held
        if held is None or now.wall < held.until:
            return self._run
        return _ended(self._run, now.monotonic - (now.wall - held.until).total_seconds())


def _is_same(held: Claim, before: Claim | None) -> bool:
    """A quarantine run moves its `until` on while it goes on."""
    return before is not None and (held.kind, held.holder) == (before.kind, before.holder)


def _ended(run: DeepRun | None, at: float) -> DeepRun | None:
    return replace(run, until=at) if run is not None and run.until is None else run
