"""Result of `gpu-healthcheck reset`, as a person reads it."""

from __future__ import annotations

from io import StringIO

import pytest

from cli.reset import show
from cli.reset_node import ResetOutcome
from healthcheck.host.console import Screen


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "the GPUs work again, without a reboot\n"),
        (0.3, "the GPUs work again, without a reboot\n"),
        (28.4, "the GPUs work again after 28 s, without a reboot\n"),
    ],
)
def test_reset_followed_at_its_end_states_no_duration(seconds: float, text: str) -> None:
    out = StringIO()
    show(ResetOutcome("a", "pass", seconds=seconds), Screen(file=out, width=80))

    assert out.getvalue() == text
