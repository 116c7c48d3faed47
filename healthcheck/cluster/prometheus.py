"""Client for Prometheus: an instant query with an overall deadline and a size limit for the answer."""

from __future__ import annotations

import json
import queue
import threading
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError

from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT
from gpu_healthcheck.healthcheck.text.printable import printable

_SECONDS = 30.0
_TIMEOUT = urllib3.Timeout(connect=3.0, read=10.0)
"""Timeout of one socket operation. A slow stream of bytes can take longer, and the name lookup has no timeout."""
_LONGEST_ANSWER = 16 << 20
_LONGEST_MESSAGE = 300
_PATH = "/api/v1/query"


class PrometheusError(ClusterError):
    """Prometheus could not be reached, or did not answer as Prometheus does.

    The message names its URL and the reason.
    """


class AddressError(ValueError):
    """Error for an invalid URL. The message gives the reason."""


def checked(url: str) -> str:
    """Return the URL without a trailing slash.

    Raises AddressError if it cannot be the URL of a Prometheus.
    """
    try:
        parts = urllib3.util.parse_url(url)
    except LocationParseError:
        raise AddressError("it is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise AddressError("it must start with http:// or https:// and have a host")
    if parts.auth or parts.query or parts.fragment:
        raise AddressError("a user, a query or a fragment is not allowed")
    return str(parts.url).rstrip("/")


def instant(url: str, query: str, seconds: float = _SECONDS) -> list[Any]:
    """Run an instant query and return the series of its vector, as plain JSON. Raises PrometheusError."""
    answers: queue.SimpleQueue[list[Any] | PrometheusError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_vector(_answer(url, query)))
        except PrometheusError as error:
            answers.put(PrometheusError(f"{url}: {error}"))
        except (HTTPError, OSError, ValueError, RecursionError) as error:
            answers.put(PrometheusError(f"{url} does not answer as a Prometheus: {_said(error)}"))

    threading.Thread(target=ask, name="prometheus", daemon=True).start()
    try:
        entries = answers.get(timeout=seconds)
    except queue.Empty:
        raise PrometheusError(f"{url} has not answered within {seconds:g} s") from None
    if isinstance(entries, PrometheusError):
        raise entries
    return entries


def _answer(url: str, query: str) -> dict[str, Any]:
    with urllib3.PoolManager(retries=False) as pool:
        response = pool.request(
            "GET",
            url + _PATH,
            fields={"query": query, "timeout": f"{_TIMEOUT.read_timeout:g}s"},
            headers={"Accept": "application/json", "User-Agent": COMPONENT},
            redirect=False,
            preload_content=False,
            timeout=_TIMEOUT,
        )
        if 300 <= response.status < 400:
            where = response.headers.get("Location", "")
            raise PrometheusError(
                f"it redirects to {printable(where, _LONGEST_MESSAGE) or 'an empty address'}: use that address"
            )
        body = response.read(_LONGEST_ANSWER + 1, decode_content=False)
        if len(body) > _LONGEST_ANSWER:
            raise PrometheusError(f"its answer is longer than {_LONGEST_ANSWER >> 20} MiB")
        return _read(response.status, body)


def _read(status: int, body: bytes) -> dict[str, Any]:
    """Parse an answer. Prometheus reports the reason of an error in the body."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise PrometheusError(f"it answers {status} without a JSON object: is it a Prometheus?")
    if status != 200 or answer.get("status") != "success":
        why = printable(str(answer.get("error") or "no reason given"), _LONGEST_MESSAGE)
        raise PrometheusError(f"it answers {status}: {why}")
    return answer


def _vector(answer: dict[str, Any]) -> list[Any]:
    data = answer.get("data")
    result = data.get("result") if isinstance(data, dict) and data.get("resultType") == "vector" else None
    if not isinstance(result, list):
        raise PrometheusError("its answer has no vector: is it a Prometheus?")
    return result


def _said(error: Exception) -> str:
    return printable(str(error), _LONGEST_MESSAGE) or type(error).__name__
