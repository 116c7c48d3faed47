"""Computation for an interactive user in a child process, without output and with a time limit."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

_CHUNK = 1 << 16


def answered_within(seconds: float, work: Callable[[], Sequence[str]]) -> list[str]:
    """Return the result of the work, or an empty list if it fails or takes longer.

    If it takes longer, its process is killed with its process group, which has no terminal. The caller must have only
    one thread.
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        _write_answer(write, work)
    os.close(write)
    try:
        raw = _read_until(read, time.monotonic() + seconds)
    finally:
        os.close(read)
    if raw is None:
        for end in (os.killpg, os.kill):  # the child may not have created its group yet
            with suppress(ProcessLookupError):
                end(pid, signal.SIGKILL)
        return []  # not waited for: a process that hangs in the kernel would block this one
    os.waitpid(pid, 0)
    return [str(text) for text in json.loads(raw or b"[]")]


def _write_answer(write: int, work: Callable[[], Sequence[str]]) -> None:
    """Run the work in the child and write its result; the function ends the process."""
    try:
        os.setsid()
        null_device = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null_device, stream)
        with open(write, "wb") as answer:
            answer.write(json.dumps(list(work())).encode())
    finally:
        os._exit(0)


def _read_until(read: int, deadline: float) -> bytes | None:
    """Read the whole answer; return None if it is not complete by the deadline."""
    raw = b""
    while (left := deadline - time.monotonic()) > 0 and select.select([read], [], [], left)[0]:
        chunk = os.read(read, _CHUNK)
        if not chunk:
            return raw
        raw += chunk
    return None
