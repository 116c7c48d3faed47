"""What earlier sweeps left behind: told from what is still at work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from healthcheck.deep.claim import JobState, Kind, Run, take
from healthcheck.node.state import MAINTENANCE, MODE, RUN, NodeState
from sweeper.residue import Residue, residue

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
JOB = JobState("job-1", "gpu-healthcheck", "uid", "n", NOW)
ENDED = JobState("job-1", "gpu-healthcheck", "uid", "n", NOW, outcome="DeadlineExceeded")


def held(kind: Kind = Kind.SWEEP, holder: str = "job-1", until: datetime = LATER) -> NodeState:
    patch = take(NodeState("n"), Run(kind, holder, until), NOW)
    assert patch is not None
    return NodeState("n", annotations=patch["metadata"]["annotations"], labels=patch["metadata"]["labels"])


LEFT = NodeState("n", taints=({"key": MAINTENANCE, "value": "sweep", "effect": "NoSchedule"},))


@pytest.mark.parametrize(
    ("marked", "jobs", "found"),
    [
        ([], [], Residue((), (), ())),
        ([held()], [JOB], Residue((JOB,), (), ())),
        ([held()], [ENDED], Residue((), (), ("n",))),
        ([held()], [], Residue((), (), ("n",))),
        ([held(holder="job-2")], [JOB], Residue((), (JOB,), ("n",))),
        ([], [JOB], Residue((), (JOB,), ())),
        ([], [ENDED], Residue((), (), ())),
        ([held(until=NOW)], [], Residue((), (), ("n",))),
        ([held(Kind.L2, "agent")], [], Residue((), (), ())),
        ([held(Kind.QUARANTINE, "job-1")], [JOB], Residue((), (JOB,), ())),
        ([held(Kind.L2, "agent", NOW)], [], Residue((), (), ("n",))),
        ([NodeState("n", annotations={RUN: "{"})], [], Residue((), (), ("n",))),
        ([NodeState("n", labels={MODE: "sweep"})], [], Residue((), (), ("n",))),
        ([LEFT], [], Residue((), (), ("n",))),
    ],
)
def test_what_is_at_work_and_what_is_left(marked: list[NodeState], jobs: list[JobState], found: Residue) -> None:
    assert residue(marked, jobs, NOW) == found
