"""Waits for a cluster: after an interruption nothing new starts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpu_healthcheck.healthcheck.cluster.errors import Unauthorized, Unavailable
from gpu_healthcheck.healthcheck.cluster.retries import CommandRetries, Interrupted


def test_nothing_is_begun_any_more_after_ctrl_c() -> None:
    stopping = threading.Event()
    begun: list[str] = []
    patience = CommandRetries(stopping, begun.append, 0.0)
    assert patience.until(lambda: "seen", 1.0) == patience.ask(lambda: "seen")

    stopping.set()

    with pytest.raises(Interrupted):
        patience.until(lambda: begun.append("a Job is made"), 1.0)
    with pytest.raises(Interrupted):
        patience.ask(lambda: begun.append("a node is cordoned"))
    assert begun == []


def test_what_was_begun_before_ctrl_c_comes_to_its_end() -> None:
    stopping = threading.Event()

    def cordon() -> str:
        stopping.set()
        return "cordoned"

    assert CommandRetries(stopping, lambda _: None, 0.0).ask(cordon) == "cordoned"


class _Passing(threading.Event):
    """Time that passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


@pytest.mark.parametrize("wait", [lambda entry, look: entry.ask(look), lambda entry, look: entry.until(look, 60.0)])
def test_a_person_waits_no_longer_than_a_moment_for_a_busy_server(
    wait: Callable[[CommandRetries, Callable[[], str]], str],
) -> None:
    stopping, answers = _Passing(), iter([Unavailable("busy", 600.0)])

    def look() -> str:
        for error in answers:
            raise error
        return "seen"

    assert wait(CommandRetries(stopping, print, 0.0), look) == "seen"
    assert stopping.seconds == [10.0]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unavailable("list nodes: 503: busy"), "the API server does not answer; retrying: list nodes: 503: busy"),
        (
            Unauthorized("list nodes: 401: Unauthorized"),
            "the API server does not accept your credentials; retrying: list nodes: 401: Unauthorized",
        ),
    ],
)
def test_rejected_credentials_are_no_missing_answer(error: Unavailable, message: str) -> None:
    answers, reported = iter([error]), list[str]()

    def look() -> str:
        for failure in answers:
            raise failure
        return "seen"

    assert CommandRetries(_Passing(), reported.append, 0.0).until(look, 60.0) == "seen"
    assert reported[:1] == [message]
