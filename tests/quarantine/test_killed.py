"""A run killed at any moment: the Node has its ended tests, and another run can follow."""

from __future__ import annotations

import json
import signal
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.deep.claim import clear
from gpu_healthcheck.healthcheck.deep.deep_record import deep_record
from gpu_healthcheck.healthcheck.memory.deep_tests import DeepResult
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.text.boundary import read_row
from gpu_healthcheck.healthcheck.text.moments import moment
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RunRecord
from gpu_healthcheck.quarantine.node_marks import HELD
from tests.agent.deep.test_deep import answer
from tests.probes.dcgm.documents import FAULTY
from tests.quarantine.world import ALL_REDUCE, LEVEL_4, LOAD, LOOPBACK, NODE, ROCE, P, World, end_of
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

NOBODY = ("", "", False)
OURS = ("quarantine", "quarantine", True)
GROUPS = (LEVEL_4, LOOPBACK, ROCE, LOAD, ALL_REDUCE)
STEPS = [
    (LEVEL_4, "dcgm/hang", "", []),
    (LOOPBACK, "fi_pingpong/fails", "DEVICE hang", [LEVEL_4]),
    (LOAD, "cuda/gpu0/hangs", "", [LEVEL_4, LOOPBACK]),
    (ALL_REDUCE, "nccl/fails", "hang", [LEVEL_4, LOOPBACK, LOAD]),
]


def hangs(world: World, file: str, text: str) -> None:
    world.host.write_value(file, text.replace("DEVICE", world.host.efa_names[1]))


def at_work(world: World, process: subprocess.Popen[str], group: str) -> None:
    """Until this test runs, its program too."""
    eventually(lambda: world.record.get("running") == group and world.tests_running())
    assert process.poll() is None


def result_in(record: dict[str, Any]) -> DeepResult:
    return deep_record(read_row(RunRecord, record), "quarantine-result").result


def ended(record: dict[str, Any]) -> list[str]:
    return [row["check"] for row in record["checks"] if row["status"] == "pass"]


@pytest.mark.parametrize(
    ("group", "file", "text", "done", "number"),
    [*((*step, signal.SIGTERM) for step in STEPS), (*STEPS[0], signal.SIGINT)],
)
def test_a_stopped_run_ends_its_test_and_reports_it(
    world: World, group: str, file: str, text: str, done: list[str], number: signal.Signals
) -> None:
    hangs(world, file, text)
    with world.started() as process:
        at_work(world, process, group)
        process.send_signal(number)
        code = end_of(process).code
        left = world.tests_running()

    record = world.record
    assert (code, record["status"], record["recommendation"]) == (2, "unknown", "rerun")
    assert (ended(record), "running" in record, world.marks, left) == (done, False, NOBODY, [])
    stopped = [entry["check"] for entry in record["unobserved"] if entry["cause"] == "RunStopped"]
    assert stopped == list(GROUPS[GROUPS.index(group) :])
    assert records.passed_since(read_row(RunRecord, record)) is None


@pytest.mark.parametrize(("group", "file", "text", "done"), [STEPS[0], STEPS[-1]])
def test_after_kill_9_the_record_has_the_ended_tests_and_another_run_takes_over(
    world: World, group: str, file: str, text: str, done: list[str]
) -> None:
    hangs(world, file, text)
    with world.started() as process:
        at_work(world, process, group)
        process.kill()
        process.wait()

    record = world.record
    assert (record["status"], record["recommendation"], record["running"]) == ("unknown", "rerun", group)
    assert (ended(record), world.marks) == (done, OURS)
    assert {entry["check"] for entry in record["unobserved"]} == set(GROUPS[GROUPS.index(group) :])
    assert (
        records.passed_since(read_row(RunRecord, record)),
        result_in(record).all_passed,
    ) == (None, False)

    (world.host.root / file).unlink()
    assert world.run().code == 0
    assert (world.record["recommendation"], world.marks) == ("return-to-service", NOBODY)


def test_a_fault_that_was_found_stands_whatever_happens_then(world: World) -> None:
    """Found, killed, killed again before any test ended; a run that passes ends it."""
    world.dcgm(answer=answer(("memory", 1), FAULTY))
    hangs(world, *STEPS[1][1:3])
    with world.started() as process:
        at_work(world, process, LOOPBACK)
        process.kill()
    first = world.record
    world.dcgm(hang="")
    with world.started() as process:
        at_work(world, process, LEVEL_4)
        process.kill()
    second = world.record

    assert (first["status"], first["severity"], first["recommendation"]) == ("fail", "ISOLATE", "replace")
    assert (second["status"], second["severity"]) == ("fail", "ISOLATE")
    assert [entry["reason"] for entry in second["findings"]] == ["DcgmDiagMemory"]
    assert [finding.finding.severity for finding in result_in(second).found] == [Severity.ISOLATE]

    world.well()
    (world.host.root / "fi_pingpong/fails").unlink()
    world.run()
    assert (world.record["status"], world.record["recommendation"]) == ("pass", "return-to-service")


