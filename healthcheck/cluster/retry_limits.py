"""Retries of requests to the cluster, after a missing answer or a conflict."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any, TypeVar

import tenacity
from msgspec import Struct

from healthcheck.cluster.errors import ClusterError, Conflict, Unavailable

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
