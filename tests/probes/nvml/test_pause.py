"""The file by which a reset requests that the agent closes NVML: its deadline, and everything else it may contain."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.probes.nvml.pause import LONGEST_SECONDS, end_pause, is_paused, start_pause
from gpu_healthcheck.sim.node import SimulatedNode

FILE = "nvml-pause.json"


def test_a_pause_ends_on_request_and_twice_is_once(node: SimulatedNode, tmp_path: Path) -> None:
    start_pause(tmp_path / "state", node.root, 60)
    assert is_paused(tmp_path / "state", node.root)
    end_pause(tmp_path / "state")
    end_pause(tmp_path / "state")
    assert not is_paused(tmp_path / "state", node.root)


def test_a_pause_ends_by_itself_and_with_the_boot(node: SimulatedNode, tmp_path: Path) -> None:
    start_pause(tmp_path, node.root, 0)
    assert not is_paused(tmp_path, node.root)
    start_pause(tmp_path, node.root, 60)
    node.reboot()
    assert not is_paused(tmp_path, node.root)


def test_no_request_lasts_longer_than_the_limit(node: SimulatedNode, tmp_path: Path) -> None:
    start_pause(tmp_path, node.root, 1e9)
    until = json.loads((tmp_path / FILE).read_text())["until"]
    assert until - time.monotonic() <= LONGEST_SECONDS


@pytest.mark.parametrize("seconds", [LONGEST_SECONDS + 60, 1e300, float("inf"), float("nan"), -1])
def test_a_deadline_beyond_the_limit_is_no_pause(node: SimulatedNode, tmp_path: Path, seconds: float) -> None:
    row = {"boot_id": node.boot_id, "until": time.monotonic() + seconds}
    (tmp_path / FILE).write_text(json.dumps(row))
    assert not is_paused(tmp_path, node.root)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"until": 1}', '{"until": "x", "boot_id": 3}', "[" * 250])
def test_an_unreadable_request_is_no_pause(node: SimulatedNode, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert not is_paused(tmp_path, node.root)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_another_kind_of_file_is_no_pause_and_blocks_no_read(node: SimulatedNode, tmp_path: Path, kind: str) -> None:
    start_pause(tmp_path / "elsewhere", node.root, 60)
    path = tmp_path / FILE
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere" / FILE)
    else:
        path.mkdir()
    assert not is_paused(tmp_path, node.root)
