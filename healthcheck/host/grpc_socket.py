"""Query of a program on the node over its gRPC socket, by a child process that ends after its answer."""

from __future__ import annotations

import json
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.command import ChildError, Program, how_it_ended, isolated
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.text.printable import printable

LONGEST_SECONDS = 10.0
"""Deadline of a query. A container runtime answers within milliseconds; on a loaded node the child needs almost 1 s."""
_GRACE_SECONDS = 1.0
_LEFT_ALONE_SECONDS = 10.0
"""Additional lifetime of a child whose parent was killed."""
_LONGEST_MESSAGE = 200
_CLIENT_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Begin of a connection with an empty SETTINGS frame. The server must send such a frame first (RFC 9113, 3.4)."""


@dataclass
class NodeSocket:
    """Client for the questions of `grpc_child`, one at a time."""

    question: str
    deadline_seconds: float = LONGEST_SECONDS
    _program: Program = field(default_factory=lambda: Program({}, _GRACE_SECONDS), init=False)

    def ask(self, root: Path, path: str) -> list[dict[str, Any]]:
        """Return the answer to each call of the question, from the server at `path` of this root.

        Raises ProbeError.
        """
        program = isolated("gpu_healthcheck.healthcheck.host.grpc_child")
        longest_seconds = self.deadline_seconds + _LEFT_ALONE_SECONDS
        argv = (*program, self.question, _socket(root, path), str(longest_seconds))
        try:
            ended = self._program.run(argv, self.deadline_seconds)
        except ChildError as error:
            raise ProbeError(f"{path}: {error}") from error
        return _answers(path, ended.code, ended.out, ended.err)

    def end(self) -> int | None:
        """End the running child. Returns its process ID if it cannot be ended."""
        return self._program.end()


def want_greeting(root: Path, path: str, seconds: float) -> None:
    """Raise ProbeError if the server at `path` does not begin a connection in time, as one that hangs."""
    address = _socket(root, path)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(address)
            connection.sendall(_CLIENT_PREFACE)
            has_answered = bool(connection.recv(1))
    except OSError as error:  # includes TimeoutError, and BlockingIOError for a full queue
        raise ProbeError(f"{path}: {error.strerror or error}") from error
    if not has_answered:
        raise ProbeError(f"{path}: the server closed the connection")


def _socket(root: Path, path: str) -> str:
    """Return the path of the socket in this process's file system; links resolve inside the root.

    Raises ProbeError.
    """
    try:
        file = host_files.below(root, path)
        is_socket = stat.S_ISSOCK(file.stat().st_mode)
    except OSError as error:
        raise ProbeError(f"{path}: {error.strerror}") from error
    if not is_socket:
        raise ProbeError(f"{path}: no socket")
    return str(file)


def _answers(path: str, code: int, out: bytes, err: bytes) -> list[dict[str, Any]]:
    if code:
        last = printable(err.decode("utf-8", "replace").strip().rpartition("\n")[2])
        raise ProbeError(f"{path}: the child {how_it_ended(code)}: {last}"[:_LONGEST_MESSAGE])
    document = json.loads(out)
    if "error" in document:
        raise ProbeError(f"{path}: {printable(document['error'])}")
    answers: list[dict[str, Any]] = document["answers"]
    return answers
