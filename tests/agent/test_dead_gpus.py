"""A GPU that fails or is missing is a finding. A GPU that was passed to a virtual machine is not."""

from __future__ import annotations

import json

import pytest

from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.text.moments import moment
from gpu_healthcheck.healthcheck.verdict.acknowledgement import dump_release, release_of
from tests.agent.conftest import MakeWorld
from tests.agent.world import RESULTS, P, World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

UNKNOWN_TYPE = "onprem-hgx-h100"


def released(world: World) -> None:
    """Write the release annotation as `gpu-healthcheck release` does."""
    word = release_of(node_state(world.node().object), "ops", "taken out", moment("2026-11-21T01:02:03Z"))
    world.cluster.edit({"metadata": {"annotations": {f"{P}/release": dump_release(word)}}})


def test_gpu_missing_on_pci_after_a_reboot_is_reported_until_a_person_accepts_it(
    make_world: MakeWorld,
) -> None:
    world = make_world(labelled=UNKNOWN_TYPE)
    world.hurry()
    world.start()
    world.wait_for_status("pass")
    world.host.xid(3, 79, "GPU has fallen off the bus.")
    world.wait_for_taint()
    assert world.agent.terminate() == 0
    world.host.remove_gpu(3)
    world.host.reboot()
    world.start()

    node = world.wait(lambda node: node.tainted and set(node.findings) == {"GpuCountLow"})
    low = node.findings["GpuCountLow"]
    assert (low["severity"], low["detail"]) == ("REBOOT", "NVML lists 7, PCI 7, this machine had 8")
    assert low["exit"] == "a check cycle without it, release"

    released(world)
    assert world.wait_for_status("pass").taints == []
    world.agent.wait_for_looks(5)
    assert world.node().status == "pass"
    assert json.loads(world.node().object["metadata"]["annotations"][RESULTS])["released"]["reason"] == "taken out"


def test_gpu_without_a_handle_is_a_fault_after_three_more_cycles_and_ends_with_the_first_answer(world: World) -> None:
    world.hurry()
    world.host.write_value("nvml/gpu3/error", 999)
    world.host.write_value("nvml/gpu4/error", 4)  # no permission: this GPU is unobserved
    world.start()

    node = world.wait_for_taint()
    assert "pass" not in {view.status for view in world.stand_in.past()}
    found = node.findings["GpuInitFailed"]
    assert (found["severity"], found["subject"]) == ("RESET", f"gpu/{world.host.gpus[3].address}")
    assert (set(node.findings), node.causes) == ({"GpuInitFailed"}, {"GpuNotAnswering"})

    for index in (3, 4):
        (world.host.root / f"nvml/gpu{index}/error").unlink()
    assert world.wait_for_status("pass").taints == []


def test_a_library_that_does_not_fit_the_module_is_a_fault_until_nvml_opens(quick: World) -> None:
    assert "driver_info" in " ".join(quick.agent.metrics())
    quick.host.install_library("575.57.08")

    found = quick.wait_for_taint().findings["DriverLibraryMismatch"]
    assert (found["severity"], found["subject"]) == ("RESET", "driver")
    assert found["exit"] == "a check cycle without it"
    assert "driver_info" not in " ".join(quick.agent.metrics())

    quick.host.driver_load()
    assert quick.wait_for_status("pass").taints == []
    assert "driver_info" in " ".join(quick.agent.metrics())


def test_a_library_that_is_replaced_while_the_driver_is_changed_is_no_fault(quick: World) -> None:
    quick.cluster.edit({"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}}})
    quick.wait(lambda node: node.causes == {"DriverBeingChanged"})
    quick.host.install_library("575.57.08")
    quick.agent.wait_for_looks(5)

    assert (quick.node().findings, quick.node().taints) == ({}, [])


@pytest.mark.parametrize("loaded", [False, True])
def test_a_node_with_all_gpus_in_virtual_machines_passes_and_loses_its_startup_taint(
    world: World, loaded: bool
) -> None:
    world.hurry()
    for gpu in world.host.gpus:
        world.host.hand_gpu_to_a_virtual_machine(gpu.index)
    if not loaded:
        world.host.driver_unload()
    world.cluster.edit({"spec": {"taints": [{"key": f"{P}/startup", "value": "true", "effect": "NoSchedule"}]}})
    world.start()

    node = world.wait_for_status("pass")
    assert (node.taints, node.findings, node.causes) == ([], {}, set())


def test_a_node_without_its_needed_driver_does_not_pass(world: World) -> None:
    world.hurry()
    for gpu in world.host.gpus[1:]:
        world.host.hand_gpu_to_a_virtual_machine(gpu.index)
    world.host.driver_unload()
    world.start()

    assert world.wait_for_status("unknown").causes == {"DriverNotLoaded"}


class TestAGpuThatTheKernelReports:
    """A line about the port above a GPU, on an agent whose next check cycle is a minute away."""

    @pytest.fixture
    def slow(self, world: World) -> World:
        world.hurry()
        world.configure(CHECK_INTERVAL="300")
        world.start()
        world.wait_for_status("pass")
        return world

    def link_down(self, world: World) -> None:
        switch = world.host.shape.switch_above(world.host.gpus[3].address)
        assert switch
        world.host.kernel_log.write(f"pcieport {switch.address}: pciehp: Slot(12): Link Down")

    def test_is_tainted_without_an_xid_if_nvml_calls_it_lost(self, slow: World) -> None:
        slow.host.write_value("nvml/gpu3/error", 15)
        self.link_down(slow)

        found = slow.wait_for_taint().findings["GpuLost"]
        assert (found["severity"], found["subject"]) == ("REBOOT", f"gpu/{slow.host.gpus[3].address}")
        assert slow.agent.logged("the kernel reports a GPU's PCI function")

    def test_is_no_finding_if_it_answers(self, slow: World) -> None:
        before = slow.agent.metric("looks_total")
        self.link_down(slow)

        eventually(lambda: slow.agent.metric("looks_total") >= before + 4)
        assert (slow.node().status, slow.node().findings, slow.node().taints) == ("pass", {}, [])
