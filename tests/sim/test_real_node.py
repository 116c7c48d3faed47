"""Commands of the node for manual tests, on a machine that cannot run it."""

from __future__ import annotations

import sys

import pytest

from sim.real_node import __main__ as program
from sim.real_node import needs


def test_up_names_the_missing_packages_before_it_builds_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needs, "unsuited", lambda: "")
    monkeypatch.setattr(needs, "SEARCH_PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["real_node", "up"])

    assert program.main() == 1
    assert "a real node needs containerd, runc, iptables, debootstrap, buildah" in capsys.readouterr().err
