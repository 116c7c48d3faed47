"""A Prometheus on 127.0.0.1 that answers instant queries as a test sets them, or malformed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer

Series = dict[str, Any]
JSON = {"Content-Type": "application/json"}


def series(value: float | str, /, **labels: str) -> Series:
    """One of a vector, as Prometheus writes it."""
    return {"metric": labels, "value": [1_763_812_800.123, str(value)]}


class PrometheusStandIn:
    """`vectors`: answers by a part of the query, the first match; other queries get an empty vector.

    `instead` replaces every answer.
    """

    def __init__(
        self,
        vectors: Mapping[str, Iterable[Series]] | None = None,
        instead: Callable[[_Answers], None] | None = None,
    ) -> None:
        self.vectors = {words: list(some) for words, some in (vectors or {}).items()}
        self.instead = instead
        self.asked: list[str] = []
        self.closing = threading.Event()
        self._server = LoopbackServer(partial(_Answers, self))

    @property
    def url(self) -> str:
        return self._server.endpoint

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.close()


class _Answers(LoopbackAnswers):
    def __init__(self, world: PrometheusStandIn, *arguments: Any) -> None:
        self.world = world
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server looks for
        url = urlsplit(self.path)
        query = parse_qs(url.query).get("query", [""])[0]
        self.world.asked.append(query)
        if self.world.instead is not None:
            self.world.instead(self)
        elif url.path.endswith("/api/v1/query"):
            found = next((some for words, some in self.world.vectors.items() if words in query), [])
            fields = {"status": "success", "data": {"resultType": "vector", "result": found}}
            self.answer(200, json.dumps(fields).encode(), JSON)
        else:
            self.answer(404, b"404 page not found\n", {"Content-Type": "text/plain"})
