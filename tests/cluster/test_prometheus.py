"""Prometheus is queried once, in bounded time. Any response becomes a result or a clear error message."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.cluster.prometheus import AddressError, PrometheusError, checked, instant
from tests.prometheus import JSON, PrometheusStandIn, series

UP = [series(87, gpu="0"), series(0, gpu="1")]


def test_a_vector_comes_back_as_it_is() -> None:
    with PrometheusStandIn({"up": UP}) as world:
        assert instant(world.url, 'up{job="é"}') == UP
        assert world.asked == ['up{job="é"}']
        assert instant(world.url, "down") == []


def test_a_prefix_of_the_path_is_kept() -> None:
    with PrometheusStandIn({"up": UP}) as world:
        assert instant(f"{world.url}/prometheus", "up") == UP


def error(status: int, **fields: Any) -> Any:
    body = json.dumps({"status": "error", **fields}).encode()
    return lambda answers: answers.answer(status, body, JSON)


def plain(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    return lambda answers: answers.answer(status, body, headers)


def too_long(answers: Any) -> None:
    answers.send_response(200)
    answers.end_headers()
    for _ in range(40):
        answers.wfile.write(b" " * (1 << 20))


def cut(answers: Any) -> None:
    answers.send_response(200)
    answers.send_header("Content-Length", "1000")
    answers.end_headers()
    answers.wfile.write(b'{"status":')
    answers.close_connection = True


VECTOR = b'{"status":"success","data":{"resultType":"%s","result":%s}}'
ODD = {
    "an error of its own": (error(400, errorType="bad_data", error="parse error"), "it answers 400: parse error"),
    "too busy": (error(503, errorType="timeout", error="query timed out"), "it answers 503: query timed out"),
    "an error that says nothing": (error(500), "it answers 500: no reason given"),
    "an error with a mark of its own": (
        error(400, error="\x1b[31mred\n" * 999),
        "it answers 400: \\x1b[31mred\\n",
    ),
    "no rights": (plain(b"Unauthorized", 401), "it answers 401 without a JSON object: is it a Prometheus?"),
    "another page": (plain(b"<html>"), "it answers 200 without a JSON object: is it a Prometheus?"),
    "nothing": (plain(b""), "it answers 200 without a JSON object"),
    "no text": (plain(b"\xff\xfe\x00"), "it answers 200 without a JSON object"),
    "a list": (plain(b"[]"), "it answers 200 without a JSON object"),
    "too deep": (plain(b"[" * 200_000), "it answers 200 without a JSON object"),
    "too long": (too_long, "its answer is longer than 16 MiB"),
    "a matrix": (plain(VECTOR % (b"matrix", b"[]")), "its answer has no vector"),
    "a vector that is none": (plain(VECTOR % (b"vector", b"{}")), "its answer has no vector"),
    "data that are none": (plain(b'{"status":"success","data":[]}'), "its answer has no vector"),
    "packed": (plain(b"\x1f\x8b", 200, {"Content-Encoding": "gzip"}), "it answers 200 without a JSON object"),
    "elsewhere": (
        plain(b"", 302, {"Location": "http://127.0.0.1:1/"}),
        "it redirects to http://127.0.0.1:1/: use that address",
    ),
    "to nowhere": (plain(b"", 307), "it redirects to an empty address"),
    "cut off": (cut, "it answers 200 without a JSON object"),
}


@pytest.mark.parametrize(("instead", "message"), ODD.values(), ids=ODD)
def test_any_other_answer_is_reported_in_one_printable_sentence(instead: Any, message: str) -> None:
    with PrometheusStandIn(instead=instead) as world, pytest.raises(PrometheusError) as exception_info:
        instant(world.url, "up")
    assert str(exception_info.value).startswith(world.url)
    assert message in str(exception_info.value)
    assert str(exception_info.value).isprintable()
    assert len(str(exception_info.value)) < 600


def never(answers: Any) -> None:
    answers.world.closing.wait()


def dripping(answers: Any) -> None:
    answers.send_response(200)
    answers.end_headers()
    while not answers.world.closing.wait(0.01):
        answers.wfile.write(b" ")
        answers.wfile.flush()


@pytest.mark.parametrize("instead", [never, dripping])
def test_endless_answer_is_given_up(instead: Any) -> None:
    with PrometheusStandIn(instead=instead) as world:
        began = time.monotonic()
        with pytest.raises(PrometheusError, match=r"has not answered within 0\.3 s"):
            instant(world.url, "up", seconds=0.3)
        assert time.monotonic() - began >= 0.3


def test_nobody_there() -> None:
    with PrometheusStandIn() as world:
        url = world.url
    with pytest.raises(PrometheusError, match="does not answer as a Prometheus: "):
        instant(url, "up")


def test_address_is_accepted_with_or_without_a_trailing_slash() -> None:
    assert checked("http://prometheus.monitoring:9090/") == "http://prometheus.monitoring:9090"
    assert checked("HTTPS://Host/thanos/") == "https://host/thanos"
    assert checked("http://[::1]:9090") == "http://[::1]:9090"


@pytest.mark.parametrize(
    "url",
    [
        *("prometheus:9090", "localhost", "", "file:///etc/passwd", "ftp://host/", "http://", "//host"),
        *("http://user:secret@host", "http://host/?query=up", "http://host/#there", "http://host:port", "http://[::1"),
    ],
)
def test_invalid_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(AddressError) as exception_info:
        checked(url)
    assert "secret" not in str(exception_info.value)
