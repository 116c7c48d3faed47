"""Query of a source in a thread, so that no check cycle waits for it.

Until the next answer arrives, the last answer is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec import Struct

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class TimedAnswer(Struct, Generic[Question, Answer], frozen=True):
    """A question, its time on the monotonic clock, and its answer."""

    question: Question
    at: float
    answer: Answer


@dataclass
class LatestAnswer(Generic[Question, Answer]):
    """Queries at the first use, and when the last answer is outdated, with one thread at a time."""

    name: str
    """Name of the thread."""
    ask: Callable[[Question], Answer]
    """Query function. It must not raise: a failure is an answer too."""
    is_outdated: Callable[[TimedAnswer[Question, Answer], Question, float], bool]
    """Returns whether an answer is outdated for this question at this time (monotonic)."""
    clock: Callable[[], float] = time.monotonic
    _last: TimedAnswer[Question, Answer] | None = field(default=None, init=False)
    """Last answer. It is only replaced, never changed, because two threads use it."""
    asking: threading.Thread | None = field(default=None, init=False)

    def read(self, question: Question, *, wait: bool) -> TimedAnswer[Question, Answer] | None:
        """Return the last question with its answer, or None before the first answer.

        If the answer is outdated, query in a thread.
        """
        last = self._last
        is_asking = self.asking is not None and self.asking.is_alive()
        if not is_asking and (last is None or self.is_outdated(last, question, self.clock())):
            self.asking = threading.Thread(target=self._ask, args=(question,), name=self.name, daemon=True)
            self.asking.start()
        if wait and self.asking:
            self.asking.join()
        return self._last

    def _ask(self, question: Question) -> None:
        at = self.clock()
        self._last = TimedAnswer(question, at, self.ask(question))
