"""Damage that the earlier bash suite did to a node, and the agent does not; its log parsing has its own tests.

1 and 4 are in test_deep_records.py and test_deep.py; 1, 6, 7 and 12 of a sweep in tests/sweeper, 9 to 11 of DCGM's
answers in tests/checks/test_dcgm_diag.py; 13 is about quarantine; 16 is the story of a missing permission; 10, 14 and
15 are in tests/memory/test_seed_defects.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from gpu_healthcheck.sim.control_plane import MANIFESTS
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.agent.world import World

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."


def test_2_a_warning_taints_no_node(world: World) -> None:
    world.host.xid(3, 13, "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)")
    world.start()

    node = world.wait_for_status("warn")
    assert (node.severity, node.taints) == ("MONITOR", [])


def test_3_a_stopped_agent_removes_no_taint(watched: World) -> None:
    watched.host.xid(3, 79, ERROR)
    watched.wait_for_taint()
    writes = len(watched.api.writes)

    assert watched.agent.terminate() == 0

    assert watched.node().tainted
    assert [write for write in watched.api.writes[writes:] if write.path.startswith("/api/v1/nodes")] == []


def test_5_settings_are_read_again_without_a_restart(quick: World) -> None:
    quick.host.xid(3, 79, ERROR)
    quick.wait_for_taint()

    quick.configure(TAINT_SEVERITY="ISOLATE")

    assert quick.wait(lambda node: not node.tainted).status == "fail"
    assert quick.agent.running


def test_8_the_hosts_proc_is_not_laid_over_the_containers() -> None:
    daemonset = yaml.safe_load((MANIFESTS / "04-daemonset-agent.yaml").read_text())
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]

    assert {entry["mountPath"] for entry in container["volumeMounts"]}.isdisjoint({"/proc", "/sys", "/"})


def test_12_hanging_driver_stops_no_check_cycle(world: World) -> None:
    world.configure(CHECK_INTERVAL="10")
    world.give_up_soon()
    world.start()
    world.wait_for_status("pass")
    world.host.hang()

    world.agent.wait_for_looks(2)

    world.host.unhang()
    world.wait_for_status("pass")


def test_11_node_that_could_not_be_checked_has_no_hardware_fault(world: World) -> None:
    world.host.driver_unload()
    world.start()

    node = world.wait_for_status("unknown")
    assert (node.severity, node.taints, node.findings) == ("PASS", [], {})
    eventually(world.cluster.lease)
