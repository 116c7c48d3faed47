"""Metrics and Events about the pods that asked the gate."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gpu_healthcheck.agent.node import gate
from gpu_healthcheck.agent.node.gate import MOST_EVENTS, GateCounts
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.verdict.gate import Decision, GateAnswer, refusals_in


class Events:
    """Events that were queued."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, _: str, message: str) -> None:
        self.messages.append(message)


def answer(decision: Decision, reason: str = "Xid79") -> GateAnswer:
    return GateAnswer(1, "node", decision, "its finding", "pod", reason)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def counts(events: Events) -> GateCounts:
    return GateCounts(cast("Reporter", events), Telemetry())


def counted(counts: GateCounts) -> dict[str, float]:
    (family,) = counts._telemetry.gate_answers.collect()
    return {sample.labels["decision"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


def test_a_pod_counts_once_for_each_decision_and_finding(counts: GateCounts, events: Events) -> None:
    async def ask() -> None:
        for _ in range(300):
            counts.count("u", answer(Decision.START, ""))
            counts.count("u", answer(Decision.OPEN))
            counts.count("u", answer(Decision.REFUSE))
            counts.count("u", answer(Decision.REFUSE, "EfaDown"))

    asyncio.run(ask())

    assert counted(counts) == {"start": 1, "open": 1, "refuse": 2}
    assert refusals_in(events.messages) == {"Xid79": 1, "EfaDown": 1}


def test_more_pods_than_events_are_reported_together_when_the_hour_has_passed(
    counts: GateCounts, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        for number in range(MOST_EVENTS + 5):
            counts.count(f"u{number}", answer(Decision.REFUSE))
        assert refusals_in(events.messages) == {"Xid79": MOST_EVENTS}
        await asyncio.sleep(0)
        assert len(events.messages) == MOST_EVENTS
        while len(events.messages) == MOST_EVENTS:  # noqa: ASYNC110 - the loop's own timer adds the next one
            await asyncio.sleep(0.01)

    monkeypatch.setattr(gate, "HOUR_SECONDS", 0.5)
    asyncio.run(ask())

    assert events.messages[-1] == "the gate refused 5 pods (Xid79): its finding"
    assert counted(counts)["refuse"] == MOST_EVENTS + 5
