"""Which processes are those of a deep test, and until when each was seen: by that an Xid is put down to a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from healthcheck.checks.expectation import SEEN_SECONDS, DeepRun
from healthcheck.model import ProbeError

_LOOK_SECONDS = 2.0
"""Between two looks while a run goes on: a test that ends by its own error may be gone before its line is judged."""


class OwnTests(threading.Thread):
    """Looks while a run goes on, and when it is asked to."""

    def __init__(
        self, find: Callable[[], frozenset[int]], run: Callable[[], DeepRun | None], clock: Callable[[], float]
    ) -> None:
        super().__init__(name="tests", daemon=True)
        self._find = find
        self._run = run
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = False
        self._seen: Mapping[int, float] = MappingProxyType({})

    @property
    def seen(self) -> Mapping[int, float]:
        """By number of the process, when it was last seen (monotonic)."""
        return self._seen

    def look(self) -> None:
        """Where nobody can tell, nothing new is known: what a line says counts then."""
        try:
            found = self._find()
        except (OSError, ProbeError):
            return
        now = self._clock()
        kept = {pid: at for pid, at in self._seen.items() if now - at <= SEEN_SECONDS}
        self._seen = MappingProxyType({**kept, **dict.fromkeys(found, now)})

    def hurry(self) -> None:
        """The Node changed: a run may have begun."""
        self._wake.set()

    def end(self) -> None:
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        while not self._stopping:
            run = self._run()
            goes_on = run is not None and run.until is None
            if goes_on:
                self.look()
            self._wake.wait(_LOOK_SECONDS if goes_on else None)
            self._wake.clear()
