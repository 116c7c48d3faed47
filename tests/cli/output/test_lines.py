"""Lines for a person, on a terminal and piped."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from gpu_healthcheck.cli.output.lines import print_line
from gpu_healthcheck.healthcheck.host.console import Screen

LONG = "default/training-67b8b54f6f-nmbgs: of DaemonSet gpu-healthcheck-agent"


def printed(body: str, *, terminal: bool, whole: bool = False) -> list[str]:
    console = Screen(file=io.StringIO(), force_terminal=terminal, color_system=None, width=50)
    print_line(console, Text("12:00:00"), Text(body), whole=whole)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_print_line_wraps_between_words_on_a_terminal() -> None:
    assert printed(LONG, terminal=True) == [
        "12:00:00 default/training-67b8b54f6f-nmbgs: of",
        "         DaemonSet gpu-healthcheck-agent",
    ]


@pytest.mark.parametrize(("terminal", "whole"), [(False, False), (True, True)])
def test_print_line_in_a_pipe_stays_on_one_line(terminal: bool, whole: bool) -> None:
    assert printed(LONG, terminal=terminal, whole=whole) == [f"12:00:00 {LONG}"]


def test_print_line_keeps_leading_spaces() -> None:
    assert printed("  a detail", terminal=True) == printed("  a detail", terminal=False) == ["12:00:00   a detail"]
