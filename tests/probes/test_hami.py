"""HAMi's files and processes on a host: real files of each release, and a real socket."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.hami import Hami, Plugin, read_hami
from gpu_healthcheck.sim import hami
from gpu_healthcheck.sim.hami import MONITOR_PID, PLUGIN_PID, POD, RELEASES
from gpu_healthcheck.sim.node import SimulatedNode

GONE, STAYS = "3b0c8d5e-1f2a-4c3b-8d4e-5f6a7b8c9d0e", "7c1d9e6f-2a3b-4d5c-9e6f-7a8b9c0d1e2f"


def read(node: SimulatedNode) -> Hami:
    return read_hami(Host(node.root))


def plugin(node: SimulatedNode) -> Plugin:
    found = read(node).plugin
    assert found is not None
    return found


def stale_folders(node: SimulatedNode) -> tuple[str, ...] | None:
    folders = read(node).leftovers
    return folders.names if folders is not None else None


def write_environ(node: SimulatedNode, pid: int, **variables: str) -> None:
    """Write the environment of one of HAMi's processes."""
    (node.root / f"proc/{pid}/environ").write_text("".join(f"{key}={value}\0" for key, value in variables.items()))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("hook", ["/usr/local", "/var/lib/hami"])
def test_plugin_of_each_release_is_read(release: str, hook: str, node: SimulatedNode) -> None:
    node.install_hami(release, hook)
    seen = read(node)

    assert seen.plugin is not None
    assert seen.plugin.folder == f"{hook}/vgpu"
    assert seen.plugin.brings == (RELEASES[release].library,)
    assert [(library.name, library.plain) for library in seen.plugin.libraries] == [(RELEASES[release].library, True)]
    assert seen.plugin.preloads == (f"{hook}/vgpu/libvgpu.so",)
    assert seen.plugin.sockets == ("kubelet.sock", "nvidia-gpu.sock")
    assert (seen.runs, seen.listening, seen.resync_seconds, stale_folders(node)) == (
        True,
        ("nvidia-gpu.sock",),
        300.0,
        (),
    )
    assert seen.up_seconds == pytest.approx(3000, abs=1)


def test_node_without_hami_has_an_empty_state(node: SimulatedNode) -> None:
    assert read(node) == Hami()


def test_files_of_a_removed_hami_are_ignored(node: SimulatedNode) -> None:
    node.install_hami("2.5")
    for pid in (PLUGIN_PID, MONITOR_PID):
        shutil.rmtree(node.root / f"proc/{pid}")

    assert read(node) == Hami()


def test_nvidias_own_plugin_is_ignored(node: SimulatedNode) -> None:
    node.install_hami("2.10")
    shutil.rmtree(node.root / f"proc/{MONITOR_PID}")
    write_environ(node, PLUGIN_PID, MIG_STRATEGY="none")

    assert read(node) == Hami()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        # A user of a pod has no capability over the host, whatever he has in a user namespace of his own.
        ("status", "Name:\tx\nCapEff:\t00000000a80425fb"),
        ("ns/user", "user:[4026539999]"),
    ],
)
def test_unprivileged_process_with_the_name_is_ignored(path: str, text: str, node: SimulatedNode) -> None:
    node.install_hami("2.10")
    for pid in (PLUGIN_PID, MONITOR_PID):
        place = node.root / f"proc/{pid}/{path}"
        place.unlink()
        if path == "status":
            place.write_text(text)
        else:
            place.symlink_to(text)

    assert read(node) == Hami()


@pytest.mark.parametrize("hook", ["", "relative", "/\x1b[2J", f"/{'x' * 300}"])
def test_invalid_hook_path_is_ignored(hook: str, node: SimulatedNode) -> None:
    node.install_hami("2.10")
    for pid in (PLUGIN_PID, MONITOR_PID):
        write_environ(node, pid, HOOK_PATH=hook)

    assert read(node) == Hami()


def test_hidden_processes_with_its_folder_are_unknown(node: SimulatedNode) -> None:
    node.install_hami("2.5")
    node.hide_host_processes()
    for pid in (PLUGIN_PID, MONITOR_PID):
        shutil.rmtree(node.root / f"proc/{pid}")

    with pytest.raises(ProbeError, match="/usr/local/vgpu") as exception_info:
        read(node)
    assert exception_info.value.cause.name == "HostProcessesHidden"

    shutil.rmtree(node.root / "usr/local/vgpu")
    assert read(node) == Hami()


def test_folder_in_place_of_a_file_is_not_plain(node: SimulatedNode) -> None:
    node.install_hami("2.4")
    node.hami.put_folder("libvgpu.so")
    node.hami.put_folder("ld.so.preload")
    found = plugin(node)

    assert [(library.name, library.plain) for library in found.libraries] == [("libvgpu.so", False)]
    assert found.preload is not None
    assert (found.preload.plain, found.preloads) == (False, ())


