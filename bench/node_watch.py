"""Watch of one Node without the product's code: a raw HTTP connection of the admin, read in its own thread."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from bench.outcome import CouldNotMeasure
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.sim.control_plane import ControlPlane

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Observation:
    """Node in one event of the watch. `at_ns`: CLOCK_MONOTONIC before the event was parsed."""

    at_ns: int
    node: Node


class NodeWatch:
    """Watch of a Node that records the time of each change."""

    def __init__(self, plane: ControlPlane, node_name: str) -> None:
        context = ssl.create_default_context(cafile=str(plane.ca_file))
        url = urlsplit(plane.url)
        self._connection = http.client.HTTPSConnection(str(url.hostname), url.port, context=context)
        self._connection.connect()
        # Only closing the socket wakes the reader; closing the response or the connection does not.
        self._socket: socket.socket = self._connection.sock
        query = f"watch=true&fieldSelector=metadata.name={node_name}"
        self._connection.request("GET", f"/api/v1/nodes?{query}", None, _headers(plane.admin_token))
        self._response = self._connection.getresponse()
        self._observations: queue.Queue[Observation] = queue.Queue()
        self._node_name = node_name
        self._thread = threading.Thread(target=self._read, name="node-watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5)
        self._connection.close()

    def wait_for(self, seen: Callable[[Node], bool], what: str, seconds: float = 30.0) -> Observation:
        """Wait for the first event since the last returned one that matches `seen`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                observation = self._observations.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise CouldNotMeasure(f"{what} was not seen on {self._node_name} within {seconds:g} s") from None
            if seen(observation.node):
                return observation

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while line := self._response.readline():
                self._observations.put(Observation(time.monotonic_ns(), json.loads(line)["object"]))


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Accept": "application/json"}


def status(node: Node) -> str:
    return str(node["metadata"].get("labels", {}).get(f"{PREFIX}/status", ""))


def is_tainted(node: Node) -> bool:
    return any(taint["key"] == f"{PREFIX}/unhealthy" for taint in node["spec"].get("taints") or ())


def is_well(node: Node) -> bool:
    """Whether label and condition both report a healthy node."""
    conditions = node["status"].get("conditions") or ()
    return status(node) == "pass" and any(
        condition["type"] == "GpuHealthy" and condition["status"] == "True" for condition in conditions
    )
