"""Invalid input by a person or another program: reported, counted, and never the end of the agent."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from tests.agent.world import RESULTS, P, World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

TWICE = '{"schema":1,"severity":"ISOLATE","severity":"PASS"}'


class TestSettingsAtTheStart:
    BAD: ClassVar = {
        "words": {
            "CHECK_INTERVAL": ("5", "CHECK_INTERVAL = '5': a whole number of seconds, 10 to 86400"),
            "CHECKS_LIGHTWEIGHT": ("0 1 2", "CHECKS_LIGHTWEIGHT = '0 1 2': 1 is not a light check"),
            "ENABLE_TAINT": ("perhaps", "ENABLE_TAINT = 'perhaps': allowed are true and false"),
            "severity-overrides": ("xid 79 = BAD", "severity-overrides"),
            "instance-profiles.conf": ("p5.48xlarge|8", "instance-profiles.conf:1: 'p5.48xlarge|8' has 2 fields"),
        },
        "bytes": {
            "CHECK_INTERVAL": ("\udcff\udcfe", "CHECK_INTERVAL"),
            "instance-profiles.conf": ("\udcff\udcfe", "instance-profiles.conf:1"),
        },
    }

    @pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
    def test_invalid_files_leave_the_defaults_and_are_reported(
        self, world: World, bad: dict[str, tuple[str, str]]
    ) -> None:
        for key, (value, _) in bad.items():
            (world.config / key).write_bytes(value.encode("utf-8", "surrogateescape"))
        world.start()
        world.wait_for_status("pass")

        eventually(lambda: len(world.events("BadSetting")) >= len(bad), lambda: world.events("BadSetting"))
        messages = "\n".join(event["message"] for event in world.events("BadSetting"))
        assert [message for _, message in bad.values() if message not in messages] == []
        assert {key: world.agent.metric(f"bad_settings{{{key}}}") for key in bad} == dict.fromkeys(bad, 1)
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.wait_for_taint()

    def test_of_the_environment_are_named_as_such(self, world: World) -> None:
        world.start(CHECK_INTERVAL="5")

        assert world.wait_for_event("BadSetting")["message"].startswith("environment: CHECK_INTERVAL = '5'")

    def test_repaired_are_taken_without_a_restart(self, world: World) -> None:
        world.hurry()
        world.configure(**{"severity-overrides": "xid 79 = BAD"})
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.start()
        assert world.wait_for_taint().severity == "REBOOT"

        world.configure(**{"severity-overrides": "xid 48 = ISOLATE"})
        eventually(lambda: world.agent.metrics().get("bad_settings{severity-overrides}") == 0)
        world.host.xid(4, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        world.wait(lambda node: node.severity == "ISOLATE")

    def test_that_nobody_knows_are_named_once_and_the_others_count(self, world: World) -> None:
        world.hurry()
        world.configure(CHECK_INTERVALL="60", NONSENSE="1", DCGM_L2_INTERVAL="0")
        (world.config / "directory").mkdir()
        world.start()
        world.wait_for_status("pass")

        named = f"{world.config}: unknown settings: CHECK_INTERVALL (did you mean CHECK_INTERVAL?), NONSENSE; "
        assert world.wait_for_event("UnknownSetting")["message"] == f"{named}all others are used"
        assert world.agent.metric("unknown_settings") == 2
        (world.config / "CHECK_INTERVALL").unlink()
        eventually(lambda: len(world.events("UnknownSetting")) == 2)
        (world.config / "NONSENSE").unlink()
        eventually(lambda: world.agent.metrics()["unknown_settings"] == 0)
        assert (len(world.events("UnknownSetting")), world.events("BadSetting")) == (2, [])


class TestAnnotations:
    @pytest.mark.parametrize(
        "text",
        [
            "no JSON",
            "[" * 60_000,
            '{"findings": 5, "timestamp": [], "status": {}}',
            '{"findings": [{"reason": []}, 5], "boot_id": 3}',
        ],
    )
    def test_of_our_own_that_are_no_record_are_written_anew(self, world: World, text: str) -> None:
        world.cluster.edit({"metadata": {"annotations": {RESULTS: text}}})
        world.start()
        node = world.wait_for_status("pass")

        assert node.record["schema"] == 1
        assert node.findings == {}

    @pytest.mark.parametrize(
        "text",
        ["no JSON", '{"schema":1,"severity":"AWFUL"}', TWICE],
    )
    def test_malformed_deep_records_are_reported_and_skipped(self, world: World, text: str) -> None:
        world.cluster.edit({"metadata": {"annotations": {f"{P}/sweep-result": text}}})
        world.start()
        world.wait_for_status("pass")

        assert f"{P}/sweep-result" in world.wait_for_event("BadAnnotation")["message"]
        assert world.agent.metric("bad_annotations_total") == 1

    def test_of_a_deep_run_that_found_a_fault_are_part_of_the_verdict(self, world: World) -> None:
        record = json.dumps({"schema": 1, "severity": "ISOLATE", "status": "fail"})
        world.cluster.edit({"metadata": {"annotations": {f"{P}/quarantine-result": record}}})
        world.start()
        node = world.wait_for_taint()

        assert (node.severity, node.tainted, node.condition["reason"]) == ("ISOLATE", True, "DeepDiagnosticFailed")
        assert (node.record["severity"], node.findings) == ("PASS", {})

    @pytest.mark.parametrize(
        "change",
        [
            {"findings": [{"reason": "Xid79"}]},
            {"findings": [{"reason": "Xid79", "count": 1e999}]},
            {"boot_id": None, "machine": None},
        ],
    )
    def test_that_hold_half_a_record_do_not_stop_an_agent_without_memory(
        self, world: World, change: dict[str, object]
    ) -> None:
        world.start()
        record = world.wait_for_status("pass").record
        assert world.agent.terminate() == 0
        world.memory_file.unlink()
        world.cluster.edit({"metadata": {"annotations": {RESULTS: json.dumps(record | change)}}})
        world.host.kernel_log.replay()
        world.start()

        world.wait(lambda node: node.record == record | {key: node.record[key] for key in ("timestamp", "cursor")})


class TestANodeThatNobodyCanRead:
    """A Node as another controller may leave it."""

    CONDITIONS: ClassVar = {"a word among them": ["odd"], "no list": 5}

    @pytest.mark.parametrize("conditions", CONDITIONS.values(), ids=CONDITIONS)
    @pytest.mark.parametrize("before", [True, False], ids=["from the start", "later"])
    def test_is_named_and_ends_no_agent(self, world: World, conditions: object, before: bool) -> None:
        whole = world.node().object["status"]["conditions"]
        if not before:
            world.start()
            world.wait_for_status("pass")
            whole = world.node().object["status"]["conditions"]
        world.cluster.edit({"status": {"conditions": conditions}})
        agent = world.start() if before else world.agent
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        fields = agent.wait_for_log("the Node can't be read; the newest verdict is kept")
        assert fields["error"].startswith("nodes gpu-node-1: ")
        eventually(lambda: agent.logged("the watch on the Node was interrupted"))
        assert agent.get("/healthz")[0] == 200
        assert agent.metric("verdict_pending") == 1

        world.cluster.edit({"status": {"conditions": whole}})
        world.wait_for_taint()
        assert len(agent.logged("the Node can't be read; the newest verdict is kept")) == 1
