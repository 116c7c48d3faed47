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

    def test_repaired_settings_are_read_without_a_restart(self, world: World) -> None:
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

        named = "unknown settings, which have no effect: CHECK_INTERVALL (did you mean CHECK_INTERVAL?), NONSENSE"
        assert world.wait_for_event("UnknownSetting")["message"] == f"{world.config}: {named}"
        assert world.agent.metric("unknown_settings") == 2
        (world.config / "CHECK_INTERVALL").unlink()
        eventually(lambda: len(world.events("UnknownSetting")) == 2)
        (world.config / "NONSENSE").unlink()
        eventually(lambda: world.agent.metrics()["unknown_settings"] == 0)
        assert (len(world.events("UnknownSetting")), world.events("BadSetting")) == (2, [])


def mount(world: World, **values: str) -> None:
    """Mount a ConfigMap as the kubelet does: files of one version behind the link `..data`, which is swapped."""
    version = f"..{len(list(world.config.glob('..v*')))}"
    folder = world.config / f"..v{version}"
    folder.mkdir()
    for key, value in values.items():
        (folder / key).write_text(value)
        if not (world.config / key).is_symlink():
            (world.config / key).symlink_to(f"..data/{key}")
    (world.config / "..data_tmp").symlink_to(folder.name)
    (world.config / "..data_tmp").rename(world.config / "..data")
    for link in world.config.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink()


class TestSettingsOfARunningAgent:
    """Each valid key of the mounted ConfigMap acts; an invalid one keeps its last valid value, also after a restart."""

    def test_a_valid_key_acts_beside_an_invalid_one_and_the_invalid_one_keeps_its_value(self, world: World) -> None:
        world.program = "tests.agent.quick_agent"
        mount(world, CHECK_INTERVAL="10")
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.start()
        world.wait_for_taint()

        mount(world, CHECK_INTERVAL="10", ENABLE_TAINT="false", MAX_UNHEALTHY_PERCENT="twenty")
        world.wait(lambda node: not node.tainted)
        message = world.wait_for_event("BadSetting")["message"]
        expected = "MAX_UNHEALTHY_PERCENT: MAX_UNHEALTHY_PERCENT = 'twenty': a whole number, 1 to 100"
        assert message == f"{world.config}/{expected}"
        assert world.agent.metric("bad_settings{MAX_UNHEALTHY_PERCENT}") == 1

        mount(world, CHECK_INTERVAL="10", ENABLE_TAINT="flase", GATE_SEVERITY="MONITOR")
        eventually(lambda: world.agent.metrics().get("bad_settings{ENABLE_TAINT}") == 1)
        assert world.agent.metric("bad_settings{MAX_UNHEALTHY_PERCENT}") == 0
        world.host.xid(4, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        assert not world.wait(lambda node: "Xid48" in node.findings).tainted

        restarted = world.restart()
        eventually(lambda: restarted.metrics().get("bad_settings{ENABLE_TAINT}") == 1)
        restarted.wait_for_looks()
        assert (world.node().status, world.node().tainted) == ("fail", False)

        mount(world, CHECK_INTERVAL="10")
        world.wait_for_taint()
        assert world.agent.metrics().get("bad_settings{ENABLE_TAINT}") == 0

    def test_a_first_start_and_a_damaged_file_of_last_values_take_the_default(self, world: World) -> None:
        world.memory_file.parent.mkdir()
        (world.memory_file.parent / "settings.json").write_text('{"ENABLE_TAINT": "no", "MONITOR_TTL": 5}')
        mount(world, ENABLE_TAINT="flase", MONITOR_TTL="120")
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.start()

        world.wait_for_taint()
        assert world.agent.metric("bad_settings{ENABLE_TAINT}") == 1


class TestAnnotations:
    def test_own_annotation_that_is_no_record_is_replaced(self, world: World) -> None:
        """Other texts: tests/verdict/test_change.py."""
        text = '{"findings": [{"reason": []}, 5], "boot_id": 3}'
        world.cluster.edit({"metadata": {"annotations": {RESULTS: text}}})
        world.start()
        node = world.wait_for_status("pass")

        assert node.record["schema"] == 1
        assert node.findings == {}

    def test_malformed_deep_record_is_reported_and_skipped(self, world: World) -> None:
        """Other texts: tests/verdict/test_change.py."""
        world.cluster.edit({"metadata": {"annotations": {f"{P}/sweep-result": TWICE}}})
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
            {"findings": [{"reason": "Xid79"}, {"reason": "Xid79", "count": 1e999}]},
            {"boot_id": None, "machine": None},
        ],
    )
    def test_half_a_record_does_not_stop_an_agent_without_memory(self, world: World, change: dict[str, object]) -> None:
        world.start()
        record = world.wait_for_status("pass").record
        assert world.agent.terminate() == 0
        world.memory_file.unlink()
        world.cluster.edit({"metadata": {"annotations": {RESULTS: json.dumps(record | change)}}})
        world.host.kernel_log.replay()
        world.start()

        world.wait(lambda node: node.record == record | {key: node.record[key] for key in ("timestamp", "cursor")})


class TestUnreadableNode:
    """A Node as another controller may leave it."""

    @pytest.mark.parametrize(
        ("conditions", "before"), [(["odd"], True), (5, False)], ids=["a string, at the start", "a number, later"]
    )
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
