"""One deep diagnostic: a DCGM run of one level, repetition of doubtful failures, and the outcome.

Before it, the use of the node's GPUs: by pods, from the kubelet; by processes, from the last check cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.dcgm_diag import LEVEL_2, LEVEL_4, needs_repeat, with_repeat
from gpu_healthcheck.healthcheck.checks.examine import CHECK_FAILED, failure, judge
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Outcome, Probe, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.dcgm.diag import LEVEL_2_RUN, LEVEL_4_RUN, DcgmReading
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import DiagAnswer
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML
from gpu_healthcheck.healthcheck.text.naming import named

_MOST_NAMED = 3


class Idleness(Struct, frozen=True):
    """Sources of GPU use. `pods` returns pod, resource and device count of each pod with devices; raises ProbeError."""

    pods: Callable[[], Iterable[tuple[str, str, int]]]
    last_evidence: Callable[[], Evidence | None]

    def held(self) -> str:
        """Return the pods that have GPUs, or an empty string. Raises ProbeError."""
        return named((f"{pod} has {count} {resource}" for pod, resource, count in self.pods()), _MOST_NAMED)

    def used(self) -> str:
        """Return the pods or processes that use the GPUs, or an empty string. Raises ProbeError."""
        return self.held() or self._processes()

    def _processes(self) -> str:
        """Return the GPUs in use by processes, or an empty string.

        If the agent runs in a separate PID namespace, NVML reports no processes to it, and only the pods are known.
        """
        evidence = self.last_evidence()
        if evidence is None or evidence.unread(NVML):
            raise ProbeError("the agent has not read the GPUs yet")
        answer = evidence[NVML].answer
        if isinstance(answer, Unobserved):
            raise ProbeError(answer.detail)
        busy = [gpu.subject for gpu in answer.gpus if gpu.processes]
        return f"processes use {', '.join(busy[:_MOST_NAMED])}" if busy else ""


_RESULTS = ("pass", "fail")
_LEVELS = {2: (LEVEL_2, LEVEL_2_RUN), 4: (LEVEL_4, LEVEL_4_RUN)}


class Diagnostic(Protocol):
    """Interface to run DCGM's tests, one run at a time. `stop` ends it permanently; any thread may call it."""

    def run(self, level: int) -> DcgmReading: ...

    def run_tests(self, tests: Sequence[str]) -> DcgmReading: ...

    def stop(self) -> None: ...

    @property
    def stuck_pid(self) -> int | None:
        """Return the process ID of a process that cannot be killed, or None."""


def run_diagnostic(
    diagnostic: Diagnostic,
    expected: Expectation,
    other_facts: Mapping[Probe[Any], Any] = MappingProxyType({}),
    level: int = 2,
) -> Outcome:
    """Run level 2 or 4 and return its outcome.

    It needs exclusive use of the GPUs and takes minutes to hours. `beside` has other probes' facts of the same time.
    With the facts of NVML, findings identify GPUs by their addresses.
    """
    check, probe = _LEVELS[level]
    first = diagnostic.run(level)
    try:
        reading = with_doubts_settled(diagnostic, first, expected)
    except Exception as error:  # noqa: BLE001 - part of the judgement: a failure here must end only the judgement
        return Outcome(check.name, check.group, unobserved=(Unobserved(CHECK_FAILED, failure(error)),))
    (outcome,) = judge((check,), Evidence({**other_facts, probe: reading}), expected)
    return outcome


def with_doubts_settled(diagnostic: Diagnostic, first: DcgmReading, expected: Expectation) -> DcgmReading:
    """Repeat the tests that can fail on healthy GPUs too; such a failure counts only if it recurs."""
    answer = first.answer
    tests = needs_repeat(answer, expected.policy) if isinstance(answer, DiagAnswer) else ()
    if not isinstance(answer, DiagAnswer) or not tests:
        return first
    again = diagnostic.run_tests(tests).answer
    settled: set[str] = set()
    if isinstance(again, DiagAnswer):
        answer = with_repeat(answer, again)
        settled = {row.test for row in again.results if row.status in _RESULTS}
    # A test that could not be repeated has no result; the other tests keep their results.
    unsettled = set(tests) - settled
    return DcgmReading(replace(answer, results=tuple(row for row in answer.results if row.test not in unsettled)))
