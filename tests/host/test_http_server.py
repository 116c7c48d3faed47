"""The real server on loopback, and peers that behave badly in every way that a socket lets them."""

from __future__ import annotations

import gc
import http.client
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import pytest

from healthcheck.host import http_server
from healthcheck.host.http_server import MOST_CONNECTIONS, MOST_REQUEST_BYTES, HttpServer, Page, network_of
from tests.waiting import GIVE_UP_SECONDS, eventually

BIG = b"x" * 8_000_000
"""More than the kernel takes for a peer that does not read."""
THREADS = Path("/proc/self/task")


@pytest.fixture
def server() -> HttpServer:
    pages = {
        "/well": lambda accept: Page(HTTPStatus.OK, accept or "text/plain", b"ok\n"),
        "/big": lambda _: Page(HTTPStatus.OK, "text/plain", BIG),
        "/broken": lambda _: Page(HTTPStatus.OK, "text/plain", b"%d" % (1 // 0)),
    }
    server = HttpServer(pages, 0)
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
    def test_a_page(self, server: HttpServer) -> None:
        assert ask(server) == (200, b"ok\n")
        assert ask(server, "/well?x=1") == (200, b"ok\n")
        assert ask(server, "/big") == (200, BIG)

    def test_head_has_no_body(self, server: HttpServer) -> None:
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
    def test_what_is_no_plain_get(self, server: HttpServer, open_: ExitStack, request_: bytes, status: int) -> None:
        peer = connect(server, open_)
        # A request rejected before its end is reset: the rest, and the answer, may be lost.
        threading.Thread(target=_send, args=(peer, request_)).start()
        raw = _all_of(peer)

        assert raw.startswith(b"HTTP/1.0 %d " % status) or (status in {413, 431} and not raw)
        assert ask(server)[0] == 200

    @pytest.mark.parametrize("noise", [b"GET /well HTTP/7.0", b"\x16\x03\x01\x02\x00\x01", b"", b"GET", b"\xff" * 4000])
    def test_noise_is_ended(self, server: HttpServer, open_: ExitStack, noise: bytes) -> None:
        assert b"ok\n" not in _all_of(connect(server, open_, noise + b"\r\n\r\n"))
        assert ask(server)[0] == 200

    def test_of_several_requests_on_one_connection_the_first(self, server: HttpServer, open_: ExitStack) -> None:
        request = b"GET /well HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"

        assert _all_of(connect(server, open_, request * 20)).count(b"HTTP/1.0") == 1

    def test_a_page_that_fails_ends_its_own_request_alone(self, server: HttpServer, open_: ExitStack) -> None:
        assert _all_of(connect(server, open_, b"GET /broken HTTP/1.1\r\n\r\n")) == b""
        assert ask(server)[0] == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="NOT TESTED: this kernel has no IPv6")
def test_a_kubelet_of_an_ipv6_cluster_is_answered(server: HttpServer) -> None:
    with socket.create_connection(("::1", server.port), timeout=GIVE_UP_SECONDS) as peer:
        peer.sendall(b"GET /well HTTP/1.0\r\n\r\n")

        assert _all_of(peer).startswith(b"HTTP/1.0 200 ")


def test_a_kernel_without_ipv6_serves_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = HttpServer({"/well": lambda _: Page(HTTPStatus.OK, "text/plain", b"ok\n")}, 0)
    server.start()

    assert ask(server)[0] == HTTPStatus.OK


def test_a_port_that_is_in_use_by_ipv4_is_an_error() -> None:
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
    def test_gives_up_the_oldest_for_the_newest(self, server: HttpServer, open_: ExitStack, sent: bytes) -> None:
        threads = len(list(THREADS.iterdir()))
        peers = [connect(server, open_, sent) for _ in range(3 * MOST_CONNECTIONS)]

        assert ask(server) == (200, b"ok\n")
        assert len(list(THREADS.iterdir())) == threads
        eventually(lambda: all(map(is_given_up, peers[:MOST_CONNECTIONS])))

    def test_holds_no_more_descriptors_than_its_size(self, server: HttpServer, open_: ExitStack) -> None:
        before = _descriptors()
        for _ in range(3 * MOST_CONNECTIONS):
            connect(server, open_)
        assert ask(server)[0] == 200  # so all before it were let in

        ours = 3 * MOST_CONNECTIONS
        assert _descriptors() <= before + ours + MOST_CONNECTIONS + 2


class TestPeers:
    """The pages of /crowded are made one after the other, so that a request waits for all before it."""

    CROWD = "127.0.0.2"
    REQUEST = b"GET /crowded HTTP/1.1\r\nHost: x\r\nAccept: crowd\r\n\r\n"

    @pytest.fixture
    def made(self) -> list[str]:
        return []

    @pytest.fixture
    def slash_24(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Addresses of loopback with one network for each /24: IPv6 has only one address there."""
        monkeypatch.setattr(http_server, "network_of", lambda address: f"{address.rpartition('.')[0]}.0/24")

    @pytest.fixture
    def crowded(self, made: list[str]) -> HttpServer:
        def make(accept: str) -> Page:
            made.append(accept)
            time.sleep(0.003)
            return Page(HTTPStatus.OK, "text/plain", b"ok\n")

        server = HttpServer({"/crowded": make}, 0)
        server.start()
        return server

    def test_one_address_that_asks_without_end_does_not_take_another_ones_turn(
        self, crowded: HttpServer, made: list[str]
    ) -> None:
        ended = threading.Event()

        def crowd() -> None:
            with ExitStack() as stack:
                while not ended.wait(0.002):
                    self._send(crowded, stack, self.CROWD)

        flood = threading.Thread(target=crowd, daemon=True)
        flood.start()
        eventually(lambda: len(made) > MOST_CONNECTIONS // 4)
        try:
            for _ in range(10):
                assert ask(crowded, "/crowded", headers={"Accept": "scrape"})[0] == 200
        finally:
            ended.set()
            flood.join()

    @pytest.mark.usefixtures("slash_24")
    def test_one_network_of_many_addresses_does_not_take_another_ones_turn(
        self, crowded: HttpServer, made: list[str]
    ) -> None:
        with ExitStack() as stack:
            for number in range(1, MOST_CONNECTIONS // 2):
                self._send(crowded, stack, f"127.0.1.{number}")
            eventually(lambda: len(made) > 1)
            assert ask(crowded, "/crowded", headers={"Accept": "scrape"})[0] == 200

        assert made.count("crowd") < MOST_CONNECTIONS // 4

    @pytest.mark.usefixtures("slash_24")
    def test_a_crowded_network_gives_up_a_connection_of_its_own(self, server: HttpServer, open_: ExitStack) -> None:
        first = [connect(server, open_, b"GET "), connect(server, open_, b"GET ")]
        crowd = [self._send(server, open_, f"127.0.1.{number}", b"GET ") for number in range(1, MOST_CONNECTIONS + 1)]
        eventually(lambda: is_given_up(crowd[0]))
        eventually(lambda: is_given_up(crowd[1]))

        assert not any(map(is_given_up, [*first, crowd[-1]]))

    @pytest.mark.usefixtures("slash_24")
    def test_a_crowd_gives_up_no_neighbour_in_its_network(self, server: HttpServer, open_: ExitStack) -> None:
        neighbour = self._send(server, open_, "127.0.1.200", b"GET ")
        crowd = [self._send(server, open_, "127.0.1.1", b"GET ") for _ in range(MOST_CONNECTIONS)]
        eventually(lambda: is_given_up(crowd[0]))

        assert not is_given_up(neighbour)
        assert not is_given_up(crowd[-1])

    def test_a_crowded_table_gives_up_a_connection_of_the_crowd(self, server: HttpServer, open_: ExitStack) -> None:
        first = connect(server, open_, b"GET ")
        crowd = [self._send(server, open_, self.CROWD, b"GET ") for _ in range(MOST_CONNECTIONS)]
        eventually(lambda: is_given_up(crowd[0]))

        assert not is_given_up(first)
        assert not is_given_up(crowd[-1])

    def test_an_address_alone_has_the_whole_table(self, server: HttpServer, open_: ExitStack) -> None:
        crowd = [self._send(server, open_, self.CROWD, b"GET ") for _ in range(MOST_CONNECTIONS)]

        assert ask(server)[0] == 200
        assert not any(map(is_given_up, crowd[1:]))

    def _send(self, server: HttpServer, stack: ExitStack, address: str, sent: bytes = REQUEST) -> socket.socket:
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0)))
        peer.sendall(sent)
        return peer


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1/32"),
        ("::ffff:10.0.0.1", "10.0.0.1/32"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::1", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_the_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


class TestPatience:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_server, "PATIENCE_SECONDS", 0.2)

    @pytest.mark.parametrize("sent", [b"", b"GET /well", b"GET /big HTTP/1.1\r\n\r\n"])
    def test_ends_an_exchange_that_takes_too_long(self, server: HttpServer, open_: ExitStack, sent: bytes) -> None:
        peer = connect(server, open_, sent)

        eventually(lambda: is_given_up(peer))

    def test_is_not_renewed_by_a_byte_now_and_then(self, server: HttpServer, open_: ExitStack) -> None:
        peer = connect(server, open_, b"GET /well HTTP/1.1\r\na: ")

        def trickle() -> bool:
            return not _send(peer, b"x") or is_given_up(peer)

        eventually(trickle)


def test_without_a_descriptor_left_it_gives_up_what_it_has(server: HttpServer, open_: ExitStack) -> None:
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
