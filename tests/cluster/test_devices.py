"""DRA devices are read from `resource.k8s.io/v1`, and are none where it is not served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden
from gpu_healthcheck.healthcheck.node.devices import AllocatedDevices, NodeDevices
from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer

JSON = {"Content-Type": "application/json"}
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


def dra(*, has_template: bool) -> dict[str, Any]:
    group = "/apis/resource.k8s.io/v1"
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}],
    }
    slices = [{"metadata": {"name": "s"}, "spec": spec}]
    template = f"{group}/namespaces/sweeps/resourceclaimtemplates/gpu-healthcheck-sweep"
    return {
        f"{group}/resourceslices": {"items": slices},
        f"{group}/resourceclaims": {"items": [CLAIM]},
        **({template: {"metadata": {"name": "gpu-healthcheck-sweep"}}} if has_template else {}),
    }


@pytest.mark.parametrize("has_template", [True, False])
def test_devices_and_claims_are_read_with_their_template(has_template: bool) -> None:
    with serving(dra(has_template=has_template)) as cluster:
        given_out = cluster.dra.read_given_out("sweeps")
        holders = given_out.claimed_by(cluster.dra.list_gpu_claims())

    assert given_out.has_template is has_template
    assert given_out.of("n") == NodeDevices(
        1, "" if has_template else "allocates its GPUs by DRA, for which a sweep needs kubernetes/overlays/dra"
    )
    assert holders == {"n": "the claim team/c holds 1 gpu.nvidia.com"}


def test_devices_are_none_where_v1_is_not_served() -> None:
    with serving({}) as cluster:
        assert cluster.dra.read_given_out("sweeps") == AllocatedDevices()
        assert list(cluster.dra.list_gpu_claims()) == []


def test_devices_without_permission_are_an_error() -> None:
    with serving({}, 403) as cluster, pytest.raises(Forbidden):
        cluster.dra.read_given_out("sweeps")
