"""Requests to the API server. Repeated reads use one connection, without further handshakes."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class Https:
    """HTTPS client for this port of loopback. Each thread keeps a connection for its reads."""

    def __init__(self, port: int, ca_file: Path) -> None:
        self._port = port
        self._ca_file = ca_file
        self._kept = threading.local()

    def read(self, path: str, headers: Mapping[str, str], seconds: float) -> tuple[http.client.HTTPResponse, str]:
        """Send a GET. It is sent again if the server has closed the connection."""
        kept: http.client.HTTPSConnection | None = self._kept.__dict__.pop("connection", None)
        if kept is not None:
            with suppress(ConnectionError, ssl.SSLError):
                return self._read_over(kept, path, headers, seconds)
        return self._read_over(self._connection(seconds), path, headers, seconds)

    def _read_over(
        self, connection: http.client.HTTPSConnection, path: str, headers: Mapping[str, str], seconds: float
    ) -> tuple[http.client.HTTPResponse, str]:
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        try:
            answer = _ask(connection, "GET", path, None, headers)
        except BaseException:
            connection.close()
            raise
        self._kept.connection = connection
        return answer

    def send(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str], seconds: float
    ) -> tuple[http.client.HTTPResponse, str]:
        """Send a request once, over a new connection."""
        connection = self._connection(seconds)
        try:
            return _ask(connection, method, path, body, headers)
        finally:
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPSConnection:
        # Read each time: a test may give the server another authority.
        context = ssl.create_default_context(cafile=str(self._ca_file))
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=seconds, context=context)


def _ask(
    connection: http.client.HTTPSConnection, method: str, path: str, body: str | None, headers: Mapping[str, str]
) -> tuple[http.client.HTTPResponse, str]:
    connection.request(method, path, body, dict(headers))
    reply = connection.getresponse()
    return reply, reply.read().decode()
