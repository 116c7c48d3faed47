"""Who uses a GPU: open device files by minor number, kubelet's assignments, and each holder's kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from healthcheck.model import ProbeError
from healthcheck.operations.gpu_holders import HolderKind
from repair.holders import Process, assigned, holders, open_in
from sim.host_services import Container
from sim.node import SimulatedNode
from sim.pod_resources import serving_pod_resources

UID = "0d4f7f63-6e4f-4f7e-9b34-0123456789ab"


def found(node: SimulatedNode, *minors: int) -> list[Process]:
    return list(open_in(node.root, minors))


def test_only_processes_with_these_device_files_are_holders(node: SimulatedNode) -> None:
    group = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/x"
    for pid, path in ((7001, "/dev/nvidia1"), (7002, "/dev/nvidia11"), (7003, "/dev/nvidiactl"), (7004, "/x/nvidia1")):
        node.services.start_in_container(pid, f"p{pid}", Container(group))
        node.services.open_file(pid, path)
    assert found(node, 1) == [Process(7001, "p7001", UID)]
    assert {process.pid for process in found(node, *range(256))} == {7001, 7002}


@pytest.mark.parametrize("target", ["/dev/nvidia1 (deleted)", "/dev/nvidia1"])
def test_a_deleted_device_file_is_still_open(node: SimulatedNode, target: str) -> None:
    node.services.start("job", 5)
    node.services.open_file(node.services.pid_of("job"), target)
    assert [process.name for process in found(node, 1)] == ["job"]


@pytest.mark.parametrize("target", ["/dev/nvidia1/x", "/dev/nvidia", "/dev/nvidia-uvm", "socket:[1]", "/dev/nvidia1x"])
def test_another_file_is_none(node: SimulatedNode, target: str) -> None:
    node.services.start("job", 5)
    pid = node.services.pid_of("job")
    (node.root / f"proc/{pid}/fd").mkdir()
    (node.root / f"proc/{pid}/fd/3").symlink_to(target)
    assert found(node, *range(256)) == []


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
