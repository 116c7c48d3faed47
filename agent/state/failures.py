"""Count and log exceptions of checks, which are defects of this program. Each distinct one is logged once."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from agent.telemetry import Telemetry
from healthcheck.checks.examine import CHECK_FAILED
from healthcheck.model import Outcome

log = structlog.get_logger()

_MOST_LOGGED = 256
"""Most distinct failures that are logged: a failure with a new text in each cycle must not fill the log."""


class Failures:
    """Failures of checks that this program caused, counted and logged."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._logged: set[tuple[str, str]] = set()

    def account(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            for unobserved in outcome.unobserved:
                if unobserved.cause == CHECK_FAILED:
                    self._telemetry.check_failures.labels(outcome.check).inc()
                    self._log(outcome.check, unobserved.detail)

    def _log(self, check: str, detail: str) -> None:
        if (check, detail) in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add((check, detail))
        log.error("a check failed; it counts as unobserved", check=check, failure=detail)
