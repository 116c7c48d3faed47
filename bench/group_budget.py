"""Cost of a count of a node group's heartbeat Leases, and of a taint in it, on a real API server (BUDGET_LABEL)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.json import decode

from bench.large_fleet import Writer, heartbeat
from bench.outcome import Outcome, Row
from bench.stage import Stage
from gpu_healthcheck.agent.node.slot_requests import OwnSlot
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import Connection
from gpu_healthcheck.healthcheck.cluster.names import BUDGET_NAMESPACE, NAMESPACE
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.sim.control_plane import ControlPlane

AIM_SECONDS = 10.0
LABEL, LARGE, PER_SMALL, PERCENT = "team", "large", 10, 20
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
_VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "metadata, consistent": (_METADATA, {}),
    "metadata, resourceVersion=0": (_METADATA, {"resourceVersion": "0"}),
    "whole Leases": ("application/json", {}),
    "table without objects": (_TABLE, {"includeObject": "None"}),
}
_NOTE = (
    "group-budget: half of the heartbeats in one group, the others in groups of ten; the API server, etcd and the",
    "              client share this machine; bytes are of the bodies, uncompressed",
)


def measure(stage: Stage) -> Outcome:
    with stage.separate_plane() as plane:
        size = stage.length.heartbeats
        _fill(plane, size)
        return _measure(stage, plane, size)


def _fill(plane: ControlPlane, size: int) -> None:
    """Create the heartbeats, and the slots of all but one of the large group's allowed nodes."""
    now, half = datetime.now(UTC), size // 2
    groups = {
        f"node-{number:05d}": LARGE if number < half else f"small-{number // PER_SMALL}" for number in range(size)
    }
    writer = Writer(plane)
    writer.create(_LEASES.format(NAMESPACE), (_labelled(heartbeat(name, now), group) for name, group in groups.items()))
    held = (
        {
            "metadata": {"name": f"slot-{number}", "labels": {f"{PREFIX}/group": LARGE}},
            "spec": {"holderIdentity": f"node-{number:05d}"},
        }
        for number in range(half * PERCENT // 100 - 1)
    )
    writer.create(_LEASES.format(BUDGET_NAMESPACE), held)


def _labelled(lease: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {**lease, "metadata": {**lease["metadata"], "labels": {f"{PREFIX}/group": group}}}


def _measure(stage: Stage, plane: ControlPlane, size: int) -> Outcome:
    connection = Connection(lambda: plane.api(plane.kubeconfig))
    rows, raw = [], {}
    for what, (accept, query) in _VARIANTS.items():
        for group in (LARGE, f"small-{size // PER_SMALL - 1}"):
            began = time.monotonic()
            sizes = list(_pages(connection, accept, {**query, "labelSelector": f"{PREFIX}/group={group}"}))
            seconds = time.monotonic() - began
            figure = f"{seconds * 1000:.0f} ms, {len(sizes)} requests, {sum(sizes) / 1e6:.3f} MB"
            raw[f"{what}, {group.partition('-')[0]}"] = {"seconds": round(seconds, 3), "bytes": sum(sizes)}
            rows.append(Row(f"count of a {group.partition('-')[0]} group of {size} heartbeats: {what}", "-", figure))
    cluster = Cluster(lambda: plane.api(plane.kubeconfig))
    for what, group in (
        ("last allowed", LARGE),
        ("refused", LARGE),
        ("first of a small group", f"small-{size // 10 - 1}"),
    ):
        node = NodeState(f"new-{what.replace(' ', '-')}", uid="0" * 36, labels={LABEL: group})
        slot = OwnSlot(cluster)
        since, began = datetime.now(UTC), time.monotonic()
        held = slot.acquire(node, PERCENT, LABEL).held
        seconds = time.monotonic() - began
        asked = sum("leases" in event["requestURI"] for event in plane.audit(since))
        rows.append(
            stage.at_most(f"slot with BUDGET_LABEL, {what}: {held}, {asked} requests", AIM_SECONDS, "s", seconds)
        )
        raw[what] = {"held": held, "requests": asked, "seconds": round(seconds, 3)}
    return Outcome(tuple(rows), raw, _NOTE)


def _pages(connection: Connection, accept: str, query: Mapping[str, str]) -> Iterator[int]:
    """List all pages, and yield their sizes in bytes."""
    token = ""
    while True:
        asked = {**query, "limit": "500", "continue": token}
        if token:
            asked.pop("resourceVersion", None)
        data = connection.request("list", _LEASES.format(NAMESPACE), "leases", query=asked, accept=accept).data
        yield len(data)
        token = decode(data)["metadata"].get("continue", "")
        if not token:
            return
