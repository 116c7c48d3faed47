"""Program of the control plane with its own process group and log file; it is always ended."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Reads until the pipe from our process closes for any reason, including SIGKILL of a test run. Folder and pid files are
# gone after an orderly end; otherwise the programs are killed and the folder is removed.
_AFTER_US = """
cat > /dev/null
for f in "$0"/*.pid; do [ -e "$f" ] && kill -s KILL -- "-$(cat "$f")"; done
rm -rf "$0" || { sleep 1; rm -rf "$0"; }
"""
_END_SECONDS = 300.0
"""Deadline for the end of killed processes and for the removal of the folder."""


class Daemon:
    """Program that runs until it is killed; `name` is the name of its log and pid file in the folder."""

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
        """Send SIGKILL: etcd has the state, and on SIGTERM the API server waits for its watches."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=_END_SECONDS)
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    def pause(self) -> None:
        """Stop the program and wait until every thread is stopped: a running one could still answer."""
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
        """Return the end of the log, for an error message."""
        if not self._log.exists():
            return f"--- {self.name}: no log"
        text = self._log.read_text(errors="replace")
        return "\n".join([f"--- end of {self.name}.log", *text.splitlines()[-lines:]])

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


class AfterUs:
    """Process that removes the folder and ends its programs if our process ends without doing so."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _AFTER_US, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def finish(self) -> None:
        """Trigger the removal of the folder."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=_END_SECONDS)
