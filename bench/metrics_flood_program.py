"""Clients of a metrics port that never finish their request: `python -m bench.metrics_flood_program PORT IDLE FAT`.

A dropped client reconnects at once until this program ends. Prints `ready` once all are connected.
"""

from __future__ import annotations

import resource
import select
import socket
import sys
from contextlib import suppress

_HEAD = b"GET /metrics HTTP/1.1\r\n" + b"a: " + b"x" * (1 << 20)
_SPARE = 64


class _Peers:
    def __init__(self, port: int) -> None:
        self._port = port
        self._poll = select.poll()
        self._fat: dict[int, bool] = {}
        self._sockets: dict[int, socket.socket] = {}

    def come(self, *, fat: bool) -> None:
        try:
            peer = socket.create_connection(("127.0.0.1", self._port), timeout=5)
        except OSError:
            return
        peer.setblocking(False)
        if fat:
            with suppress(OSError):  # the server has dropped it already
                peer.send(_HEAD)
        self._sockets[peer.fileno()], self._fat[peer.fileno()] = peer, fat
        self._poll.register(peer, select.POLLIN)

    def come_again(self) -> None:
        """Reconnect the closed connections."""
        for number, _ in self._poll.poll():
            self._poll.unregister(number)
            self._sockets.pop(number).close()
            self.come(fat=self._fat.pop(number))


def main() -> None:
    port, idle, fat = map(int, sys.argv[1:4])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (idle + fat + _SPARE, hard))
    peers = _Peers(port)
    for number in range(idle + fat):
        peers.come(fat=number < fat)
    sys.stdin.readline()
    print("ready", flush=True)
    while True:
        peers.come_again()


if __name__ == "__main__":
    main()
