"""Sockets of a simulated node's kubelet that name its pods and their devices: the Pods API and PodResourcesLister.

`python -m sim.local_pods ROOT UID=GPU...` serves them in a process of its own, which a test can stop.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from healthcheck.host.grpc_child import QUESTIONS, message_classes
from healthcheck.probes.pod_resources import SOCKETS
from healthcheck.probes.pods_by_uid import PODS_API


@contextmanager
def serving_local_pods(root: Path, gpus: Mapping[str, str]) -> Iterator[None]:
    """Serve one pod with one GPU for each pair of pod UID and GPU UUID. The pods have no tolerations.

    Each pod has the folder that a kubelet creates before its first container.
    """
    for uid in gpus:
        (root / "var/lib/kubelet/pods" / uid).mkdir(parents=True, exist_ok=True)
    pods = [{"metadata": {"uid": uid, "namespace": "team", "name": uid}} for uid in gpus]
    held = [
        {
            "namespace": "team",
            "name": uid,
            "containers": [{"name": "main", "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": [gpu]}]}],
        }
        for uid, gpu in gpus.items()
    ]
    server = grpc.server(
        ThreadPoolExecutor(2), (_Answer("pods", {"pods": pods}), _Answer("pod-resources", {"pod_resources": held}))
    )
    for path in (PODS_API, SOCKETS[0]):
        socket = root / path.lstrip("/")
        socket.parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


class _Answer(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, question: str, answer: Mapping[str, Any]) -> None:
        asked = QUESTIONS[question]
        (call,) = asked.calls
        self._method = f"/{asked.package}.{call.method}"
        self._raw: bytes = ParseDict(answer, message_classes(asked)[call.answer]()).SerializeToString()

    def service(self, details: Any) -> Any:
        if details.method != self._method:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self._raw)


def main() -> None:
    root, *pairs = sys.argv[1:]
    with serving_local_pods(Path(root), dict(pair.split("=", 1) for pair in pairs)):
        print("ready", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
