"""Waits and retries of a command. Ctrl-C ends every wait; an unreachable API server does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from healthcheck.cluster import retry_limits
from healthcheck.cluster.errors import Conflict, Unauthorized, Unavailable

T = TypeVar("T")
_ASK_SECONDS = 60.0
"""Retry time of one request after outages and conflicts."""
_LONGEST_PAUSE_SECONDS = 10.0
"""Longest pause before a retry, even if the server requests more, because a user is waiting."""


class Interrupted(Exception):
    """Ctrl-C was pressed during a wait."""


class TookTooLong(Exception):
    """The awaited state was not reached in time."""


class CommandRetries:
    """Waits and retries of a command, until `stopping`. `say` is called once when the API server stops answering."""

    def __init__(self, stopping: threading.Event, say: Callable[[str], None], every_seconds: float) -> None:
        self._stopping = stopping
        self._say = say
        self._every_seconds = every_seconds
        self._asking = retry_limits.RetryLimits(
            _ASK_SECONDS, longest_asked=_LONGEST_PAUSE_SECONDS, sleep=stopping.wait, is_over=stopping.is_set
        )
        self._away = False

    @property
    def is_over(self) -> bool:
        return self._stopping.is_set()

    def until(self, ask: Callable[[], T | None], seconds: float) -> T:
        """Call `ask` until it returns a value, and return that.

        Raises Interrupted, TookTooLong, and errors of `ask`.
        """

        def looking() -> T | None:
            seen = ask()
            self._away = False
            return seen

        waiting = replace(self._asking, seconds=seconds, errors=(Unavailable,), say=self._say_away)
        seen = self._waited(lambda: waiting.until(looking, self._every_seconds))
        if seen is None:
            raise Interrupted if self.is_over else TookTooLong
        return seen

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer of a request, repeated for at most a minute on outages and conflicts.

        Raises Interrupted, and errors of `question`.
        """
        return self._waited(lambda: self._asking.ask(question))

    def _waited(self, wait: Callable[[], T]) -> T:
        """Return the result of `wait`. Raises Interrupted if the command was interrupted before or during it."""
        if self.is_over:
            raise Interrupted
        try:
            return wait()
        except (Unavailable, Conflict) as error:
            if self.is_over:
                raise Interrupted from error
            raise

    def _say_away(self, error: BaseException) -> None:
        if not self._away:
            state = "accept your credentials" if isinstance(error, Unauthorized) else "answer"
            self._say(f"the API server does not {state}; retrying: {error}")
        self._away = True
