"""Tests of a tier that failed, run once more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import rerun

SCRIPT = Path(rerun.__file__)
CONFIGURATION = "[pytest]\nmarkers = cluster\n"
TESTS = """
import pathlib, pytest
pytestmark = pytest.mark.cluster
@pytest.mark.parametrize("name", ["a", "b", "c", "d"], ids="at@{}.module".format)
@pytest.mark.xdist_group("cluster/one")
def test_that(name):
    kind = pathlib.Path(f"{name}.kind")
    told = kind.read_text()
    if told == "once":
        kind.write_text("well")
    assert told == "well"
"""


@pytest.mark.parametrize(
    ("kinds", "code", "message"),
    [
        (
            "once well well well",
            0,
            "cluster: test_it.py::test_that[at@a.module]\ncluster: these failed, and passed",
        ),
        ("well once always well", 1, "these failed, and failed again"),
        ("once once once once", 1, "4 tests failed; only 1 to 3 are repeated"),
        ("well well well well", 1, "0 tests failed; only 1 to 3 are repeated"),
    ],
)
def test_a_few_that_failed_get_a_second_run_and_are_named(tmp_path: Path, kinds: str, code: int, message: str) -> None:
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    (tmp_path / "test_it.py").write_text(TESTS)
    for name, kind in zip("abcd", kinds.split(), strict=True):
        (tmp_path / f"{name}.kind").write_text(kind)
    first = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadgroup", "-o", "cache_dir=cache"]
    subprocess.run(first, cwd=tmp_path, check=False, capture_output=True)
    words = [sys.executable, str(SCRIPT), "cluster", "cache"]
    again = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True, text=True)

    assert (again.returncode, message in again.stdout) == (code, True), again.stdout + again.stderr


def test_a_run_that_said_nothing_is_not_run_again(tmp_path: Path) -> None:
    assert rerun.failed(tmp_path) == []


def test_of_a_story_on_the_real_node_the_whole_file_is_run() -> None:
    tests = ["tests/node/test_story.py::test_a", "tests/node/test_story.py::test_b", "tests/node/test_sweep.py::test_c"]
    assert rerun.chosen("real_node", tests) == ["tests/node/test_story.py", "tests/node/test_sweep.py"]
