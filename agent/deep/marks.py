"""Marks of the agent's own deep diagnostic on its Node: the claim, the result, and the end of the claim.

The result stays on the disk until the Node has it, so that no outage of the API server or the agent loses it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.retries import RetryLimits
from gpu_healthcheck.healthcheck.deep.claim import Claim, Claimant, RunKind
from gpu_healthcheck.healthcheck.deep.deep_record import deep_record, records_to_adopt
from gpu_healthcheck.healthcheck.deep.due import keeping_verdict, obstacle
from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.host.node_file import NotAFile
from gpu_healthcheck.healthcheck.model import Now, ProbeError
from gpu_healthcheck.healthcheck.node.devices import NodeDevices
from gpu_healthcheck.healthcheck.node.state import SWEEP_RESULT, NodeState, PatchFor, annotated
from gpu_healthcheck.healthcheck.text.moments import is_future
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RunRecord

log = structlog.get_logger()

_NAME = "sweep-result.json"
_LONGEST = 4 * records.LONGEST


class KeptResult(Struct, frozen=True):
    """Store of the result. `folder` None: no disk, as in a dry run."""

    folder: Path | None

    @property
    def is_there(self) -> bool:
        return self._path is not None and self._path.exists() and not self._path.is_dir()

    def keep(self, record: RunRecord) -> None:
        if self._path is None:
            return
        try:
            node_file.replace_whole(self._path, records.dump(record).encode())
        except OSError as error:
            log.warning("deep test: the result can't be stored on the disk", error=error.strerror)

    def read(self) -> RunRecord | None:
        """Return the record; None if it is missing or unreadable. A permanently unreadable record is dropped."""
        if self._path is None or not self.is_there:
            return None
        try:
            return records.parse(RunRecord, node_file.read_start(self._path, _LONGEST).decode())
        except NotAFile as error:
            log.warning("deep test: a stored result is not a regular file", error=error.strerror)
            self.drop()
        except OSError as error:
            log.warning("deep test: a stored result can't be read now", error=error.strerror)
        except ValueError as error:
            log.warning("deep test: a stored result can't be read", error=str(error))
            self.drop()
        return None

    def drop(self) -> None:
        if self._path is not None:
            with suppress(IsADirectoryError):
                self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path | None:
        return self.folder / _NAME if self.folder is not None else None


HOLDER = "agent"
"""Owner name of the agent's runs; each node has one agent."""
KIND = "sweep-result"
_LONGEST_PAUSE_SECONDS = 60.0
"""Longest pause before a retry, also if the server requests a longer one: the taint of a finding waits for it."""
_STILL_HEARD = timedelta(minutes=1)
"""The agent's heartbeat needs no check here: this is the agent."""


class OwnNode(Struct, frozen=True):
    """Access to the Node. `seen` is the Node as last delivered by the watch; None before that."""

    read: Callable[[], NodeState]
    update: Callable[[PatchFor], NodeState | None]
    seen: Callable[[], NodeState | None]
    are_claimed: Callable[[], bool]
    """Whether DRA allocates the Node's GPUs. Raises ProbeError if that is unknown."""


class DeepTestMarks:
    """Marks of one Node. The deep worker uses them; another thread also calls `clear`."""

    def __init__(self, node: OwnNode, clock: Callable[[], Now], folder: Path | None, stopping: threading.Event) -> None:
        self._node = node
        self._clock = clock
        self._kept = KeptResult(folder)
        self._until_the_end = RetryLimits(
            math.inf,
            (ClusterError,),
            _LONGEST_PAUSE_SECONDS,
            _LONGEST_PAUSE_SECONDS,
            sleep=stopping.wait,
            is_over=stopping.is_set,
        )
        self._claimant = Claimant(RunKind.L2, HOLDER, node.update, lambda: clock().wall, self._gives_way)
        self._is_at_work = False
        self._was_seen = False

    def hindrance(self, node: NodeState) -> str:
        """Return the reason on the Node that prevents a deep diagnostic; '' without one."""
        now = self._clock().wall
        try:
            seen = replace(node, devices=NodeDevices()) if self._node.are_claimed() else node
        except ProbeError as error:
            return f"it is unknown whether DRA allocates its GPUs: {error}"
        return obstacle(seen, now + _STILL_HEARD, now)

    def acquire(self, seconds: float) -> Claim | None:
        """Claim the node for a limited time; None if an obstacle has appeared. Raises ClusterError."""
        self._is_at_work, self._was_seen = True, False
        node = self._claimant.acquire(self._clock().wall + timedelta(seconds=seconds), self.hindrance)
        return self._claimant.claim_on(node) if node is not None else None

    def is_ours(self) -> bool:
        """Whether the Node has our claim, as far as observed; the watch may lag behind our write."""
        node = self._node.seen()
        if node is None or self._claimant.claim_on(node) is None:
            return self._is_at_work and not self._was_seen
        self._was_seen = self._claimant.has(node)
        return self._was_seen

    def release(self) -> None:
        """Release the node. After a ClusterError, `clear` releases it later, or any other client after `until`."""
        if self._is_at_work:
            self._is_at_work = False
            self._claimant.release()

    def clear(self) -> None:
        """Remove the claim of a dead run: a claim of this agent without a run, or any expired claim."""
        node = self._node.seen()
        if node is not None and self._claimant.is_to_clear(node):
            with suppress(ClusterError):  # retried after the next cycle
                self._claimant.clear()

    def tell(self, record: RunRecord, *, give_back: bool) -> None:
        """Write the record and release the node in one write, with retries.

        Raises ClusterError if the agent has to end first; the next agent writes it.
        """

        def result(node: NodeState) -> Mapping[str, str]:
            return {SWEEP_RESULT: records.dump(keeping_verdict(record, node))}

        def alone(node: NodeState) -> Mapping[str, Any]:
            return annotated(node, result(node))

        self._until_the_end.ask(
            partial(self._claimant.release, result) if give_back else partial(self._node.update, alone)
        )
        self._kept.drop()

    def keep(self, record: RunRecord) -> None:
        """Keep the record on the disk until the Node has it."""
        self._kept.keep(record)

    @property
    def has_kept(self) -> bool:
        """Whether the disk has a result that the Node lacks."""
        return self._kept.is_there

    def tell_kept(self) -> None:
        """Write a result that an outage delayed, unless the Node has a newer one. Raises ClusterError."""
        record = self._kept.read()
        if record is None:
            return
        try:
            kept = deep_record(record, KIND)
        except ValueError as error:
            log.warning("deep test: a stored result can't be read", error=str(error))
            self._kept.drop()
            return
        now = self._clock().wall
        on_node = [deep for deep in records_to_adopt(self._node.read(), {}) if deep.kind == KIND]
        if any(kept.result.at <= deep.result.at and not is_future(deep.result.at, now) for deep in on_node):
            self._kept.drop()
            self.clear()
        else:
            self.tell(record, give_back=True)

    def _gives_way(self, claim: Claim) -> bool:
        """Whether the claim is ours and has no run.

        It stays while the result is unwritten: one write does both, otherwise the node would be untainted in between.
        """
        return self._claimant.is_own(claim) and not self._is_at_work and not self.has_kept
