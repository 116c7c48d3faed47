"""Stand-in of EC2's instance metadata service, only version 2: requests without a token get no answer."""

import functools
import secrets
import threading
from http import HTTPStatus
from typing import Any, Self

from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer

TOKEN_PATH = "/latest/api/token"
LONGEST_TOKEN_SECONDS = 21600


class SimulatedImds:
    """Metadata service. `delay_seconds` delays every answer; closing sends the delayed ones."""

    def __init__(self, instance_type: str, *, delay_seconds: float = 0.0) -> None:
        self.values = {"/latest/meta-data/instance-type": instance_type}
        self.delay_seconds = delay_seconds
        self.tokens: set[str] = set()
        self.closing = threading.Event()
        self._server = LoopbackServer(functools.partial(_ImdsAnswers, self))

    @property
    def endpoint(self) -> str:
        return self._server.endpoint

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.close()


class _ImdsAnswers(LoopbackAnswers):
    def __init__(self, imds: SimulatedImds, *arguments: Any) -> None:
        self._imds = imds
        super().__init__(*arguments)

    def do_PUT(self) -> None:  # noqa: N802 - the name that http.server calls
        self.read_body()
        self._imds.closing.wait(self._imds.delay_seconds)
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != TOKEN_PATH:
            self.answer(HTTPStatus.NOT_FOUND, b"")
        elif not seconds.isdecimal() or not 1 <= int(seconds) <= LONGEST_TOKEN_SECONDS:
            self.answer(HTTPStatus.BAD_REQUEST, b"")
        else:
            token = secrets.token_urlsafe(40)
            self._imds.tokens.add(token)
            self.answer(HTTPStatus.OK, token.encode(), {"X-aws-ec2-metadata-token-ttl-seconds": seconds})

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        self._imds.closing.wait(self._imds.delay_seconds)
        if self.headers.get("X-aws-ec2-metadata-token") not in self._imds.tokens:
            self.answer(HTTPStatus.UNAUTHORIZED, b"")
        elif value := self._imds.values.get(self.path):
            self.answer(HTTPStatus.OK, value.encode(), {"Content-Type": "text/plain"})
        else:
            self.answer(HTTPStatus.NOT_FOUND, b"")
