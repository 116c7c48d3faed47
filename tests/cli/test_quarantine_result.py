"""What came of a quarantine, as a person is shown it."""

from __future__ import annotations

from io import StringIO

from cli.quarantine import show
from cli.quarantine_node import Result
from healthcheck.host.console import Screen
from healthcheck.verdict.record import RunRecord


def test_no_word_of_a_record_steers_the_terminal() -> None:
    out = StringIO()
    show(Result("one", "reboot", RunRecord(timestamp="\x1b[2J", recommendation="reboot")), Screen(file=out))

    assert "\x1b" not in out.getvalue()
    assert "quarantine run of \\x1b[2J" in out.getvalue()
