"""One all-reduce over all GPUs of the node, from the output of nccl-tests' `all_reduce_perf`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.command import ChildError, MissedDeadline, Program, ProgramEnd, how_it_ended
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, Shortage, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.pci import read_functions
from gpu_healthcheck.healthcheck.text.printable import printable

NOT_RUN = UnobservedCause(
    "AllReduceNotRun",
    "all_reduce_perf could not run, or failed with an error that does not prove a hardware fault.",
    "Read its error in the message.",
)
_INSTALLED_IN = "/opt/nccl-tests/build"
"""Folder of the program in AWS' container image of nccl-tests."""
_PATIENCE_SECONDS = 5.0
_ENVIRONMENT = {"LC_ALL": "C", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket"}
"""Environment without NCCL variables of this process, such as NCCL_ALGO, which changes the bus bandwidth's definition.

The GPUs of the node connect over the loopback interface. EFA has a separate test and is not used.
"""
_PASSED_ON = ("LD_LIBRARY_PATH",)
"""Variable with the folders of NCCL, CUDA and the driver's library in a container."""
_SIZES = ("-b", "1G", "-e", "4G", "-f", "2")
"""Message sizes. From 1 GiB, the bus bandwidth does not depend on the size."""
_SMALLEST_JUDGED = 1 << 30
_NVIDIA_DRIVER = "nvidia"
_OUT_OF_BOUNDS = re.compile(r"^# Out of bounds values : (\d{1,18})\b", re.MULTILINE)
_FAILURE = re.compile(r"Test (?:CUDA|NCCL) failure [^\s:]+:\d+ '(?P<text>.*)'\s*$", re.MULTILINE)
_HARDWARE_ERRORS = (
    "uncorrectable ecc error encountered",
    "uncorrectable nvlink error detected",
    "invalid access of peer gpu memory over nvlink or a hardware error",
    "hardware stack error",
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "misaligned address",
    "invalid program counter",
    "unspecified launch failure",
)
"""Texts of cudaGetErrorString that a correct program does not get on a healthy GPU.

Other errors (no device, no memory, a fabric that is not up, a library of another version) have other possible causes.
"""
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?\Z")
"""Number in the formats %g and %.2f. A column that was not measured is N/A."""
_LONGEST_TEXT, _LONGEST_LINE = 200, 4096
_MOST_LINES = 4096


class Reduced(Struct, frozen=True, tag=True):
    """Result of a completed run.

    `bandwidth` is the best bus bandwidth in GB/s for messages of 1 GiB and more.
    """

    gpus: int
    bandwidth: float
    wrong: int
    """Number of wrong values."""


class Failed(Struct, frozen=True, tag=True):
    """Result of a run that did not complete because of a GPU or a connection between GPUs."""

    says: str


class AllReduceReading(Struct, frozen=True):
    """Result of the all-reduce. `absent` is the reason if it did not run."""

    answer: Reduced | Failed | Unobserved | None = None
    absent: str = ""


@dataclass
class AllReduce:
    """Runs the all-reduce once and waits for its end."""

    root: Path
    deadline_seconds: float
    """Deadline. Eight H100 need half a minute, four T4 without NVLink about three minutes."""
    path: str = field(default_factory=lambda: f"{os.environ.get('PATH', os.defpath)}:{_INSTALLED_IN}")
    _program: Program = field(init=False)

    def __post_init__(self) -> None:
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._program = Program({**_ENVIRONMENT, **passed_on, "PATH": self.path}, _PATIENCE_SECONDS)

    def run(self) -> AllReduceReading:
        """Run the all-reduce. Raises ProbeError if the GPUs can't be counted."""
        program = shutil.which("all_reduce_perf", path=self.path)
        if program is None:
            return AllReduceReading(absent="all_reduce_perf is not installed here")
        gpus = sum(
            function.is_gpu and function.driver == _NVIDIA_DRIVER for function in read_functions(Host(self.root))
        )
        if gpus < 2:
            return AllReduceReading(absent="an all-reduce needs two GPUs or more")
        return AllReduceReading(self._run((program, *_SIZES, "-g", str(gpus)), gpus))

    def stop(self) -> None:
        """Stop the run of another thread. Nothing is started after it."""
        self._program.stop()

    def _run(self, argv: tuple[str, ...], gpus: int) -> Reduced | Failed | Unobserved:
        try:
            return read_all_reduce(self._program.run(argv, self.deadline_seconds), gpus)
        except MissedDeadline:
            return Failed(f"all_reduce_perf: no end within {self.deadline_seconds:g} s")
        except (ChildError, Shortage) as error:
            return Unobserved(NOT_RUN, f"all_reduce_perf: {error}")


def read_all_reduce(ended: ProgramEnd, gpus: int) -> Reduced | Failed | Unobserved:
    """Parse the program's output.

    The result is Unobserved for an error that is not certainly a hardware fault.
    """
    text = ended.out.decode("utf-8", "replace")
    if failure := _FAILURE.search(text) or _FAILURE.search(ended.err.decode("utf-8", "replace")):
        error = printable(failure["text"], _LONGEST_TEXT)
        hardware = any(error in failure["text"].lower() for error in _HARDWARE_ERRORS)
        return Failed(error) if hardware else Unobserved(NOT_RUN, f"all_reduce_perf: {error}")
    rows = list(_rows(text))
    judged = [bandwidth for size, bandwidth, _ in rows if size >= _SMALLEST_JUDGED]
    counted = _OUT_OF_BOUNDS.search(text)
    wrong = max(sum(wrong for _, _, wrong in rows), int(counted[1]) if counted else 0)
    # A run that detected wrong values ends with exit code 1. So does a run without permission to run.
    if not judged or (ended.code != 0 and not wrong):
        return Unobserved(NOT_RUN, f"all_reduce_perf {how_it_ended(ended.code)}{_last_words(ended)}")
    return Reduced(gpus, max(judged), wrong)


def _rows(text: str) -> Iterator[tuple[int, float, int]]:
    """Yield bytes, the better bus bandwidth of both kinds, and the count of wrong values, for each line.

    The columns are found by their names: versions differ in the columns between and after them.
    """
    names: list[str] = []
    for line in text.split("\n")[:_MOST_LINES]:
        words = line.lstrip("# ").split()
        if line.startswith("#") and "busbw" in words:
            names = line[1:].split()
        elif names and len(words) >= len(names) and words[0].isdecimal():
            columns = list(zip(names, words, strict=False))
            speeds = [float(word) for name, word in columns if name == "busbw" and _NUMBER.match(word)]
            wrong = [float(word) for name, word in columns if name == "#wrong" and _NUMBER.match(word)]
            yield int(words[0][:18]), max(speeds, default=0.0), int(sum(wrong))


def _last_words(ended: ProgramEnd) -> str:
    lines = (ended.out[-_LONGEST_LINE:] + b"\n" + ended.err[-_LONGEST_LINE:]).decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip(" #")), "")
    return f": {printable(last, _LONGEST_TEXT)}" if last else ""


def read_all_reduce_look(host: Host) -> AllReduceReading:
    if host.ask_all_reduce is None:
        raise ProbeError("only a deep diagnostic runs the all-reduce")
    reading: AllReduceReading = host.ask_all_reduce()
    return reading


ALL_REDUCE = Probe("nccl", read_all_reduce_look, AllReduceReading, (NOT_RUN,))
