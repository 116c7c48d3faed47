"""Limits of a pod on the node, read from our own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.limits import ProcessLimits, read_limits
from gpu_healthcheck.sim.node import SimulatedNode, process_limits


def test_a_healthy_node_locks_without_limit(node: SimulatedNode) -> None:
    assert read_limits(Host(node.root)) == ProcessLimits(None)


@pytest.mark.parametrize("limit", [0, 65536, 16 << 30, 2**63])
def test_a_limit_is_read_in_bytes(node: SimulatedNode, limit: int) -> None:
    node.limit_locked_memory(limit)

    assert read_limits(Host(node.root)) == ProcessLimits(limit)


def test_the_simulated_file_has_the_kernels_own_form() -> None:
    ours, kernels = process_limits("8388608").splitlines(), Path("/proc/self/limits").read_text().splitlines()
    row = next(line for line in kernels if line.startswith("Max locked memory"))

    assert ours[0].split() == kernels[0].split()
    assert ours[1].split()[:3] == row.split()[:3]
    assert [ours[1].index("8388608"), len(ours[1])] == [kernels[0].index("Soft Limit"), len(row)]


def test_the_limits_of_a_persons_shell_tell_nothing() -> None:
    assert read_limits(Host(Path("/"))) is None


def test_a_captured_tree_has_none(tmp_path: Path) -> None:
    assert read_limits(Host(tmp_path)) is None


@pytest.mark.parametrize("text", ["", "Max locked memory", "Max locked memory  many  many  bytes\n", "\xff" * 100])
def test_nonsense_could_not_be_read(node: SimulatedNode, text: str) -> None:
    node.write_value("proc/self/limits", text)

    with pytest.raises(ProbeError, match="proc/self/limits: no line for locked memory"):
        read_limits(Host(node.root))


def test_unreadable_source_is_reported(tmp_path: Path) -> None:
    (tmp_path / "proc/self/limits").mkdir(parents=True)

    with pytest.raises(ProbeError, match="Is a directory"):
        read_limits(Host(tmp_path))
