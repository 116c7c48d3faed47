"""The real server on loopback, and peers that behave badly in every way that a socket lets them."""

from __future__ import annotations

import gc
import http.client
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host import http_server
from gpu_healthcheck.healthcheck.host.http_server import MOST_CONNECTIONS, MOST_REQUEST_BYTES, HttpServer, Page, Request
from tests.waiting import GIVE_UP_SECONDS, eventually

BIG = b"x" * 8_000_000
"""More than the kernel takes for a peer that does not read."""
THREADS = Path("/proc/self/task")


async def well(request: Request) -> Page:
    return Page(HTTPStatus.OK, request.accept or "text/plain", b"ok\n")


async def big(_: Request) -> Page:
    return Page(HTTPStatus.OK, "text/plain", BIG)


async def broken(_: Request) -> Page:
    raise ZeroDivisionError


@pytest.fixture
def server() -> HttpServer:
    server = HttpServer({"/well": well, "/big": big, "/broken": broken}, 0)
    server.start()
    return server


@pytest.fixture
def open_() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ask(server: HttpServer, path: str = "/well", method: str = "GET", **more: object) -> tuple[int, bytes]:
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=GIVE_UP_SECONDS)
    try:
        asking.request(method, path, **more)  # type: ignore[arg-type]
        answer = asking.getresponse()
        return answer.status, answer.read()
    finally:
        asking.close()


def connect(server: HttpServer, stack: ExitStack, sent: bytes = b"") -> socket.socket:
    peer = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=GIVE_UP_SECONDS))
    peer.sendall(sent)
    return peer


def is_given_up(peer: socket.socket) -> bool:
    """Whether the server has closed it; earlier bytes do not matter."""
    peer.setblocking(False)
    try:
        while peer.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


class TestAnswers:
    def test_page_is_answered_with_get_and_head(self, server: HttpServer) -> None:
        assert ask(server) == (200, b"ok\n")
        assert ask(server, "/well?x=1") == (200, b"ok\n")
        assert ask(server, "/big") == (200, BIG)
        assert ask(server, method="HEAD") == (200, b"")

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"GET /none HTTP/1.1\r\n\r\n", 404),
            (b"POST /well HTTP/1.1\r\n\r\n", 501),
            (b"GET /well HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 413),
            (b"GET /well HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
            (b"GET /well HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
            (b"GET /well HTTP/1.1\r\na: " + b"x" * 4 * MOST_REQUEST_BYTES, 431),
        ],
    )
    def test_request_other_than_a_plain_get_is_refused(
        self, server: HttpServer, open_: ExitStack, request_: bytes, status: int
    ) -> None:
        peer = connect(server, open_)
        # A request rejected before its end is reset: the rest, and the answer, may be lost.
        threading.Thread(target=_send, args=(peer, request_)).start()
        raw = _all_of(peer)

        assert raw.startswith(b"HTTP/1.0 %d " % status) or (status in {413, 431} and not raw)
        assert ask(server)[0] == 200

    @pytest.mark.parametrize("noise", [b"GET /well HTTP/7.0", b"\x16\x03\x01\x02\x00\x01", b"", b"GET", b"\xff" * 4000])
    def test_noise_gets_no_page(self, server: HttpServer, open_: ExitStack, noise: bytes) -> None:
        assert b"ok\n" not in _all_of(connect(server, open_, noise + b"\r\n\r\n"))
        assert ask(server)[0] == 200

    def test_connection_serves_only_its_first_request(self, server: HttpServer, open_: ExitStack) -> None:
        request = b"GET /well HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"

        assert _all_of(connect(server, open_, request * 20)).count(b"HTTP/1.0") == 1

    def test_failing_page_ends_only_its_request(self, server: HttpServer, open_: ExitStack) -> None:
        assert _all_of(connect(server, open_, b"GET /broken HTTP/1.1\r\n\r\n")) == b""
        assert ask(server)[0] == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="NOT TESTED: this kernel has no IPv6")
def test_ipv6_client_is_answered(server: HttpServer) -> None:
    with socket.create_connection(("::1", server.port), timeout=GIVE_UP_SECONDS) as peer:
        peer.sendall(b"GET /well HTTP/1.0\r\n\r\n")

        assert _all_of(peer).startswith(b"HTTP/1.0 200 ")


