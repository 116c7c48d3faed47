"""HTTP server on 127.0.0.1 in a thread of this process; it can stop and restart on its port."""

import contextlib
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

# Interval at which the accept loop checks for the end.
POLL_SECONDS = 0.02


class LoopbackAnswers(BaseHTTPRequestHandler):
    """Answers of a loopback server, implemented by its user."""

    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: otherwise the second waits for the peer's delayed acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr: tests and the demo print their own output."""

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def __init__(self, port: int, answers: Callable[..., LoopbackAnswers]) -> None:
        self.connections: set[socket.socket] = set()
        self.accepted = 0
        super().__init__(("127.0.0.1", port), answers)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        self.accepted += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client may disconnect at any time; any other exception is a defect of the server.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def cut_connections(self) -> None:
        for connection in tuple(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class LoopbackServer:
    """HTTP server on a loopback port."""

    def __init__(self, answers: Callable[..., LoopbackAnswers], tls: ssl.SSLContext | None = None) -> None:
        self._answers = answers
        self._tls = tls
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._kept = socket.socket()
        """Socket that reserves the port until the end, also while the server does not listen."""
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server has it too: both may be bound
        self._kept.bind(("127.0.0.1", 0))
        self.port: int = self._kept.getsockname()[1]
        self.open()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def accepted(self) -> int:
        """Return the number of connections since the server's last start."""
        return self._server.accepted if self._server else 0

    def open(self) -> None:
        if self._server:
            return
        self._server = _Server(self.port, self._answers)
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse connections permanently."""
        self.refuse()
        self._kept.close()

    def refuse(self) -> None:
        """Close the listener and all connections."""
        if not self._server or not self._thread:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.cut_connections()
        self._server = self._thread = None

    def cut_connections(self) -> None:
        if self._server:
            self._server.cut_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
