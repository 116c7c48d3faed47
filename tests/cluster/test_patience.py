"""Retries: the errors that cause them, their duration, and their end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound, Unavailable
from gpu_healthcheck.healthcheck.cluster.retries import RetryLimits
from gpu_healthcheck.quarantine import node_marks

AWAY = Unavailable("away")


@dataclass
class Answers:
    """Answers that are returned one after the other. An exception is raised."""

    left: list[object]
    asked: int = 0

    def __call__(self) -> str:
        self.asked += 1
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


@dataclass
class Waits:
    """Takes no time; `ends_at` of them ends it."""

    ends_at: float = math.inf
    seconds: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def is_over(self) -> bool:
        return len(self.seconds) >= self.ends_at


def patience(waits: Waits, seconds: float = math.inf, say: Callable[[BaseException], object] = print) -> RetryLimits:
    return RetryLimits(seconds, longest_pause=0.2, sleep=waits.sleep, is_over=waits.is_over, say=say)


def test_retriable_error_is_retried_and_logged() -> None:
    waits, exceptions = Waits(), list[BaseException]()
    answers = Answers([AWAY, Conflict("faster"), "yes"])

    assert patience(waits, say=exceptions.append).ask(answers) == "yes"
    assert ([type(error) for error in exceptions], len(waits.seconds)) == ([Unavailable, Conflict], 2)
    assert all(0 <= seconds <= 0.2 for seconds in waits.seconds)


def test_a_server_that_asks_for_a_longer_pause_gets_it() -> None:
    waits = Waits()
    patience(waits).ask(Answers([Unavailable("busy", 7.0), "yes"]))
    assert waits.seconds == [7.0]


def test_but_not_of_whoever_has_no_time_for_it() -> None:
    waits = Waits()
    replace(patience(waits), longest_asked=3.0).ask(Answers([Unavailable("busy", 600.0), "yes"]))
    assert waits.seconds == [3.0]


@pytest.mark.parametrize(
    "asks", [node_marks._AT_THE_START, node_marks._AT_THE_END], ids=["to have its node", "to tell its end"]
)
def test_a_quarantine_run_waits_no_longer_than_its_pod_may(asks: RetryLimits) -> None:
    waits = Waits()
    replace(asks, sleep=waits.sleep).ask(Answers([Unavailable("busy", 600.0), "yes"]))
    assert len(waits.seconds) == 1
    assert waits.seconds[0] <= 30.0


@pytest.mark.parametrize(
    ("errors", "waits", "seconds", "asked"),
    [
        ([NotFound("gone")], Waits(), math.inf, 1),
        ([Forbidden("no", "get", "nodes")], Waits(), math.inf, 1),
        ([AWAY, AWAY, Conflict("faster")], Waits(ends_at=2), math.inf, 3),
        ([AWAY], Waits(ends_at=0), math.inf, 1),
        ([AWAY], Waits(), 0.0, 1),
    ],
    ids=["it will not end", "nor this", "somebody ends it", "it was over before", "its time is over"],
)
def test_last_message_is_raised(errors: Iterable[ClusterError], waits: Waits, seconds: float, asked: int) -> None:
    answers = Answers(list(errors))
    last = answers.left[-1]
    with pytest.raises(ClusterError) as raised:
        patience(waits, seconds).ask(answers)
    assert (raised.value, answers.asked) == (last, asked)


def test_call_is_repeated_until_it_returns_a_value() -> None:
    waits = Waits()
    assert patience(waits).until(Answers(["", AWAY, "", "seen"]), 2.0) == "seen"
    assert (waits.seconds[0], waits.seconds[2], waits.seconds[1] <= 0.2) == (2.0, 2.0, True)


def test_call_without_a_value_in_time_returns_none() -> None:
    assert patience(Waits(ends_at=1)).until(Answers([AWAY, ""]), 2.0) == ""


def test_call_that_fails_raises_its_error() -> None:
    with pytest.raises(Unavailable):
        patience(Waits(ends_at=1)).until(Answers(["", AWAY]), 2.0)
