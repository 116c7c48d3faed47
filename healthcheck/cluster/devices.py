"""Dynamic resource allocation (DRA): which GPUs its driver gives out, and which claims hold some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from healthcheck.cluster.connection import Connection
from healthcheck.cluster.errors import NotFound
from healthcheck.node.device_pools import given_out, read_slice
from healthcheck.node.devices import CLAIM_TEMPLATE, DRA_VERSIONS, GivenOut, GpuClaim, gpu_claim

_GROUP = "/apis/resource.k8s.io"
_SLICES = "resourceslices"


class Devices(Connection):
    """Where the API serves none of these kinds, there are none."""

    def read_given_out(self, namespace: str) -> GivenOut:
        """What the driver gives out, and whether a sweep's pod in that namespace could claim it."""
        found = given_out(one for one in self._each(_SLICES, self._served(_SLICES), read_slice) if one is not None)
        is_used = found.devices or found.unread
        return replace(found, has_template=self._has_claim_template(namespace)) if is_used else found

    def list_gpu_claims(self) -> Iterator[GpuClaim]:
        """Of all namespaces."""
        for claim in self._each("resourceclaims", self._served("resourceclaims"), gpu_claim):
            if claim is not None:
                yield claim

    def _has_claim_template(self, namespace: str) -> bool:
        for version in DRA_VERSIONS:
            path = f"{_GROUP}/{version}/namespaces/{quote(namespace)}/resourceclaimtemplates/{CLAIM_TEMPLATE}"
            try:
                self._json("get", path, "resourceclaimtemplates")
            except NotFound:
                continue
            return True
        return False

    def _served(self, resource: str) -> Iterator[Mapping[str, Any]]:
        """All objects of a kind, in the newest version that is served."""
        for version in DRA_VERSIONS:
            try:
                yield from self._pages(f"{_GROUP}/{version}/{resource}", resource, {})
            except NotFound:
                continue
            return
