"""HTTP server for a place that untrusted clients can reach, with bounded resource use.

One thread keeps a short table of connections, each for one request, and accepts a limited number per second. When
the table is full, the server drops the oldest connection of the address with the most connections. The newest
connection, which may be the kubelet's probe, is therefore always accepted, and no client displaces another.

`listen_for_root` opens a Unix socket that only root can connect to, and whose path leads through root's folders only.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

import structlog

_MODE = 0o600
"""Mode of the socket: connect(2) needs the permission to write."""
_ROOT_BACKLOG = 64


def listen_for_root(path: Path) -> socket.socket:
    """Listen on a new socket at this path, which replaces an earlier one. Raises OSError.

    The folder is opened first: the length of its path is not limited then (unix(7): 107 bytes), and no link is
    followed.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX)
    new = f"{path.name}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        os.fchmod(listener.fileno(), _MODE)  # the file gets it from its first moment
        listener.bind(f"/proc/self/fd/{folder}/{new}")
        listener.listen(_ROOT_BACKLOG)
        os.replace(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


log = structlog.get_logger()

MOST_CONNECTIONS = 128
MOST_REQUEST_BYTES = 8192
DEADLINE_SECONDS = 10.0
"""Deadline of a whole exchange, so that a slow client cannot keep its connection open."""
_PORTION_BYTES = 2048
_UNREAD_BYTES = 8192
"""Size of the kernel's receive buffer of one connection."""
_BACKLOG = 1024
"""Length of the kernel's queue for bursts of connections. If it is full, a client retries after a second."""
_ACCEPTED_PER_SECOND, _BURST = 1500.0, 64.0
"""Limit of accepted connections, and how many may exceed it at once: a flood uses a third of a core, and a connection
is dropped only when later connections have filled the table."""
_MORE_SECONDS = 0.05
"""Pause between two reads of one request, which limits the cost of clients that send byte by byte."""
_STARVED_SECONDS = 0.1
_END = b"\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)


class Page(NamedTuple):
    """One page of the server: status, content type and body."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Request(NamedTuple):
    """The parts of a request that a page may use: the query of its path, and the header Accept."""

    query: str = ""
    accept: str = ""


Pages = Mapping[str, Callable[[Request], Awaitable[Page]]]
"""Pages by path. A page may wait, but must not compute for long: all connections share a thread."""


class HttpServer:
    """Serves `pages` in a separate thread, at a port or a listening socket.

    Raises OSError if the port is in use.
    """

    def __init__(self, pages: Pages, address: int | socket.socket) -> None:
        self._pages = pages
        self._listener = _listen_on_port(address) if isinstance(address, int) else address
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)  # accepted connections inherit it
        self._listener.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._exchanges: dict[asyncio.Task[None], _Peer] = {}
        """Connections, oldest first."""

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        work = self._loop.run_until_complete
        threading.Thread(target=work, args=(self._accept(),), name="metrics", daemon=True).start()

    async def _accept(self) -> None:
        left, at = _BURST, time.monotonic()
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._listener)
            except OSError:  # no free descriptor, or the peer has closed
                if not self._drop_oldest():
                    await asyncio.sleep(_STARVED_SECONDS)
            else:
                while len(self._exchanges) >= MOST_CONNECTIONS:
                    self._drop_oldest()
                    await asyncio.sleep(0)
                peer = _Peer(connection, address[0] if address else "")  # a client of a Unix socket has none
                task = self._loop.create_task(self._converse(peer))
                self._exchanges[task] = peer
                task.add_done_callback(self._ended)
            now = time.monotonic()
            left, at = min(left + (now - at) * _ACCEPTED_PER_SECOND, _BURST) - 1.0, now
            await asyncio.sleep(max(-left / _ACCEPTED_PER_SECOND, 0.0))

    def _drop_oldest(self) -> bool:
        """Cancel the oldest request of the address with the most requests. Returns whether there was one."""
        most = Counter(peer.address for peer in self._exchanges.values()).most_common(1)
        oldest = next((task for task, peer in self._exchanges.items() if peer.address == most[0][0]), None)
        return oldest is not None and oldest.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._exchanges.pop(task).connection
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):  # includes TimeoutError
            log.error("a request failed", error=repr(error))
        if task.cancelled() or error is not None:  # reset: the kernel drops the data, and the client gets no answer
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.close()

    async def _converse(self, peer: _Peer) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            request = bytearray()
            while _END not in request and len(request) <= MOST_REQUEST_BYTES:
                if request:
                    await asyncio.sleep(_MORE_SECONDS)
                portion = await self._loop.sock_recv(peer.connection, _PORTION_BYTES)
                if not portion:
                    return
                request += portion
            await self._loop.sock_sendall(peer.connection, await self._answer(bytes(request)))

    async def _answer(self, request: bytes) -> bytes:
        exchange = _Exchange(request)
        if exchange.well_formed:
            path, _, query = exchange.path.partition("?")
            if page := self._pages.get(path):
                exchange.send(await page(Request(query, exchange.headers.get("Accept", ""))))
            else:
                exchange.send_error(HTTPStatus.NOT_FOUND)
        return exchange.answer


def _listen_on_port(port: int) -> socket.socket:
    """Listen on all addresses, also of IPv6 where the kernel has it: in a cluster of IPv6 the kubelet probes there."""
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", port), backlog=_BACKLOG)
    return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)


class _Peer(NamedTuple):
    connection: socket.socket
    address: str


class _Exchange(BaseHTTPRequestHandler):
    """A parsed request and the bytes of its answer. Parsing an invalid request already writes the answer."""

    def __init__(self, request: bytes) -> None:
        super().__init__(request, ("", 0), None)  # type: ignore[arg-type]  # without a server object of the library

    def setup(self) -> None:
        self.rfile = io.BytesIO(self.request)
        self.wfile = self._written = io.BytesIO()

    def handle(self) -> None:
        self.well_formed = False
        self.raw_requestline = self.rfile.readline()
        if _END not in self.request:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self.parse_request():
            self.well_formed = self._is_supported()

    def finish(self) -> None:
        """Do not close the streams, so that the bytes of the answer remain."""

    @property
    def answer(self) -> bytes:
        return self._written.getvalue()

    def send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def version_string(self) -> str:
        return "gpu-healthcheck"

    def log_message(self, *_: object) -> None:
        """Log nothing: the kubelet sends a request every few seconds."""

    def _is_supported(self) -> bool:
        if self.command not in ("GET", "HEAD"):
            self.send_error(HTTPStatus.NOT_IMPLEMENTED)
        elif self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            return True
        return False

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer with an error before the request was parsed."""
        self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
        self.send_error(status)
