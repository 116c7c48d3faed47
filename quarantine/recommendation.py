"""Recommendation for a node after its quarantine run: a table, worst first; the first matching row decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from msgspec import Struct

from gpu_healthcheck.healthcheck.model import Finding, Severity, Status
from gpu_healthcheck.healthcheck.verdict.record import LEVEL_4


class Recommendation(StrEnum):
    """Recommendations, as written in the record."""

    REPLACE = "replace"
    REBOOT = "reboot"
    RESET = "reset"
    RERUN = "rerun"
    RETURN_TO_SERVICE = "return-to-service"


class GroupResult(Struct, frozen=True):
    """One test of the run, named as in the record. `status` None: it did not finish, or never started."""

    name: str
    status: Status | None = None


class Returned(Struct, frozen=True):
    """A fault that an earlier run found. `gpu`: serial or UUID of its GPU; '' without a GPU."""

    reason: str
    subject: str
    gpu: str = ""

    def is_same_as(self, found: Finding) -> bool:
        """Whether both are the same fault of one GPU, compared by serial or UUID; by address if that is unknown."""
        if found.reason != self.reason:
            return False
        known = found.about.get("uuid" if self.gpu.startswith("GPU-") else "serial", "")
        return known == self.gpu if known and self.gpu else found.subject == self.subject


class RunResult(Struct, frozen=True):
    """Results of a quarantine run that has ended or was killed."""

    tests: tuple[GroupResult, ...]
    """All tests of the run."""
    found: tuple[Finding, ...] = ()
    """Findings of its tests and of its check cycle on the node."""
    active_events: tuple[Finding, ...] = ()
    """Earlier events that are still active, without those that a passed test ends."""
    returned_with: tuple[Returned, ...] = ()
    """Faults that earlier runs found on this node, before its return to service."""

    @property
    def finished(self) -> bool:
        return all(test.status is not None for test in self.tests)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Return the faults that count.

        Until the run is done or has a finding of its own, earlier findings do not count: the run is there to confirm
        them.
        """
        failed = any(finding.severity >= Severity.RESET for finding in self.found)
        return (*self.found, *self.active_events) if self.finished or failed else self.found


class RecommendationRow(Struct, frozen=True):
    """One row of the table. `fits` returns a text for the matching facts; '' without a match."""

    recommendation: Recommendation
    when: str
    why: str
    fits: Callable[[RunResult], Iterable[str]]


class Advice(Struct, frozen=True):
    """`reasons` has a sentence for each matching row with this recommendation; at least one."""

    recommendation: Recommendation
    reasons: tuple[str, ...]


def recommend(run: RunResult) -> Advice:
    """Return the first matching row, with all others that have the same recommendation."""
    fitting = [(row, what) for row in TABLE if (what := tuple(dict.fromkeys(row.fits(run))))]
    first = fitting[0][0].recommendation
    messages = tuple(f"{row.when}: {', '.join(what)}" for row, what in fitting if row.recommendation is first)
    return Advice(first, messages)


def _named(findings: Iterable[Finding]) -> Iterable[str]:
    return (f"{finding.reason} on {finding.subject}" for finding in findings)


def _faults_of(severity: Severity) -> Callable[[RunResult], Iterable[str]]:
    return lambda run: _named(fault for fault in run.faults if fault.severity is severity)


def _came_back(run: RunResult) -> Iterable[str]:
    again = (finding for finding in run.found if any(before.is_same_as(finding) for before in run.returned_with))
    return _named(finding for finding in again if finding.severity >= Severity.RESET)


def _without_level_4(run: RunResult) -> Iterable[str]:
    known = {test.name: test.status for test in run.tests}
    return [LEVEL_4] if known.get(LEVEL_4, Status.NOT_CONFIGURED) is Status.NOT_CONFIGURED else []


def _tests_that_are(*statuses: Status | None) -> Callable[[RunResult], Iterable[str]]:
    return lambda run: (test.name for test in run.tests if test.status in statuses)


TABLE = (
    RecommendationRow(
        Recommendation.REPLACE,
        "a fault of ISOLATE was found, or is still active",
        "No reset and no reboot fixes it.",
        _faults_of(Severity.ISOLATE),
    ),
    RecommendationRow(
        Recommendation.REPLACE,
        "a fault of RESET or worse is back, which a run of the last 7 days had found before the node's return",
        "The action taken then did not fix it.",
        _came_back,
    ),
    RecommendationRow(
        Recommendation.REBOOT,
        "a fault of REBOOT was found, or is still active",
        (
            "Only a reboot fixes it. Quarantine the node again afterwards: a reboot ends the finding, and proves "
            "nothing."
        ),
        _faults_of(Severity.REBOOT),
    ),
    RecommendationRow(
        Recommendation.RESET,
        "a fault of RESET was found, or is still active",
        (
            "Reset the GPU. For an NVSwitch, reload the driver or reboot. For RDMA ports, repair the link. Then "
            "quarantine the node again."
        ),
        _faults_of(Severity.RESET),
    ),
    RecommendationRow(
        Recommendation.RERUN,
        "a test did not finish",
        "The run was killed, or the node was lost: run it again.",
        _tests_that_are(None),
    ),
    RecommendationRow(
        Recommendation.RERUN,
        "level 4 of DCGM's diagnostic was not run",
        "Without it nothing is proved: the image has no DCGM, or the run does not include the test.",
        _without_level_4,
    ),
    RecommendationRow(
        Recommendation.RERUN,
        "a test could not run",
        "This is no result about the hardware. See its cause in docs/could-not-check.md, fix that, and run again.",
        _tests_that_are(Status.UNKNOWN),
    ),
    RecommendationRow(
        Recommendation.RERUN,
        "a test failed without naming a fault",
        "No action is known for this case.",
        _tests_that_are(Status.FAIL),
    ),
    RecommendationRow(
        Recommendation.RETURN_TO_SERVICE,
        "a fault of MONITOR was found, or is still active",
        "It does not keep work away. docs/findings.md has the action.",
        _faults_of(Severity.MONITOR),
    ),
    RecommendationRow(
        Recommendation.RETURN_TO_SERVICE,
        "tests ended, and found no fault of RESET or worse",
        "The node can return to work. A passed run ends the findings of its tests.",
        _tests_that_are(Status.PASS, Status.WARN),
    ),
)
"""Rows, worst first; each run matches at least one. An EFA or NCCL test that does not apply matches no row."""
