"""A real gRPC server on a Unix socket, with the answers of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from gpu_healthcheck.healthcheck.host.grpc_child import QUESTIONS, message_classes

Json = dict[str, Any]


@dataclass
class Server(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`answers` is by method, in bytes; `asked` is which methods were called, with the bytes of the request."""

    answers: Mapping[str, bytes]
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    holds: threading.Event = field(default_factory=threading.Event)
    """Set: it answers. A test that clears it has a server that hangs."""

    def __post_init__(self) -> None:
        self.holds.set()

    def service(self, details: Any) -> Any:
        if details.method not in self.answers:
            return None

        def answer(request: bytes, _: Any) -> bytes:
            self.asked.append((details.method, request))
            self.holds.wait()
            return self.answers[details.method]

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def serving(path: Path, answers: Mapping[str, bytes]) -> Iterator[Server]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = Server(answers)
    options = [("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), (handler,), options=options)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield handler
    finally:
        handler.holds.set()
        server.stop(None).wait()


def answers_to(question: str, *answers: Json) -> dict[str, bytes]:
    """The answers to a question's calls, as they travel."""
    asked = QUESTIONS[question]
    messages = message_classes(asked)
    return {
        f"/{asked.package}.{call.method}": ParseDict(answer, messages[call.answer]()).SerializeToString()
        for call, answer in zip(asked.calls, answers, strict=True)
    }


Serve = Callable[[Mapping[str, bytes]], Server]
