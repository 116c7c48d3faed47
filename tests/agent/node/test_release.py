"""A person releases a node: by the command and by the label, with a fault, a crash or an absence at the same moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.verdict.acknowledgement import dump_release, release_of
from tests.agent.world import NodeView, P, World
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."
RELEASE, STATUS = f"{P}/release", f"{P}/status"
Json = dict[str, Any]
Gesture = Callable[[World], None]


@pytest.fixture
def failed(watched: World) -> World:
    """Xid 79; node and memory file have it, and all is reported."""
    watched.host.xid(3, 79, ERROR)
    watched.wait_for_taint()
    watched.wait_for_event("GpuHealthFail")
    watched.wait_for_event("Xid79")
    return watched


def by_command(world: World) -> None:
    """Write as the command does; a test below checks that it does."""
    word = release_of(node_state(world.node().object), "mia", "board swapped", datetime.now(UTC))
    world.cluster.edit({"metadata": {"annotations": {RELEASE: dump_release(word)}}})


def by_label(world: World) -> None:
    """`kubectl label --overwrite`, with the managedFields of a real API server (tests/agent/test_real_cluster.py)."""
    at = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields: Json = {"f:metadata": {"f:labels": {f"f:{STATUS}": {}}}}
    noted = {"manager": "kubectl-label", "operation": "Update", "time": at, "fieldsV1": fields}
    world.cluster.edit({"metadata": {"labels": {STATUS: "pass"}, "managedFields": [noted]}})


BOTH = pytest.mark.parametrize(
    ("gesture", "by"), [(by_command, "mia"), (by_label, "kubectl-label")], ids=["by command", "by label"]
)


THE_EVENT, THE_NODE, THE_CONDITION = (
    ("POST", "/events"),
    ("PATCH", "/nodes/gpu-node-1"),
    ("PATCH", "/nodes/gpu-node-1/status"),
)
AT_EACH_WRITE = [
    *((by_command, "mia", *write, done) for write in (THE_EVENT, THE_NODE, THE_CONDITION) for done in (False, True)),
    # The label is overwritten with the Node: before and after that, it is reported like the annotation.
    *((by_label, "kubectl-label", *THE_NODE, done) for done in (False, True)),
]
"""Whose release, at which write, and whether that is done when the agent dies, or not."""


def is_released(world: World, by: str) -> None:
    """Check that the node passes, and that its record and exactly one Event name the releasing person."""
    node = world.wait(lambda node: node.status == "pass" and not node.findings and "released" in node.record)
    world.wait(lambda node: node.condition.get("status") == "True")
    event = world.wait_for_event("Released")
    assert (node.tainted, node.record["released"]["by"]) == (False, by)
    assert RELEASE not in node.object["metadata"]["annotations"]
    assert event["type"] == "Normal"
    assert event["message"].startswith(f"{by} released Xid79 on gpu/{world.host.gpus[3].address}: ")
    assert len(world.events("Released")) == 1


def resume(world: World) -> None:
    """A new agent, which reads the kernel's ring from its oldest record."""
    world.host.kernel_log.replay()
    world.start().wait_for_log("memory")


def reboot_into_unknown(world: World, *, driver_loaded: bool = True) -> NodeView:
    """End Xid 79 by a reboot, after which the processes of the host cannot be observed."""
    assert world.agent.terminate() == 0
    world.host.reboot()
    if not driver_loaded:
        world.host.driver_unload()
    world.host.hide_host_processes()
    world.start()
    return world.wait(lambda node: node.status == "unknown")


