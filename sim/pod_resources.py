"""Sockets of a simulated node's kubelet that name its pods and their devices: PodResourcesLister, and the Pods API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from gpu_healthcheck.healthcheck.host.grpc_child import QUESTIONS, message_classes
from gpu_healthcheck.healthcheck.probes.pod_resources import SOCKETS

_GPU = "nvidia.com/gpu"

Held = Callable[[], Iterable[tuple[str, str, int | Sequence[str]]]]
"""Function that returns the current pods with GPUs: namespace, pod, and their number or device ids."""


@contextmanager
def serving_pod_resources(root: Path, held: Held, more: Mapping[str, SocketAnswer] | None = None) -> Iterator[None]:
    """Serve answers below this root, with a short path: a socket's path has at most 107 characters.

    `more` are answers on further sockets, by path.
    """
    resources = SocketAnswer("pod-resources", lambda: {"pod_resources": [_pod(*entry) for entry in held()]})
    answers = {SOCKETS[0]: resources, **(more or {})}
    server = grpc.server(ThreadPoolExecutor(2), tuple(answers.values()))
    for path in answers:
        socket = root / path.lstrip("/")
        socket.parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


class SocketAnswer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answer to a question of healthcheck/host/grpc_child.py."""

    def __init__(self, question: str, answer: Callable[[], Mapping[str, Any]]) -> None:
        asked = QUESTIONS[question]
        (call,) = asked.calls
        self._method = f"/{asked.package}.{call.method}"
        self._message = message_classes(asked)[call.answer]
        self._answer = answer

    def service(self, details: Any) -> Any:
        if details.method != self._method:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self._serialized())

    def _serialized(self) -> bytes:
        raw: bytes = ParseDict(self._answer(), self._message()).SerializeToString()
        return raw


def _pod(namespace: str, name: str, gpus: int | Sequence[str]) -> dict[str, Any]:
    ids = [f"GPU-{number}" for number in range(gpus)] if isinstance(gpus, int) else list(gpus)
    devices = {"resource_name": _GPU, "device_ids": ids}
    return {"namespace": namespace, "name": name, "containers": [{"name": "main", "devices": [devices]}]}
