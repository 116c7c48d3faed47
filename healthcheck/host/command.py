"""Child processes with deadlines. All calls that can hang in a driver run in such a child.

A process that is stuck in the driver may be in D state: it cannot be killed, and waiting for it would never end.
Therefore all waits have a limit, and no second child is started while an earlier one cannot be killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.opening import refuse_shortage
from gpu_healthcheck.healthcheck.host.process_tree import Descendants
from gpu_healthcheck.healthcheck.text.durations import shown_seconds

_LONGEST_ANSWER = 4 << 20
_MOST_OUTPUT = 1 << 20
"""Default limit of each of a program's two outputs, in bytes."""
_GRACE_SECONDS = 0.5
"""Time in which a killed child must end; after it, the child counts as stuck."""
_GONE_SECONDS = 10.0
"""The same limit for processes of a program: the driver needs seconds to clear the memory of their GPUs."""
_STOPS_WITHIN_SECONDS = 0.2
"""Interval of the checks for a requested stop."""

_PACKAGES = str(Path(__file__).parents[3])
_RUN_MODULE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.exit(__import__(sys.argv.pop(1), fromlist=['main']).main())"
)
"""Code that runs a module. `runpy` would also work, but would stay in the child's memory."""


def isolated(module: str) -> tuple[str, ...]:
    """Return the command line that runs one of this project's modules.

    The loaded code depends on neither the environment nor the working directory: it is the caller's.
    """
    return (sys.executable, "-I", "-c", _RUN_MODULE, _PACKAGES, module)


class ChildError(Exception):
    """The child gave no answer. The message gives the reason."""


class MissedDeadline(ChildError):
    """The child did not answer within the deadline and was killed. `pid` is set if it could not be killed."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class StoppedOnRequest(ChildError):
    """The program was stopped on request before it was done."""


class StillStuck(MissedDeadline):
    """An earlier child is still inside the driver, so none was started."""


def how_it_ended(code: int) -> str:
    """Return the end of a sentence about an exit code: `ended with exit code 3`, `was ended by SIGSEGV`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


@dataclass
class Child:
    """A long-lived child process that answers each line with one line.

    It is started at the first request, and replaced after a failure.
    """

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _stuck: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def stuck_pid(self) -> int | None:
        """Return the killed process that has not ended, while it exists."""
        if self._stuck is not None and self._stuck.poll() is not None:
            self._stuck = None
        return self._stuck.pid if self._stuck else None

    def ask(self, request: str, deadline_seconds: float) -> bytes:
        """Send one line and return the answer without its newline. Raises ChildError."""
        if (pid := self.stuck_pid) is not None:
            raise StillStuck(f"process {pid} is still inside the driver and can't be killed", pid)
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
            answer = self._read_line(process, time.monotonic() + deadline_seconds)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise self._failure_of_ended(process)
        return answer

    def end(self) -> int | None:
        """End the child. Returns its pid if it is stuck and remains."""
        process, self._process = self._process, None
        if process is not None:
            self._kill(process)
        return self.stuck_pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = _started(self.argv, self.env)
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
        assert process.stdout is not None
        fd = process.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        answer = b""
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise self._give_up(process)
            chunk = os.read(fd, 65536)
            if not chunk:
                return None
            answer += chunk
            if len(answer) > _LONGEST_ANSWER:
                self.end()
                raise ChildError(f"the answer is longer than {_LONGEST_ANSWER} bytes")
        return answer[:-1]

    def _give_up(self, process: subprocess.Popen[bytes]) -> MissedDeadline:
        self._process = None
        self._kill(process)
        pid = self.stuck_pid
        fate = f"process {pid} can't be killed" if pid else "its process was killed"
        return MissedDeadline(f"no answer in time; {fate}", pid)

    def _failure_of_ended(self, process: subprocess.Popen[bytes]) -> ChildError:
        self._process = None
        self._kill(process)
        if process.returncode is None:
            return ChildError("the child closed its output and can't be killed")
        return ChildError(f"the child {how_it_ended(process.returncode)}")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            try:
                process.wait(timeout=0.05)  # the process may end without a kill
            except subprocess.TimeoutExpired:
                _signal_group(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):  # the child has ended, and the unsent bytes are dropped
                pipe.close()  # type: ignore[union-attr]
        try:
            process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = process


class ProgramEnd(Struct, frozen=True):
    """A program that has ended. `code`: its exit code, or the negative number of the signal that ended it."""

    code: int
    out: bytes
    err: bytes


