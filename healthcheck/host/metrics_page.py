"""Page /metrics of a program, which untrusted clients can request."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gpu_healthcheck.healthcheck.host.http_server import Page, Request

_MEDIA_TYPE = "application/openmetrics-text"
_OPENMETRICS = f"{_MEDIA_TYPE}; version=1.0.0"
_REST = 9
"""Rest after the encoding of a page, as a multiple of its duration."""


class Metric(Struct, frozen=True):
    """One metric of this project, as it appears in /metrics."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics_page(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Page]]:
    """Return the page of these metrics, in Prometheus' text format or as OpenMetrics."""
    forms = {form: MetricsText(registry, form) for form in ("", _OPENMETRICS)}

    async def page(request: Request) -> Page:
        # A client can ask for any version of a format. All parsers read the ones used here.
        return await forms[_OPENMETRICS if _MEDIA_TYPE in request.accept else ""].page()

    return page


class MetricsText:
    """The metrics in one format. One encoding answers all waiting requests, and a rest follows it.

    Endless requests use a tenth of a core.
    """

    def __init__(self, registry: CollectorRegistry, accept: str) -> None:
        self._registry = registry
        self._encode, self._content_type = choose_encoder(accept)
        self._body = b""
        self._encoded_at = -math.inf
        self._rested_at = 0.0

    async def page(self) -> Page:
        asked_at = time.monotonic()
        while self._encoded_at < asked_at:
            now = time.monotonic()
            if now >= self._rested_at:
                self._body = self._encode(self._registry)
                self._encoded_at = now
                self._rested_at = now + (1 + _REST) * (time.monotonic() - now)
            else:
                await asyncio.sleep(self._rested_at - now)
        return Page(HTTPStatus.OK, self._content_type, self._body)
