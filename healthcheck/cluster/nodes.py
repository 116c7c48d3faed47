"""Client that reads, watches and patches Nodes, and writes conditions on them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import tenacity

from gpu_healthcheck.healthcheck.cluster.connection import ODD, Requests, created, unreadable
from gpu_healthcheck.healthcheck.cluster.errors import Conflict, Unreadable
from gpu_healthcheck.healthcheck.cluster.pages import check_node, node_page
from gpu_healthcheck.healthcheck.node.gpu_resources import has_device_plugin, offered, whole_quantity
from gpu_healthcheck.healthcheck.node.state import (
    EFA_RESOURCE,
    REPAIR_CONDITIONS,
    STATUS,
    NodeState,
    PatchFor,
    managers_of_condition,
    managers_of_cordon,
    managers_of_label,
    managers_of_mark,
    removed_condition,
)
from gpu_healthcheck.healthcheck.text.printable import are_printable, printable

_FASTER_SECONDS, _MOST_CONFLICTS = 0.1, 16
_WATCH_SECONDS = (3300, 3900)
_NODES = "/api/v1/nodes"


class Nodes(Requests, unguarded=["update"]):
    """Reads, watches and writes Nodes."""

    def read(self, name: str) -> NodeState:
        return _read_node(self._json("get", f"{_NODES}/{quote(name)}", "nodes"))

    def patch(self, name: str, patch: Mapping[str, Any]) -> NodeState:
        """Apply a merge patch to a Node.

        If the patch has `metadata.resourceVersion`, a concurrent change raises Conflict.
        """
        return _read_node(self._json("patch", f"{_NODES}/{quote(name)}", "nodes", patch, merge="merge"))

    def update(self, name: str, change: PatchFor) -> NodeState | None:
        """Compute the patch from the current Node and write it; retry after a concurrent change.

        Returns None if no patch was needed. Raises Conflict if other writers were faster each time.
        """

        def once() -> NodeState | None:
            patch = change(self.read(name))
            return None if patch is None else self.patch(name, patch)

        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Conflict),
            wait=tenacity.wait_random(0, _FASTER_SECONDS),
            stop=tenacity.stop_after_attempt(_MOST_CONFLICTS),
            reraise=True,
        )
        return again(once)

    def patch_conditions(self, name: str, conditions: Sequence[Mapping[str, Any]]) -> NodeState:
        """Write only these conditions: the server merges conditions by their type."""
        body = {"status": {"conditions": list(conditions)}}
        path = f"{_NODES}/{quote(name)}/status"
        return _read_node(self._json("patch", path, "nodes/status", body, merge="strategic-merge"))

    def remove_conditions(self, name: str, kinds: Sequence[str]) -> NodeState:
        """Remove only these conditions, whatever their content. A missing condition changes nothing."""
        return self.patch_conditions(name, [removed_condition(kind) for kind in kinds])

    def watch(self, name: str, seconds: int = 0) -> Iterator[NodeState | None]:
        """Yield the Node now and at each change; None when it is deleted. Ends with the watch, or after a deletion."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds or random.randint(*_WATCH_SECONDS)),  # noqa: S311 - spreads reconnects
        }
        for kind, node in self._watch(_NODES, "nodes", query):
            yield _read_node(node) if kind != "DELETED" else None

    def watch_selected(self, label_selector: str) -> Iterator[tuple[str, NodeState | None]]:
        """Yield each Node that matches the selector now, in pages, and then at each change, with its name.

        None: it was deleted, or does not match any more. Ends with the watch.
        """
        version = ""
        for page in self._listing(_NODES, "nodes", {"labelSelector": label_selector}, node_page().decode):
            version = version or str(page["metadata"]["resourceVersion"])
            for state in self._each("nodes", page.get("items") or (), node_state):
                yield state.name, state
        query = {
            "watch": "true",
            "labelSelector": label_selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311 - spreads reconnects
        }
        for kind, node in self._watch(_NODES, "nodes", query):
            yield str(node["metadata"]["name"]), _read_node(node) if kind != "DELETED" else None

    def select(self, label_selector: str = "") -> Iterator[NodeState]:
        """Yield the nodes that match the selector, read in pages, without the managers of their labels."""
        nodes = self._pages(_NODES, "nodes", {"labelSelector": label_selector}, node_page().decode)
        yield from self._each("nodes", nodes, node_state)

    def names(self, label_selector: str) -> list[str]:
        """Return the names of the Nodes that match the selector, some hundreds at most."""
        return self._names(_NODES, "nodes", {"labelSelector": label_selector})

    def names_of_namespaces(self) -> list[str]:
        """Return the names of namespaces, some hundreds at most."""
        return self._names("/api/v1/namespaces", "namespaces", {})


def _read_node(node: Mapping[str, Any]) -> NodeState:
    """Convert an API Node. Raises Unreadable."""
    try:
        check_node(node)
        return node_state(node)
    except ODD as error:
        raise Unreadable(unreadable("nodes", node, error)) from error


def node_state(node: Mapping[str, Any]) -> NodeState:
    """Convert an API Node to the fields that the plan needs."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    conditions = _shown(status.get("conditions") or [])
    repairs = [condition["type"] for condition in conditions if condition.get("type") in REPAIR_CONDITIONS]
    return NodeState(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        machine=(status.get("nodeInfo") or {}).get("systemUUID", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        taints=spec.get("taints") or (),
        conditions=conditions,
        status_managers=managers_of_label(metadata.get("managedFields"), STATUS),
        efa_allocatable=whole_quantity((status.get("allocatable") or {}).get(EFA_RESOURCE)),
        gpus=offered(status.get("allocatable")),
        gpu_capacity=offered(status.get("capacity")),
        has_device_plugin=has_device_plugin(status),
        cordoned=spec.get("unschedulable") is True,
        cordon_managers=managers_of_cordon(metadata.get("managedFields")),
        mark_managers=managers_of_mark(metadata.get("managedFields")),
        repair_managers={kind: managers_of_condition(metadata.get("managedFields"), kind) for kind in repairs},
        provider_id=str(spec.get("providerID") or ""),
        boot_id=str((status.get("nodeInfo") or {}).get("bootID") or ""),
        created=created(metadata),
        field_managers=len(metadata.get("managedFields") or ()),
    )


def _shown(conditions: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if are_printable([value for condition in conditions for value in condition.values() if isinstance(value, str)]):
        return conditions
    return [
        {key: printable(value) if isinstance(value, str) else value for key, value in condition.items()}
        for condition in conditions
    ]
