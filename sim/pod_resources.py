"""Socket of a simulated node's kubelet for monitoring (PodResourcesLister)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from healthcheck.host.grpc_child import QUESTIONS, message_classes
from healthcheck.probes.pod_resources import SOCKETS

_QUESTION = QUESTIONS["pod-resources"]
(_CALL,) = _QUESTION.calls
_GPU = "nvidia.com/gpu"

Held = Callable[[], Iterable[tuple[str, str, int | Sequence[str]]]]
"""Function that returns the current pods with GPUs: namespace, pod, and their number or device ids."""


@contextmanager
def serving_pod_resources(root: Path, held: Held) -> Iterator[None]:
    """Serve answers below this root, with a short path: a socket's path has at most 107 characters."""
    socket = root / SOCKETS[0].lstrip("/")
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.server(ThreadPoolExecutor(2), (_Answers(held),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


class _Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, held: Held) -> None:
        self._held = held
        self._answer = message_classes(_QUESTION)[_CALL.answer]

    def service(self, details: Any) -> Any:
        if details.method != f"/{_QUESTION.package}.{_CALL.method}":
            return None
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self._pods_answer())

    def _pods_answer(self) -> bytes:
        pods = [_pod(namespace, name, gpus) for namespace, name, gpus in self._held()]
        raw: bytes = ParseDict({"pod_resources": pods}, self._answer()).SerializeToString()
        return raw


def _pod(namespace: str, name: str, gpus: int | Sequence[str]) -> dict[str, Any]:
    ids = [f"GPU-{number}" for number in range(gpus)] if isinstance(gpus, int) else list(gpus)
    devices = {"resource_name": _GPU, "device_ids": ids}
    return {"namespace": namespace, "name": name, "containers": [{"name": "main", "devices": [devices]}]}
