"""Faults of a node over days, with a real agent: the state of the Node at each step.

They are stories like the others, and run in parallel with them; the same walks without an agent are in
tests/memory/test_walks.py.
"""

from __future__ import annotations

import json
from dataclasses import replace

from tests.agent.world import RESULTS, P, World
from tests.waiting import eventually

PAUSED = {"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}}}
RESUMED = {"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "true"}}}
MIG_PENDING = {"metadata": {"labels": {"nvidia.com/mig.config.state": "pending"}}}
MIG_DONE = {"metadata": {"labels": {"nvidia.com/mig.config.state": "success"}}}
TO_RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
BACK_TO_NONE = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def verdict(world: World) -> tuple[str, str, bool]:
    node = world.node()
    return (node.status, node.severity, node.tainted)


def a_driver_upgrade_resets_the_gpus_and_the_faults_end_with_a_look_at_them(world: World) -> None:
    world.host.xid(3, 95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")
    world.wait_for_taint()
    world.cluster.edit(PAUSED)
    world.wait(lambda node: node.causes == {"DriverBeingChanged"})
    world.host.driver_unload()
    world.host.driver_load("570.133.20")
    world.agent.wait_for_looks(1)
    assert verdict(world) == ("fail", "RESET", True)  # the banner is in the log; no GPU has answered yet

    world.cluster.edit(RESUMED)
    world.wait_for_status("pass")
    assert verdict(world) == ("pass", "PASS", False)


def a_mig_reconfiguration_ends_what_stood_on_instances_that_are_gone(world: World) -> None:
    gpu = world.host.gpus[2]
    world.host.divide_gpu(2, {0: 3, 1: 5})
    world.agent.wait_for_looks(1)
    world.host.kernel_log.write(f"NVRM: Xid (PCI:{gpu.kernel_address} GPU-I:05 GPU-CI:00): 95, Uncontained: x")
    node = world.wait_for_taint()
    assert node.findings["Xid95"]["subject"] == f"gpu/{gpu.address}/gi5"
    assert node.findings["Xid95"]["about"]["uuid"] == gpu.uuid

    world.cluster.edit(MIG_PENDING)
    world.wait(lambda node: node.causes == {"DriverBeingChanged"})
    world.host.divide_gpu(2, {0: 1, 1: 2})
    assert verdict(world) == ("fail", "RESET", True)
    world.cluster.edit(MIG_DONE)
    world.wait_for_status("pass")


def a_gpu_reset_by_an_operator_is_seen_in_the_log(world: World) -> None:
    world.host.xid(3, 48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer")
    world.host.xid(3, 154, TO_RESET)
    world.host.want_recovery(3, 1)
    world.wait(lambda node: {"Xid48", "Xid154", "GpuRecoveryAction"} == set(node.findings) and node.tainted)
    assert verdict(world) == ("fail", "RESET", True)

    world.host.want_recovery(3, 0)
    world.host.xid(3, 154, BACK_TO_NONE)
    world.wait_for_status("pass")
    assert verdict(world) == ("pass", "PASS", False)


def a_gpu_that_comes_back_broken_from_its_resets_is_sent_away(world: World) -> None:
    for severity in ("RESET", "RESET", "ISOLATE"):
        world.host.xid(3, 95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")
        node = world.wait_for_taint()
        assert node.severity == severity
        if severity == "RESET":
            world.host.xid(3, 154, BACK_TO_NONE)
            world.wait_for_status("pass")

    assert world.node().findings["Xid95"]["rule"] == "ESCALATE_AFTER"
    assert world.agent.terminate() == 0
    world.host.reboot()
    world.start()
    eventually(lambda: world.agent.metric("looks_total") >= 1)
    assert verdict(world) == ("fail", "ISOLATE", True)


def a_board_that_was_swapped_inherits_nothing(world: World) -> None:
    world.host.xid(3, 54, "x")
    world.host.xid(4, 13, "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)")
    assert world.wait_for_taint().severity == "ISOLATE"
    assert world.agent.terminate() == 0
    world.host.reboot()
    board = replace(world.host.gpus[3], serial="1659999000001", uuid="GPU-11111111-2222-3333-4444-555555555555")
    world.host.write_value("nvml/gpu3/serial", board.serial)
    world.host.write_value("nvml/gpu3/uuid", board.uuid)
    world.start()

    world.wait_for_status("pass")
    assert verdict(world) == ("pass", "PASS", False)


def other_hardware_under_the_same_name_inherits_nothing_and_the_old_memory_is_kept_aside(world: World) -> None:
    world.host.xid(3, 54, "x")
    world.wait_for_taint()
    assert world.agent.terminate() == 0
    world.host.reboot()
    world.host.write_value("sys/class/dmi/id/product_uuid", "ec2fffff-0000-4000-8000-00000000ffff")
    world.start()

    assert world.wait_for_status("pass").record["machine"] == "ec2fffff-0000-4000-8000-00000000ffff"
    assert "Xid54" in world.memory_file.with_suffix(".other-machine").read_text()


def a_release_made_while_agent_and_server_were_apart_over_a_reboot_counts_when_they_meet(world: World) -> None:
    world.host.xid(3, 54, "x")
    world.host.xid(4, 79, "GPU has fallen off the bus.")
    world.wait(lambda node: {"Xid54", "Xid79"} <= set(node.findings) and node.tainted)
    record = world.node().record
    assert world.agent.terminate() == 0
    world.api.refuse()
    world.host.reboot()
    world.host.xid(5, 62, "0cb5(2d50) 8503d428 ffffff87")
    world.start()
    world.agent.wait_for_log("the API server is unavailable; the newest verdict is kept")
    row = next(entry for entry in record["findings"] if entry["reason"] == "Xid54")
    keys = {key: row[key] for key in ("reason", "subject", "last_seen")}
    findings = [{**keys, "boot_id": record["boot_id"], "cursor": record["cursor"]}]
    word = {"by": "ann", "reason": "power cable reseated", "at": "2026-11-21T12:00:00Z", "findings": findings}
    world.cluster.edit({"metadata": {"annotations": {f"{P}/release": json.dumps(word)}}})
    assert set(world.node().findings) == {"Xid54", "Xid79"}

    world.api.accept()
    node = world.wait(lambda node: set(node.findings) == {"Xid62"})
    assert (node.severity, node.tainted) == ("RESET", True)
    assert node.record["released"]["by"] == "ann"
    assert f"{P}/release" not in node.object["metadata"]["annotations"]


def a_passed_quarantine_run_ends_what_was_there_when_it_began(world: World) -> None:
    world.host.xid(3, 54, "x")
    world.wait_for_taint()
    passed = {
        "schema": 1,
        "timestamp": "2099-01-01T02:00:00Z",
        "started": "2099-01-01T00:00:00Z",
        "status": "pass",
        "severity": "PASS",
        "checks": [{"check": "4-dcgm-diag-l4", "status": "pass", "severity": "PASS"}],
    }
    world.cluster.edit({"metadata": {"annotations": {f"{P}/quarantine-result": json.dumps(passed)}}})

    node = world.wait_for_status("pass")
    assert not node.tainted
    assert RESULTS in node.object["metadata"]["annotations"]


WALKS = (
    a_driver_upgrade_resets_the_gpus_and_the_faults_end_with_a_look_at_them,
    a_mig_reconfiguration_ends_what_stood_on_instances_that_are_gone,
    a_gpu_reset_by_an_operator_is_seen_in_the_log,
    a_gpu_that_comes_back_broken_from_its_resets_is_sent_away,
    a_board_that_was_swapped_inherits_nothing,
    other_hardware_under_the_same_name_inherits_nothing_and_the_old_memory_is_kept_aside,
    a_release_made_while_agent_and_server_were_apart_over_a_reboot_counts_when_they_meet,
    a_passed_quarantine_run_ends_what_was_there_when_it_began,
)