def test_a_device_that_fails_is_on_the_node_before_the_next_one_is_tested(world: World) -> None:
    first, second = world.host.efa_names[:2]
    world.host.write_value("fi_pingpong/fails", f"{first} error\n{second} hang")
    with world.started() as process:
        eventually(lambda: world.record.get("findings"))
        process.kill()

    assert [entry["subject"] for entry in world.record["findings"]] == [f"efa/{first}"]
    assert (world.record["running"], world.record["recommendation"]) == (LOOPBACK, "reboot")


def test_a_second_run_on_the_machine_refuses_and_the_first_goes_on(world: World) -> None:
    world.dcgm(hang="")
    with world.started() as process:
        at_work(world, process, LEVEL_4)
        before = world.record
        second = world.run()
        fields = world.record | {"timestamp": before["timestamp"]}  # the first may tell the same anew meanwhile
        assert (second.code, fields, world.marks, process.poll()) == (2, before, OURS, None)
    assert "another quarantine run is active" in second.log[-1]["why"]


def test_a_run_that_loses_the_api_server_tells_all_when_it_is_back(world: World) -> None:
    world.dcgm(hang="")
    with world.started() as process:
        at_work(world, process, LEVEL_4)
        world.stand_in.refuse()
        (world.host.root / "dcgm/hang").unlink()
        world.end_tests(signal.SIGTERM)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("the result could not be written yet" in line for line in lines)
        world.stand_in.accept()
        process.wait(GIVE_UP_SECONDS)

    assert [row["status"] for row in world.record["checks"]] == ["unknown", "pass", "not-configured", "pass", "pass"]
    assert (process.returncode, world.record["recommendation"], world.marks) == (2, "rerun", NOBODY)


def test_marks_that_were_cleared_while_the_api_server_was_away_stand_again(world: World) -> None:
    """Away for longer than the node is held, and the agent was the first to hear that it is back."""
    world.dcgm(hang="")
    hangs(world, *STEPS[1][1:3])
    with world.started() as process:
        at_work(world, process, LEVEL_4)
        world.stand_in.refuse()
        (world.host.root / "dcgm/hang").unlink()
        world.end_tests(signal.SIGTERM)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any('"test: started"' in line and LOOPBACK in line for line in lines)
        assert any("the Node could not be written" in line for line in lines)
        cleared = clear(node_state(world.node), datetime.now(UTC) + HELD)
        assert cleared is not None
        del cleared["metadata"]["resourceVersion"]
        world.stand_in.edit_node(NODE, cleared)
        assert world.marks == NOBODY
        world.stand_in.accept()

        eventually(lambda: world.marks == OURS)
        assert world.record["running"] == LOOPBACK


def writes(world: World) -> int:
    with world.started(program="tests.quarantine.dying", KILL_AT="never") as process:
        return end_of(process).out.count("WRITE patch nodes")


def test_kill_9_at_each_write_leaves_a_record_that_is_right_and_a_node_that_the_next_run_takes(world: World) -> None:
    for device in (0, 1):
        world.host.remove_efa(device)
    world.host.write_value("nccl/fails", "wrong")
    number = writes(world)
    final = world.record
    assert (number, final["recommendation"]) == (13, "replace")

    # After a write the Node is as it is before the next one: only the last is killed after it, too.
    for kill_at in (*(f"{value} before" for value in range(1, number + 1)), f"{number} after"):
        world.annotate(quarantine_result=None)
        with world.started(program="tests.quarantine.dying", KILL_AT=kill_at) as process:
            assert process.wait(GIVE_UP_SECONDS) == -signal.SIGKILL
        record = world.record
        has_found = bool(record) and bool(record["findings"])
        result = record.get("recommendation", "")
        assert result == ("replace" if has_found else "rerun" if record else ""), kill_at
        assert world.marks in (NOBODY, OURS), kill_at
        if kill_at == f"{number} after":
            assert (world.marks, record["findings"]) == (NOBODY, final["findings"])

    (world.host.root / "nccl/fails").unlink()
    assert (world.run().code, world.marks) == (0, NOBODY)


def test_damaged_mark_delays_no_run(world: World) -> None:
    """Other damaged marks: tests/deep/test_claim.py."""
    world.annotate(run='{"kind":"quarantine"}')
    assert (world.run().code, world.marks) == (0, NOBODY)


def test_a_run_holds_the_node_for_minutes_at_a_time(world: World) -> None:
    world.dcgm(hang="")
    with world.started() as process:
        at_work(world, process, LEVEL_4)
        run = json.loads(world.annotations[f"{P}/run"])
    assert moment(run["until"]) - moment(world.record["started"]) < 2 * HELD