def test_kernel_without_ipv6_serves_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = HttpServer({"/well": well}, 0)
    server.start()

    assert ask(server)[0] == HTTPStatus.OK


def test_port_in_use_by_ipv4_is_an_error() -> None:
    with socket.create_server(("", 0)) as other, pytest.raises(OSError, match="in use"):
        HttpServer({}, other.getsockname()[1])


class TestAFullTable:
    @pytest.mark.parametrize(
        "sent",
        [
            b"",
            b"GET /well HTTP/1.1\r\n" + b"a: " + b"x" * (MOST_REQUEST_BYTES // 2),
            b"GET /big HTTP/1.1\r\n\r\n",
        ],
        ids=["idle", "fat", "not reading"],
    )
    def test_full_table_drops_the_oldest_connection(self, server: HttpServer, open_: ExitStack, sent: bytes) -> None:
        threads, descriptors = len(list(THREADS.iterdir())), _descriptors()
        peers = [connect(server, open_, sent) for _ in range(3 * MOST_CONNECTIONS)]

        assert ask(server) == (200, b"ok\n")
        assert len(list(THREADS.iterdir())) == threads
        assert _descriptors() <= descriptors + len(peers) + MOST_CONNECTIONS + 2
        eventually(lambda: all(map(is_given_up, peers[:MOST_CONNECTIONS])))


class TestPeers:
    def test_address_with_most_connections_loses_its_oldest(self, server: HttpServer, open_: ExitStack) -> None:
        first = connect(server, open_, b"GET ")
        crowd = [_connect_from("127.0.0.2", server, open_) for _ in range(MOST_CONNECTIONS)]
        eventually(lambda: is_given_up(crowd[0]))

        assert not is_given_up(first)
        assert not is_given_up(crowd[-1])

    def test_single_address_may_fill_the_table(self, server: HttpServer, open_: ExitStack) -> None:
        crowd = [_connect_from("127.0.0.2", server, open_) for _ in range(MOST_CONNECTIONS)]

        assert ask(server)[0] == 200
        assert not any(map(is_given_up, crowd[1:]))


def _connect_from(address: str, server: HttpServer, stack: ExitStack) -> socket.socket:
    peer = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0)))
    peer.sendall(b"GET ")
    return peer


@pytest.mark.parametrize(
    ("sent", "later"),
    [(b"", b""), (b"GET /well", b""), (b"GET /big HTTP/1.1\r\n\r\n", b""), (b"GET /well HTTP/1.1\r\na: ", b"x")],
    ids=["idle", "incomplete", "not reading", "byte by byte"],
)
def test_exchange_ends_at_its_deadline(
    server: HttpServer, open_: ExitStack, monkeypatch: pytest.MonkeyPatch, sent: bytes, later: bytes
) -> None:
    monkeypatch.setattr(http_server, "DEADLINE_SECONDS", 0.2)
    peer = connect(server, open_, sent)

    eventually(lambda: not _send(peer, later) or is_given_up(peer))


def test_server_without_descriptors_drops_a_connection(server: HttpServer, open_: ExitStack) -> None:
    old = connect(server, open_)
    new = open_.enter_context(socket.socket())
    new.settimeout(GIVE_UP_SECONDS)
    _exhaust(open_)
    new.connect(("127.0.0.1", server.port))
    new.sendall(b"GET /well HTTP/1.1\r\n\r\n")

    assert _all_of(new).endswith(b"ok\n")
    eventually(lambda: is_given_up(old))


def _exhaust(stack: ExitStack) -> None:
    gc.collect()  # otherwise descriptors of other tests are released later, and the server gets one
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors() + 64, hard))
    try:
        while True:
            stack.callback(os.close, os.dup(0))
    except OSError:
        return


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _send(peer: socket.socket, sent: bytes) -> bool:
    try:
        peer.sendall(sent)
    except OSError:
        return False
    return True


def _all_of(peer: socket.socket) -> bytes:
    raw = b""
    try:
        while portion := peer.recv(65536):
            raw += portion
    except ConnectionResetError:
        pass
    return raw
