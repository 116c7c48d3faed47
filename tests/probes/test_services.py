"""Services of the GPUs among the host's processes, and the host's files about them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.services import (
    FABRIC_MANAGER,
    IMEX,
    FabricManagerStart,
    Service,
    Services,
    read_services,
)
from gpu_healthcheck.sim.host_services import LOG
from gpu_healthcheck.sim.node import DRIVER_VERSION, SimulatedNode

OTHER = "580.65.06"


def read(node: SimulatedNode) -> Services:
    return read_services(Host(node.root))


def manager(node: SimulatedNode) -> Service | None:
    return read(node).find(FABRIC_MANAGER)


def test_the_fabric_manager_is_found_by_the_name_that_the_kernel_cuts(node: SimulatedNode) -> None:
    node.start_fabric_manager(100)

    assert (node.root / "proc/1041/comm").read_text() == "nv-fabricmanage\n"
    assert read(node) == Services(
        of_host=True,
        running=(Service(FABRIC_MANAGER, 1041, 100.0),),
        fabric_manager_start=FabricManagerStart(DRIVER_VERSION),
    )


@pytest.mark.parametrize("comm", ["nv-fabricmanager", "nv-fabricmanag", "v-fabricmanage", "nv-hostengine", "", "\0"])
def test_another_process_does_not_count_as_it(node: SimulatedNode, comm: str) -> None:
    node.write_value("proc/1041/comm", comm)

    assert manager(node) is None


@pytest.mark.parametrize("state", ["Z", "X"])
def test_zombie_process_does_not_count_as_running(node: SimulatedNode, state: str) -> None:
    stat = (node.root / "proc/1041/stat").read_text()
    node.write_value("proc/1041/stat", stat.replace(") S ", f") {state} ").strip())

    assert manager(node) is None


def test_a_name_may_hold_anything(node: SimulatedNode) -> None:
    stat = (node.root / "proc/1041/stat").read_text().partition(")")[2]
    node.write_value("proc/1041/stat", f"1041 (a) Z 0 (){stat}".strip())

    assert manager(node) == Service(FABRIC_MANAGER, 1041, 3600.0)


@pytest.mark.parametrize("stat", ["", "1041", "1041 (nv-fabricmanage) S 1", f"1041 (x) S {'0 ' * 18}{'9' * 400}"])
def test_a_process_with_an_unreadable_start_counts_as_running(node: SimulatedNode, stat: str) -> None:
    node.write_value("proc/1041/stat", stat)

    assert manager(node) == Service(FABRIC_MANAGER, 1041, None)


def test_an_age_is_never_below_nothing(node: SimulatedNode) -> None:
    node.start_fabric_manager(100)
    node.write_value("proc/uptime", "10.00 10.00")

    assert manager(node) == Service(FABRIC_MANAGER, 1041, 0.0)


def test_process_that_ends_during_the_read_does_not_count_as_running(node: SimulatedNode) -> None:
    (node.root / "proc/1041/comm").unlink()

    assert manager(node) is None


def test_a_process_with_an_unreadable_name_is_not_misattributed(node: SimulatedNode) -> None:
    """As when this process has no file descriptor left: the fabric manager would seem to be gone."""
    manager = read_services(Host(node.root)).find("nv-fabricmanager")
    assert manager is not None
    comm = node.root / f"proc/{manager.pid}/comm"
    comm.unlink()
    comm.symlink_to("/proc/self/mem")  # nothing lies at its beginning: EIO

    with pytest.raises(ProbeError, match="Input/output error"):
        read_services(Host(node.root))


def test_in_a_container_with_its_own_processes_nothing_is_known_of_the_hosts(node: SimulatedNode) -> None:
    node.hide_host_processes()
    assert not read(node).of_host

    shutil.rmtree(node.root / "proc/2")
    assert not read(node).of_host


@pytest.mark.parametrize("uptime", ["", "soon", "nan nan", "-1.00 0.00", "inf 0.00", "9" * 400 + ".00 0.00"])
def test_missing_seconds_are_unobserved(node: SimulatedNode, uptime: str) -> None:
    node.write_value("proc/uptime", uptime)

    with pytest.raises(ProbeError, match="is not a number of seconds"):
        read(node)


def test_missing_proc_is_unobserved(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="proc/uptime: No such file or directory"):
        read_services(Host(tmp_path))


# The fabric manager's log.


def test_one_that_refuses_the_driver_says_of_both_which_version(node: SimulatedNode) -> None:
    node.start_wrong_fabric_manager(OTHER)

    assert read(node).fabric_manager_start == FabricManagerStart(OTHER, DRIVER_VERSION)


def test_only_its_last_start_counts(node: SimulatedNode) -> None:
    node.start_wrong_fabric_manager(OTHER)
    node.start_fabric_manager()

    assert read(node).fabric_manager_start == FabricManagerStart(DRIVER_VERSION)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU probe request received from node Id 0",
        "Fabric Manager version is running",
        f"Fabric Manager version {OTHER} runs",
        "\udcff\udcfe",
    ],
)
def test_log_without_a_start_leaves_it_unknown(node: SimulatedNode, text: str) -> None:
    (node.root / LOG).write_text(text, errors="surrogateescape")

    assert read(node).fabric_manager_start is None


def test_log_of_an_earlier_boot_gives_no_fact_of_this_boot(node: SimulatedNode) -> None:
    before_the_boot = time.time() - 2 * 3630
    os.utime(node.root / LOG, (before_the_boot, before_the_boot))

    assert read(node).fabric_manager_start is None


def test_of_two_logs_the_one_written_last_counts(node: SimulatedNode) -> None:
    in_the_driver_pod = node.root / "run/nvidia/driver" / LOG
    in_the_driver_pod.parent.mkdir(parents=True)
    in_the_driver_pod.write_text(
        f"Fabric Manager version {OTHER} is running with the following configuration options\n"
    )
    a_minute_ago = time.time() - 60
    os.utime(node.root / LOG, (a_minute_ago, a_minute_ago))
    assert read(node).fabric_manager_start == FabricManagerStart(OTHER)

    os.utime(node.root / LOG)
    os.utime(in_the_driver_pod, (a_minute_ago, a_minute_ago))
    assert read(node).fabric_manager_start == FabricManagerStart(DRIVER_VERSION)


def test_only_the_end_of_a_long_log_is_read(node: SimulatedNode) -> None:
    with (node.root / LOG).open("a") as log:
        log.write("x" * (1 << 16))

    assert read(node).fabric_manager_start is None


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_of_its_own_in_the_logs_place_is_not_read(node: SimulatedNode, kind: str) -> None:
    log = node.root / LOG
    log.rename(log.with_name("elsewhere.log"))
    match kind:
        case "pipe":
            os.mkfifo(log)
        case "folder":
            log.mkdir()
        case "link":
            log.symlink_to("elsewhere.log")

    assert read(node).fabric_manager_start is None


# IMEX.


def test_imex_is_found_and_enabled_on_a_node_of_a_rack(tmp_path: Path) -> None:
    with SimulatedNode.create(tmp_path / "node", "p6e-gb200.36xlarge") as node:
        assert read(node) == Services(of_host=True, running=(Service(IMEX, 1041, 3600.0),), imex_enabled=True)

        node.stop_imex()
        assert (read(node).running, read(node).imex_enabled) == ((), True)

        node.give_imex_to_pods()
        assert (read(node).running, read(node).imex_enabled) == ((), False)
