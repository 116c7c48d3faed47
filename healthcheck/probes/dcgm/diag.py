"""DCGM's diagnostic, run to its end: `dcgmi diag -r 2 -j`.

It loads the GPUs and runs for minutes or hours. Without a hostengine's address, dcgmi starts its own engine. If another
engine runs on the node, `engine` names it or gives the reason why no diagnostic runs. Two engines on one node can
deadlock the driver (DCGM issue 108).
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from healthcheck.catalog import dcgm_causes
from healthcheck.host.command import ChildError, MissedDeadline, Program, StoppedOnRequest
from healthcheck.model import Host, Probe, ProbeError, Unobserved
from healthcheck.probes.dcgm.diag_answer import LONGEST_ANSWER, DiagAnswer, read_answer
from healthcheck.probes.dcgm.engine import PORT, Engine, choose_engine

PATIENCE_SECONDS = 60.0
"""After SIGTERM dcgmi stops the diagnostic's own processes, which takes it up to 40 s, and 20 s more in the EUD.

What is killed before that leaves them running in a hostengine that is not its own, and the next run is refused.
"""
HURRY_SECONDS = 2.0
"""The same if other work waits for the GPUs and the engine is dcgmi's own: a kill then leaves no process running.

Level 2 runs no EUD, and changes nothing of a GPU that would have to be put back.
"""
_ENGINE, _CONNECT_SECONDS = ("127.0.0.1", PORT), 1.0
"""Default address of a hostengine, which dcgmi tries before it starts its own."""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "NVVS_BIN_PATH", "DCGM_HOME_DIR")
"""Where DCGM finds its parts. CUDA_VISIBLE_DEVICES and the like would hide GPUs from it, or fail its own test."""
_HOST_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_HOST_NAME}|\[[0-9A-Fa-f:.]{{2,45}}\])(?::(?P<port>\d{{1,5}}))?")
_TEST = re.compile(r"[a-z][a-z0-9_]{0,63}")


class DcgmReading(Struct, frozen=True):
    """Answer of a run, or the reason for its absence. `absent` is the reason why no program can run it."""

    answer: DiagAnswer | Unobserved | None = None
    absent: str = ""


def level_2_patience_seconds(host: str) -> float:
    """Return the delay between SIGTERM and SIGKILL for a level 2 that blocks other work.

    `host` is the engine's address. If it is '', dcgmi still uses an engine that answers at its default address on this
    machine.
    """
    return PATIENCE_SECONDS if host or _is_engine_here() else HURRY_SECONDS


def _is_engine_here() -> bool:
    try:
        with socket.create_connection(_ENGINE, _CONNECT_SECONDS):
            return True
    except OSError:
        return False


def checked_host(value: str) -> str:
    """A hostengine's `host[:port]`, '' for an engine of dcgmi's own. Raises ValueError for anything else."""
    message = value.strip()
    found = _HOST.fullmatch(message)
    if message and (found is None or not 0 < int(found["port"] or 1) < 1 << 16):
        raise ValueError(
            "allowed is host or host:port, such as localhost:5555; empty uses the node's engine, or one of its own"
        )
    return message


@dataclass
class Dcgm:
    """The diagnostic of this machine, one run at a time.

    `host` has been validated; '' means an engine of its own. `path` is the search path for dcgmi; None uses the
    environment's.
    """

    host: str = ""
    deadline_seconds: float = 900.0
    """For a level and what is run again after it, together."""
    path: str | None = None
    patience_seconds: float = PATIENCE_SECONDS
    engine: Engine | None = None
    """The node's engine of that host, or why no diagnostic may run; None: it was not looked for."""
    root: Path | None = None
    """Root of the tree in which the engine was found, to prove it once more after a run."""
    _program: Program = field(init=False)
    _ends_at: float = field(default=math.inf, init=False)
    """When the deadline of the last level is (monotonic)."""

    def __post_init__(self) -> None:
        known = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment = {"LC_ALL": "C", **known, "PATH": self.path or os.environ.get("PATH", os.defpath)}
        self._program = Program(environment, self.patience_seconds, LONGEST_ANSWER)

    def run(self, level: int) -> DcgmReading:
        """Run all tests of a level."""
        self._ends_at = time.monotonic() + self.deadline_seconds
        return self._run(str(level), level)

    def run_tests(self, tests: Sequence[str]) -> DcgmReading:
        """Run only these tests, by DCGM 4's names, which are also the names of DCGM 3's plugins.

        After a level, they have the rest of its time, so that both share one deadline.
        """
        named = [test for test in tests if _TEST.fullmatch(test)]
        return self._run(",".join(named), None) if named else DcgmReading(absent="no valid test name")

    @property
    def stuck_pid(self) -> int | None:
        """The process that did not die when it was killed, while it is still there."""
        return self._program.stuck_pid

    def stop(self) -> None:
        """Stop the run of another thread, in the order that DCGM requires. Nothing runs after it.

        dcgmi stops its own processes first.
        """
        self._program.stop()

    def _run(self, what: str, level: int | None) -> DcgmReading:
        dcgmi = shutil.which("dcgmi", path=self._program.env["PATH"])
        if dcgmi is None:
            return DcgmReading(absent="dcgmi is not installed here")
        if self.engine is not None and self.engine.blocked is not None:
            return DcgmReading(self.engine.blocked)
        look = self._answer_of(dcgmi, what, level)
        why = self._why_not_proven()
        return DcgmReading(Unobserved(dcgm_causes.ENGINE_CHANGED, f"dcgmi diag -r {what}: {why}")) if why else look

    def _answer_of(self, dcgmi: str, what: str, level: int | None) -> DcgmReading:
        where = ("--host", self.host) if self.host else ()
        seconds = max(0.0, min(self.deadline_seconds, self._ends_at - time.monotonic()))
        try:
            # It writes logs and results where it works; where it may not, its own test of that fails (error 96).
            with tempfile.TemporaryDirectory(prefix="dcgm-", ignore_cleanup_errors=True) as directory:
                argv = (dcgmi, "diag", *where, "-r", what, "-j")
                ended = self._program.run(argv, round(seconds, 1), Path(directory))
        except MissedDeadline as error:
            return DcgmReading(Unobserved(dcgm_causes.TIMED_OUT, f"dcgmi diag -r {what}: {error}"))
        except StoppedOnRequest as error:
            return DcgmReading(Unobserved(dcgm_causes.STOPPED, f"dcgmi diag -r {what}: {error}"))
        except (ChildError, OSError) as error:
            return DcgmReading(Unobserved(dcgm_causes.FAILED, f"dcgmi diag -r {what}: {error}"))
        return DcgmReading(read_answer(ended.out, ended.err, ended.code, level))

    def _why_not_proven(self) -> str:
        """Return why the answer may be another program's than the proven engine's, '' where it is the engine's."""
        if self.root is None or self.engine is None or not self.engine.pid:
            return ""
        is_there = choose_engine(self.root, "", second_engine=False) == self.engine
        return "" if is_there else f"process {self.engine.pid} no longer listens at {self.engine.host}"


def read_level_2(host: Host) -> DcgmReading:
    return _read(host, 2)


def read_level_4(host: Host) -> DcgmReading:
    return _read(host, 4)


def _read(host: Host, level: int) -> DcgmReading:
    if host.ask_dcgm is None:
        raise ProbeError("only a deep diagnostic runs DCGM's diagnostic")
    look = host.ask_dcgm(level)
    assert isinstance(look, DcgmReading)
    return look


LEVEL_2_RUN = Probe("dcgm-level-2", read_level_2, DcgmReading, dcgm_causes.CAUSES)
LEVEL_4_RUN = Probe("dcgm-level-4", read_level_4, DcgmReading, dcgm_causes.CAUSES)
