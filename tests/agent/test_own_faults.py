"""A fault of ours, planted in the real agent: it is named, it hides nothing, and it ends no agent for ever."""

from __future__ import annotations

import json

import pytest

from tests.agent import planted_agent
from tests.agent.world import P, World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."


@pytest.fixture
def planted(world: World) -> World:
    world.program = planted_agent.__name__
    world.configure(CHECK_INTERVAL="10")
    return world


def test_a_check_that_fails_is_unknown_and_the_others_still_taint(planted: World) -> None:
    agent = planted.start(PLANT="in_a_check")
    node = planted.wait_for_status("unknown")
    assert node.causes == {"CheckFailed"}
    assert not node.tainted

    planted.host.xid(3, 79, ERROR)
    planted.wait_for_taint()
    agent.wait_for_looks(2)
    assert agent.metric("check_failures_total{gpu-count}") >= 2
    assert len(agent.logged("a check failed; it counts as unobserved")) == 1


@pytest.mark.parametrize(
    ("plant", "key", "part"), [("in_a_deep_record", "sweep-result", "verdict"), ("in_a_run", "run", "watch")]
)
def test_an_annotation_that_triggers_a_defect_hides_no_fault(planted: World, plant: str, key: str, part: str) -> None:
    planted.cluster.edit({"metadata": {"annotations": {f"{P}/{key}": json.dumps({"x": planted_agent.POISON})}}})
    agent = planted.start(PLANT=plant)
    agent.wait_for_looks(1)
    planted.host.xid(3, 79, ERROR)
    planted.wait_for_taint()

    expected = f"{part}: ValueError: over {planted_agent.POISON}"
    assert planted.wait_for_event("InternalError")["message"].startswith(expected)
    assert agent.metric(f"set_aside_total{{{part}}}") >= 1
    assert len(agent.logged("unexpected error; the agent continues")) == 1
    assert agent.running

    planted.cluster.edit({"metadata": {"annotations": {f"{P}/{key}": None}}})
    planted.host.xid(4, 79, ERROR)
    planted.wait(lambda node: len(node.findings) == 1 and len(node.record["findings"]) == 2)
    eventually(lambda: agent.metric("verdict_pending") == 0)


def test_a_failure_that_passes_by_itself_hides_no_annotation(planted: World) -> None:
    found = {"reason": "DcgmDiagMemory", "severity": "RESET", "subject": "gpu/0000:53:00.0", "detail": "bad"}
    record = {"schema": 1, "timestamp": "2026-01-01T00:00:00Z", "severity": "RESET", "findings": [found]}
    text = json.dumps({**record, "by": planted_agent.POISON})
    planted.cluster.edit({"metadata": {"annotations": {f"{P}/sweep-result": text}}})
    agent = planted.start(PLANT="once_in_a_deep_record")

    planted.wait_for_taint()
    assert agent.metric("set_aside_total{verdict}") == 1
    eventually(lambda: agent.metric("verdict_pending") == 0)


def test_a_memory_without_a_verdict_is_reported_and_its_taint_stays(planted: World) -> None:
    planted.program = "agent"
    planted.host.xid(3, 79, planted_agent.POISON)
    planted.start()
    planted.wait_for_taint()
    assert planted.agent.terminate() == 0

    planted.program = planted_agent.__name__
    agent = planted.start(PLANT="in_the_verdict")
    assert planted.wait_for_event("InternalError")["message"].startswith("verdict: ValueError")
    agent.wait_for_looks(2)
    assert (agent.metric("verdict_pending"), agent.get("/healthz")[0]) == (1, 200)
    assert planted.node().tainted


def test_unreadable_answer_to_a_write_is_skipped(planted: World) -> None:
    agent = planted.start(PLANT="in_a_node")
    planted.wait_for_status("pass")
    planted.host.xid(3, 79, ERROR)
    # An unreadable Node is still written, as far as the write had begun.
    planted.wait(lambda node: node.status == "fail" and node.tainted)
    planted.wait_for_taint()
    fields = agent.wait_for_log("the Node can't be read; the newest verdict is kept")
    assert fields["error"] == f"nodes gpu-node-1: ValueError: over {planted_agent.POISON}"
    assert agent.get("/healthz")[0] == 200

    planted.cluster.edit({"metadata": {"labels": {planted_agent.POISON: "gone"}}})
    planted.host.xid(4, 79, ERROR)
    planted.wait(lambda node: len(node.record["findings"]) == 2)
    eventually(lambda: len(planted.events("Xid79")) == 2)
    assert not agent.logged("a thread failed")


def test_healthz_fails_when_no_check_cycle_ends_for_three_intervals(planted: World) -> None:
    planted.start(PLANT="on_the_disk")
    planted.wait_for_status("pass")
    disk = planted.memory_file.with_name(planted_agent.POISON)
    disk.touch()
    looks = planted.agent.metric("looks_total")

    eventually(lambda: planted.agent.get("/healthz")[0] == 503)
    assert planted.agent.get("/readyz")[0] == 200
    assert planted.agent.metric("looks_total") <= looks + 1  # one may have been beyond that file

    disk.unlink()
    eventually(lambda: planted.agent.get("/healthz")[0] == 200)