def test_link_counts_as_its_target_on_the_host(node: SimulatedNode) -> None:
    node.install_hami("2.5")
    folder = node.root / "usr/local/vgpu"
    (folder / "libvgpu.so").symlink_to("/usr/local/vgpu/libvgpu.so.v2.5.3")
    (folder / "libvgpu.so.broken").symlink_to("/nowhere")
    # Files that HAMi's script does not copy are not missing.
    (node.root / f"proc/{PLUGIN_PID}/root/k8s-vgpu/lib/nvidia/libvgpu.so.link").symlink_to("libvgpu.so.v2.5.3")

    found = plugin(node)
    assert [(library.name, library.plain) for library in found.libraries] == [
        ("libvgpu.so", True),
        ("libvgpu.so.broken", False),
        ("libvgpu.so.v2.5.3", True),
    ]
    assert found.brings == ("libvgpu.so.v2.5.3",)


def test_removed_folder_has_no_libraries(node: SimulatedNode) -> None:
    node.install_hami("2.5")
    shutil.rmtree(node.root / "usr/local/vgpu")
    found = plugin(node)

    assert (found.libraries, found.preload) == ((), None)


def test_only_listening_sockets_are_read(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as silent:
        listener.bind(f"{tmp_path}/nvidia-gpu.sock")
        listener.listen()
        silent.bind(f"{tmp_path}/silent.sock")
        paths = processes.listens_on(Path("/"), os.getpid())

    assert f"{tmp_path}/nvidia-gpu.sock" in paths
    assert f"{tmp_path}/silent.sock" not in paths


def test_only_sockets_of_plugins_are_read(node: SimulatedNode) -> None:
    node.install_hami("2.10")
    node.hami_listens("nvidia-gpu.sock", "kubelet.sock", "../pod-resources/kubelet.sock")
    assert read(node).listening == ("nvidia-gpu.sock",)

    node.hami_listens()
    assert read(node).listening == ()


def test_sockets_are_those_in_the_plugins_mount(node: SimulatedNode) -> None:
    node.install_hami("2.10")
    node.hami.forget_socket()
    assert plugin(node).sockets == ("kubelet.sock",)

    shutil.rmtree(node.root / f"proc/{PLUGIN_PID}/root/{hami.SOCKETS}")
    assert plugin(node).sockets is None


def test_folder_of_a_removed_pod_is_stale(node: SimulatedNode) -> None:
    node.install_hami("2.10")
    for pod in (GONE, STAYS):
        node.hami_container(pod, age_seconds=3600, gone=pod == GONE)
    (node.root / "usr/local/vgpu/containers/of-somebody-else").mkdir()
    link = node.root / f"usr/local/vgpu/containers/{GONE}_link"
    link.symlink_to("/etc")
    os.utime(link, (1, 1), follow_symlinks=False)

    assert stale_folders(node) == (f"{GONE}_cuda",)


@pytest.mark.parametrize(("age", "started"), [(200.0, True), (3600.0, False)])
def test_folder_that_hami_keeps_is_not_stale(age: float, started: bool, node: SimulatedNode) -> None:
    """Younger than its delay; or of a pod that the kubelet refused, which may still be in the API."""
    node.install_hami("2.10")
    node.hami.run_container(GONE, age_seconds=age, started=started)
    node.hami.forget_pod(GONE)

    assert stale_folders(node) == ()


@pytest.mark.parametrize(
    ("message", "seconds"),
    [("1h30m", 5400.0), ("5m0s", 300.0), ("90s", 90.0), ("", 300.0), ("soon", 300.0), ("0s", 300.0)],
)
def test_resync_interval_is_parsed_as_go_does(message: str, seconds: float, node: SimulatedNode) -> None:
    node.install_hami("2.10")
    write_environ(node, MONITOR_PID, HOOK_PATH="/usr/local/vgpu", HAMI_RESYNC_INTERVAL=message)

    assert read(node).resync_seconds == seconds


def test_kubelet_folder_is_found_by_hamis_own_pod(node: SimulatedNode) -> None:
    node.run_kubernetes("eks-al2023")
    node.install_hami("2.10")
    node.hami_container(GONE, age_seconds=3600)
    (node.root / f"var/lib/kubelet/pods/{POD}").rmdir()
    assert stale_folders(node) is None

    elsewhere = node.root / "data/kubelet/pods"
    for pod in (POD, GONE):
        (elsewhere / pod).mkdir(parents=True)
    kubelet = next(file for file in (node.root / "proc").glob("*/comm") if file.read_text().strip() == "kubelet")
    kubelet.with_name("cmdline").write_text("/usr/bin/kubelet\0--root-dir=/data/kubelet\0")
    assert stale_folders(node) == ()

    (elsewhere / GONE).rmdir()
    assert stale_folders(node) == (f"{GONE}_cuda",)


def test_mig_lock_has_an_age(node: SimulatedNode) -> None:
    node.install_hami("2.10")
    assert read(node).mig_lock_seconds is None

    node.lock_hami_mig(3600)
    assert read(node).mig_lock_seconds == pytest.approx(3600, abs=600)


def no_sockets(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".sock")]


def test_younger_of_two_plugins_is_read(node: SimulatedNode) -> None:
    node.install_hami("2.5")
    shutil.copytree(node.root / f"proc/{PLUGIN_PID}", node.root / "proc/1300", symlinks=True, ignore=no_sockets)
    started = (node.root / "proc/1300/stat").read_text().split()
    started[21] = str(int(started[21]) + 1000)
    node.write_value("proc/1300/stat", " ".join(started))
    write_environ(node, 1300, HOOK_PATH="/opt")

    assert plugin(node).folder == "/opt/vgpu"
