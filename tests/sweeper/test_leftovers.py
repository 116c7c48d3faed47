"""Leftovers of earlier sweeps, distinguished from running ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, acquire
from gpu_healthcheck.healthcheck.deep.job import JobState
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, MODE, RUN, NodeState
from gpu_healthcheck.sweeper.leftovers import Leftovers, find_leftovers

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
JOB = JobState("job-1", "gpu-healthcheck", "uid", "n", NOW)
ENDED = JobState("job-1", "gpu-healthcheck", "uid", "n", NOW, outcome="DeadlineExceeded")


def held(kind: RunKind = RunKind.SWEEP, holder: str = "job-1", until: datetime = LATER) -> NodeState:
    patch = acquire(NodeState("n"), Claim(kind, holder, until), NOW)
    assert patch is not None
    return NodeState("n", annotations=patch["metadata"]["annotations"], labels=patch["metadata"]["labels"])


LEFT = NodeState("n", taints=({"key": MAINTENANCE, "value": "sweep", "effect": "NoSchedule"},))


@pytest.mark.parametrize(
    ("marked", "jobs", "found"),
    [
        ([], [], Leftovers((), (), ())),
        ([held()], [JOB], Leftovers((JOB,), (), ())),
        ([held()], [ENDED], Leftovers((), (), ("n",))),
        ([held()], [], Leftovers((), (), ("n",))),
        ([held(holder="job-2")], [JOB], Leftovers((), (JOB,), ("n",))),
        ([], [JOB], Leftovers((), (JOB,), ())),
        ([], [ENDED], Leftovers((), (), ())),
        ([held(until=NOW)], [], Leftovers((), (), ("n",))),
        ([held(RunKind.L2, "agent")], [], Leftovers((), (), ())),
        ([held(RunKind.QUARANTINE, "job-1")], [JOB], Leftovers((), (JOB,), ())),
        ([held(RunKind.L2, "agent", NOW)], [], Leftovers((), (), ("n",))),
        ([NodeState("n", annotations={RUN: "{"})], [], Leftovers((), (), ("n",))),
        ([NodeState("n", labels={MODE: "sweep"})], [], Leftovers((), (), ("n",))),
        ([LEFT], [], Leftovers((), (), ("n",))),
    ],
)
def test_what_is_at_work_and_what_is_left(marked: list[NodeState], jobs: list[JobState], found: Leftovers) -> None:
    assert find_leftovers(marked, jobs, NOW) == found
