"""Reads of the driver through a child process with a deadline, and detection of changes of the driver."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.host.command import Child, ChildError, MissedDeadline, isolated
from gpu_healthcheck.healthcheck.host.opening import is_there, read
from gpu_healthcheck.healthcheck.model import ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml.answer import read_answer
from gpu_healthcheck.healthcheck.probes.nvml.gpus import (
    READINGS,
    SNAPSHOT_SECONDS,
    DriverReading,
    Gpus,
    Snapshot,
    snapshot,
)
from gpu_healthcheck.healthcheck.probes.nvml.library import SONAME, all_places, resolve_inside
from gpu_healthcheck.healthcheck.text.printable import printable

DEADLINE_SECONDS = 60.0
"""Deadline of one read of NVML. No setting shortens it, because a slow answer is not a hung driver.

With persistence mode off, each GPU takes seconds to initialise (NVIDIA's driver persistence guide), and eight GPUs
took more than 25 s (Azure/AgentBaker#2829).
"""
_HISTORY_SECONDS = 4200.0
"""Age of the oldest snapshot: an hour, and a window of the longest usual check interval."""


@dataclass
class Driver:
    """Reads NVML in a child process, with the driver's library below `root`.

    With `use_loader`, the loader's path is tried before the host's known paths.
    """

    root: Path
    deadline_seconds: float = field(default_factory=lambda: DEADLINE_SECONDS)
    use_loader: bool = True
    clock: Callable[[], float] = time.monotonic
    _child: Child = field(init=False)
    _missed: list[float] = field(default_factory=list, init=False)
    _version: str | None = field(default=None, init=False)
    _mismatch_since: float | None = field(default=None, init=False)
    _history: tuple[Snapshot, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._child = Child(child_program(self.root, use_loader=self.use_loader))

    def read(self) -> DriverReading:
        """Read once. Never raises for errors of the driver. A changed driver is read again the next time."""
        before, self._version = self._version, driver_version(self.root)
        if before is not None and self._version != before:
            self._child.end()
            self._missed.clear()  # no process can be stuck in a replaced module
            self._history = ()
            if before:
                change = f"driver {before} became {self._version or 'unloaded'}"
                return self._as_reading(Unobserved(error_causes.DRIVER_BEING_CHANGED, change))
        try:
            answer = read_answer(self._child.ask("read", self.deadline_seconds))
        except MissedDeadline as error:
            self._missed = [*self._missed[:1], self.clock()]
            detail = f"{error} (deadline {self.deadline_seconds:g} s)"
            return self._as_reading(Unobserved(error_causes.DRIVER_NOT_ANSWERING, detail), error.pid)
        except ChildError as error:
            return self._as_reading(Unobserved(error_causes.CRASHED, f"the probe of NVML failed: {error}"))
        if answer.answered_by_driver:
            self._missed.clear()
        if answer.replaced:
            self._child.end()
        return self._as_reading(answer.gpus)

    def pause(self) -> None:
        """Reset the mismatch timer and the history. The driver is being changed, so earlier reads no longer count."""
        self._mismatch_since = None
        self._history = ()

    def end(self) -> int | None:
        """Stop the child process. Return its pid if it can't be stopped."""
        return self._child.end()

    @property
    def child_pid(self) -> int | None:
        return self._child.pid

    def _as_reading(self, answer: Gpus | Unobserved, stuck_pid: int | None = None) -> DriverReading:
        now = self.clock()
        history = tuple(earlier for earlier in self._history if now - earlier.at <= _HISTORY_SECONDS)
        is_due = not history or now - history[-1].at >= SNAPSHOT_SECONDS
        self._history = (*history, snapshot(now, answer)) if isinstance(answer, Gpus) and is_due else history
        return DriverReading(
            answer,
            tuple(self._missed),
            self.deadline_seconds,
            stuck_pid,
            self._version or "",
            library_versions(self.root, answer.library if isinstance(answer, Gpus) else ""),
            self._mismatch_seconds(answer),
            sees_every_process(self.root),
            now,
            history,
        )

    def _mismatch_seconds(self, answer: Gpus | Unobserved) -> float | None:
        if isinstance(answer, Gpus) or answer.cause != error_causes.LIBRARY_MISMATCH:
            self._mismatch_since = None
            return None
        now = self.clock()
        self._mismatch_since = now if self._mismatch_since is None else self._mismatch_since
        return now - self._mismatch_since


def child_program(root: Path, *, use_loader: bool) -> tuple[str, ...]:
    """Return the command of the child process, with the table of readings."""
    readings = json.dumps([[name, row.call, row.on_failure] for name, row in READINGS.items()])
    return (
        *isolated("gpu_healthcheck.healthcheck.probes.nvml.child"),
        str(root),
        "loader" if use_loader else "root-only",
        readings,
    )


def read_driver_once(root: Path, deadline_seconds: float) -> DriverReading:
    """Read once and release the driver. `stuck_pid` of the result is the pid of a child that could not be stopped."""
    driver = Driver(root, deadline_seconds)
    try:
        reading = driver.read()
    finally:
        pid = driver.end()
    return replace(reading, stuck_pid=pid)


def driver_version(root: Path) -> str:
    """Return the version of the loaded kernel module; '' if none is loaded."""
    try:
        return printable(read(root / "sys/module/nvidia/version", 64).decode("ascii", "replace").strip())
    except OSError:
        return ""


_VERSION = re.compile(r"libnvidia-ml\.so\.(\d{1,4}(?:\.\d{1,4}){1,3})\Z")
_EVERY_PROCESS = "pid:[4026531836]"
"""Initial PID namespace of a kernel: PROC_PID_INIT_INO of include/linux/proc_ns.h."""


def library_versions(root: Path, used: str = "") -> tuple[str, ...]:
    """Return the versions of the driver's libraries under this root and of the used one, from their file names."""
    version = _VERSION.search(used)
    found = {version[1]} if version else set()
    for place in all_places(str(root)):
        try:
            file = resolve_inside(str(root).rstrip("/"), f"{place}/{SONAME}")
        except OSError:
            continue
        version = _VERSION.search(file)
        if version and _may_be(file):
            found.add(version[1])
    return tuple(sorted(found))


def _may_be(file: str) -> bool:
    """Whether the library may exist. A dangling link means no; a link without read permission means yes."""
    try:
        return is_there(file)
    except ProbeError:
        return True


def sees_every_process(root: Path) -> bool:
    """Whether this process is in the node's PID namespace. True for a tree without a live /proc."""
    try:
        return (root / "proc/self/ns/pid").readlink().name == _EVERY_PROCESS
    except OSError:
        return True
