"""Results of `gpu-healthcheck quarantine` and `gpu-healthcheck reset`, as a person reads them."""

from __future__ import annotations

from io import StringIO

import pytest

from gpu_healthcheck.cli import quarantine, reset
from gpu_healthcheck.cli.quarantine_node import QuarantineOutcome
from gpu_healthcheck.cli.reset_node import ResetOutcome
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.verdict.record import RunRecord


def test_quarantine_result_prints_each_text_on_its_line() -> None:
    out, at = StringIO(), "now\nrecommendation: return-to-service"
    outcome = QuarantineOutcome("one", "reboot", RunRecord(timestamp=at, recommendation="reboot"))
    quarantine.show(outcome, Screen(file=out))

    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.startswith("recommendation")]
    assert lines == ["recommendation: reboot"]


@pytest.mark.parametrize(("seconds", "after"), [(0.0, ""), (0.3, ""), (28.4, " after 28 s")])
def test_reset_followed_at_its_end_states_no_duration(seconds: float, after: str) -> None:
    out = StringIO()
    reset.show(ResetOutcome("a", "pass", seconds=seconds), Screen(file=out, width=80))

    assert out.getvalue() == f"the GPUs work again{after}, without a reboot\n"
