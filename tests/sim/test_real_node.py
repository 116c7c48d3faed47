"""Commands of the node for manual tests, on a machine that cannot run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_healthcheck.sim.real_node import __main__ as program
from gpu_healthcheck.sim.real_node import needs

ROOT = Path(__file__).parents[2]


def test_node_up_names_missing_packages_before_a_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needs, "unsuited", lambda: "")
    monkeypatch.setattr(needs, "SEARCH_PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["real_node", "up"])

    assert program.main() == 1
    assert "a real node needs containerd, runc, iptables, debootstrap, buildah" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("goals", "steps"),
    [
        ("node-up node-shell node-xid", ["up", "xid", "shell"]),
        ("node-xid node-shell node-up", ["up", "xid", "shell"]),
        ("node-up node-shell", ["up", "shell"]),
        ("node-shell", ["shell"]),
        ("node-xid", ["xid"]),
    ],
)
def test_make_node_targets_run_in_a_useful_order(goals: str, steps: list[str]) -> None:
    make = ["make", "--just-print", f"--directory={ROOT}", *goals.split()]
    printed = subprocess.run(make, capture_output=True, text=True, check=True).stdout

    assert re.findall(r"sim\.real_node (\w+)", printed) == steps