@dataclass
class Program:
    """Runs one program at a time to its end; no process of its group outlives a run.

    A program that must be ended gets SIGTERM, and SIGKILL `grace_seconds` later. All processes that it started get
    the same, in any group or session.
    """

    env: Mapping[str, str]
    """Complete environment of the program. A program name without a slash is searched in its PATH."""
    grace_seconds: float
    most_output_bytes: int = _MOST_OUTPUT
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    """The running process. Its pid stays valid while it is set here, because it is reaped only afterwards."""
    _stuck: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _left: Descendants | None = field(default=None, init=False)
    """Descendants of the last program, if some have not ended."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def stuck_pid(self) -> int | None:
        """Return the killed process that has not ended, while it exists."""
        if self._stuck is not None and self._stuck.poll() is not None:
            self._stuck = None
        if self._left is not None and self._left.wait(0.0) is None:
            self._left.close()
            self._left = None
        if self._stuck is not None:
            return self._stuck.pid
        return self._left.wait(0.0) if self._left is not None else None

    def run(
        self,
        argv: Sequence[str],
        deadline_seconds: float,
        directory: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ProgramEnd:
        """Run the program and return its output and its exit code.

        `directory` is its working directory, by default that of this process; `env` replaces the environment. Raises
        ChildError if the program cannot be started, misses the deadline, is stopped, or writes too much output.
        """
        if (pid := self.stuck_pid) is not None:
            raise StillStuck(f"process {pid} of an earlier run can't be killed", pid)
        if self._stop.is_set():
            raise StoppedOnRequest("no program is started any more")
        deadline = time.monotonic() + deadline_seconds
        process = self._start(argv, directory, self.env if env is None else env)
        started = Descendants(process.pid)
        try:
            with _Outputs(process, self.most_output_bytes) as outputs:
                in_time = outputs.read_until(deadline, self._stop)
                if not outputs.ended:
                    started.collect()
                    _signal_group(process.pid, signal.SIGTERM)
                    outputs.wait_for_end(self.grace_seconds)
                    started.collect()
        except OSError as error:
            refuse_shortage(error)
            raise ChildError(f"{argv[0]}: {error.strerror}") from error
        finally:
            self._kill_rest(process, started)
        pid = self.stuck_pid
        fate = f"process {pid} can't be killed" if pid else "its process was ended"
        if self._stop.is_set() and not outputs.ended:
            raise StoppedOnRequest(f"stopped before it was done; {fate}")
        if not in_time:
            raise MissedDeadline(f"no end within {shown_seconds(deadline_seconds)} s; {fate}", pid)
        if outputs.flooded:
            raise ChildError(f"its output is longer than {self.most_output_bytes} bytes")
        return ProgramEnd(process.returncode, *outputs.texts)

    def stop(self) -> None:
        """End the program that another thread runs, and start no program afterwards.

        The program is killed if it does not end within its grace period. The other thread's `run` raises Stopped.
        """
        self._stop.set()

    def end(self) -> int | None:
        """Kill the program that another thread runs.

        Returns the process ID of a stuck process that remains.
        """
        with self._lock:
            if self._process is not None:
                _signal_group(self._process.pid, signal.SIGKILL)
        return self.stuck_pid

    def _start(self, argv: Sequence[str], directory: Path | None, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        try:
            process = _started(argv, env, directory, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except OSError as error:
            raise ChildError(f"{argv[0]}: {error.strerror}") from error
        with self._lock:
            self._process = process
        return process

    def _kill_rest(self, process: subprocess.Popen[bytes], started: Descendants) -> None:
        """Kill the rest of the process group and all descendants, and wait for a limited time."""
        with self._lock:
            _signal_group(process.pid, signal.SIGKILL)
            started.kill()
            self._process = None
        try:
            process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = process
        if started.wait(_GONE_SECONDS) is None:
            started.close()
        else:
            self._left = started


class _Outputs:
    """The two outputs of a process and its end, which must be waited for together.

    A child of the process may keep the outputs open after the process has ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], most_bytes: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipes = (process.stdout, process.stderr)
        self._written = {pipe.fileno(): bytearray() for pipe in self._pipes}
        self._life = os.pidfd_open(process.pid)  # becomes readable when the process ends
        self._most_bytes = most_bytes
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._life)
        for pipe in self._pipes:
            pipe.close()

    @property
    def texts(self) -> tuple[bytes, bytes]:
        """Return standard output and standard error."""
        out, err = (bytes(output) for output in self._written.values())
        return out, err

    @property
    def flooded(self) -> bool:
        return max(len(output) for output in self._written.values()) > self._most_bytes

    def read_until(self, deadline: float, stop: threading.Event) -> bool:
        """Read until the process has ended and its output is read, or the output exceeds the limit.

        Returns False if the deadline passed or `stop` was set.
        """
        poll = select.poll()
        for fd in (self._life, *self._written):
            poll.register(fd, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0 and not stop.is_set():
            ready = {fd for fd, _ in poll.poll(min(left, _STOPS_WITHIN_SECONDS) * 1000)}
            self.ended = self._life in ready
            for fd in ready - {self._life}:
                chunk = os.read(fd, 65536)
                self._written[fd] += chunk
                if not chunk:
                    poll.unregister(fd)
            if self.flooded or ready == {self._life}:
                return True
        return self.ended

    def wait_for_end(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._life, select.POLLIN)
        poll.poll(seconds * 1000)


def _started(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    directory: Path | None = None,
    *,
    stdin: int = subprocess.PIPE,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own. Raises OSError, Shortage.

    Its OOM score is raised, so that it and its children are killed before this process. Raising a score needs no
    privilege. The program has already begun, but has not used much memory yet. The alternatives are worse. A shell that
    raises its score would hide a missing program, and code between fork and exec is unsafe with threads.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=dict(env) if env is not None else None,
            cwd=directory,
            start_new_session=True,
        )
    except OSError as error:
        refuse_shortage(error)
        raise
    with suppress(OSError):  # it has ended already, or there is no /proc and the kernel chooses the order
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000", encoding="ascii")
    return process


def _signal_group(pid: int, signal_number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal_number)
