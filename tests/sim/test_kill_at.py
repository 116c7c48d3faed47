"""A process that dies exactly at one of its calls on a directory's files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_healthcheck.sim import kill_at
from gpu_healthcheck.sim.kill_at import FileCall, When

# Replaces a file as a careful program does, under a lock, and then removes it.
STORY = """
import fcntl, os, subprocess
lock = os.open("{0}/lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
with open("{0}/new", "wb") as file:
    file.write(b"content")
    file.flush()
    os.fsync(file.fileno())
os.replace("{0}/new", "{0}/whole")
directory = os.open("{0}", os.O_RDONLY)
os.fsync(directory)
os.close(directory)
subprocess.run(["true"], check=True)
open("{0}/whole", "rb").read()
open("{0}-not/elsewhere", "wb").write(b"nobody counts this")
os.unlink("{0}/whole")
os.close(lock)
"""
CALLS = [
    ("open", "lock"),
    ("flock", "lock"),
    ("open", "new"),
    ("write", "new"),
    ("fsync", "new"),
    ("close", "new"),
    ("rename", "whole"),
    ("fsync", "."),
    ("unlink", "whole"),
    ("close", "lock"),
]
NOTHING: dict[str, bytes] = {}
LOCKED = {"lock": b""}
STATES = [
    NOTHING,
    *[LOCKED] * 2,
    LOCKED | {"new": b""},
    *[LOCKED | {"new": b"content"}] * 3,
    *[LOCKED | {"whole": b"content"}] * 2,
    *[LOCKED] * 2,
]
"""What the directory holds once so many of the calls were made."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "memory-not").mkdir()
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def run(program: str, directory: Path, *, call: int = 0, when: When = "before") -> tuple[int, list[FileCall]]:
    """Return the program's exit status, and its calls below the directory."""
    log = directory.with_name("calls")
    log.unlink(missing_ok=True)
    fields = kill_at.environment(directory, call=call, when=when, log=log)
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **fields}, check=False)
    return done.returncode, kill_at.calls_in(log) if log.exists() else []


def content(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def numbered(directory: Path, calls: list[tuple[str, str]]) -> list[FileCall]:
    return [FileCall(number, name, directory / path) for number, (name, path) in enumerate(calls, 1)]


def test_kill_at_call_0_kills_no_process_and_lists_every_call(directory: Path) -> None:
    assert run(STORY.format(directory), directory) == (0, numbered(directory, CALLS))
    assert content(directory) == STATES[-1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, len(CALLS) + 1))
def test_kill_at_ends_the_process_at_the_call(directory: Path, call: int, when: When) -> None:
    status, calls = run(STORY.format(directory), directory, call=call, when=when)

    assert (status, calls) == (-signal.SIGKILL, numbered(directory, CALLS[:call]))
    assert content(directory) == STATES[call - 1 if when == "before" else call]


OTHER_FORMS = """
import os
at = os.open("{0}", os.O_RDONLY)
one = os.open("one", os.O_WRONLY | os.O_CREAT, dir_fd=at)
os.pwrite(one, b"x", 0)
os.fdatasync(one)
os.rename("one", "two", src_dir_fd=at, dst_dir_fd=at)
os.close(one)
os.unlink("two", dir_fd=at)
os.chdir("{0}/..")
two = os.open("memory/../memory/three", os.O_RDONLY | os.O_CREAT)
os.close(two)
os.symlink("memory", "link")
os.rename("link/three", "memory-not/three")
os.rename("memory-not/three", "link/four")
os.truncate("link/four", 0)
"""


def test_kill_at_counts_all_forms_of_a_call(directory: Path) -> None:
    status, calls = run(OTHER_FORMS.format(directory), directory)

    assert (status, calls) == (
        0,
        numbered(
            directory,
            [
                ("open", "one"),
                ("pwrite", "one"),
                ("fdatasync", "one"),
                ("rename", "two"),
                ("close", "two"),
                ("unlink", "two"),
                ("open", "three"),
                ("rename", "three"),
                ("rename", "four"),
            ],
        ),
    )


def test_kill_at_counts_the_calls_of_a_child_separately(directory: Path) -> None:
    program = """
import os, subprocess, sys
held = open("{0}/held", "wb")
if os.fork() == 0:
    open("{0}/forked", "wb").write(b"x")
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "open('{0}/executed', 'wb').close()"], check=True)
held.close()
"""
    _, calls = run(program.format(directory), directory)

    assert [(call.number, call.name, call.path.name) for call in calls] == [
        (1, "open", "held"),
        (1, "open", "executed"),
        (2, "close", "executed"),
        (2, "close", "held"),
    ]
