"""Results of deep runs on the Node become the agent's own: at once, once, and with a kill at any moment."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.agent.node.test_release import by_command, by_label
from tests.agent.world import UNHEALTHY, P, World
from tests.waiting import GIVE_UP_SECONDS, eventually

SWEEP, QUARANTINE = "sweep-result", "quarantine-result"
MEMORY = "DcgmDiagMemory"
Json = dict[str, Any]


def record(*rows: Json, minutes_ago: float = 10, status: str = "pass", severity: str = "PASS", **more: Any) -> Json:
    at = (datetime.now(UTC) - timedelta(minutes=minutes_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    checks = [{"check": "1-dcgm-diag-l2", "status": status, "severity": severity}]
    fields = {"schema": 1, "timestamp": at, "status": status, "severity": severity, "checks": checks}
    return {**fields, "findings": list(rows), **more}


def failed_record(severity: str = "ISOLATE", **more: Any) -> Json:
    row = {"reason": MEMORY, "subject": "gpu/3", "severity": severity, "detail": "bits flipped", "nature": "event"}
    return record(row, status="fail", severity=severity, **more)


def tell(world: World, fields: Json, kind: str = SWEEP) -> Json:
    """Write the record of a deep diagnostic to the Node."""
    world.cluster.edit({"metadata": {"annotations": {f"{P}/{kind}": json.dumps(fields)}}})
    return fields


def is_adopted(world: World, fields: Json, kind: str = SWEEP) -> Json:
    """The agent's record names it; the finding in the record."""
    node = world.wait(
        lambda node: node.record.get("taken", {}).get(kind) == fields["timestamp"] and MEMORY in node.findings
    )
    return node.findings[MEMORY]


OLD = {
    "timestamp": "2025-01-02T03:04:05Z",
    "node": "n",
    "suite": "quarantine",
    "status": "FAIL",
    "severity": "ISOLATE",
    "recommendation": "investigate",
}
"""As the bash suite left it: without a schema."""


class TestARecordOfTheBashSuite:
    @pytest.mark.cluster
    def test_is_reported_once_and_is_no_finding_without_its_taint(self, world: World) -> None:
        tell(world, OLD, QUARANTINE)
        world.cluster.edit({"metadata": {"labels": {f"{P}/status": "agent-stopped", f"{P}/severity": "SKIP"}}})
        world.start()
        world.wait_for_status("pass")
        result = world.wait_for_event("OldRecord")["message"]
        assert result.startswith("quarantine-result of 2025-01-02T03:04:05Z has status FAIL, severity ISOLATE, ")

        # Our own taint, later, is none of its.
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        node = world.wait_for_taint()
        assert (node.tainted, node.severity, set(node.findings)) == (True, "REBOOT", {"Xid79"})
        agent = world.restart()
        eventually(lambda: agent.metric("looks_total") >= 1)
        assert (world.node().severity, len(world.events("OldRecord"))) == ("REBOOT", 1)
        assert world.events("BadAnnotation") == []

    @pytest.mark.cluster
    def test_is_the_agents_finding_where_its_taint_stands(self, world: World) -> None:
        tell(world, OLD, QUARANTINE)
        world.cluster.edit({"spec": {"taints": [UNHEALTHY]}})
        world.start()
        node = world.wait(lambda node: "DeepDiagnosticFailed" in node.findings)

        assert (node.tainted, world.events("OldRecord")) == (True, [])
        assert world.wait_for_taint().severity == "ISOLATE"


