"""What the agent's own deep test writes on its Node: that it has the node, what it found, and the node given back.

The result lies on the disk until the Node has it, so that neither an API server nor an agent that is away loses it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
import tenacity

from healthcheck.cluster.client import NodeChange
from healthcheck.cluster.errors import ClusterError
from healthcheck.deep import claim as runs
from healthcheck.deep.claim import Claim, Kind
from healthcheck.deep.due import keeping_verdict, obstacle
from healthcheck.deep.record import deep_record, untaken
from healthcheck.model import Now
from healthcheck.node.state import SWEEP_RESULT, NodeState
from healthcheck.text.moments import is_future
from healthcheck.verdict import record as records
from healthcheck.verdict.record import RecordError

log = structlog.get_logger()

HOLDER = "agent"
"""Of a run of the node's own agent: there is one on each node."""
KIND = "sweep-result"
_KEPT = f"{KIND}.json"
_CAP_SECONDS = 60.0
_STILL_HEARD = timedelta(minutes=1)
"""That the node's agent is not silent needs no proof: it is us."""


@dataclass(frozen=True)
class OwnNode:
    """The door to it. `seen` is as the watch last showed it, None where it has not yet."""

    read: Callable[[], NodeState]
    update: Callable[[NodeChange], NodeState | None]
    seen: Callable[[], NodeState | None]


class Marks:
    """Used by the deep worker; `clear` also by another thread."""

    def __init__(self, node: OwnNode, clock: Callable[[], Now], folder: Path | None, stopping: threading.Event) -> None:
        self._node = node
        self._clock = clock
        self._kept = folder / _KEPT if folder is not None else None
        self._stopping = stopping
        self._run: Claim | None = None
        self._was_seen = False

    def hindrance(self, node: NodeState) -> str:
        """What on the Node keeps a deep test away, '' where nothing does."""
        now = self._clock().wall
        return obstacle(node, now + _STILL_HEARD, now)

    def take(self, seconds: float) -> Claim | None:
        """Have the node for so long at most; None where something has come between. Raises ClusterError."""
        run = self._run = Claim(Kind.L2, HOLDER, self._clock().wall + timedelta(seconds=seconds))
        self._was_seen = False

        def taking(node: NodeState) -> Mapping[str, Any] | None:
            return None if self.hindrance(node) else runs.take(node, run, self._clock().wall)

        return run if self._node.update(taking) else None

    def is_ours(self) -> bool:
        """Whether the Node still says so, as far as anybody has seen; the watch may not have come to our write yet."""
        node = self._node.seen()
        held = runs.claim_on(node, self._clock().wall) if node is not None else None
        if held is None:
            return self._run is not None and not self._was_seen
        self._was_seen = (held.kind, held.holder) == (Kind.L2, HOLDER)
        return self._was_seen

    def give_back(self) -> None:
        """Whatever happened. Raises ClusterError: then `clear` does it later, or anybody past `until`."""
        run, self._run = self._run, None
        if run is not None:
            self._node.update(lambda node: runs.give_back(node, run))

    def clear(self) -> None:
        """Take away what a dead run left: one of ours that nobody runs, and any that is over its time."""
        node = self._node.seen()
        if node is not None and self._leftovers(node) is not None:
            with suppress(ClusterError):  # it is tried again after the next look
                self._node.update(self._leftovers)

    def tell(self, text: str, *, give_back: bool) -> None:
        """The record, and the node given back in the same write, as soon as the cluster takes it.

        Raises ClusterError where the agent has to end before that: the next one tells it.
        """
        run = self._run or Claim(Kind.L2, HOLDER, self._clock().wall)
        record = records.load(text)

        def telling(node: NodeState) -> Mapping[str, Any]:
            patch = (runs.give_back(node, run) if give_back else None) or {}
            metadata = patch.get("metadata", {"resourceVersion": node.resource_version})
            told = records.dump(keeping_verdict(record, node))
            annotations = {**metadata.get("annotations", {}), SWEEP_RESULT: told}
            return {**patch, "metadata": {**metadata, "annotations": annotations}}

        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ClusterError),
            wait=tenacity.wait_random_exponential(max=_CAP_SECONDS),
            sleep=tenacity.sleep_using_event(self._stopping),
            stop=tenacity.stop_when_event_set(self._stopping),
            reraise=True,
        )
        again(self._node.update, telling)
        self._forget()

    def keep(self, text: str) -> None:
        """The record on the disk, until it is told."""
        if self._kept is None:
            return
        new = self._kept.with_suffix(".new")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._kept)
        except OSError as error:
            log.warning("deep test: the result can't be kept on the disk", error=error.strerror)

    @property
    def has_kept(self) -> bool:
        """Whether a result lies on the disk that nobody has told yet."""
        return self._kept is not None and self._kept.exists()

    def tell_kept(self) -> None:
        """What an API server or an agent was away for, unless a newer result stands there. Raises ClusterError."""
        if self._kept is None or not self.has_kept:
            return
        try:
            text = self._kept.read_text(encoding="utf-8")[: 4 * records.LONGEST]
            kept = deep_record(records.load(text), KIND)
        except OSError as error:
            log.warning("deep test: a result that was kept can't be read now", error=error.strerror)
            return
        except (RecordError, ValueError, KeyError) as error:
            log.warning("deep test: a result that was kept can't be read", error=str(error))
            self._forget()
            return
        now = self._clock().wall
        standing = [one for one in untaken(self._node.read(), {}) if one.kind == KIND]
        if any(kept.result.at <= one.result.at and not is_future(one.result.at, now) for one in standing):
            self._forget()
            self.clear()
        else:
            self.tell(text, give_back=True)

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.unlink(missing_ok=True)

    def _leftovers(self, node: NodeState) -> Mapping[str, Any] | None:
        now = self._clock().wall
        held = runs.claim_on(node, now)
        if held is not None and self._run is None and (held.kind, held.holder) == (Kind.L2, HOLDER):
            # With a result that is not told yet the node would stand untainted in between: they go in one write.
            return None if self.has_kept else runs.give_back(node, held)
        return runs.clear(node, now)
