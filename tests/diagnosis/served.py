"""A state that was built, as an API server serves it: by path, namespace and field selector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpu_healthcheck.diagnosis.snapshot.queues import native_kind
from gpu_healthcheck.diagnosis.sources.kinds import KINDS
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden

_KINDS = {(one.group.partition("/")[2].partition("/")[0], one.resource): one.kind for one in KINDS}
Listing = tuple[str, Mapping[str, str]]


class Served:
    """Answers each listing; those of the kinds that are missing are forbidden. `asked`: each path and query."""

    def __init__(self, objects: Sequence[Mapping[str, Any]], missing: Sequence[str] = ()) -> None:
        self._objects = objects
        self._missing = missing
        self.asked: list[Listing] = []

    def objects(self, path: str, resource: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        self.asked.append((path, query))
        kind = _KINDS[path.split("/")[2], resource]
        if kind in self._missing:
            raise Forbidden("no", "list", resource)
        namespace = path.partition("/namespaces/")[2].partition("/")[0]
        wanted = [term.partition("=") for term in query.get("fieldSelector", "").split(",") if term]
        for entry in self._objects:
            in_place = not namespace or entry["metadata"].get("namespace") == namespace
            of_kind = native_kind(entry["kind"], entry) == kind
            if of_kind and in_place and all(_field(entry, name) == value for name, _, value in wanted):
                yield entry

    def listed_all(self, kind: str) -> bool:
        """Whether a request listed all objects of a kind in all namespaces."""
        paths = {api_kind.path() for api_kind in KINDS if api_kind.kind == kind}
        return any(path in paths and not query for path, query in self.asked)


def log_of(logs: Mapping[tuple[str, str], str]) -> Callable[[str, str, str, bool], str]:
    """Return a reader of logs by namespace, pod and container."""
    return lambda namespace, pod, container, _: logs.get((f"pod/{namespace}/{pod}", container), "")


def _field(entry: Mapping[str, Any], path: str) -> str:
    value: Any = entry
    for key in path.split("."):
        value = value.get(key, {}) if isinstance(value, Mapping) else {}
    return value if isinstance(value, str) else ""
