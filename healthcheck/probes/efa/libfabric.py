"""libfabric's list of this machine's EFA devices: `fi_info -p efa`. Jobs use EFA through libfabric."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.command import ChildError, MissedDeadline, Program, how_it_ended
from gpu_healthcheck.healthcheck.host.latest_answer import LatestAnswer, TimedAnswer
from gpu_healthcheck.healthcheck.model import PROBE_FAILED, Host, Probe, Shortage, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.efa.infiniband import openable_efa

NOT_ANSWERING = UnobservedCause(
    "LibfabricNotAnswering",
    "`fi_info -p efa` did not end within 10 s: the driver waits for an EFA device.",
    "Read `dmesg | grep -i efa` on the node.",
)
FAILED = UnobservedCause(
    "LibfabricFailed",
    "`fi_info -p efa` could not run, or crashed.",
    "Run it in the agent's pod; the message contains its last line.",
)
LONGEST_SECONDS = 10.0
"""Deadline of fi_info. It opens all EFA devices, at most 32, in about a second."""
ASKED_AGAIN_SECONDS = 3600.0
"""Validity of a complete answer while the devices are the same."""
_INSTALLED_IN = "/opt/amazon/efa/bin"
_PATIENCE_SECONDS = 1.0
_ENVIRONMENT = {"LC_ALL": "C", "FI_HMEM": "system"}
"""Environment of fi_info, without variables of this process such as FI_LOG_LEVEL or FI_PROVIDER.

FI_HMEM (libfabric, src/hmem.c) restricts it to host memory. Otherwise it would start CUDA on the GPUs if it can.
"""
_NO_DATA = 61
"""ENODATA: the provider has no device. The exit code is the negated result of fi_getinfo (libfabric, util/info.c)."""
_DOMAIN = re.compile(rb"^\s+domain: ([\w.-]{1,64})-rdm\s*$", re.MULTILINE)
"""Domain for reliable datagrams, listed by both `efa-direct` and `efa`."""
_VERSION = re.compile(rb"^\s+version: ([\d.]{1,16})\s*$", re.MULTILINE)
_LOG_LINE = re.compile(r"^libfabric:[\d:]+")
"""Prefix with pid and time. It is removed, because the text of a fault would differ in each check cycle."""
_LONGEST_TEXT = 200


class Listing(Struct, frozen=True, tag=True):
    """Devices that fi_info listed, and the devices on which it was run: those that programs can open."""

    devices: tuple[str, ...]
    exit_code: int
    listed: tuple[str, ...] = ()
    """Devices with a domain, each once."""
    version: str = ""
    """Version of the provider, as `201.0`."""
    says: str = ""
    """Last line of standard error."""

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.devices) - set(self.listed)))


class LibfabricReading(Struct, frozen=True):
    """Answer of libfabric; None before the first answer.

    `absent` is the reason why there is no program to run, or no device.
    """

    answer: Listing | Unobserved | None = None
    absent: str = ""


class _Question(Struct, frozen=True):
    program: str
    devices: tuple[str, ...]


@dataclass
class Libfabric:
    """Runs fi_info at the start, after a change of the EFA devices, after an incomplete answer, and hourly.

    Between runs, the last answer is returned.
    """

    root: Path
    deadline_seconds: float = LONGEST_SECONDS
    path: str = field(default_factory=lambda: f"{os.environ.get('PATH', os.defpath)}:{_INSTALLED_IN}")
    clock: Callable[[], float] = time.monotonic
    _program: Program = field(init=False)
    _answers: LatestAnswer[_Question, Listing | Unobserved] = field(init=False)

    def __post_init__(self) -> None:
        self._program = Program({**_ENVIRONMENT, "PATH": self.path}, _PATIENCE_SECONDS)
        self._answers = LatestAnswer("libfabric", self._ask, _is_outdated, self.clock)

    def read(self) -> LibfabricReading:
        """Return the last answer. If a new one is due, a thread starts to fetch it for a later check cycle."""
        return self._read(wait=False)

    def ask(self) -> LibfabricReading:
        """Run fi_info now and wait for the answer."""
        return self._read(wait=True)

    def end(self) -> int | None:
        """Stop the running child process. Return its pid if it can't be stopped."""
        return self._program.end()

    def _read(self, *, wait: bool) -> LibfabricReading:
        program = shutil.which("fi_info", path=self.path)
        if program is None:
            return LibfabricReading(absent="fi_info is not installed here")
        devices = openable_efa(self.root)
        if not devices:
            return LibfabricReading(absent="no EFA device that programs can open")
        asked = self._answers.read(_Question(program, devices), wait=wait)
        return LibfabricReading(asked.answer if asked and asked.question.devices == devices else None)

    def _ask(self, question: _Question) -> Listing | Unobserved:
        try:
            ended = self._program.run((question.program, "-p", "efa"), self.deadline_seconds)
            return read_listing(question.devices, ended.code, ended.out, ended.err)
        except MissedDeadline as error:
            return Unobserved(NOT_ANSWERING, f"fi_info: {error}")
        except Shortage as error:
            return Unobserved(PROBE_FAILED, f"fi_info: {error}")
        except ChildError as error:
            return Unobserved(FAILED, f"fi_info: {error}")


def _is_outdated(asked: TimedAnswer[_Question, Listing | Unobserved], question: _Question, now: float) -> bool:
    is_whole = isinstance(asked.answer, Listing) and not asked.answer.missing
    return not is_whole or asked.question.devices != question.devices or now - asked.at >= ASKED_AGAIN_SECONDS


def read_listing(devices: tuple[str, ...], code: int, out: bytes, err: bytes) -> Listing | Unobserved:
    """Parse the output of fi_info. The result is Unobserved for an error that does not concern a device."""
    last_line = _last_line(err)
    if code not in (0, _NO_DATA):
        return Unobserved(FAILED, f"fi_info {how_it_ended(code)}" + (f": {last_line}" if last_line else ""))
    listed = tuple(sorted({name.decode("ascii", "replace") for name in _DOMAIN.findall(out)}))
    version = _VERSION.search(out)
    return Listing(devices, code, listed, version[1].decode() if version else "", last_line)


def _last_line(text: bytes) -> str:
    lines = text[-65536:].decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return _LOG_LINE.sub("libfabric: ", last)[:_LONGEST_TEXT]


def read_libfabric(host: Host) -> LibfabricReading:
    if host.ask_libfabric is None:
        return LibfabricReading(absent="fi_info can only check the machine on which it runs")
    reading: LibfabricReading = host.ask_libfabric()
    return reading


LIBFABRIC = Probe("libfabric", read_libfabric, LibfabricReading, (NOT_ANSWERING, FAILED))
