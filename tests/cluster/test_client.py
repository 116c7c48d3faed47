"""Errors of the client for the API server's answers: callers use the kind of failure, never its number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.cluster import errors
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Unavailable
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.sim.api_stand_in import ApiStandIn

NODE = "gpu-node-1"
KINDS = {
    "Unavailable": (410, 429, 500, 502, 503, 504),
    "Unauthorized": (401,),
    "Forbidden": (403,),
    "NotFound": (404,),
    "Conflict": (409,),
    "Refused": (400, 405, 413, 422),
}


@pytest.fixture
def api() -> Iterator[ApiStandIn]:
    with ApiStandIn(NODE) as api:
        yield api


@pytest.fixture
def cluster(api: ApiStandIn, tmp_path: Path) -> Cluster:
    kubeconfig = str(api.kubeconfig(tmp_path / "kubeconfig"))
    return Cluster(lambda: connect(Access(kubeconfig)))


@pytest.mark.parametrize(
    ("kind", "status"), [(kind, number) for kind, statuses in KINDS.items() for number in statuses]
)
def test_each_answer_is_of_one_kind_and_the_next_question_is_answered(
    api: ApiStandIn, cluster: Cluster, kind: str, status: int
) -> None:
    api.fail_with(status)
    with pytest.raises(ClusterError, match=rf": {status}: ") as exception_info:
        cluster.nodes.patch(NODE, {"metadata": {"labels": {"a": "b"}}})
    assert type(exception_info.value) is getattr(errors, kind)

    api.recover()
    assert cluster.nodes.read(NODE).name == NODE


@pytest.mark.parametrize("status", [429, 500, 503])
def test_the_retry_delay_of_the_server_is_reported(api: ApiStandIn, cluster: Cluster, status: int) -> None:
    api.fail_with(status, 7)
    with pytest.raises(Unavailable) as exception_info:
        cluster.nodes.read(NODE)
    assert exception_info.value.retry_after_seconds == 7


def test_a_server_that_takes_no_connection_is_away(api: ApiStandIn, cluster: Cluster) -> None:
    api.refuse()
    with pytest.raises(Unavailable):
        cluster.nodes.read(NODE)

    api.accept()
    assert cluster.nodes.read(NODE).name == NODE
