"""Objects of any kind, and the end of a container's log, as a diagnosis wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from healthcheck.cluster.pods import Pods

_TAIL_LINES = 200


class Listings(Pods):
    """A connection that only reads."""

    def objects(self, path: str, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """What stands below a path, in pages, as plain API objects."""
        yield from self._pages(path, resource, query, from_json)

    def read_log(self, namespace: str, pod: str, container: str, previous: bool) -> str:
        """The last lines of a container, of its run before where that is wanted."""
        query = {"container": container, "previous": "true" if previous else "", "tailLines": str(_TAIL_LINES)}
        return self._log(namespace, pod, query)
