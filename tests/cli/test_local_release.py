"""A node of no cluster, as in Slurm: `check` accepts a reset as the agent does, and reads `release --local`."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.sim.node import SimulatedNode
from tests.console import typed

XID_62 = (62, "0x1 0x2 0x3")
"""RESET."""
XID_79 = (79, "GPU has fallen off the bus.")
"""REBOOT."""


class Node:
    """A p5.48xlarge under HOST_ROOT, that is a node of no cluster."""

    def __init__(self, host: SimulatedNode) -> None:
        self.host = host
        self.state = host.root / "var/lib/gpu-healthcheck"
        self.environment = {
            **{key: value for key, value in os.environ.items() if key != "KUBERNETES_SERVICE_HOST"},
            "HOST_ROOT": str(host.root),
            "CONFIG_DIR": "/nowhere",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
            "KUBECONFIG": "/nowhere",
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        self.host.kernel_log.replay()  # a new reader of the log gets all of it
        return typed(words, self.environment)

    def check(self) -> int:
        return self.run("check", "0").returncode

    def findings(self) -> list[str]:
        record: dict[str, Any] = json.loads(self.run("check", "0", "--json").stdout)
        return sorted(entry["reason"] for entry in record["findings"])

    def release(self, *words: str) -> tuple[int, str]:
        done = self.run("release", "--local", "--reason", "GPUs reset", *words)
        return done.returncode, (done.stdout + done.stderr).decode()

    def reload_driver(self) -> None:
        self.host.driver_unload()
        self.host.driver_load()


@pytest.fixture
def node(short_root: Path) -> Iterator[Node]:
    with SimulatedNode.create(short_root / "n", "p5.48xlarge") as host:
        yield Node(host)


def test_check_finding_ends_with_a_reset(node: Node) -> None:
    node.host.xid(0, *XID_62)
    assert node.check() == 1
    node.reload_driver()
    assert node.check() == 0


def test_check_counts_a_fault_after_a_reset(node: Node) -> None:
    node.host.xid(0, *XID_62)
    node.reload_driver()
    node.host.xid(0, *XID_62)
    assert node.findings() == ["Xid62"]


def test_check_driver_reload_is_no_reboot(node: Node) -> None:
    node.host.xid(0, *XID_79)
    node.reload_driver()
    assert node.findings() == ["Xid79"]


def test_check_finding_stays_if_the_gpu_does_not_answer_after_a_reset(node: Node) -> None:
    node.host.xid(0, *XID_62)
    node.reload_driver()
    node.host.write_value("nvml/gpu0/error", 15)  # NVML_ERROR_GPU_IS_LOST
    assert "Xid62" in node.findings()


@pytest.mark.parametrize("fault", [XID_62, XID_79], ids=["RESET", "REBOOT"])
def test_local_release_ends_the_finding_for_check(node: Node, fault: tuple[int, str]) -> None:
    node.host.xid(0, *fault)
    assert node.check() == 1

    code, output = node.release("--by", "alice")

    assert code == 0, output
    assert f"Xid{fault[0]} on gpu/" in output
    assert "released by alice: GPUs reset" in output
    assert node.check() == 0
    assert node.run("check", "0").stderr == b""


def test_local_release_does_not_cover_later_faults(node: Node) -> None:
    node.host.xid(0, *XID_79)
    node.release()
    node.host.xid(0, *XID_79)
    node.host.xid(1, *XID_62)
    assert node.findings() == ["Xid62", "Xid79"]
    assert node.release()[0] == 0
    assert node.findings() == []


def test_local_release_leaves_level_faults(node: Node) -> None:
    node.host.xid(0, *XID_62)
    node.host.write_value("nvml/gpu3/remap_failed", "1")

    code, output = node.release()

    assert code == 1
    assert "RowRemapFailed" in output.partition("still active")[2]
    assert "Xid62" not in output.partition("still active")[2]
    assert node.findings() == ["RowRemapFailed"]


def test_local_release_succeeds_beside_a_minor_finding(node: Node) -> None:
    node.host.xid(0, *XID_62)
    node.host.write_value("nvml/gpu3/persistence_mode", "0")

    code, output = node.release()

    assert (code, "PersistenceModeOff" in output.partition("still active")[2]) == (0, True), output


def test_local_release_without_findings_writes_nothing(node: Node) -> None:
    assert node.release() == (
        0,
        "nothing to release: no finding on this machine needs one\nthis machine: pass\n",
    )
    assert not node.state.exists()


def test_a_dry_run_writes_nothing(node: Node) -> None:
    node.host.xid(0, *XID_62)
    code, output = node.release("--dry-run")
    assert (code, "would release" in output, node.state.exists()) == (0, True, False)
    assert node.check() == 1


def test_local_release_of_another_machine_has_no_effect(node: Node) -> None:
    """An image of a node's disk starts elsewhere."""
    node.host.xid(0, *XID_79)
    node.release()
    file = MemoryFile(node.state)
    assert file.acknowledged("another") == ()
    assert [acknowledgement.reason for acknowledgement in file.acknowledged("")] == ["Xid79"]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "damaged": lambda path: path.write_bytes(b'{"schema": 2, "sha256": "0"}\n{}\n'),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "no text": lambda path: path.write_bytes(b"\xff\0" * 9),
    "a loop": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_check_with_an_unreadable_state_file_releases_nothing(node: Node, damage: Callable[[Path], object]) -> None:
    node.host.xid(0, *XID_62)
    node.state.mkdir(parents=True)
    damage(node.state / "memory.json")

    done = node.run("check", "0")

    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert str(node.state / "memory.json").encode() in done.stderr


def test_local_release_sets_a_damaged_state_file_aside(node: Node) -> None:
    node.host.xid(0, *XID_62)
    node.state.mkdir(parents=True)
    (node.state / "memory.json").write_bytes(b"{}")
    assert node.release()[0] == 0
    assert (node.state / "memory.unreadable").exists()
    assert node.check() == 0


def test_local_release_is_refused_while_an_agent_runs(node: Node) -> None:
    node.host.xid(0, *XID_62)
    node.state.mkdir(parents=True)
    with (node.state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output = node.release()
    assert code == 2
    assert "`gpu-healthcheck release NODE` reaches it" in output


def test_local_release_refuses_a_node_name(node: Node) -> None:
    assert node.release("node-a")[0] == 3
    assert node.release("-l", "a=b")[0] == 3
