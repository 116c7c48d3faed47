"""Arbitrary facts of a probe: every check judges them, and its judgements are valid."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence
from tests.checks.any_facts import FACTS, any_facts_are_judged, evidence, expectations


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(seen=evidence(), expected=expectations)
def test_any_facts_are_judged(seen: Evidence, expected: Expectation) -> None:
    any_facts_are_judged(seen, expected)


def test_no_probe_is_left_out() -> None:
    assert {probe for check in CHECKS for probe in check.needs} == set(FACTS)
