"""A fault appears, and the Node shows it: label, taint, annotation, condition, Event."""

from __future__ import annotations

import pytest

from tests.agent.conftest import MakeWorld
from tests.agent.world import UNHEALTHY, P, World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

REBOOT_EXIT = "reboot, a passed quarantine run, release, another GPU in its place"
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
HYPERPOD = "sagemaker.amazonaws.com/deep-health-check-status"


class TestAHealthyNode:
    def test_passes_and_says_what_was_looked_at(self, watched: World) -> None:
        node = watched.node()

        assert (node.status, node.severity, node.taints) == ("pass", "PASS", [])
        assert f"{P}/last-check" in node.labels
        assert (node.condition["status"], node.condition["reason"]) == ("True", "NoFault")
        assert [(row["check"], row["status"]) for row in node.record["checks"]] == [
            ("0-nvidia-smi", "pass"),
            ("2-efa-enumeration", "pass"),
            ("3-topology-check", "pass"),
            ("7-container-runtime", "not-configured"),
            ("8-hami", "not-configured"),
            ("9-roce", "not-configured"),
        ]
        assert node.record["instance_type"] == "p5.48xlarge"
        assert (node.record["node_uid"], node.record["boot_id"]) == (node.uid, watched.host.boot_id)
        assert (node.record["findings"], node.record["unobserved"]) == ([], [])

    def test_gets_one_event_and_a_heartbeat_that_its_node_owns(self, watched: World) -> None:
        event = watched.wait_for_event("GpuHealthPass")
        lease = eventually(watched.cluster.lease)

        assert (event["type"], event["involvedObject"]["name"]) == ("Normal", "gpu-node-1")
        assert [entry["reason"] for entry in watched.cluster.events()] == ["GpuHealthPass"]
        assert lease["spec"]["holderIdentity"] == "gpu-node-1"
        assert [(owner["kind"], owner["uid"]) for owner in lease["metadata"]["ownerReferences"]] == [
            ("Node", watched.node().uid)
        ]

    def test_agent_has_no_process_with_the_driver_open_between_cycles(self, watched: World) -> None:
        for pid in [watched.agent.process.pid, *watched.agent.children]:
            opened = [file.readlink() for file in (watched.host.root.parent / f"/proc/{pid}/fd").iterdir()]
            assert [str(file) for file in opened if "nvidia" in str(file)] == []

    def test_of_an_unknown_type_has_no_expectation(self, make_world: MakeWorld) -> None:
        world = make_world(labelled="x9.metal")
        world.start()

        assert world.wait_for_status("pass").record["instance_type"] == "x9.metal"

    def test_type_without_efa_is_reported(self, make_world: MakeWorld) -> None:
        world = make_world(instance_type="g5.xlarge")
        world.start()

        rows = {row["check"]: row["status"] for row in world.wait_for_status("pass").record["checks"]}
        assert rows == {
            "0-nvidia-smi": "pass",
            "2-efa-enumeration": "not-configured",
            "3-topology-check": "pass",
            "7-container-runtime": "not-configured",
            "8-hami": "not-configured",
            "9-roce": "not-configured",
        }


