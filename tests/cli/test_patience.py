"""Waiting for a cluster: once somebody wants it to end, nothing new is begun."""

from __future__ import annotations

import threading

import pytest

from cli.patience import Interrupted, Patience


def test_nothing_is_begun_any_more_after_ctrl_c() -> None:
    stopping = threading.Event()
    begun: list[str] = []
    patience = Patience(stopping, begun.append, 0.0)
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

    assert Patience(stopping, lambda _: None, 0.0).ask(cordon) == "cordoned"
