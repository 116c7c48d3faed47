"""Leases: the heartbeats of the agents, and the slots of the fleet budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from gpu_healthcheck.healthcheck.cluster.connection import Requests, created
from gpu_healthcheck.healthcheck.cluster.errors import NotFound, Refused
from gpu_healthcheck.healthcheck.cluster.names import BUDGET_NAMESPACE, NAMESPACE
from gpu_healthcheck.healthcheck.model import PREFIX
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.text.moments import exact, is_future, moment
from gpu_healthcheck.healthcheck.verdict.budget import Slot, holder_label

LONGEST_BEAT_SECONDS = 3 * 86400
"""Longest valid heartbeat, in seconds: three of the longest check intervals that can be set."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_HOLDER = f"{PREFIX}/holder"
_GROUP = f"{PREFIX}/group"
_ROWS = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
"""Format for counts: without objects, a row of a Lease has a tenth of the size of its metadata."""


class Heartbeat(Struct, frozen=True):
    """The time of an agent's last heartbeat, and the number of seconds for which it is valid."""

    renewed: datetime
    seconds: float


class Leases(Requests):
    """Reads and writes Leases: heartbeats and slots of the fleet budget."""

    def renew_heartbeat(self, node: NodeState, now: datetime, duration_seconds: float, group: str = "") -> None:
        """Renew the node's heartbeat Lease, or create it. The current Node owns it.

        `group` is the value of the Node's label BUDGET_LABEL, by which the nodes of a group are counted.
        """
        path = _LEASES.format(NAMESPACE)
        times = {"leaseDurationSeconds": max(int(duration_seconds), 1), "renewTime": exact(now)}
        body = _lease(node.name, NAMESPACE, node, times, _group_label(group))
        change = body if group else {**body, "metadata": {**body["metadata"], "labels": {_GROUP: None}}}
        try:
            self._json("patch", f"{path}/{quote(node.name)}", "leases", change, merge="merge")
        except NotFound:
            self._create_lease(path, body)

    def heartbeats(self, now: datetime) -> dict[str, Heartbeat]:
        """Return the heartbeat of each node's agent by node name, except heartbeats with a time in the future."""
        leases = self._pages(_LEASES.format(NAMESPACE), "leases", {})
        beats = self._each("leases", leases, lambda lease: _heartbeat(lease, now))
        return {name: beat for name, beat in beats if beat is not None}

    def count_heartbeats(self) -> int:
        """Return the number of nodes with an agent."""
        return self._count(NAMESPACE)

    def count_group(self, group: str, enough: int) -> int:
        """Return the number of nodes of a group with an agent; the count stops at the page that reaches `enough`.

        With a selector, the API server does not count the Leases that it does not return.
        """
        query = {"labelSelector": f"{_GROUP}={group}", "includeObject": "None"}
        count = 0
        for page in self._listing(_LEASES.format(NAMESPACE), "leases", query, accept=_ROWS):
            count += len(page.get("rows") or page.get("items") or [])
            if count >= enough:
                break
        return count

    def count_slots(self) -> int:
        """Return the number of occupied slots in the fleet budget."""
        return self._count(BUDGET_NAMESPACE)

    def slots(self, node_name: str = "", group: str = "") -> Iterator[Slot]:
        """Yield the occupied slots of all nodes, of one node, or of one group; read in pages."""
        selector = f"{_HOLDER}={holder_label(node_name)}" if node_name else f"{_GROUP}={group}" if group else ""
        leases = self._pages(_LEASES.format(BUDGET_NAMESPACE), "leases", {"labelSelector": selector})
        for slot in self._each("leases", leases, _slot):
            if node_name in ("", slot.holder):
                yield slot

    def read_slot(self, name: str) -> Slot:
        return _slot(self._json("get", f"{_LEASES.format(BUDGET_NAMESPACE)}/{quote(name)}", "leases"))

    def create_slot(self, name: str, node: NodeState, group: str = "") -> Slot:
        """Acquire this slot for the node, in its group. Raises Conflict if it is occupied."""
        labels = {_HOLDER: holder_label(node.name), **_group_label(group)}
        body = _lease(name, BUDGET_NAMESPACE, node, {}, labels)
        return _slot(self._create_lease(_LEASES.format(BUDGET_NAMESPACE), body))

    def delete_slot(self, slot: Slot) -> None:
        """Release this slot. Raises Conflict if another node has acquired it since."""
        path = f"{_LEASES.format(BUDGET_NAMESPACE)}/{quote(slot.name)}"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": slot.uid}}
        self._json("delete", path, "leases", options)

    def _count(self, namespace: str) -> int:
        """Count all Leases of a namespace by requesting only one of them."""
        page = self._json("list", _LEASES.format(namespace), "leases", query={"limit": "1"})
        return len(page.get("items") or []) + int(page.get("metadata", {}).get("remainingItemCount") or 0)

    def _create_lease(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._json("create", path, "leases", body)
        except NotFound as error:
            raise Refused(f"{error}; does the namespace {body['metadata']['namespace']} exist?") from error


def _heartbeat(lease: Mapping[str, Any], now: datetime) -> tuple[str, Heartbeat | None]:
    """Return the node name and heartbeat of a Lease; the heartbeat is None if it was never renewed.

    Raises ValueError for a Lease that would make its agent appear alive forever.
    """
    name, spec = str(lease["metadata"]["name"]), lease.get("spec") or {}
    if not spec.get("renewTime"):
        return name, None
    renewed, seconds = moment(spec["renewTime"]), spec.get("leaseDurationSeconds") or 0
    if is_future(renewed, now):
        raise ValueError(f"renewTime {spec['renewTime']} is later than now")
    if not isinstance(seconds, int) or not 0 <= seconds <= LONGEST_BEAT_SECONDS:
        raise ValueError(f"leaseDurationSeconds {seconds!r}: at most {LONGEST_BEAT_SECONDS} are a heartbeat")
    return name, Heartbeat(renewed, seconds)


def _lease(
    name: str, namespace: str, node: NodeState, times: Mapping[str, Any], labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a Lease that is deleted together with its Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**metadata, "labels": dict(labels)} if labels else metadata,
        "spec": {"holderIdentity": node.name, **times},
    }


def _group_label(group: str) -> dict[str, str]:
    return {_GROUP: group} if group else {}


def _slot(lease: Mapping[str, Any]) -> Slot:
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    owners = [
        reference.get("uid", "")
        for reference in metadata.get("ownerReferences") or ()
        if reference.get("kind") == "Node"
    ]
    version = str(metadata.get("resourceVersion", ""))
    return Slot(
        name=metadata["name"],
        holder=spec.get("holderIdentity") or "",
        node_uid=next(iter(owners), ""),
        uid=metadata.get("uid", ""),
        made=int(version) if version.isdecimal() else 0,
        created=created(metadata),
        group=(metadata.get("labels") or {}).get(_GROUP, ""),
    )
