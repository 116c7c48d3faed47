"""What is asked of a cluster where a listing of all is forbidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diagnosis.collect import Collector
from healthcheck.cluster.errors import Forbidden


def test_in_one_namespace_alone_config_maps_are_asked_for_by_our_names_too() -> None:
    asked: list[Mapping[str, str]] = []

    def objects(path: str, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        if "/namespaces/team/" not in path:
            raise Forbidden("no", "list", resource)
        if resource == "configmaps":
            asked.append(query)
        yield from ()

    Collector(objects).collect(namespace="team")
    assert asked
    assert all(one["fieldSelector"].startswith("metadata.name=") for one in asked)
