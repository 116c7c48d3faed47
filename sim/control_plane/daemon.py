"""One program of the control plane: a process group of its own, its log in a file, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Reads until the pipe from our process breaks, for any reason (including SIGKILL of a test run). After an orderly end,
# folder and pid files are gone; the rest is killed and removed.
_AFTER_US = """
cat > /dev/null
for f in "$0"/*.pid; do [ -e "$f" ] && kill -s KILL -- "-$(cat "$f")"; done
rm -rf "$0" || { sleep 1; rm -rf "$0"; }
"""
_END_SECONDS = 300.0
"""Of what was killed, and of the clearing of its folder."""


class Daemon:
    """A program that runs until it is killed; `name` names its log and pid file in the folder."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path) -> None:
        self.name = name
        self._argv = list(argv)
        self._log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.is_running:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us, not etcd
            )
        self._pid_file.write_text(str(self._process.pid))

    def kill(self) -> None:
        """SIGKILL at once: etcd holds the state, and a polite apiserver waits for its watchers."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=_END_SECONDS)
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    def pause(self) -> None:
        """Returns when every thread stands: one that still runs on another core answers."""
        if self.is_running and (pid := self.pid) is not None:
            self._signal(signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def tail(self, lines: int = 15) -> str:
        """The end of the log, for the message of an error."""
        if not self._log.exists():
            return f"--- {self.name}: no log"
        text = self._log.read_text(errors="replace")
        return "\n".join([f"--- end of {self.name}.log", *text.splitlines()[-lines:]])

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


class AfterUs:
    """Clears the folder and its programs when our own process ends without having done so itself."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _AFTER_US, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def finish(self) -> None:
        """Let it clear the folder now."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=_END_SECONDS)
