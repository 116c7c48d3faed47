"""State of the cache after a build, whatever its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.go_programs.build import ProgramError, built

KILLED = """
import os, signal, sys
from pathlib import Path
from tools.go_programs.build import built

def build(folder):
    folder.mkdir()
    (folder / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)

built(Path(sys.argv[1]), build)
"""


@pytest.fixture(autouse=True)
def _go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "path" / "go"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))


def build(folder: Path) -> None:
    folder.mkdir()
    (folder / "program").touch()


def test_go_build_removes_the_remains_of_a_killed_build(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("1.36.3-aaa", "1.36.3-bbb"):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(cache / name)], check=False)
        assert killed.returncode == -signal.SIGKILL
    assert len(list(cache.glob(".building-*/bin/half"))) == 2

    built(cache / "1.36.3-aaa", build)

    (others,) = cache.glob(".building-*")
    assert others.name.startswith(".building-1.36.3-bbb.")
    assert sorted(path.name for path in cache.iterdir() if path != others) == [
        "1.36.3-aaa",
        "1.36.3-aaa.lock",
        "1.36.3-bbb.lock",
    ]


def test_go_build_that_fails_leaves_no_files(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        build(folder)
        raise ProgramError("go build of it failed")

    with pytest.raises(ProgramError):
        built(tmp_path / "cache" / "one", fail)

    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["one.lock"]
