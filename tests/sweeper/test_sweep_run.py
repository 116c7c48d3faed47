"""Program of a sweep Job's pod: its writes, the fields that it never touches, and its end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.deep.due import last_deep_test
from gpu_healthcheck.healthcheck.probes.dcgm.diag import HURRY_SECONDS
from gpu_healthcheck.healthcheck.text.moments import moment
from gpu_healthcheck.sweeper import sweep_run
from tests.agent.world import P, StandIn, World
from tests.probes.dcgm.documents import FAULTY, NOT_PERSISTENT, Said
from tests.sweeper.pod import ALL_SKIPPED, ALREADY_RUNNING, SWEEP, Pod, ended, swept
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

SLOW = Said("Bandwidth of GPU 1 is 3.0 GB/s, below 10.0", 30, 2, 2)
KEYS = {"timestamp", "started", "node", "suite", "status", "severity", "by", "checks", "findings", "unobserved"}
AGAIN = "retrying the request"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    with World(tmp_path / "world", StandIn("gpu-node-1", "p5.48xlarge")) as world:
        world.host.install_dcgmi()
        yield Pod(world)


def writes(pod: Pod) -> list[str]:
    return pod.world.stand_in.writes()


class TestAVerdict:
    def test_is_one_annotation_one_log_line_and_one_line_for_a_person(self, pod: Pod) -> None:
        before = pod.world.node().object

        done = pod.run()

        assert (done.code, pod.asked) == (0, ["2"]), done.err
        record = pod.record
        assert set(record) >= KEYS
        assert (record["status"], record["severity"], record["by"]) == ("pass", "PASS", "sweep")
        assert record["checks"] == [{"check": "1-dcgm-diag-l2", "status": "pass", "severity": "PASS"}]
        assert (record["node"], record["boot_id"]) == ("gpu-node-1", pod.world.host.boot_id)
        assert moment(record["started"]) <= moment(record["timestamp"])
        assert [line["record"] for line in done.lines if line["event"] == "tested"] == [record]
        assert done.out == "gpu-node-1: level-2: pass, severity PASS\n"
        after = pod.world.node().object
        assert writes(pod) == ["PATCH /api/v1/nodes/gpu-node-1"]
        assert after["metadata"].get("labels") == before["metadata"].get("labels")
        assert (after["spec"], after["status"]) == (before["spec"], before["status"])

    def test_of_a_broken_gpu_names_it_by_address_and_ends_well(self, pod: Pod) -> None:
        pod.dcgm(answer=pod.answer(("memory", 1, FAULTY)), code="205")

        done = pod.run()

        (finding,) = pod.record["findings"]
        gpu = pod.world.host.gpus[1]
        assert done.code == 0, done.err
        assert (pod.record["status"], finding["reason"], finding["severity"]) == ("fail", "DcgmDiagMemory", "ISOLATE")
        assert (finding["subject"], finding["about"]["serial"]) == (f"gpu/{gpu.address}", gpu.serial)
        assert done.out.startswith(f"gpu-node-1: level-2: fail, severity ISOLATE; DcgmDiagMemory on gpu/{gpu.address}")
        assert pod.world.node().taints == []

    def test_of_a_mere_warning_is_one_too(self, pod: Pod) -> None:
        pod.dcgm(answer=pod.answer(("software", 0, NOT_PERSISTENT)), code="226")

        assert (pod.run().code, pod.record["status"]) == (0, "warn")

    def test_error_that_healthy_gpus_show_too_counts_when_it_recurs(self, pod: Pod) -> None:
        pod.dcgm(answer=pod.answer(("pcie", 1, SLOW)), answer_pcie=pod.answer())

        done = pod.run()

        assert (pod.asked, done.code) == (["2", "pcie"], 0), done.err
        assert pod.record["findings"] == []

    def test_has_this_clusters_severities_and_hostengine(self, pod: Pod) -> None:
        pod.world.configure(**{"severity-overrides": "DcgmDiagMemory = REBOOT", "DCGM_HOST": "localhost:5555"})
        pod.dcgm(answer=pod.answer(("memory", 1, FAULTY)), code="205", hostengine="localhost:5555")

        assert (pod.run().code, pod.record["severity"]) == (0, "REBOOT")

    def test_comes_with_a_bad_setting_too(self, pod: Pod) -> None:
        pod.world.configure(DCGM_TIMEOUT="soon")

        done = pod.run()

        assert (done.code, pod.record["status"]) == (0, "pass")
        assert "DCGM_TIMEOUT = 'soon'" in done.err

    @pytest.mark.parametrize(
        "text", [swept(-24, "fail"), "{", '{"status": "fail"}'], ids=["of the future", "no JSON", "without a time"]
    )
    def test_new_result_replaces_any_present_one(self, pod: Pod, text: str) -> None:
        pod.annotate(text)

        assert (pod.run().code, pod.record["status"]) == (0, "pass")

    def test_text_written_meanwhile_stays(self, pod: Pod) -> None:
        newer = swept(-0.05, "fail", by="agent")
        pod.annotate(newer)

        assert pod.run().code == 0
        assert (pod.annotations[SWEEP], writes(pod)) == (newer, [])


class TestKill9:
    """At its only write: either the old record or the complete new one, and the next run reports the same."""

    def test_is_of_one_write_alone(self, pod: Pod) -> None:
        done = pod.run(KILL_AT="never")

        assert (done.code, done.out.count("WRITE")) == (0, 1)

    @pytest.mark.parametrize(("moment", "message"), [("1 before", "pass"), ("1 after", "fail")])
    def test_loses_no_verdict(self, pod: Pod, moment: str, message: str) -> None:
        pod.annotate(swept(7))
        pod.dcgm(answer=pod.answer(("memory", 1, FAULTY)), code="205")

        assert pod.run(KILL_AT=moment).code == -signal.SIGKILL

        assert pod.record["status"] == message
        again = pod.run()
        assert (again.code, pod.record["status"], pod.record["severity"]) == (0, "fail", "ISOLATE")


CAN_NOT: dict[str, tuple[dict[str, str], str]] = {
    "another diagnostic runs": ({"answer": ALREADY_RUNNING, "code": "217"}, "DcgmAlreadyRunning"),
    "GPUs are in use": ({"answer": "", "code": "222"}, "DcgmInUse"),
    "all skipped": ({"answer": ALL_SKIPPED}, "DcgmAllSkipped"),
    "no hostengine": ({"hostengine": "other:5555"}, "DcgmNoHostengine"),
    "nonsense": ({"answer": "¿qué?"}, "DcgmNoData"),
}


class TestWhatCouldNotRun:
    @pytest.mark.parametrize(("files", "cause"), CAN_NOT.values(), ids=CAN_NOT)
    def test_is_neither_fault_nor_pass(self, pod: Pod, files: dict[str, str], cause: str) -> None:
        pod.dcgm(**files)

        done = pod.run()

        assert (done.code, pod.record["status"], pod.record["severity"]) == (2, "unknown", "PASS"), done.err
        assert (pod.record["findings"], pod.causes) == ([], {cause})
        assert cause in done.out

    def test_for_want_of_dcgmi_is_no_pass(self, pod: Pod) -> None:
        (pod.world.host.root / "usr/bin/dcgmi").unlink()

        done = pod.run()

        assert (done.code, pod.record["status"], pod.causes) == (2, "unknown", {"DcgmNotInstalled"}), done.err

    def test_keeps_when_and_how_the_node_was_tested_before(self, pod: Pod) -> None:
        earlier = swept(5)
        at = json.loads(earlier)["timestamp"]
        pod.annotate(earlier)
        pod.world.cluster.edit({"metadata": {"annotations": {f"{P}/results": taken(at)}}})
        pod.dcgm(answer=ALREADY_RUNNING, code="217")

        for _ in range(2):
            pod.run()

            node = node_state(pod.world.node().object)
            test = last_deep_test(node, moment(pod.record["timestamp"]))
            assert test is not None
            assert (pod.record["status"], test.status, test.at) == ("unknown", "pass", moment(at))
            pod.world.cluster.edit({"metadata": {"annotations": {f"{P}/results": taken(str(pod.record["timestamp"]))}}})

    def test_record_hides_no_verdict_that_the_agent_has_not_adopted(self, pod: Pod) -> None:
        verdict = swept(5, "fail", severity="ISOLATE")
        pod.annotate(verdict)
        pod.dcgm(answer=ALREADY_RUNNING, code="217")

        done = pod.run()

        assert (done.code, pod.annotations[SWEEP], writes(pod)) == (2, verdict, [])
        assert "has not adopted its verdict yet" in done.err


def taken(timestamp: str) -> str:
    """An agent's record that has taken the sweep's."""
    return json.dumps({"schema": 1, "status": "pass", "severity": "PASS", "taken": {"sweep-result": timestamp}})


class TestAnEnd:
    def test_by_sigterm_ends_dcgm_first_and_says_so(self, pod: Pod) -> None:
        pod.dcgm(hang="")
        process = pod.start()
        sleeper = pod.world.host.root / "dcgm/sleeper"
        eventually(lambda: sleeper.exists() and sleeper.read_text().strip())

        process.terminate()

        done = ended(process)
        assert (done.code, pod.record["status"], pod.causes) == (2, "unknown", {"DcgmStopped"}), done.err
        assert not is_alive(int(sleeper.read_text()))

    def test_before_anything_began_runs_nothing(self, pod: Pod) -> None:
        held = pod.world.api.stop_at("GET", "/nodes/gpu-node-1")
        process = pod.start()
        assert held.wait(GIVE_UP_SECONDS)

        process.terminate()
        eventually(lambda: not pending(process.pid))
        pod.world.api.recover()

        done = ended(process)
        assert (pod.asked, done.code) == ([], 2), done.err
        assert pod.causes == {"DcgmStopped"}

    def test_of_a_dcgm_that_hears_nothing_leaves_nothing_of_it(self, pod: Pod) -> None:
        pod.dcgm(hang="", deaf="", session="")
        process = pod.start()
        sleeper = pod.world.host.root / "dcgm/sleeper"
        eventually(lambda: sleeper.exists() and sleeper.read_text().strip())

        process.terminate()

        done = ended(process)
        assert (done.code, is_alive(int(sleeper.read_text()))) == (2, False), done.err

    def test_without_a_verdict_waits_for_nobody(self, pod: Pod) -> None:
        pod.dcgm(hang="")
        process = pod.start()
        eventually((pod.world.host.root / "dcgm/sleeper").exists)
        pod.world.api.refuse()

        process.terminate()

        done = ended(process)
        pod.world.api.accept()
        assert (done.code, done.lines[-1]["event"]) == (2, "stopped before the result was written"), done.err
        assert SWEEP not in pod.annotations

    def test_with_a_verdict_waits_for_an_api_server_that_comes_back(self, pod: Pod) -> None:
        pod.dcgm(code="205")
        pod.hold()
        process = pod.start()
        eventually(lambda: pod.asked)
        pod.world.api.refuse()
        pod.let_go(pod.answer(("memory", 1, FAULTY)))
        assert process.stderr is not None
        while AGAIN not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.terminate()
        time.sleep(HURRY_SECONDS + sweep_run._WRITE_SECONDS + 1.0)  # longer than it would wait without one

        pod.world.api.accept()

        done = ended(process)
        assert (done.code, pod.record["status"]) == (0, "fail"), done.err


def is_alive(pid: int) -> bool:
    """Without a reaper, ended processes stay in the list."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pending(pid: int) -> bool:
    """Whether it has a signal that it did not take yet."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return any(int(lines[name], 16) for name in ("SigPnd", "ShdPnd"))


OUTAGES: dict[str, Any] = {
    "refused": lambda world: world.api.refuse(),
    "401": lambda world: world.api.fail_with(401),
    "403": lambda world: world.api.fail_with(403),
}


class TestTheCluster:
    @pytest.mark.parametrize("outage", OUTAGES)
    def test_may_be_away_while_the_test_runs(self, pod: Pod, outage: str) -> None:
        pod.hold()
        process = pod.start()
        eventually(lambda: pod.asked)
        OUTAGES[outage](pod.world)
        pod.let_go()
        assert process.stderr is not None
        while AGAIN not in (line := process.stderr.readline()):
            assert line, "it ended"

        pod.world.api.accept()
        pod.world.api.recover()

        done = ended(process)
        assert (done.code, pod.record["status"]) == (0, "pass"), done.err

    def test_may_have_changed_the_node_meanwhile(self, pod: Pod) -> None:
        held = pod.world.api.stop_at("PATCH", "/nodes/gpu-node-1")
        process = pod.start()
        assert held.wait(GIVE_UP_SECONDS)
        pod.world.cluster.edit({"metadata": {"labels": {"team": "vision"}}})
        pod.world.api.recover()

        done = ended(process)
        assert (done.code, pod.record["status"]) == (0, "pass"), done.err
        assert pod.world.node().labels["team"] == "vision"

    def test_may_lose_an_answer(self, pod: Pod) -> None:
        held = pod.world.api.stop_at("PATCH", "/nodes/gpu-node-1", done=True)
        process = pod.start()
        assert held.wait(GIVE_UP_SECONDS)
        pod.world.api.recover()

        done = ended(process)
        assert (done.code, pod.record["status"], len(writes(pod))) == (0, "pass", 2), done.err

    def test_may_have_another_node_of_that_name_now(self, pod: Pod) -> None:
        pod.hold()
        process = pod.start()
        eventually(lambda: pod.asked)
        pod.world.api.delete_node("gpu-node-1")
        pod.world.api.add_node("gpu-node-1")
        pod.let_go()

        done = ended(process)
        assert (done.code, SWEEP in pod.annotations) == (2, False)
        assert "was replaced since the test began" in done.err

    def test_without_the_node_nothing_is_tested(self, pod: Pod) -> None:
        pod.world.api.delete_node("gpu-node-1")

        assert (pod.run().code, pod.asked) == (2, [])


def test_wrong_usage_is_no_test(pod: Pod) -> None:
    assert (pod.run(NODE_NAME="").code, pod.run(LOG_LEVEL="loud").code, pod.asked) == (3, 3, [])
