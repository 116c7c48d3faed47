"""Decoders for the longest listings of the API, Nodes and pods, limited to the fields that are used.

The parser skips the rest, which is most of a page, and creates no objects for it. This takes a quarter of the time of a
full parse. A page of another shape counts as an unreadable answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from threading import Lock
from typing import Any, TypedDict

from msgspec import convert
from msgspec.json import Decoder


class _Manager(TypedDict, total=False):
    manager: str


class _Metadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    creationTimestamp: str
    labels: dict[str, str]
    annotations: dict[str, str]
    managedFields: list[_Manager] | None


class _NodeSpec(TypedDict, total=False):
    taints: list[dict[str, str | None]]
    unschedulable: bool
    providerID: str


class _NodeInfo(TypedDict, total=False):
    systemUUID: str


class _NodeStatus(TypedDict, total=False):
    nodeInfo: _NodeInfo
    allocatable: dict[str, str]
    conditions: list[dict[str, str | None]]


class _Node(TypedDict, total=False):
    metadata: _Metadata
    spec: _NodeSpec
    status: _NodeStatus


class _Resources(TypedDict, total=False):
    limits: dict[str, str]
    requests: dict[str, str]


class _Container(TypedDict, total=False):
    resources: _Resources
    restartPolicy: str


class _PodName(TypedDict, total=False):
    name: str
    namespace: str


class _PodSpec(TypedDict, total=False):
    nodeName: str
    containers: list[_Container]
    initContainers: list[_Container]
    resourceClaims: list[dict[str, Any]]


class _Pod(TypedDict, total=False):
    metadata: _PodName
    spec: _PodSpec


_Continued = TypedDict("_Continued", {"continue": str, "resourceVersion": str}, total=False)


class _NodePage(TypedDict, total=False):
    metadata: _Continued
    items: list[_Node] | None


class _PodPage(TypedDict, total=False):
    metadata: _Continued
    items: list[_Pod] | None


_BUILDING = Lock()
"""msgspec prepares a TypedDict on first use. If two threads do so at the same time, the process crashes."""


@cache
def node_page() -> Decoder[Any]:
    """Return the decoder for a page of Nodes, with the names of field managers.

    Built on first use: an agent lists no Nodes.
    """
    with _BUILDING:
        return Decoder(_NodePage)


def check_node(node: Mapping[str, Any]) -> None:
    """Raise ValueError if a used part of the Node does not have the form that the API defines."""
    with _BUILDING:
        convert(node, _Node)


@cache
def pod_page() -> Decoder[Any]:
    """Return the decoder for a page of pods: their nodes and their resource requests."""
    with _BUILDING:
        return Decoder(_PodPage)
