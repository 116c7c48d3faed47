"""One deep look: a level of DCGM's run to its end, a doubtful failure once more, and what its check says of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import replace

from healthcheck.checks.dcgm_diag import LEVEL_2, LEVEL_4, needs_repeat, with_repeat
from healthcheck.checks.examine import CHECK_FAILED, failure, judge
from healthcheck.checks.expectation import Expectation
from healthcheck.model import Evidence, Outcome, Probe, Unobserved
from healthcheck.probes.dcgm.diag import LEVEL_2_RUN, LEVEL_4_RUN, DcgmLook
from healthcheck.probes.dcgm.document import DiagAnswer

_RESULTS = ("pass", "fail")
_LEVELS = {2: (LEVEL_2, LEVEL_2_RUN), 4: (LEVEL_4, LEVEL_4_RUN)}


class Diagnostic(Protocol):
    """Who runs DCGM's tests, one run at a time; `stop` ends it for good, from any thread."""

    def run(self, level: int) -> DcgmLook: ...

    def run_tests(self, tests: Sequence[str]) -> DcgmLook: ...

    def stop(self) -> None: ...

    @property
    def stuck_pid(self) -> int | None:
        """Of a process that can't be killed."""


def look_deeply(
    diagnostic: Diagnostic,
    expected: Expectation,
    beside: Mapping[Probe[Any], Any] = MappingProxyType({}),
    level: int = 2,
) -> Outcome:
    """What level 2 or 4 shows. It needs the GPUs for itself, and takes minutes, or hours.

    `beside`: what was read beside it, by probe; with NVML's answer the findings name GPUs by their addresses.
    """
    check, probe = _LEVELS[level]
    first = diagnostic.run(level)
    try:
        look = with_doubts_settled(diagnostic, first, expected)
    except Exception as error:  # noqa: BLE001 - part of the judging, so that it ends no more than that either
        return Outcome(check.name, check.group, unobserved=(Unobserved(CHECK_FAILED, failure(error)),))
    (outcome,) = judge((check,), Evidence({**beside, probe: look}), expected)
    return outcome


def with_doubts_settled(diagnostic: Diagnostic, first: DcgmLook, expected: Expectation) -> DcgmLook:
    """A first failure of what fails on healthy GPUs too is believed only when it comes again."""
    answer = first.answer
    tests = needs_repeat(answer, expected.policy) if isinstance(answer, DiagAnswer) else ()
    if not isinstance(answer, DiagAnswer) or not tests:
        return first
    again = diagnostic.run_tests(tests).answer
    settled: set[str] = set()
    if isinstance(again, DiagAnswer):
        answer = with_repeat(answer, again)
        settled = {row.test for row in again.results if row.status in _RESULTS}
    # A test that nobody could run again has told nothing; the others have what they told.
    untold = set(tests) - settled
    return DcgmLook(replace(answer, results=tuple(row for row in answer.results if row.test not in untold)))