class TestAnXid79:
    def test_findings_on_the_node_are_the_same_in_every_form(self, watched: World) -> None:
        watched.host.xid(3, 79, "GPU has fallen off the bus.")
        node = watched.wait_for_taint()

        assert (node.severity, node.taints) == ("REBOOT", [UNHEALTHY])
        assert (node.condition["status"], node.condition["reason"]) == ("False", "Xid79")
        assert "GPU has fallen off the bus." in node.condition["message"]
        finding = node.findings["Xid79"]
        assert finding["subject"] == f"gpu/{watched.host.gpus[3].address}"
        assert (finding["severity"], finding["count"], finding["exit"]) == ("REBOOT", 1, REBOOT_EXIT)
        assert finding["about"]["serial"] == watched.host.gpus[3].serial
        assert node.record["taint"] == "set"
        assert watched.wait_for_event("Xid79")["type"] == "Warning"
        watched.wait_for_event("GpuHealthFail")

    def test_is_one_event_however_often_it_comes(self, watched: World) -> None:
        for _ in range(5):
            watched.host.xid(3, 79, "GPU has fallen off the bus.")
        watched.host.xid(4, 79, "GPU has fallen off the bus.")
        eventually(lambda: len(watched.events("Xid79")) == 2)

        assert watched.agent.xids("79") == 6
        watched.wait_for_event("GpuHealthFail")
        assert len(watched.events("GpuHealthFail")) == 1

    def test_foreign_text_stays_unchanged(self, watched: World) -> None:
        watched.cluster.edit(
            {
                "metadata": {"labels": {"example.com/team": "vision"}, "annotations": {"example.com/note": "kept"}},
                "spec": {"taints": [SPOT], "unschedulable": True},
            }
        )
        watched.host.xid(3, 79, "GPU has fallen off the bus.")
        node = watched.wait_for_taint()

        assert node.taints == [SPOT, UNHEALTHY]
        assert node.labels["example.com/team"] == "vision"
        assert node.object["metadata"]["annotations"]["example.com/note"] == "kept"
        assert node.object["spec"]["unschedulable"] is True
        assert "Ready" in [entry["type"] for entry in node.object["status"]["conditions"]]

    def test_is_reported_again_after_a_person_removes_taint_or_label(self, watched: World) -> None:
        watched.host.xid(3, 79, "GPU has fallen off the bus.")
        watched.wait_for_taint()

        watched.cluster.edit({"spec": {"taints": [SPOT]}})
        assert watched.wait(lambda node: node.tainted).taints == [SPOT, UNHEALTHY]
        watched.cluster.edit({"metadata": {"labels": {f"{P}/severity": None}}})
        watched.wait(lambda node: node.severity == "REBOOT")
        assert len(watched.events("Xid79")) == 1

    def test_gets_no_taint_while_hyperpod_tests_the_node(self, watched: World) -> None:
        watched.cluster.edit({"metadata": {"labels": {HYPERPOD: "InProgress"}}})
        watched.host.xid(3, 79, "GPU has fallen off the bus.")
        node = watched.wait_for_status("fail")
        assert (node.tainted, node.record["taint"]) == (False, "withheld")

        watched.cluster.edit({"metadata": {"labels": {HYPERPOD: "Passed"}}})
        assert watched.wait(lambda node: node.tainted).record["taint"] == "set"

    @pytest.mark.parametrize(
        ("key", "value", "severity", "tainted"),
        [
            ("TAINT_SEVERITY", "ISOLATE", "REBOOT", False),
            ("ENABLE_TAINT", "false", "REBOOT", False),
            ("severity-overrides", "xid 79 = ISOLATE", "ISOLATE", True),
        ],
    )
    def test_is_judged_as_the_cluster_set_it(
        self, world: World, key: str, value: str, severity: str, tainted: bool
    ) -> None:
        world.configure(**{key: value})
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.start()
        node = world.wait_for_taint() if tainted else world.wait_for_status("fail")

        assert (node.severity, node.tainted) == (severity, tainted)

    def test_follows_the_override_in_force_in_both_directions(self, watched: World) -> None:
        watched.host.xid(3, 62, "0x1 0x2")
        watched.wait_for_taint()

        watched.configure(**{"severity-overrides": "xid 62 = PASS\n"})
        node = watched.wait(lambda node: not node.tainted)
        assert (node.status, node.findings) == ("pass", {})

        watched.configure(**{"severity-overrides": ""})
        assert watched.wait_for_taint().findings["Xid62"]["severity"] == "RESET"

    def test_is_raised_by_its_processes_over_a_restart_and_a_changed_threshold(self, world: World) -> None:
        world.configure(**{"severity-overrides": "xid 43 = RESET after 3 in 10m\n"})
        world.start()
        world.wait_for_status("pass")
        for pid in (7, 7, 8):
            world.host.xid(3, 43, "Ch 00000008", process=(pid, "python3"))
        eventually(lambda: world.agent.xids("43") == 3)
        world.restart()
        world.host.xid(3, 43, "Ch 00000008", process=(9, "python3"))
        assert world.wait_for_taint().findings["Xid43"]["count"] == 4

        world.configure(**{"severity-overrides": "xid 43 = RESET after 4 in 10m\n"})
        node = world.wait(lambda node: not node.tainted)
        assert (node.status, node.findings) == ("pass", {})

        world.configure(**{"severity-overrides": "xid 43 = REBOOT after 3 in 10m\n"})
        assert world.wait_for_taint().findings["Xid43"]["severity"] == "REBOOT"

    def test_that_is_reset_within_one_interval_ends(self, watched: World) -> None:
        """NVML shows None before the fault and after the reset; only the log's Xid 154 names an action in between."""
        watched.host.xid(0, 62, "0x1 0x2 0x3")
        watched.host.xid(0, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
        assert set(watched.wait_for_taint().findings) == {"Xid62", "Xid154"}

        watched.configure(MONITOR_TTL="86401")

        assert watched.wait(lambda node: not node.tainted).findings == {}

    def test_gets_no_label_where_labels_are_switched_off(self, world: World) -> None:
        world.configure(ENABLE_LABEL="false")
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.start()
        node = world.wait(lambda node: node.tainted and node.condition)

        assert [key for key in node.labels if key.startswith(P)] == []
        assert (node.condition["status"], node.record["severity"]) == ("False", "REBOOT")

    def test_from_before_the_agent_came_is_found_in_the_ring(self, world: World) -> None:
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.start()

        world.wait_for_taint()


class TestTheKernelLog:
    def test_forged_by_user_space_is_not_believed(self, watched: World) -> None:
        address = watched.host.gpus[3].kernel_address
        for facility in (1, 3, 23):
            text = f"NVRM: Xid (PCI:{address}): 79, GPU has fallen off the bus."
            watched.host.kernel_log.write(text, facility=facility)
        eventually(lambda: watched.agent.metric("kernel_log_refused_records_total") == 3)
        # Later lines are read and reported at once, without waiting for earlier reports.
        watched.host.xid(5, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")

        assert set(watched.wait_for_taint().findings) == {"Xid48"}

    def test_that_merely_quotes_an_xid_is_not_believed(self, watched: World) -> None:
        watched.host.kernel_log.write('audit: "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus."')
        watched.host.xid(5, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")

        assert set(watched.wait_for_taint().findings) == {"Xid48"}

    def test_with_broken_records_is_read_on(self, watched: World) -> None:
        log = watched.host.kernel_log
        broken = [b"4,12", b"4,12\n", b"\n", b"-;\n", b"\xff\xfe\x00\n", b"x" * 4000 + b"\n", b"4,a,b,-;NVRM: Xid\n"]
        for line in broken:
            log.write_raw(line)
        log.write("NVRM: Xid (PCI:0000:53:00): 79, " + "x" * 3000)
        log.write(b"NVRM: Xid (PCI:0000:64:00): 79, \xff\xfe GPU \x00 has fallen\x1b[31m off the bus\xc3")
        log.write("NVRM: Xid (PCI:0000")
        log.write("NVRM: Xid (PCI:0000:75:00): 99999999999999999999, what is this")
        node = watched.wait(lambda node: node.tainted and len(node.record["findings"]) == 2)

        assert {entry["subject"] for entry in node.record["findings"]} == {"gpu/0000:53:00.0", "gpu/0000:64:00.0"}
        assert all(len(entry["detail"]) <= 300 for entry in node.record["findings"])
        assert watched.agent.metric("kernel_log_unreadable_records_total") >= 4
        assert watched.agent.get("/healthz")[0] == 200

    def test_with_a_line_longer_than_any_kernel_writes_is_read_on(self, world: World) -> None:
        capture = world.host.root / "dev/kmsg"
        capture.unlink()
        lines = [
            b"4,1,1000,-;" + b"y" * 300_000,
            b"z" * 300_000,
            b"4,2,2000,-;NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.",
            b"",
        ]
        capture.write_bytes(b"\n".join(lines))
        world.start()

        assert set(world.wait_for_taint().findings) == {"Xid79"}

    def test_with_records_lost_before_they_were_read_says_so(self, watched: World) -> None:
        watched.host.kernel_log.overrun(1000)
        watched.host.kernel_log.write("usb 1-1: new high-speed USB device")

        assert "1000 kernel log records" in watched.wait_for_event("KernelLogOverrun")["message"]
        assert watched.agent.metric("kernel_log_lost_records_total") == 1000
        assert watched.node().status == "pass"

    def test_that_cannot_be_opened_is_unknown_until_it_can(self, world: World) -> None:
        (world.host.root / "dev/kmsg").rename(world.host.root / "dev/away")
        world.hurry()
        world.start()
        node = world.wait_for_status("unknown")
        assert node.causes == {"KernelLogUnreadable"}
        assert not node.tainted

        (world.host.root / "dev/away").rename(world.host.root / "dev/kmsg")
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.wait_for_taint()

    def test_with_a_code_of_no_catalogue_is_a_warning(self, world: World) -> None:
        world.host.xid(3, 999, "nobody knows")
        world.start()

        finding = world.wait_for_status("warn").findings["Xid999"]
        assert finding["severity"] == "MONITOR"
        assert world.agent.xids("unknown") == 1


class TestTheDriver:
    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("nvml/count", "4000000000"),
            ("nvml/count", "257"),
            ("nvml/gpu3/bus_id", "garbage"),
            ("nvml/gpu3/bus_id", "0000:zz:00.0"),
        ],
    )
    def test_that_answers_nonsense_is_unknown(self, world: World, path: str, value: str) -> None:
        world.host.write_value(path, value)
        world.start()
        node = world.wait_for_status("unknown")

        assert node.causes == {"NvmlNonsense"}
        assert not node.tainted

    def test_a_driver_without_a_library_is_unknown(self, world: World) -> None:
        for file in world.host.library.parent.glob("libnvidia-ml*"):
            file.unlink()
        world.start()

        assert world.wait_for_status("unknown").causes == {"NvmlLibraryNotFound"}

    def test_that_lost_a_gpu_fails_the_node_once_it_has_settled(self, world: World) -> None:
        world.host.lose_gpu(3)
        world.start()
        node = world.wait_for_taint()

        assert node.findings["GpuLost"]["subject"] == f"gpu/{world.host.gpus[3].address}"
        assert (node.severity, node.tainted) == ("REBOOT", True)

    def test_that_somebody_changes_at_the_start_is_left_alone(self, world: World) -> None:
        world.cluster.edit({"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}}})
        world.start()
        node = world.wait_for_status("unknown")

        assert node.causes == {"DriverBeingChanged"}
        assert world.agent.children == []
        assert [past.status for past in world.stand_in.past() if past.status == "pass"] == []
