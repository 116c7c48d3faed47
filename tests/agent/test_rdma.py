"""The real agent on a real kube-apiserver, and what the driver mlx5 writes to the kernel log of its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.mlx5_ports import Mlx5Function
from tests.agent.world import RealCluster, World

pytestmark = pytest.mark.cluster

USER = 1
"""Facility of a record that a program wrote to /dev/kmsg."""
RAIL_3, RAIL_4, STORAGE, ROUTE, VIRTUAL = "5e:00.0", "9a:00.0", "29:00.1", "82:00.0", "5e:00.4"
FATAL = "mlx5_core 0000:{}: mlx5_health_try_recover:338:(pid 3112): health recovery failed"
HARDWARE = "mlx5_core 0000:{}: print_health_info:441:(pid 0): synd 0x8: unrecoverable hardware error"
RECOVERED = "mlx5_core 0000:{}: mlx5_health_try_recover:346:(pid 3112): health recovery succeeded"
RECOVERED_BEFORE_5_13 = "mlx5_core 0000:{}: mlx5_health_try_recover:339:(pid 3112): health revovery succeded"


def subjects(world: World) -> list[str]:
    return sorted(f"{row['reason']} {row['subject']}" for row in world.node().record.get("findings", []))


def is_checked(world: World) -> bool:
    """Whether the first check cycle found a healthy fabric of mlx5 devices."""
    checks = world.wait_for_status("pass").record["checks"]
    return {"check": "9-roce", "status": "pass", "severity": "PASS"} in checks


def test_a_dead_device_of_the_fabric_taints_until_the_driver_recovers_it(
    installed: ControlPlane, tmp_path: Path
) -> None:
    cluster = RealCluster(installed, "rdma-messages", instance_type="dgx-h100")
    with World(tmp_path / "world", cluster, "dgx-h100") as world:
        log = world.host.kernel_log
        world.host.route_by("enp130s0")
        world.host.pci.add_mlx5(
            Mlx5Function(f"0000:{VIRTUAL}", "mlx5_3_v0", "ibp94s0v0", "0x101e", physfn=f"0000:{RAIL_3}")
        )
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        world.start()
        assert is_checked(world)

        # Records are judged in their order: the last line shows that the lines before it were ignored.
        log.write(FATAL.format(RAIL_4), facility=USER)
        for other in (STORAGE, ROUTE, VIRTUAL):
            log.write(FATAL.format(other))
        log.write(FATAL.format(RAIL_3))
        node = world.wait_for_taint()
        assert (subjects(world), node.severity) == (["Mlx5Unrecoverable rdma/mlx5_3"], "REBOOT")
        assert "Mlx5Unrecoverable" in node.condition["reason"]
        world.wait_for_event("Mlx5Unrecoverable")

        log.write(RECOVERED.format(RAIL_3), facility=USER)
        for other in (RAIL_4, STORAGE, VIRTUAL):
            log.write(RECOVERED.format(other))
        log.write(HARDWARE.format(RAIL_4))
        both = ["Mlx5Unrecoverable rdma/mlx5_3", "Mlx5Unrecoverable rdma/mlx5_4"]
        world.wait(lambda _: subjects(world) == both)

        log.write(RECOVERED.format(RAIL_3))
        world.wait(lambda node: subjects(world) == both[1:] and node.tainted)
        log.write(RECOVERED_BEFORE_5_13.format(RAIL_4))
        assert not world.wait_for_status("pass").tainted

        # The ring holds a recovery before the next fault. A restarted agent reads both again.
        log.write(FATAL.format(RAIL_3))
        world.wait_for_taint()
        world.restart().wait_for_looks()
        assert world.wait_for_taint().severity == "REBOOT"
        assert world.agent.terminate() == 0
        world.host.reboot()
        world.start()
        assert not world.wait_for_status("pass").tainted


def test_only_a_lost_device_of_the_fabric_taints_a_virtual_machine(installed: ControlPlane, tmp_path: Path) -> None:
    """Hyper-V removes the accelerated interface while it services the host, and the driver reports a dead device."""
    cluster = RealCluster(installed, "rdma-virtual-machine", instance_type="vm-h100")
    with World(tmp_path / "world", cluster, "vm-h100") as world:
        fabric, interface = world.host.shape.mlx5[3], world.host.shape.mlx5[8]
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100")
        world.start()
        assert is_checked(world)

        world.host.remove_mlx5(8)
        aborted = "mlx5_health_try_recover:330:(pid 9): health recovery flow aborted, PCI reads still not working"
        world.host.kernel_log.write(f"mlx5_core {interface.address}: {aborted}")
        world.host.remove_mlx5(3)
        node = world.wait_for_taint()
        assert (subjects(world), node.severity) == ([f"RdmaDeviceGone rdma/{fabric.name}"], "REBOOT")

        world.host.pci.add_mlx5(fabric)
        assert not world.wait_for_status("pass").tainted
