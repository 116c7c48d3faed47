"""Judges that failed: each failure counted, each distinct one said once. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from healthcheck.checks.examine import CHECK_FAILED
from healthcheck.model import Outcome
from healthcheck.telemetry import Telemetry

log = structlog.get_logger()

_MOST_SAID = 256
"""Distinct failures that are said; one whose words change with each look fills the metric, not the log."""


class Failures:
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._said: set[tuple[str, str]] = set()

    def account(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            for one in outcome.unobserved:
                if one.cause == CHECK_FAILED:
                    self._telemetry.check_failures.labels(outcome.check).inc()
                    self._say(outcome.check, one.detail)

    def _say(self, check: str, detail: str) -> None:
        if (check, detail) in self._said or len(self._said) >= _MOST_SAID:
            return
        self._said.add((check, detail))
        log.error("a check failed; it counts as could-not-look", check=check, failure=detail)
