"""The metadata stand-in answers as EC2's version 2 does."""

import urllib.error
import urllib.request

import pytest

from sim.imds import SimulatedImds


def _ask(imds: SimulatedImds, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(imds.endpoint + path, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def _token(imds: SimulatedImds) -> str:
    seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    return _ask(imds, "/latest/api/token", seconds, "PUT")[1]


def test_a_token_opens_the_instance_type() -> None:
    with SimulatedImds("p5.48xlarge") as imds:
        headers = {"X-aws-ec2-metadata-token": _token(imds)}

        assert _ask(imds, "/latest/meta-data/instance-type", headers) == (200, "p5.48xlarge")
        assert _ask(imds, "/latest/meta-data/spot", headers) == (404, "")


@pytest.mark.parametrize("headers", [{}, {"X-aws-ec2-metadata-token": "guessed"}])
def test_without_a_token_of_ours_there_is_no_answer(headers: dict[str, str]) -> None:
    with SimulatedImds("p5.48xlarge") as imds:
        assert _ask(imds, "/latest/meta-data/instance-type", headers) == (401, "")
