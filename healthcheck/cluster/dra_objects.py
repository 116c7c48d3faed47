"""Dynamic resource allocation (DRA): GPUs that NVIDIA's driver publishes, and claims that hold GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from healthcheck.cluster.connection import Requests
from healthcheck.cluster.errors import NotFound
from healthcheck.node.device_pools import given_out, read_slice
from healthcheck.node.devices import CLAIM_TEMPLATE, AllocatedDevices, GpuClaim, gpu_claim

_API = "/apis/resource.k8s.io/v1"
"""Kubernetes 1.34 and newer serve it."""
_SLICES = "resourceslices"


class DraObjects(Requests):
    """Reads the objects of dynamic resource allocation. A kind that is not served counts as empty."""

    def read_given_out(self, namespace: str) -> AllocatedDevices:
        """Return the devices that the driver publishes.

        The result also shows whether a sweep's pod in the namespace could claim them.
        """
        found = given_out(
            device_slice
            for device_slice in self._each(_SLICES, self._served(_SLICES), read_slice)
            if device_slice is not None
        )
        is_used = found.devices or found.unread
        return replace(found, has_template=self._has_claim_template(namespace)) if is_used else found

    def list_gpu_claims(self) -> Iterator[GpuClaim]:
        """Yield the GPU claims of all namespaces."""
        for claim in self._each("resourceclaims", self._served("resourceclaims"), gpu_claim):
            if claim is not None:
                yield claim

    def _has_claim_template(self, namespace: str) -> bool:
        path = f"{_API}/namespaces/{quote(namespace)}/resourceclaimtemplates/{CLAIM_TEMPLATE}"
        try:
            self._json("get", path, "resourceclaimtemplates")
        except NotFound:
            return False
        return True

    def _served(self, resource: str) -> Iterator[Mapping[str, Any]]:
        with suppress(NotFound):
            yield from self._pages(f"{_API}/{resource}", resource, {})
