"""A kubelet's answer to `kubectl logs`: the API server requests it over TLS, at the address of the Node."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlparse

from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer


class KubeletLogs:
    """`folder` is that of the Kubelets, with a file of output per pod. Whole lines only; `follow` is not supported."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self.hostile: Callable[[LoopbackAnswers], None] | None = None
        """Answer of a hostile kubelet, instead of the log."""
        self._stamped: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(plane.ca_file, plane.ca_file.with_suffix(".key"))
        self._server = LoopbackServer(partial(_Answers, self), tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def serve(self, node_name: str) -> None:
        """Write the kubelet's address to the Node."""
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.port}},
        }
        answer = self._plane.request("PATCH", f"/api/v1/nodes/{node_name}/status", {"status": status})
        assert answer.status == 200, answer.message

    def read(self, pod_name: str, query: Mapping[str, list[str]]) -> str:
        """Return the log from the second `sinceTime` on, up to `limitBytes`; each line begins with its time."""
        since = query.get("sinceTime", [""])[0]
        earliest = datetime.fromisoformat(since) if since else datetime.min.replace(tzinfo=UTC)
        lines = [line for line in self._lines(pod_name) if datetime.fromisoformat(line.split(" ", 1)[0]) >= earliest]
        return "".join(f"{line}\n" for line in lines)[: int(query["limitBytes"][0])]

    def _lines(self, pod_name: str) -> list[str]:
        """Return lines with the time of their first read here; a container runtime uses the time of writing."""
        message = (self._folder / f"{pod_name}.log").read_text(errors="replace")
        with self._lock:
            known = self._stamped.setdefault(pod_name, [])
            for line in message.rpartition("\n")[0].split("\n")[len(known) :] if message.strip() else ():
                known.append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}{len(known) % 1000:03}Z {line}")
            return list(known)


class _Answers(LoopbackAnswers):
    def __init__(self, logs: KubeletLogs, *arguments: object) -> None:
        self._logs = logs
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        """Answer /containerLogs/NAMESPACE/POD/CONTAINER like a kubelet."""
        asked = urlparse(self.path)
        words = asked.path.strip("/").split("/")
        if len(words) != 4 or words[0] != "containerLogs":
            self.answer(404, b"no such page\n")
            return
        if self._logs.hostile is not None:
            self._logs.hostile(self)
            return
        self.answer(200, self._logs.read(words[2], parse_qs(asked.query)).encode(), {"Content-Type": "text/plain"})
