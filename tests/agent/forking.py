"""`python -m tests.agent.forking`: the agent's programs, forked from one process with their imports done.

Importing an agent needs several times the processor time of its first cycle. Each is a separate process and runs as by
`python -m`, apart from that, its command line in /proc, and the environment that Python or the loader reads.

A minder next to each program waits for it and reports its end. Until then its process id is not reused.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from gpu_healthcheck.agent.process.unused_modules import without_unused_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 1 << 20
_HEEDED_EARLIER = ("PYTHON", "LD_")
"""Variables that work before a program's first line does; and those of proxies, while it imports."""


class Running(Protocol):
    """The part of subprocess.Popen that tests use."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def terminate(self) -> None: ...


def heeds(environment: Mapping[str, str]) -> bool:
    """Whether all variables in the environment take effect in a forked program."""
    other = {key for key, value in environment.items() if os.environ.get(key) != value}
    return not any(key.startswith(_HEEDED_EARLIER) or key.lower().endswith("_proxy") for key in other)


class Forked:
    """One program that writes all its output to the file descriptor `out`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], out: int) -> None:
        """`command`: as it would be started, a Python's `-m`."""
        request = {"words": list(command[2:]), "environment": dict(environment), "folder": str(Path.cwd())}
        self._minder, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Any thread may: a packet is whole or not there.
            socket.send_fds(_server(), [json.dumps(request).encode()], [theirs.fileno(), out])
        self._lock = threading.Lock()
        self._code: int | None = None
        self.pid = int(self._minder.recv(_MOST_BYTES))

    def poll(self) -> int | None:
        with self._lock:
            return self._heard(0)

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if (code := self._heard(timeout)) is None:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            return code

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _heard(self, seconds: float | None) -> int | None:
        if self._code is None:
            self._minder.settimeout(seconds)
            try:
                raw = self._minder.recv(_MOST_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            self._code = int(raw)
            self._minder.close()
        return self._code


_beginning = threading.Lock()


def _server() -> socket.socket:
    with _beginning:
        return _begun()


@cache
def _begun() -> socket.socket:
    """The server of this process. It ends when its socket does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", __name__, str(its.fileno())]
        server = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# --- in the server


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Return the request of a program, in its own process; None in the server when no more requests can come."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
        if not text:
            return None
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # minders that have ended
                pass
        minder = os.fork()
        if minder:
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        requests.close()
        heard, out = descriptors
        program = os.fork()
        if program:
            os.close(out)
            _mind(program, socket.socket(fileno=heard))
        os.close(heard)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.close(out)
        asked: dict[str, Any] = json.loads(text)
        return asked


def _mind(program: int, heard: socket.socket) -> NoReturn:
    try:
        heard.send(str(program).encode())
        ended = os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        heard.send(str(code).encode())
        heard.recv(1)  # until the receiver of the exit code closes the socket
    finally:
        os._exit(0)  # in every case: the waiting process then sees that the socket is closed


def main() -> int | None:
    with without_unused_parts():
        importlib.import_module("gpu_healthcheck.agent.process.agent_program")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is None:
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.path[0] = asked["folder"]  # as -m has it
    sys.argv = asked["words"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