class TestADeepRecord:
    def test_becomes_a_finding_of_the_agents_own_at_once(self, watched: World) -> None:
        watched.host.hang()  # no check cycle ends from now on
        finding = is_adopted(watched, tell(watched, failed_record()))
        node = watched.wait_for_taint()

        assert (node.severity, node.tainted, node.condition["reason"]) == ("ISOLATE", True, MEMORY)
        gpu = watched.host.gpus[3]
        assert (finding["subject"], finding["about"]["uuid"]) == (f"gpu/{gpu.address}", gpu.uuid)
        assert (finding["nature"], finding["check"], finding["source"]) == ("event", "dcgm-diag-l2", SWEEP)
        assert watched.wait_for_event(MEMORY)["type"] == "Warning"

    def test_1_is_not_cleared_by_a_light_pass(self, quick: World) -> None:
        is_adopted(quick, tell(quick, failed_record()))
        quick.wait_for_taint()
        versions = len(quick.stand_in.past())

        quick.agent.wait_for_looks(2)
        quick.restart()
        quick.agent.wait_for_looks(1)

        assert (quick.node().status, quick.node().tainted) == ("fail", True)
        assert {(node.status, node.tainted) for node in quick.stand_in.past()[versions:]} <= {("fail", True)}

    def test_ends_with_a_later_run_in_which_the_test_passed(self, watched: World) -> None:
        is_adopted(watched, tell(watched, failed_record()))
        watched.wait_for_taint()
        passed = tell(watched, record(minutes_ago=1))

        node = watched.wait_for_status("pass")
        assert (node.tainted, node.record["taken"]) == (False, {SWEEP: passed["timestamp"]})

    def test_does_not_end_with_a_run_that_could_not_run(self, watched: World) -> None:
        is_adopted(watched, tell(watched, failed_record()))
        busy = {"check": "1-dcgm-diag-l2", "cause": "DcgmBusy", "detail": "in use"}
        fields = tell(watched, record(minutes_ago=1, status="unknown", unobserved=[busy]))

        is_adopted(watched, fields)
        watched.wait_for_taint()

    def test_ends_with_the_reset_of_its_gpu(self, quick: World) -> None:
        is_adopted(quick, tell(quick, failed_record("RESET")))
        quick.wait_for_taint()
        quick.host.xid(3, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")

        assert not quick.wait_for_status("pass").tainted

    def test_ends_with_a_reboot_and_does_not_come_back_with_its_record(self, watched: World) -> None:
        is_adopted(watched, tell(watched, failed_record("REBOOT")))
        watched.wait_for_taint()
        assert watched.agent.terminate() == 0
        watched.host.reboot()
        watched.start()

        node = watched.wait_for_status("pass")
        assert (node.tainted, node.findings, len(node.record["taken"])) == (False, {}, 1)

    def test_record_from_before_the_agents_start_is_adopted(self, watched: World) -> None:
        assert watched.agent.terminate() == 0
        fields = tell(watched, failed_record(), QUARANTINE)
        watched.host.kernel_log.replay()
        watched.start()

        is_adopted(watched, fields, QUARANTINE)
        watched.wait_for_taint()

    def test_is_remembered_by_the_node_when_the_memory_file_is_lost(self, watched: World) -> None:
        fields = tell(watched, failed_record())
        is_adopted(watched, fields)
        watched.wait_for_taint()
        versions = len(watched.stand_in.past())
        assert watched.agent.terminate() == 0
        watched.memory_file.unlink()
        watched.host.kernel_log.replay()
        watched.start()
        eventually(lambda: watched.agent.metric("looks_total") >= 1)

        eventually(lambda: watched.memory_file.exists() and MEMORY in watched.memory_file.read_text())
        assert is_adopted(watched, fields)["count"] == 1
        assert {(node.status, node.tainted) for node in watched.stand_in.past()[versions:]} <= {("fail", True)}

    @pytest.mark.parametrize("gesture", [by_command, by_label])
    def test_that_was_released_stays_away(self, quick: World, gesture: Any) -> None:
        fields = tell(quick, failed_record())
        is_adopted(quick, fields)
        quick.wait_for_taint()
        gesture(quick)
        node = quick.wait_for_status("pass")
        assert (node.tainted, node.record["taken"]) == (False, {SWEEP: fields["timestamp"]})

        quick.restart()
        tell(quick, fields)  # the same one, written again
        quick.agent.wait_for_looks(1)
        assert (quick.node().status, quick.node().findings) == ("pass", {})
        is_adopted(quick, tell(quick, failed_record(minutes_ago=0)))

    @pytest.mark.parametrize("done", [False, True], ids=["not told", "told, and not answered"])
    def test_is_neither_lost_nor_doubled_by_a_kill_between_taking_and_telling(self, watched: World, done: bool) -> None:
        reached = watched.api.stop_at("PATCH", f"/nodes/{watched.cluster.name}", done=done)
        fields = tell(watched, failed_record())
        assert reached.wait(GIVE_UP_SECONDS)
        assert MEMORY in watched.memory_file.read_text()
        watched.agent.kill()
        watched.api.recover()
        watched.host.kernel_log.replay()
        watched.start()

        finding = is_adopted(watched, fields)
        watched.wait_for_taint()
        assert finding["count"] == 1
