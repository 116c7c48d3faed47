"""Processes that `make test` may start: a test of the second tier without the marker fails there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

LONG = [
    [sys.executable, "-m", "agent"],
    [sys.executable, "-m", "sweeper.sweep_run"],
    [sys.executable, "-m", "tests.quarantine.dying"],
    ["/nowhere/kube-apiserver", "--help"],
    [Path("/nowhere/containerd"), "config", "dump"],
]


@pytest.mark.parametrize("words", LONG, ids=lambda words: str(words[-1]))
def test_what_works_for_long_is_refused(words: list[str]) -> None:
    with pytest.raises(AssertionError, match=r"without pytest\.mark\.cluster"):
        subprocess.run(words, check=False)


def test_the_command_line_and_other_programs_may_be_started() -> None:
    assert subprocess.run([sys.executable, "-m", "cli", "version"], capture_output=True, check=False).returncode == 0


def test_whoever_asks_for_a_control_plane_is_of_the_second_tier(request: pytest.FixtureRequest) -> None:
    """Also by way of another fixture."""
    asking = {"control_plane", "scheduled", "watched", "quick", "stories", "real_containerd"}
    for test in request.session.items:
        if asking & set(getattr(test, "fixturenames", ())):
            assert test.get_closest_marker("cluster"), test.nodeid


def test_a_test_of_the_second_tier_runs_wherever_there_is_room(request: pytest.FixtureRequest) -> None:
    assert tiers.group(request.node) == "test_tiers"
    request.node.add_marker(pytest.mark.cluster)
    assert tiers.group(request.node) is None


def test_a_group_is_passed_to_xdist(request: pytest.FixtureRequest) -> None:
    """By the name of each test, in its processes: otherwise each would start its own, and no test would fail."""
    assert request.node.nodeid.endswith("@test_tiers") == hasattr(request.config, "workerinput")
