"""API version in which DRA devices are read: the newest served version, or none if none is served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import Forbidden
from healthcheck.node.devices import AllocatedDevices, NodeDevices
from sim.loopback import LoopbackAnswers, LoopbackServer

JSON = {"Content-Type": "application/json"}
DEVICE = {"attributes": {"type": {"string": "gpu"}}}
HELD = {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0"}
CLAIM = {"metadata": {"namespace": "team", "name": "c"}, "status": {"allocation": {"devices": {"results": [HELD]}}}}


class Answers(LoopbackAnswers):
    """Answers of an API server with these objects by path. Any other path gets the error status."""

    def __init__(self, objects: Mapping[str, Any], status: int, *arguments: Any) -> None:
        self._objects = objects
        self._status = status
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server looks for
        found = self._objects.get(self.path.partition("?")[0])
        self.answer(self._status if found is None else 200, json.dumps(found or {"message": "no"}).encode(), JSON)


@contextmanager
def serving(objects: Mapping[str, Any], status: int = 404) -> Iterator[Cluster]:
    with LoopbackServer(partial(Answers, objects, status)) as server:
        yield Cluster(lambda: ApiClient(Configuration(host=server.endpoint)))


def dra(version: str, device: Mapping[str, Any], *, has_template: bool) -> dict[str, Any]:
    group = f"/apis/resource.k8s.io/{version}"
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", **device}],
    }
    slices = [{"metadata": {"name": "s"}, "spec": spec}]
    template = f"{group}/namespaces/sweeps/resourceclaimtemplates/gpu-healthcheck-sweep"
    return {
        f"{group}/resourceslices": {"items": slices},
        f"{group}/resourceclaims": {"items": [CLAIM]},
        **({template: {"metadata": {"name": "gpu-healthcheck-sweep"}}} if has_template else {}),
    }


@pytest.mark.parametrize(
    ("version", "device"),
    [("v1", DEVICE), ("v1beta2", DEVICE), ("v1beta1", {"basic": DEVICE})],
    ids=["v1", "v1beta2", "v1beta1"],
)
@pytest.mark.parametrize("has_template", [True, False])
def test_they_are_read_in_the_version_that_is_served(
    version: str, device: Mapping[str, Any], has_template: bool
) -> None:
    with serving(dra(version, device, has_template=has_template)) as cluster:
        given_out = cluster.dra.read_given_out("sweeps")
        holders = given_out.claimed_by(cluster.dra.list_gpu_claims())

    assert given_out.has_template is has_template
    assert given_out.of("n") == NodeDevices(
        1, "" if has_template else "allocates its GPUs by DRA, for which a sweep needs kubernetes/overlays/dra"
    )
    assert holders == {"n": "the claim team/c holds 1 gpu.nvidia.com"}


def test_where_no_version_is_served_there_are_none() -> None:
    with serving({}) as cluster:
        assert cluster.dra.read_given_out("sweeps") == AllocatedDevices()
        assert list(cluster.dra.list_gpu_claims()) == []


def test_without_the_right_to_see_them_nobody_knows() -> None:
    with serving({}, 403) as cluster, pytest.raises(Forbidden):
        cluster.dra.read_given_out("sweeps")