class TestRelease:
    @BOTH
    def test_release_is_applied_at_once_and_permanently(self, failed: World, gesture: Gesture, by: str) -> None:
        gesture(failed)
        is_released(failed, by)
        versions = len(failed.stand_in.past())

        failed.restart()
        failed.host.xid(5, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        node = failed.wait_for_taint()
        assert set(node.findings) == {"Xid48"}
        assert {frozenset(node.findings) for node in failed.stand_in.past()[versions:]} <= {
            frozenset(),
            frozenset({"Xid48"}),
        }
        failed.host.xid(3, 79, ERROR)  # the released fault, again
        node = failed.wait(lambda node: set(node.findings) == {"Xid48", "Xid79"})
        assert (node.tainted, len(failed.events("Released"))) == (True, 1)

    @BOTH
    def test_does_not_cover_faults_of_the_same_moment(self, failed: World, gesture: Gesture, by: str) -> None:
        assert failed.agent.terminate() == 0
        gesture(failed)
        for code in (79, 48):
            failed.host.xid(3, code, "An error of the same moment.")
        resume(failed)
        node = failed.wait(lambda node: "released" in node.record and len(node.findings) == 2)
        node = failed.wait_for_taint()

        assert (node.tainted, set(node.findings)) == (True, {"Xid79", "Xid48"})
        assert node.record["released"]["by"] == by

    @BOTH
    def test_waits_for_an_agent_and_an_api_server_that_are_away(self, failed: World, gesture: Gesture, by: str) -> None:
        assert failed.agent.terminate() == 0
        gesture(failed)
        versions = len(failed.stand_in.past())
        failed.api.refuse()
        resume(failed)
        failed.agent.wait_for_log("the API server is unavailable; the newest verdict is kept")
        failed.api.accept()
        is_released(failed, by)

        # No state in between: the node was failed, and then it passed.
        assert {(node.status, node.tainted) for node in failed.stand_in.past()[versions:]} == {("pass", False)}

    @BOTH
    def test_that_is_read_before_the_first_check_cycle_has_ended_waits_for_it(
        self, failed: World, gesture: Gesture, by: str
    ) -> None:
        assert failed.agent.terminate() == 0
        gesture(failed)
        versions = len(failed.stand_in.past())
        failed.host.hang()  # the first check cycle does not end for a minute
        resume(failed)
        assert failed.wait_for_event("Released")["message"].startswith(f"{by} released Xid79 ")
        eventually(lambda: failed.agent.metric("verdict_pending") == 0)

        assert failed.stand_in.past()[versions:] == []

    @BOTH
    def test_outlives_the_loss_of_the_memory_file(self, failed: World, gesture: Gesture, by: str) -> None:
        assert failed.agent.terminate() == 0
        failed.memory_file.unlink()
        gesture(failed)
        resume(failed)
        is_released(failed, by)

    def test_is_not_needed_when_only_an_unrelated_check_is_unobserved(self, failed: World) -> None:
        node = reboot_into_unknown(failed)
        assert (node.findings, node.tainted) == ({}, False)

    @BOTH
    def test_lifts_the_taint_of_an_ended_finding_whose_gpu_is_unobserved(
        self, failed: World, gesture: Gesture, by: str
    ) -> None:
        node = reboot_into_unknown(failed, driver_loaded=False)
        assert (node.findings, node.tainted) == ({}, True)
        assert [entry["reason"] for entry in node.record["kept"]] == ["Xid79"]
        failed.wait(lambda node: "the taint stays for Xid79" in node.condition["message"])

        gesture(failed)

        assert failed.wait(lambda node: not node.tainted).status == "unknown"
        assert eventually(lambda: failed.node().record["released"]["by"]) == by

    def test_by_command_needs_no_labels(self, world: World) -> None:
        world.configure(ENABLE_LABEL="false")
        world.start()
        world.host.xid(3, 79, ERROR)
        world.wait(lambda node: node.tainted)
        by_command(world)
        node = world.wait(lambda node: not node.tainted)

        assert (STATUS in node.labels, node.record["released"]["by"]) == (False, "mia")
        assert len(eventually(lambda: world.events("Released"))) == 1

    def test_by_label_is_none_where_labels_are_switched_off(self, world: World) -> None:
        world.configure(ENABLE_LABEL="false")
        world.start()
        world.host.xid(3, 79, ERROR)
        world.wait(lambda node: node.tainted)
        by_label(world)
        node = world.wait(lambda node: STATUS not in node.labels)

        assert (node.tainted, set(node.findings)) == (True, {"Xid79"})
        assert world.events("Released") == []

    @pytest.mark.parametrize("gesture", [by_command, by_label])
    def test_of_a_deep_verdict_lasts_until_a_later_run_finds_it_again(self, watched: World, gesture: Gesture) -> None:
        now = datetime.now(UTC)
        watched.cluster.edit(deep_result(now - timedelta(hours=1)))
        watched.wait(lambda node: node.tainted)
        gesture(watched)
        node = watched.wait(lambda node: node.status == "pass" and not node.tainted)
        assert "released" in node.record

        watched.cluster.edit(deep_result(now + timedelta(seconds=5)))
        watched.wait(lambda node: node.tainted)

    def test_an_unreadable_annotation_is_removed_and_reported(self, failed: World) -> None:
        failed.cluster.edit({"metadata": {"annotations": {RELEASE: "please"}}})
        node = failed.wait(lambda node: RELEASE not in node.object["metadata"]["annotations"])

        assert (node.status, node.tainted) == ("fail", True)
        assert RELEASE in failed.wait_for_event("BadAnnotation")["message"]


def deep_result(at: datetime) -> Json:
    seen = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    row = {"reason": "DcgmDiagMemory", "subject": "gpu/0", "severity": "ISOLATE", "last_seen": seen}
    record = {"schema": 1, "timestamp": seen, "severity": "ISOLATE", "findings": [row]}
    return {"metadata": {"annotations": {f"{P}/quarantine-result": json.dumps(record)}}}


class TestACrash:
    """The agent is killed at each write that follows a release: before it is done, and done but not answered."""

    @pytest.mark.parametrize(("gesture", "by", "method", "part", "done"), AT_EACH_WRITE)
    def test_loses_and_doubles_nothing(
        self, failed: World, gesture: Gesture, by: str, method: str, part: str, done: bool
    ) -> None:
        reached = failed.api.stop_at(method, part, done=done)
        gesture(failed)
        versions = len(failed.stand_in.past())
        assert reached.wait(GIVE_UP_SECONDS)
        failed.agent.kill()
        failed.api.recover()
        resume(failed)
        is_released(failed, by)
        # The heartbeat is renewed after all reports of the check cycle.
        eventually(lambda: failed.agent.metric("cluster_writes_total{leases,ok}") >= 1)

        is_released(failed, by)
        assert {(node.status, node.tainted) for node in failed.stand_in.past()[versions:]} <= {("pass", False)}

    @BOTH
    def test_keeps_a_fault_that_came_between_the_memory_and_the_node(
        self, failed: World, gesture: Gesture, by: str
    ) -> None:
        reached = failed.api.stop_at("PATCH", "/nodes/gpu-node-1")
        gesture(failed)
        assert reached.wait(GIVE_UP_SECONDS)
        failed.agent.kill()
        failed.api.recover()
        failed.host.xid(3, 79, ERROR)
        resume(failed)
        node = failed.wait(lambda node: "released" in node.record)
        node = failed.wait_for_taint()

        assert (node.tainted, set(node.findings), node.record["released"]["by"]) == (True, {"Xid79"}, by)
        assert len(failed.events("Released")) == 1


class TestTheCommand:
    def test_lists_the_released_findings_and_waits_for_the_agent(self, failed: World) -> None:
        before = failed.node().version
        dry = run(failed, "--dry-run")
        assert (dry.returncode, failed.node().version) == (0, before)
        assert dry.stdout.startswith("gpu-node-1: would release\n  REBOOT   Xid79 on ")

        done = run(failed, "--by", "mia")

        assert (done.returncode, done.stderr) == (0, "")
        subject = f"gpu/{failed.host.gpus[3].address}"
        assert done.stdout.splitlines()[0] == "gpu-node-1: releasing"
        assert done.stdout.splitlines()[1].startswith(f"  REBOOT   Xid79 on {subject} (event, last seen 20")
        assert done.stdout.splitlines()[2:] == [
            "gpu-node-1: released by mia: board swapped",
            "gpu-node-1: its agent reports pass",
        ]
        node = failed.node()
        assert (node.status, node.tainted) == ("pass", False)
        assert (node.record["released"]["by"], node.record["released"]["reason"]) == ("mia", "board swapped")

    def test_gives_a_node_that_a_quarantine_run_cordoned_back_to_work(self, failed: World) -> None:
        by = {f"{P}/cordoned-by": "gpu-quarantine-gpu-node-1"}
        fields: Json = {
            "f:spec": {"f:unschedulable": {}},
            "f:metadata": {"f:annotations": {f"f:{key}": {} for key in by}},
        }
        noted = {"manager": "gpu-healthcheck", "operation": "Update", "fieldsV1": fields}
        failed.cluster.edit(
            {"metadata": {"annotations": by, "managedFields": [noted]}, "spec": {"unschedulable": True}}
        )
        done = run(failed)

        assert (done.returncode, "gpu-node-1: uncordoned: " in done.stdout) == (0, True)
        node = failed.node()
        assert (node.status, node.tainted, "unschedulable" in node.object["spec"]) == ("pass", False, False)

    def test_names_the_kubeconfigs_user_as_author(self, failed: World) -> None:
        assert run(failed).returncode == 0
        assert failed.node().record["released"]["by"] == "stand-in"

    def test_names_a_fault_that_is_still_there(self, failed: World) -> None:
        failed.host.lose_gpu(5)
        failed.restart()
        failed.wait(lambda node: "GpuLost" in node.findings)
        done = run(failed)

        assert done.returncode == 1
        assert "still active\n  REBOOT   GpuLost on gpu/" in done.stdout
        assert done.stdout.endswith("its agent reports fail\ngpu-node-1: its taint stays\n")
        node = failed.node()
        assert (node.status, node.tainted, set(node.findings)) == ("fail", True, {"GpuLost"})

    def test_a_minor_finding_of_something_else_does_not_fail_it(self, failed: World) -> None:
        failed.host.write_value("nvml/gpu5/persistence_mode", "0")
        failed.restart()
        failed.wait(lambda node: "PersistenceModeOff" in node.findings)
        done = run(failed)

        assert (done.returncode, "PersistenceModeOff" in done.stdout.partition("still active")[2]) == (0, True)
        assert (failed.node().status, failed.node().tainted) == ("warn", False)

    def test_finds_nothing_to_release_on_a_healthy_node(self, watched: World) -> None:
        before = watched.node().version
        done = run(watched)

        assert (done.returncode, watched.node().version) == (0, before)
        assert "nothing to release" in done.stdout

    def test_goes_on_with_the_other_nodes_when_one_is_none(self, failed: World) -> None:
        done = run(failed, nodes=("no-such-node", failed.cluster.name))

        assert (done.returncode, done.stderr) == (
            2,
            "gpu-healthcheck release: no-such-node: the node does not exist\n",
        )
        assert failed.node().status == "pass"

    def test_needs_a_record(self, world: World) -> None:
        done = run(world)

        assert (done.returncode, "no agent has written a record of this node" in done.stderr) == (2, True)

    def test_names_the_right_that_is_missing(self, failed: World) -> None:
        failed.api.fail_with(403, path_part="/nodes/gpu-node-1")
        done = run(failed)
        failed.api.recover()

        assert (done.returncode, "you need permission to get nodes" in done.stderr) == (2, True)

    def test_reports_when_no_agent_answers(self, failed: World) -> None:
        assert failed.agent.terminate() == 0
        done = run(failed, "--timeout", "1")

        assert done.returncode == 2
        assert "no agent of this node answered within 1 s; the release stays on the node" in done.stderr
        assert RELEASE in failed.node().object["metadata"]["annotations"]

    @pytest.mark.parametrize("words", [(), ("--reason",), ("--reason", "x", "--timeout", "0")])
    def test_is_used_wrongly_with_exit_code_3(self, world: World, words: tuple[str, ...]) -> None:
        assert _cli(world, world.cluster.name, *words).returncode == 3


def run(world: World, *words: str, nodes: tuple[str, ...] = ("gpu-node-1",)) -> subprocess.CompletedProcess[str]:
    return _cli(world, *nodes, "--reason", "board swapped", *words)


def _cli(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(world.kubeconfig), "COLUMNS": "200"}
    command = [sys.executable, "-m", "cli", "release", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
