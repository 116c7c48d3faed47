"""Who uses a GPU: open device files by minor number, kubelet's assignments, and each holder's kind."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.operations.drain import HolderKind
from gpu_healthcheck.healthcheck.probes.driver_files import NVIDIA_MAJOR
from gpu_healthcheck.repair.host_programs import Process, assigned, holders, open_in
from gpu_healthcheck.sim.host_services import Container
from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.pod_resources import serving_pod_resources
from tests.device_files import NEEDS_THEM

CONTROL, MODESET = 255, 254
MNT_DETACH = 2
UID = "0d4f7f63-6e4f-4f7e-9b34-0123456789ab"


def found(node: SimulatedNode, *minors: int) -> list[Process]:
    return list(open_in(node.root, minors))


@NEEDS_THEM
def test_only_processes_with_these_devices_are_holders(node: SimulatedNode) -> None:
    group = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/x"
    for pid, minor in ((7001, 1), (7002, 11), (7003, CONTROL), (7004, MODESET)):
        node.services.start_in_container(pid, f"p{pid}", Container(group))
        node.services.open_device(pid, NVIDIA_MAJOR, minor)
    assert found(node, 1) == [Process(7001, "p7001", UID)]
    assert {process.pid for process in found(node, *range(256))} == {7001, 7002}


def as_a_regular_file(node: SimulatedNode, pid: int, name: Path) -> None:
    name.touch()
    node.services.open_file(pid, str(name))


def as_a_removed_file(node: SimulatedNode, pid: int, name: Path) -> None:
    node.services.open_file(pid, f"{name} (deleted)")


def as_a_pipe(node: SimulatedNode, pid: int, name: Path) -> None:
    os.mkfifo(name)
    node.services.open_file(pid, str(name))


def as_a_folder(node: SimulatedNode, pid: int, name: Path) -> None:
    name.mkdir()
    node.services.open_file(pid, str(name))


def as_a_block_device(node: SimulatedNode, pid: int, name: Path) -> None:
    os.mknod(name, stat.S_IFBLK | 0o600, os.makedev(NVIDIA_MAJOR, 1))
    node.services.open_file(pid, str(name))


def as_a_device_of_another_driver(node: SimulatedNode, pid: int, name: Path) -> None:
    node.services.open_device(pid, 510, 1, name.name)


def as_a_device_that_stays_closed(node: SimulatedNode, pid: int, name: Path) -> None:
    node.services.open_device(pid, NVIDIA_MAJOR, 1, name.name, os.O_PATH)


@NEEDS_THEM
@pytest.mark.parametrize(
    "opened",
    [
        as_a_regular_file,
        as_a_removed_file,
        as_a_pipe,
        as_a_folder,
        as_a_block_device,
        as_a_device_of_another_driver,
        as_a_device_that_stays_closed,
    ],
)
def test_the_name_of_a_gpu_holds_none(
    node: SimulatedNode, tmp_path: Path, opened: Callable[[SimulatedNode, int, Path], None]
) -> None:
    node.services.start("sleep", 5)
    opened(node, node.services.pid_of("sleep"), tmp_path / "nvidia1")
    assert found(node, *range(256)) == []


@NEEDS_THEM
@pytest.mark.parametrize("name", ["nvidia1", "x", "nvidia1 (deleted)", "null"])
def test_a_gpu_is_held_under_any_name(node: SimulatedNode, name: str) -> None:
    node.services.start("job", 5)
    node.services.open_device(node.services.pid_of("job"), NVIDIA_MAJOR, 1, name)
    assert [process.name for process in found(node, 1)] == ["job"]


@pytest.fixture
def silent_mount(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system whose server never answers."""
    folder = tmp_path / "mount"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no file system of this user's: {error}")
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"silent", bytes(folder), b"fuse", 0, options):
        os.close(server)
        pytest.skip("only root can mount a file system")
    yield folder
    libc.umount2(bytes(folder), MNT_DETACH)
    os.close(server)


@NEEDS_THEM
def test_a_file_system_that_does_not_answer_keeps_no_gpu_and_hides_no_other_process(
    node: SimulatedNode, silent_mount: Path
) -> None:
    for name in ("first", "job", "last"):
        node.services.start(name, 5)
    for name in ("first", "last"):
        node.services.open_file(node.services.pid_of(name), str(silent_mount / "nvidia1"))
    node.services.open_device(node.services.pid_of("job"), NVIDIA_MAJOR, 1)
    assert [process.name for process in found(node, 1)] == ["job"]


@NEEDS_THEM
def test_a_flood_of_open_files_ends_no_reset(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.services.start("job", 5)
    node.open_gpu(1, node.services.pid_of("job"))
    monkeypatch.setattr("gpu_healthcheck.repair.host_programs._SECONDS", 0.0)
    assert found(node, 1) == []


def test_hidden_processes_are_no_answer(node: SimulatedNode) -> None:
    node.hide_host_processes()
    with pytest.raises(ProbeError, match="not visible"):
        found(node, 1)


def test_the_real_proc_is_read_without_an_error() -> None:
    if Path("/proc/2/comm").read_text().strip() != "kthreadd" or os.geteuid():
        pytest.skip("this container does not show the processes of its machine")
    assert all(process.pid for process in open_in(Path("/"), [0]))


@pytest.mark.parametrize(
    ("ids", "holding"),
    [
        (["GPU-3"], True),
        (["GPU-3::2"], True),
        (["GPU-4"], False),
        (["GPU-4", "GPU-3"], True),
        (["MIG-7"], True),
        ([], False),
    ],
)
def test_pods_to_which_the_kubelet_gave_the_gpu(short_root: Path, ids: list[str], holding: bool) -> None:
    with serving_pod_resources(short_root, lambda: [("a", "train", ids)]):
        assert assigned(short_root, ["GPU-3"]) == ({"a/train"} if holding else set())


def test_a_kubelet_that_does_not_answer_is_not_none(short_root: Path) -> None:
    assert assigned(short_root, ["GPU-3"]) is None


def pod(name: str, *, gpus: int = 0, phase: str = "Running", uid: str = UID, **metadata: Any) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {
        "metadata": {"namespace": "a", "name": name, "uid": uid, **metadata},
        "spec": {"containers": [{"name": "x", "resources": limits}]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("processes", "given", "pods", "expected"),
    [
        ([], {"a/train"}, [pod("train", gpus=1)], [("a/train", HolderKind.WORKLOAD)]),
        ([], set(), [pod("train", gpus=1)], []),
        ([], None, [pod("train", gpus=1), pod("web", uid="2")], [("a/train", HolderKind.WORKLOAD)]),
        ([], {"a/train"}, [pod("train", gpus=1, phase="Succeeded")], []),
        ([Process(1, "p", UID)], set(), [pod("train", gpus=1)], [("a/train", HolderKind.WORKLOAD)]),
        ([Process(1, "p", UID)], set(), [pod("web")], [("a/web", HolderKind.FOREIGN)]),
        ([Process(1, "p", UID)], set(), [], [(f"unknown ({UID})", HolderKind.FOREIGN)]),
        ([Process(1, "p")], set(), [pod("web")], [("", HolderKind.FOREIGN)]),
        ([Process(1, "p", UID)], set(), [pod("d", labels={"app": "nvidia-dcgm"})], [("a/d", HolderKind.OPERAND)]),
    ],
)
def test_kinds(
    processes: list[Process],
    given: set[str] | None,
    pods: list[dict[str, Any]],
    expected: list[tuple[str, HolderKind]],
) -> None:
    assert [(holder.pod, holder.kind) for holder in holders(processes, given, pods)] == expected
