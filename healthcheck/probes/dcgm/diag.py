"""Complete run of DCGM's diagnostic: `dcgmi diag -r 2 -j`.

It loads the GPUs and runs for minutes or hours. Without a hostengine's address, dcgmi starts its own engine. If another
engine runs on the node, `engine` names it or gives the reason why no diagnostic runs. Two engines on one node can
deadlock the driver (DCGM issue 108). An engine of the node is asked by its own dcgmi; ours follows if that one is
missing or refused.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog import dcgm
from gpu_healthcheck.healthcheck.catalog.dcgm import return_of_code, return_of_text
from gpu_healthcheck.healthcheck.host.command import ChildError, MissedDeadline, Program, StoppedOnRequest
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import LONGEST_ANSWER, DiagAnswer, read_answer
from gpu_healthcheck.healthcheck.probes.dcgm.engine import NOT_STARTED, PORT, Engine, choose_engine, own_dcgmi

PATIENCE_SECONDS = 60.0
"""Delay between SIGTERM and SIGKILL. dcgmi needs up to 40 s to stop its processes, and 20 s more for the EUD.

With an earlier SIGKILL, these processes continue in a hostengine of the node, which refuses the next run.
"""
HURRY_SECONDS = 2.0
"""The same delay if other work waits for the GPUs and dcgmi started the engine: SIGKILL then leaves no process.

Level 2 does not run the EUD, and changes no GPU setting that would have to be restored.
"""
_ENGINE, _CONNECT_SECONDS = ("127.0.0.1", PORT), 1.0
"""Default address of a hostengine, which dcgmi tries before it starts its own."""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "NVVS_BIN_PATH", "DCGM_HOME_DIR")
"""Variables with which DCGM finds its parts. Others, as CUDA_VISIBLE_DEVICES, would hide GPUs or fail a test."""
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
    """Validate a hostengine's `host[:port]`; '' means that dcgmi starts an engine. Raises ValueError."""
    host = value.strip()
    match = _HOST.fullmatch(host)
    if host and (match is None or not 0 < int(match["port"] or 1) < 1 << 16):
        raise ValueError(
            "allowed is host or host:port, such as localhost:5555; empty uses the node's engine, or one of its own"
        )
    return host


