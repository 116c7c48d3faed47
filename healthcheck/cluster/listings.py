"""Listings for `diagnose`: objects of any kind, and the end of a container's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from healthcheck.cluster.pods import Pods

_TAIL_LINES = 200


class Listings(Pods):
    """A connection that only reads; a pod that it tries is never stored."""

    def objects(self, path: str, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the objects below an API path, in pages, as plain API objects."""
        return self._pages(path, resource, query)

    def try_pod(self, namespace: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a pod as a dry run and return the pod as admission would change it.

        Raises Refused or Forbidden if the pod would not be created.
        """
        path = f"/api/v1/namespaces/{quote(namespace)}/pods"
        return self._json("create", path, "pods", pod, query={"dryRun": "All"})

    def read_log(self, namespace: str, pod: str, container: str, previous: bool) -> str:
        """Return the last lines of a container's log, or of its previous run if `previous` is set."""
        query = {"container": container, "previous": "true" if previous else "", "tailLines": str(_TAIL_LINES)}
        return self._log(namespace, pod, query)
