"""`gpu-healthcheck gate`: ask this node's agent whether this pod may start. Standard library only, for a fast start.

It fails open: if the agent gives no answer, the pod starts. The text of the answer is printed; only its field
`decision` decides. With --local, only a socket of root is asked, since any user may listen on a port, and the machine
itself is checked where no agent answers.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

REFUSED = 75
"""EX_TEMPFAIL: the pod's job starts it on another node."""
UNAVAILABLE = 69
"""EX_UNAVAILABLE: no answer, with --fail-closed."""
USAGE = 3
PORT = 10633
SECONDS, LOCAL_SECONDS = 2.0, 1.0
"""Deadline of the whole request, and of a check with --local."""
STATE_DIR, SOCKET = "var/lib/gpu-healthcheck", "gate.sock"
"""Folder of the agent below the host's root, and its socket there for this machine's root."""
_ROOT = 0
_CREDENTIALS = struct.Struct("iII")
"""pid, uid and gid of the process that listens (unix(7), SO_PEERCRED)."""
_TAINT_SECONDS, _TAINT_POLL_SECONDS = 30.0, 1.0
"""Longest wait for a taint that the API server delays, and the interval of the requests meanwhile."""
_MOST_BYTES = 65536
_LONGEST_LINE = 2000
_VARIABLES = {"agent": "NODE_IP", "pod": "POD_UID", "tolerates": "GATE_TOLERATES"}
_PROG = "gpu-healthcheck gate"


class NoAnswerError(Exception):
    """The agent gave no usable answer. The message has the reason."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        if options.local:
            answer = _ask_or_check(options)
        else:
            query = f"pod={options.pod}&tolerates={options.tolerates}"
            answer = _ask_for_pod(options, query)
    except NoAnswerError as error:
        return _no_answer(str(error), closed=options.fail_closed, as_json=options.json)
    if options.json:
        print(json.dumps(answer))
    else:
        print(_printable(str(answer["message"])))
    return REFUSED if answer["decision"] == "refuse" else 0


class NotRootsError(NoAnswerError):
    """The socket may belong to another user than root. The message has the reason."""


def _ask_for_pod(options: argparse.Namespace, query: str) -> dict[str, Any]:
    """Return the agent's answer; ask again while a taint is delayed that would refuse the pod. Raises NoAnswerError."""
    deadline = time.monotonic() + _TAINT_SECONDS
    answer = ask(options.agent, options.port, query, options.timeout)
    while answer.get("taint_delayed") is True and time.monotonic() < deadline:
        time.sleep(_TAINT_POLL_SECONDS)
        with suppress(NoAnswerError):
            answer = ask(options.agent, options.port, query, options.timeout)
    return answer


def _ask_or_check(options: argparse.Namespace) -> dict[str, Any]:
    """Return the verdict of the whole node: the agent's if one answers, else that of a check. Raises NoAnswerError."""
    if os.geteuid() != _ROOT:
        raise NoAnswerError("--local needs root: only root can ask this machine's agent, and check all of the machine")
    began = time.monotonic()
    try:
        return ask_root(options.timeout)
    except NoAnswerError as error:
        if isinstance(error, NotRootsError):
            print(f"{_PROG}: {_printable(str(error))}: this machine is checked instead", file=sys.stderr)
        from gpu_healthcheck.cli.local_gate import check_here  # noqa: PLC0415 - it loads all checks

        answer = check_here(began + options.timeout - time.monotonic())
        if answer["decision"] == "unknown":
            raise NoAnswerError(answer["message"]) from None
        return answer


def ask(agent: str, port: int, query: str, seconds: float) -> dict[str, Any]:
    """Return the agent's answer about a pod. Raises NoAnswerError."""
    place = f"[{agent}]:{port}" if ":" in agent else f"{agent}:{port}"
    return _answer(place, query, partial(socket.create_connection, (agent, port), seconds), seconds)


def ask_root(seconds: float) -> dict[str, Any]:
    """Return the verdict of the whole node, by the agent's socket for root. Raises NoAnswerError."""
    folder = os.environ.get("STATE_DIR") or f"{os.environ.get('HOST_ROOT', '').rstrip('/')}/{STATE_DIR}"
    return _answer(f"{folder}/{SOCKET}", "", partial(_connect_to_root, folder, seconds), seconds)


