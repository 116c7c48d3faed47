"""A GPU that is dead or gone is a finding, and one that was given away is none."""

from __future__ import annotations

import json

import pytest

from healthcheck.cluster.nodes import node_state
from healthcheck.text.moments import moment
from healthcheck.verdict.acknowledgement import dump_release, release_of
from tests.agent.conftest import MakeWorld
from tests.agent.world import RESULTS, P, World

pytestmark = pytest.mark.cluster

UNKNOWN_TYPE = "onprem-hgx-h100"


def released(world: World) -> None:
    """As `gpu-healthcheck release` writes it."""
    word = release_of(node_state(world.node().object), "ops", "taken out", moment("2026-11-21T01:02:03Z"))
    world.cluster.edit({"metadata": {"annotations": {f"{P}/release": dump_release(word)}}})


def test_a_gpu_gone_from_pci_after_a_reboot_is_missed_without_a_profile_until_a_person_accepts_it(
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
    assert low["exit"] == "a look that shows it gone, release"

    released(world)
    assert world.wait_for_status("pass").taints == []
    world.agent.wait_for_looks(5)
    assert world.node().status == "pass"
    assert json.loads(world.node().object["metadata"]["annotations"][RESULTS])["released"]["reason"] == "taken out"
