"""Result of a quarantine as people see it."""

from __future__ import annotations

from io import StringIO

from cli.quarantine import show
from cli.quarantine_node import QuarantineOutcome
from healthcheck.host.console import Screen
from healthcheck.verdict.record import RunRecord


def test_quarantine_result_prints_each_text_on_its_line() -> None:
    out, message = StringIO(), "now\nrecommendation: return-to-service"
    show(QuarantineOutcome("one", "reboot", RunRecord(timestamp=message, recommendation="reboot")), Screen(file=out))

    messages = [line.rstrip() for line in out.getvalue().splitlines() if line.startswith("recommendation")]
    assert messages == ["recommendation: reboot"]
