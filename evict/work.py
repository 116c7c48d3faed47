"""Nodes with the time of their next step, worked off by a few threads, one thread for a Node at a time."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable

import structlog

from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict

log = structlog.get_logger()

_THREADS = 8
_RETRY_SECONDS, _DEFECT_SECONDS = (1.0, 5.0), 60.0


class NodeWork:
    """Calls `handle` for each Node when its next step is due. `handle` returns the seconds until the following one."""

    def __init__(self, handle: Callable[[str], float | None]) -> None:
        self._handle = handle
        self._condition = threading.Condition()
        self._due: dict[str, float] = {}
        """Time of the next step by Node (monotonic)."""
        self._busy: set[str] = set()

    def start(self) -> None:
        for number in range(_THREADS):
            threading.Thread(target=self._run, name=f"evict-{number}", daemon=True).start()

    def ask(self, name: str, seconds: float = 0.0) -> None:
        """Handle the Node after this time, or earlier if that is planned."""
        with self._condition:
            self._due[name] = min(time.monotonic() + seconds, self._due.get(name, math.inf))
            self._condition.notify()

    def ask_all(self) -> None:
        """Handle all known Nodes now."""
        with self._condition:
            self._due = dict.fromkeys((*self._due, *self._busy), 0.0)
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            name = self._next()
            try:
                seconds = self._handle(name)
            except Conflict:  # the Node was changed meanwhile
                seconds = 0.0
            except ClusterError as error:
                log.warning("a step of an eviction failed, and is retried", node=name, error=str(error))
                seconds = max(error.retry_after_seconds or 0.0, random.uniform(*_RETRY_SECONDS))  # noqa: S311 - jitter
            except Exception:  # a defect of ours: the other Nodes go on
                log.exception("a step of an eviction failed", node=name)
                seconds = _DEFECT_SECONDS
            with self._condition:
                self._busy.discard(name)
            if seconds is not None:
                self.ask(name, seconds)

    def _next(self) -> str:
        """Wait until a Node is due, and return it."""
        with self._condition:
            while True:
                free = {name: at for name, at in self._due.items() if name not in self._busy}
                name = min(free, key=free.__getitem__, default="")
                left = free[name] - time.monotonic() if name else math.inf
                if left <= 0:
                    del self._due[name]
                    self._busy.add(name)
                    return name
                self._condition.wait(min(left, threading.TIMEOUT_MAX))