def _connect_to_root(folder: str, seconds: float) -> socket.socket:
    """Connect to the socket. Raises NotRootsError if another user could have put it there, OSError."""
    place = _open_roots_folder(folder)
    connection = socket.socket(socket.AF_UNIX)
    try:
        _must_be_roots(os.lstat(SOCKET, dir_fd=place), stat.S_ISSOCK, f"{folder}/{SOCKET}")
        connection.settimeout(seconds)
        connection.connect(f"/proc/self/fd/{place}/{SOCKET}")  # the path's length is limited
        _must_be_answered_by_root(connection, f"{folder}/{SOCKET}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(place)
    return connection


def _open_roots_folder(path: str) -> int:
    """Open a folder to which only folders of root lead, no link. Raises NotRootsError, OSError."""
    way, flags = "", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open("/", flags)
    try:
        for name in filter(None, os.path.abspath(path).split("/")):  # noqa: PTH100 - pathlib takes time to load
            way = f"{way}/{name}"
            _must_be_roots(os.lstat(name, dir_fd=folder), stat.S_ISDIR, way)
            above, folder = folder, os.open(name, flags, dir_fd=folder)
            os.close(above)
            _must_be_roots(os.fstat(folder), stat.S_ISDIR, way)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _must_be_roots(about: os.stat_result, is_kind: Callable[[int], bool], path: str) -> None:
    """Raise NotRootsError if this is a link or another kind of file, or if another user than root can replace it."""
    writable = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_sticky = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX  # as /tmp: entries are their owner's
    if not is_kind(about.st_mode) or about.st_uid != _ROOT or (writable and not is_sticky):
        raise NotRootsError(f"{path} ({stat.filemode(about.st_mode)}, user {about.st_uid}) is not root's alone")


def _must_be_answered_by_root(connection: socket.socket, path: str) -> None:
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != _ROOT:
        raise NotRootsError(f"{path}: a process of user {user} listens")


def _answer(place: str, query: str, connect: Callable[[], socket.socket], seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    request = f"GET /gate/v1?{query} HTTP/1.0\r\nHost: gpu-healthcheck\r\n\r\n"
    received = b""
    try:
        with connect() as connection:
            connection.sendall(request.encode("ascii"))
            while len(received) <= _MOST_BYTES:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                portion = connection.recv(4096)
                if not portion:
                    break
                received += portion
    except (OSError, UnicodeError) as error:
        raise NoAnswerError(f"no answer from {place} within {round(seconds, 2):g} s: {error}") from error
    head, _, body = received.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        code = status[0].decode("ascii", "replace") if status else "nothing"
        raise NoAnswerError(f"{place} answered with {code}: an agent without /gate/v1, or another program")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoAnswerError(f"{place} answered with invalid JSON: {error}") from error
    if not isinstance(answer, dict) or answer.get("decision") not in ("start", "refuse", "open"):
        raise NoAnswerError(f"{place} answered without a decision")
    return {"message": "", **answer}


def _no_answer(why: str, *, closed: bool, as_json: bool) -> int:
    end = "the pod ends (--fail-closed)" if closed else "the pod starts without a check"
    if as_json:
        print(json.dumps({"decision": "unknown", "message": why}))
    print(f"{_PROG}: {_printable(why)}; {end}", file=sys.stderr)
    return UNAVAILABLE if closed else 0


def _printable(text: str) -> str:
    """Return the text on one line, with other than printable characters escaped."""
    line = text[:_LONGEST_LINE]
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(
        _PROG,
        description="Ask this node's agent whether this pod may start: in an init container, or in Slurm's prolog.",
        epilog="Exit codes: 0 healthy, or could not ask; 69 could not ask, with --fail-closed; 75 refused, so that the "
        "job starts the pod on another node; 3 wrong usage.",
    )
    parser.add_argument("--agent", metavar="IP", help="address of this node's agent; default: $NODE_IP")
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the agent (METRICS_PORT); default: {PORT}")
    parser.add_argument("--pod", metavar="UID", help="UID of this pod; default: $POD_UID")
    parser.add_argument(
        "--tolerates",
        choices=("true", "false"),
        help="whether this pod tolerates the taint gpu-healthcheck.aws-samples.io/unhealthy; default: $GATE_TOLERATES. "
        "If it is unknown, the pod starts",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="for Slurm's prolog and epilog, as root: the verdict of this machine, from its agent if one runs, else by "
        "a check; --agent, --port, --pod and --tolerates have no effect",
    )
    parser.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="longest wait for an answer; default: 2, and with --local 1"
    )
    parser.add_argument("--fail-closed", action="store_true", help="exit with 69 if there is no answer")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    options = parser.parse_args(arguments)
    for name, variable in _VARIABLES.items():
        if getattr(options, name) is None:
            setattr(options, name, os.environ.get(variable, ""))
    if options.timeout is None:
        options.timeout = LOCAL_SECONDS if options.local else SECONDS
    if options.local:
        return options
    if options.tolerates not in ("true", "false", ""):
        parser.error(f"GATE_TOLERATES = {options.tolerates!r}: allowed are true and false")
    if not options.agent:
        parser.error("the agent's address is missing: set --agent, or NODE_IP from status.hostIP")
    if not options.pod or not all((char.isalnum() and char.isascii()) or char == "-" for char in options.pod):
        parser.error("the pod's UID is missing or malformed: set --pod, or POD_UID from metadata.uid")
    return options


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 60:
        raise argparse.ArgumentTypeError("allowed is more than 0, and at most 60 seconds")
    return seconds


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        print(f"{_PROG}: {message}", file=sys.stderr)
        raise SystemExit(USAGE)


if __name__ == "__main__":
    sys.exit(main())