@dataclass
class Dcgm:
    """The diagnostic of this machine, one run at a time.

    `host` has been validated; '' means that dcgmi starts an engine. `path` is the search path for dcgmi; None uses the
    environment's.
    """

    host: str = ""
    deadline_seconds: float = 900.0
    """Deadline for a level together with the tests that are repeated after it."""
    path: str | None = None
    patience_seconds: float = PATIENCE_SECONDS
    engine: Engine | None = None
    """Engine at `host`, or the reason why no diagnostic may run; None if no engine was searched for."""
    root: Path | None = None
    """Root of the tree in which the engine was found, to prove it again after a run."""
    gpus: tuple[str, ...] = ()
    """Indices of the tested GPUs; `()` means all."""
    libraries: Path | None = None
    """Folder with the driver's libraries, where the loader does not find them."""
    _program: Program = field(init=False)
    _ends_at: float = field(default=math.inf, init=False)
    """Deadline of the last level, on the monotonic clock."""

    def __post_init__(self) -> None:
        known = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment = {"LC_ALL": "C", **known, "PATH": self.path or os.environ.get("PATH", os.defpath)}
        if self.libraries is not None:
            own = known.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(self.libraries), own)))
        self._program = Program(environment, self.patience_seconds, LONGEST_ANSWER)

    def run(self, level: int) -> DcgmReading:
        """Run all tests of a level."""
        self._ends_at = time.monotonic() + self.deadline_seconds
        return self._run(str(level), level)

    def run_tests(self, tests: Sequence[str]) -> DcgmReading:
        """Run only these tests, by DCGM 4's names, which are also the names of DCGM 3's plugins.

        After a level, the tests get the rest of its time, so that both share one deadline.
        """
        named = [test for test in tests if _TEST.fullmatch(test)]
        return self._run(",".join(named), None) if named else DcgmReading(absent="no valid test name")

    @property
    def stuck_pid(self) -> int | None:
        """Return the pid of a process that still exists after SIGKILL; None if there is none."""
        return self._program.stuck_pid

    def stop(self) -> None:
        """Stop the run of another thread, in the order that DCGM requires. Nothing runs after it.

        dcgmi stops its own processes first.
        """
        self._program.stop()

    def _run(self, what: str, level: int | None) -> DcgmReading:
        if self.engine is not None and self.engine.blocked is not None:
            return DcgmReading(self.engine.blocked)
        reading = self._reading_by_the_engines_own(what, level)
        if reading is None or _is_refusal(reading):
            ours = shutil.which("dcgmi", path=self._program.env["PATH"])
            if ours is not None:
                reading = self._answer_of((ours,), what, level)
            elif reading is None:
                return DcgmReading(absent="dcgmi is not installed here")
        why = self._why_not_proven()
        return DcgmReading(Unobserved(dcgm.ENGINE_CHANGED, f"dcgmi diag -r {what}: {why}")) if why else reading

    def _reading_by_the_engines_own(self, what: str, level: int | None) -> DcgmReading | None:
        """Return the reading by the dcgmi beside the node's engine; None if there is none, or it did not start."""
        if self.root is None or not self.host:
            return None
        is_proven = self.engine is not None and self.engine.pid
        # DCGM_HOST may name the node's engine by another address.
        engine = self.engine if is_proven else choose_engine(self.root, "", second_engine=False)
        assert engine is not None
        with own_dcgmi(self.root, engine) as command:
            if not command or shutil.which(command[0], path=self._program.env["PATH"]) is None:
                return None
            # Our variables name folders that this root does not have.
            environment = {"LC_ALL": "C", "PATH": self._program.env["PATH"]}
            reading = self._answer_of(command, what, level, environment)
        has_started = not isinstance(reading.answer, DiagAnswer) or reading.answer.code not in NOT_STARTED
        return reading if has_started else None

    def _answer_of(
        self, command: Sequence[str], what: str, level: int | None, environment: Mapping[str, str] | None = None
    ) -> DcgmReading:
        where = ("--host", self.host) if self.host else ()
        which = ("-i", ",".join(self.gpus)) if self.gpus else ()
        seconds = max(0.0, min(self.deadline_seconds, self._ends_at - time.monotonic()))
        try:
            # dcgmi writes logs and results to its working directory. Without permission, one of its tests fails (96).
            with tempfile.TemporaryDirectory(prefix="dcgm-", ignore_cleanup_errors=True) as directory:
                argv = (*command, "diag", *where, *which, "-r", what, "-j")
                ended = self._program.run(argv, round(seconds, 1), Path(directory), environment)
        except MissedDeadline as error:
            return DcgmReading(Unobserved(dcgm.TIMED_OUT, f"dcgmi diag -r {what}: {error}"))
        except StoppedOnRequest as error:
            return DcgmReading(Unobserved(dcgm.STOPPED, f"dcgmi diag -r {what}: {error}"))
        except (ChildError, OSError) as error:
            return DcgmReading(Unobserved(dcgm.FAILED, f"dcgmi diag -r {what}: {error}"))
        return DcgmReading(read_answer(ended.out, ended.err, ended.code, level))

    def _why_not_proven(self) -> str:
        """Return why the answer may come from another program than the proven engine; '' if it does not."""
        if self.root is None or self.engine is None or not self.engine.pid:
            return ""
        is_there = choose_engine(self.root, "", second_engine=False) == self.engine
        return "" if is_there else f"process {self.engine.pid} no longer listens at {self.engine.host}"


def _is_refusal(reading: DcgmReading) -> bool:
    """Whether the engine refused this dcgmi before any test, because of its version or its unprivileged user."""
    answer = reading.answer
    if not isinstance(answer, DiagAnswer) or answer.results:
        return False
    meanings = (return_of_code(answer.code), *map(return_of_text, (*answer.runtime_errors, *answer.said)))
    refusals = (dcgm.VERSION_MISMATCH, dcgm.NO_PERMISSION)
    return any(meaning is not None and meaning.cause in refusals for meaning in meanings)


def _read(host: Host, level: int) -> DcgmReading:
    if host.ask_dcgm is None:
        raise ProbeError("only a deep diagnostic runs DCGM's diagnostic")
    reading: DcgmReading = host.ask_dcgm(level)
    return reading


LEVEL_2_RUN = Probe("dcgm-level-2", partial(_read, level=2), DcgmReading, dcgm.CAUSES)
LEVEL_4_RUN = Probe("dcgm-level-4", partial(_read, level=4), DcgmReading, dcgm.CAUSES)
