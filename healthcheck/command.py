"""Child processes, each under a deadline. What can hang in a driver runs here and nowhere else.

A process stuck in the driver may be in D state: it can't be killed, and waiting for it would never end.
So nobody here waits without a limit, and no second child is started beside one that would not die.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_LONGEST_ANSWER = 4 << 20
_PATIENCE_SECONDS = 0.5
"""How long a killed child may take to be gone before it counts as stuck."""


class ChildError(Exception):
    """The child gave no answer. The message says why."""


class MissedDeadline(ChildError):
    """No answer in time; the child was killed. `pid` names it when it would not die."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class StillStuck(MissedDeadline):
    """An earlier child is still inside the driver, so none was started."""


@dataclass
class Child:
    """One long-lived child that answers one line per line, started when first asked and replaced when it failed."""

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _stuck: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def stuck_pid(self) -> int | None:
        """The process that did not die when it was killed, while it is still there."""
        if self._stuck is not None and self._stuck.poll() is not None:
            self._stuck = None
        return self._stuck.pid if self._stuck else None

    def ask(self, request: str, deadline_seconds: float) -> bytes:
        """Send one line and return the line that comes back, without its newline. Raises ChildError."""
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
            raise ChildError(self._obituary(process))
        return answer

    def end(self) -> int | None:
        """End the child. Returns its pid when it is stuck and had to be left behind."""
        process, self._process = self._process, None
        if process is not None:
            self._kill(process)
        return self.stuck_pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(self.env) if self.env is not None else None,
                start_new_session=True,
            )
            _put_first_for_the_oom_killer(self._process.pid)
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

    def _obituary(self, process: subprocess.Popen[bytes]) -> str:
        self._process = None
        self._kill(process)
        code = process.returncode
        if code is not None and code < 0:
            return f"the child was ended by {signal.Signals(-code).name}"
        return f"the child ended with exit code {code}"

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            try:
                process.wait(timeout=0.05)  # it may be on its way out by itself
            except subprocess.TimeoutExpired:
                _kill_group(process.pid)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                _close(pipe)
        try:
            process.wait(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = process


def _put_first_for_the_oom_killer(pid: int) -> None:
    """A child that outgrows the container's memory dies before us, and so does all that it starts.

    To raise a score needs no privilege. The program has begun by now, but nothing of it has grown yet; a shell that
    raised its own first would hide that a program is missing, and code between fork and exec is unsafe beside threads.
    """
    with suppress(OSError):  # it has ended already; or no /proc, and then the order is the kernel's own
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _close(pipe: object) -> None:
    try:
        pipe.close()  # type: ignore[attr-defined]
    except BrokenPipeError:
        return  # unsent bytes for a child that is gone
