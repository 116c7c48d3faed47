"""The tiers of tests: `make test-cluster` starts a control plane and our long-running programs, `make test` neither.

A test with a fixture that starts one is of the second tier, without a marker of its own. Any other test that starts one
needs `pytest.mark.cluster`, or fails at the start.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

STORIES = "stories"
"""A group of its own: they are lived through beside the other tests, from the beginning."""
_SCHEDULED = "scheduled"
"""A control plane with a scheduler is a room's own: its tests share it, and begin early."""
_TESTS = Path(__file__).parent
_STARTING = {"control_plane", "scheduled", "real_containerd", "stories", "watched", "quick", "helm"}
_SERVERS = {"kube-apiserver", "etcd", "containerd", "prometheus"}
_PROGRAMS = {"agent", "evict", "sweeper", "sweeper.sweep_run", "quarantine", "sim.control_plane"}
"""Of ours, those that work for long; the command line and what asks NVML end at once."""
_IN_DISGUISE = "tests."
"""Modules of tests that run as programs: ours, with a fault or an end planted in them."""


class _Now:
    """The test that runs, in this process."""

    test: pytest.Item | None = None


def mark(test: pytest.Item) -> None:
    if _STARTING & set(getattr(test, "fixturenames", ())):
        test.add_marker(pytest.mark.cluster)


def group(test: pytest.Item) -> str | None:
    """Return the group of tests for one process; None: any process, one by one.

    A test of the second tier is slow, and each process has a control plane of its own. Quick tests are grouped by file,
    and so are tests that share a process of their file.
    """
    asked = getattr(test, "fixturenames", ())
    if STORIES in asked:
        return STORIES
    if _SCHEDULED in asked:
        return f"{_SCHEDULED}/{test.path.relative_to(_TESTS).parts[0]}"
    if test.get_closest_marker("cluster") and not _shares_with_its_file(test):
        return None
    return str(test.path.relative_to(_TESTS).with_suffix(""))


def turn(test: pytest.Item) -> int:
    """Return the sort key: the largest groups come first, because the last one runs alone at the end.

    A process's control plane runs until its last test, also unused: tests without one come first.
    """
    whole = group(test) or ""
    if whole == STORIES or whole.startswith(_SCHEDULED):
        return 0 if whole == STORIES else 1
    return 3 if "control_plane" in getattr(test, "fixturenames", ()) else 2


def _shares_with_its_file(test: pytest.Item) -> bool:
    info = getattr(test, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.values() if info is not None else ()
    return any(entry.scope == "module" for found in definitions for entry in found)


@contextmanager
def running(test: pytest.Item) -> Iterator[None]:
    _Now.test = test
    try:
        yield
    finally:
        _Now.test = None


def guard() -> None:
    """From now on a test of the first tier fails when it starts a process of the second."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and isinstance(words := arguments[1], Sequence):
        hold([str(word) for word in words])


def hold(words: Sequence[str]) -> None:
    """The test that runs now, to its tier: these words start a program."""
    if threading.current_thread() is not threading.main_thread():
        return  # the stories run in threads, in parallel with any test
    if _Now.test is None or _Now.test.get_closest_marker("cluster"):
        return
    if program := _of_the_second_tier(words):
        raise AssertionError(f"{program} is started by a test without pytest.mark.cluster, which `make test` runs")


def _of_the_second_tier(words: Sequence[str]) -> str:
    """Return the name of the started program of the second tier; '' for others."""
    # A link of another name only imitates it.
    name = Path(words[0]).resolve().name if words else ""
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if name in _SERVERS or module in _PROGRAMS or module.startswith(_IN_DISGUISE):
        return module or name
    return ""


def cannot_run(reason: str) -> NoReturn:
    """Skip on a person's machine; in CI a test that did not run is a failure."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
