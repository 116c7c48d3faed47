"""Earlier attempts to end the active faults of a node, from its records."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.deep.attempts import INTERRUPTED, Attempt, Tried, is_rebooted_at_once, last_attempt
from gpu_healthcheck.healthcheck.deep.reset_plan import reset_targets
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle, after_cycle
from gpu_healthcheck.healthcheck.memory.exits import begin
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Now, Severity
from gpu_healthcheck.healthcheck.node.state import RESET_RESULT, RESULTS, NodeState
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import Identity
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import GPU, MACHINE, NOW, active_finding, fault, later, memory_with, outcome_with

LOST = fault("GpuLost")
NEXT_BOOT = "0b0a6c5e-0000-4000-8000-00000000000b"


def node_of(memory: Memory, now: Now, **annotations: Any) -> NodeState:
    """The Node after the agent's write of this memory."""
    record = records.render(decide(memory, ()), memory, Identity("n"), now.wall)
    texts = {key: json.dumps(value) for key, value in annotations.items()}
    return NodeState("n", machine=MACHINE, annotations={RESULTS: records.dump(record), **texts})


def seen(memory: Memory, now: Now) -> Memory:
    return after_cycle(memory, JudgedCycle([outcome_with(LOST)]), now)


def booted(memory: Memory) -> tuple[Memory, Now]:
    """The agent's start in the next boot, an hour later and a minute after the kernel's."""
    now = Now(later(3600).wall, 60.0)
    return begin(memory, MACHINE, NEXT_BOOT, now), now


def test_a_level_that_is_observed_in_two_boots_has_outlasted_a_reboot() -> None:
    first = seen(memory_with(), NOW)
    second, now = booted(first)

    assert last_attempt(node_of(first, NOW)) == Attempt()
    assert last_attempt(node_of(second, now)) == Attempt(), "no check cycle of this boot has shown it"
    assert last_attempt(node_of(seen(second, now), now)).tried is Tried.REBOOT


def test_a_level_of_one_boot_has_outlasted_no_reboot() -> None:
    after_reboot, now = booted(memory_with())
    first = seen(after_reboot, now)
    tomorrow = later(86_400, since=now)

    assert last_attempt(node_of(seen(first, tomorrow), tomorrow)) == Attempt()


STEPS = {"claim": {"step": "claim"}, "drain": {"step": "drain the node", "detail": "x"}, "reboot": {"step": "reboot"}}
ADDRESS = GPU.removeprefix("gpu/")


@pytest.mark.parametrize(
    ("run", "tried"),
    [
        ({"status": "pass", "gpus": [{"address": ADDRESS}]}, Tried.RESET),
        ({"status": "fail", "gpus": [{"address": ADDRESS}], "reasons": ["step 'reset': failed"]}, Tried.RESET),
        ({"status": "pass", "gpus": [{"address": "0000:99:00.0"}]}, Tried.NOTHING),
        ({"status": "unknown", "reasons": ["step 'plan': no systemd"]}, Tried.REFUSED),
        ({"status": "unknown", "reasons": ["step 'free the GPUs': in use by process 7"]}, Tried.NOTHING),
        ({"status": "unknown", "running": "free the GPUs"}, Tried.NOTHING),
        ({"status": "fail", "steps": [STEPS["claim"], STEPS["drain"]]}, Tried.NOT_REBOOTED),
        ({"status": "unknown", "running": "reboot", "steps": [STEPS["drain"]]}, Tried.NOT_REBOOTED),
        ({"status": "pass", "steps": [STEPS["drain"], STEPS["reboot"]]}, Tried.REBOOT),
        ({"status": "pass", "machine": "another", "steps": [STEPS["reboot"]]}, Tried.NOTHING),
        ({"status": "pass", "timestamp": None, "steps": [STEPS["reboot"]]}, Tried.NOTHING),
    ],
)
def test_the_record_of_a_reset_shows_what_an_older_fault_has_outlasted(run: dict[str, Any], tried: Tried) -> None:
    memory = memory_with(active_finding(fault("Xid62", Severity.RESET)))
    ended = {"schema": 1, "by": "reset", "timestamp": f"{later(600).wall:%Y-%m-%dT%H:%M:%SZ}", **run}
    earlier = ended | {"timestamp": f"{NOW.wall - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"}

    attempt = last_attempt(node_of(memory, NOW, **{RESET_RESULT: ended}))
    newer = last_attempt(node_of(memory, NOW, **{RESET_RESULT: earlier}))

    assert (attempt.tried, attempt.why, newer) == (tried, "; ".join(run.get("reasons", ())), Attempt())


def test_a_reset_that_a_person_ended_counts_as_none() -> None:
    memory = memory_with(active_finding(fault("Xid62", Severity.RESET)))
    reasons = [INTERRUPTED, "pods can request no GPU of 8 nvidia.com/gpu"]
    run = {"schema": 1, "by": "reset", "timestamp": f"{later(600).wall:%Y-%m-%dT%H:%M:%SZ}", "status": "unknown"}

    for record, tried in ((run | {"reasons": reasons}, Attempt()), (run, Attempt(Tried.REFUSED))):
        assert last_attempt(node_of(memory, NOW, **{RESET_RESULT: record})) == tried


@pytest.mark.parametrize(
    ("status", "force", "at_once"), [("pass", False, True), ("fail", False, True), ("fail", True, False)]
)
def test_a_reset_that_has_ended_nothing_is_not_repeated_before_a_reboot(
    status: str, force: bool, at_once: bool
) -> None:
    memory = memory_with(active_finding(fault("Xid62", Severity.RESET)))
    run = {"schema": 1, "timestamp": f"{later(600).wall:%Y-%m-%dT%H:%M:%SZ}", "gpus": [{"address": ADDRESS}]}
    untried, tried = node_of(memory, NOW), node_of(memory, NOW, **{RESET_RESULT: {**run, "status": status}})

    assert not is_rebooted_at_once(untried, reset_targets(untried, ()), force=force)
    assert is_rebooted_at_once(tried, reset_targets(tried, ()), force=force) is at_once
