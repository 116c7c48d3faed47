"""API server that lists the objects of a state, and runs commands of `pods/exec` on this machine, over a WebSocket."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from gpu_healthcheck.healthcheck.cluster.errors import Forbidden
from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer
from tests.diagnosis.served import Served

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
STDOUT, STATUS = b"\x01", b"\x03"
Stream = Callable[[Callable[[bytes], object]], object]


class ExecCluster:
    """`commands`: pod, container and words of each command. `environment`: that of the containers.

    `denied`: the user lacks pods/exec. `silent`: pods whose commands print nothing. `stream`, if set, answers in place
    of the command.
    """

    def __init__(self, objects: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> None:
        self.served = Served(objects)
        self.environment = dict(environment)
        self.commands: list[tuple[str, str, list[str]]] = []
        self.denied = False
        self.silent: set[str] = set()
        self.stream: Stream | None = None
        self.server = LoopbackServer(partial(_Answers, self))
        self.endpoint = self.server.endpoint

    def kubeconfig(self, folder: Path) -> Path:
        """Write the kubeconfig as JSON, which is also YAML."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": self.endpoint}}],
            "users": [{"name": "a", "user": {"token": "secret"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "team"}}],
        }
        path.write_text(json.dumps(config))
        return path


def frame(payload: bytes) -> bytes:
    """Return one binary frame of a server."""
    size = len(payload)
    head = struct.pack("!BB", 0x82, size) if size < 126 else struct.pack("!BBQ", 0x82, 127, size)
    return head + payload


def status(**parts: Any) -> bytes:
    return STATUS + json.dumps({"metadata": {}, **parts}).encode()


class _Answers(LoopbackAnswers):
    def __init__(self, cluster: ExecCluster, *arguments: Any) -> None:
        self._cluster = cluster
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        url = urlsplit(self.path)
        if url.path.endswith("/exec"):
            self._execute(url.path.split("/")[-2], parse_qs(url.query))
            return
        try:
            found = list(
                self._cluster.served.objects(url.path, url.path.rsplit("/", 1)[-1], dict(parse_qsl(url.query)))
            )
        except (Forbidden, KeyError, IndexError):
            self.answer(404, b"{}")
            return
        self.answer(200, json.dumps({"metadata": {}, "items": found}).encode(), {"Content-Type": "application/json"})

    def _execute(self, pod: str, query: Mapping[str, list[str]]) -> None:
        assert self.headers["authorization"] == "Bearer secret"
        words = query["command"]
        self._cluster.commands.append((pod, query["container"][0], words))
        if self._cluster.denied:
            message = 'pods "x" is forbidden: User "ann" cannot create resource "pods/exec"'
            self.answer(403, json.dumps({"kind": "Status", "message": message, "code": 403}).encode())
            return
        key = hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + _GUID).digest()
        self.send_response(101)
        for name, value in (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", base64.b64encode(key).decode()),
            ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        if self._cluster.stream is not None:
            self._cluster.stream(self.wfile.write)
            return
        for part in (status(status="Success"),) if pod in self._cluster.silent else self._answer(words):
            self.wfile.write(frame(part))

    def _answer(self, words: list[str]) -> Iterable[bytes]:
        try:
            done = subprocess.run(words, env=self._cluster.environment, capture_output=True, check=False)
        except OSError:
            why = f'failed to start exec: exec: "{words[0]}": executable file not found in $PATH: unknown'
            yield status(status="Failure", reason="InternalError", message=f"Internal error occurred: {why}", code=500)
            return
        for start in range(0, len(done.stdout), 32768):
            yield STDOUT + done.stdout[start : start + 32768]
        yield b"\x02" + done.stderr if done.stderr else STDOUT
        yield status(status="Success") if not done.returncode else status(status="Failure", reason="NonZeroExitCode")
