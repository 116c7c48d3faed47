"""Waiting for a cluster, so that Ctrl-C ends every wait and an API server that is away ends none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import tenacity

from healthcheck.cluster.errors import Conflict, Unavailable

T = TypeVar("T")
_ASK_SECONDS = 60.0
"""How long one question is asked again where nobody answers, or another was faster."""
_LONGEST_PAUSE_SECONDS = 10.0


class Interrupted(Exception):
    """Somebody pressed Ctrl-C while it waited."""


class TookTooLong(Exception):
    """What was waited for did not come in its time."""


class Patience:
    """Waits until `stopping`. `say` is told when the API server goes away, once."""

    def __init__(self, stopping: threading.Event, say: Callable[[str], None], every_seconds: float) -> None:
        self._stopping = stopping
        self._say = say
        self._every_seconds = every_seconds
        self._away = False

    @property
    def is_over(self) -> bool:
        return self._stopping.is_set()

    def until(self, look: Callable[[], T | None], seconds: float) -> T:
        """What `look` gives, once it gives something. Raises Interrupted, TookTooLong, and what `look` raises."""
        self._go_on()
        again = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda seen: seen is None) | tenacity.retry_if_exception_type(Unavailable),
            wait=tenacity.wait_fixed(self._every_seconds),
            stop=tenacity.stop_after_delay(seconds) | tenacity.stop_when_event_set(self._stopping),
            sleep=tenacity.sleep_using_event(self._stopping),
            before_sleep=self._tell,
        )
        try:
            seen = again(look)
        except tenacity.RetryError as error:
            raise self._end(error) from error
        assert seen is not None
        return seen

    def ask(self, question: Callable[[], T]) -> T:
        """Its answer; asked again, for a minute at most, while nobody answers or another was faster.

        Raises Interrupted, and what `question` raises.
        """
        self._go_on()
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((Unavailable, Conflict)),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE_SECONDS),
            stop=tenacity.stop_after_delay(_ASK_SECONDS) | tenacity.stop_when_event_set(self._stopping),
            sleep=tenacity.sleep_using_event(self._stopping),
        )
        try:
            return again(question)
        except tenacity.RetryError as error:
            raise self._end(error) from error

    def _go_on(self) -> None:
        """Nothing new is begun once somebody wants it to end. Raises Interrupted."""
        if self.is_over:
            raise Interrupted

    def _end(self, error: tenacity.RetryError) -> Exception:
        """As what a wait ends that brought nothing."""
        if self._stopping.is_set():
            return Interrupted()
        return error.last_attempt.exception() if error.last_attempt.failed else TookTooLong()  # type: ignore[return-value]

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None and not self._away:
            self._say(f"the API server does not answer, and is asked again: {error}")
        self._away = error is not None
