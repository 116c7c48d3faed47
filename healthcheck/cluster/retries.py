"""Retries of requests to the cluster, after a missing answer or a conflict.

Ctrl-C ends every wait of a command; an unreachable API server does not.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import tenacity
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, Unauthorized, Unavailable

T = TypeVar("T")


class RetryLimits(Struct, frozen=True):
    """Retry limits for requests. `seconds` is the total time, and `errors` are those worth a retry.

    `say` is called with each error before the pause that follows it. A caller that may have to end early passes
    `is_over`, and a `sleep` that returns early when `is_over` becomes true.
    """

    seconds: float
    errors: tuple[type[ClusterError], ...] = (Unavailable, Conflict)
    longest_pause: float = 10.0
    """Longest pause between two tries, unless the server requests a longer one."""
    longest_asked: float = math.inf
    """Longest pause that the server can request."""
    sleep: Callable[[float], Any] = time.sleep
    is_over: Callable[[], bool] = lambda: False
    say: Callable[[BaseException], object] = lambda _: None

    def ask(self, question: Callable[[], T]) -> T:
        """Call `question` until it succeeds and return its result; raise its last error if it never does."""
        return self._retrying(tenacity.retry_never, 0.0)(question)

    def until(self, ask: Callable[[], T | None], every_seconds: float) -> T | None:
        """Call `ask` until it returns a value, and return that value.

        If it never does, return its last empty result or raise its last error.
        """
        return self._retrying(tenacity.retry_if_result(operator.not_), every_seconds)(ask)

    def _retrying(self, retry: tenacity.retry_base, every_seconds: float) -> tenacity.Retrying:
        return tenacity.Retrying(
            retry=retry | tenacity.retry_if_exception_type(self.errors),
            wait=lambda state: self._pause(state, every_seconds),
            stop=lambda state: self.is_over() or tenacity.stop_after_delay(self.seconds)(state),
            sleep=self.sleep,
            before_sleep=self._before_sleep,
            retry_error_callback=_last,
        )

    def _pause(self, state: tenacity.RetryCallState, every_seconds: float) -> float:
        error = _error(state)
        if error is None:
            return every_seconds
        asked = (error.retry_after_seconds if isinstance(error, Unavailable) else None) or 0.0
        backoff = tenacity.wait_random_exponential(multiplier=0.1, max=self.longest_pause)
        return max(min(asked, self.longest_asked), backoff(state))

    def _before_sleep(self, state: tenacity.RetryCallState) -> None:
        if error := _error(state):
            self.say(error)


def _error(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _last(state: tenacity.RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()


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
        self._asking = RetryLimits(
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
