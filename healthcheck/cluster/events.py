"""Client that writes this project's Events for a Node, and reads warnings of other components."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from healthcheck.cluster.connection import Requests
from healthcheck.cluster.errors import Conflict
from healthcheck.cluster.names import COMPONENT
from healthcheck.node.state import NodeState
from healthcheck.text.moments import timestamp
from healthcheck.text.printable import printable
from healthcheck.verdict.node_events import NodeEvent

_LONGEST_NAME = 253


class Events(Requests):
    """Writes Events and reads warnings."""

    def create(self, node: NodeState, event: NodeEvent, now: datetime) -> None:
        """Create an Event for the Node. Creating the same Event twice has no further effect."""
        at = timestamp(now)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "source": {"component": COMPONENT, "host": node.name},
            "reportingComponent": COMPONENT,
            "reportingInstance": node.name,
        }
        try:
            self._json("create", "/api/v1/namespaces/default/events", "events", body)
        except Conflict:
            return

    def list_warnings(self, namespace: str, uid: str) -> list[str]:
        """Return the warnings among the Events of an object as `reason: message`, the newest last."""
        query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
        warnings = list(self._pages(f"/api/v1/namespaces/{namespace}/events", "events", query))
        warnings.sort(key=_last_seen)
        return [printable(f"{warning.get('reason', '')}: {warning.get('message', '')}") for warning in warnings]

    def list_of_nodes(self, reason: str) -> dict[str, list[str]]:
        """Return the messages of all Events about Nodes with this reason, by node name."""
        messages: dict[str, list[str]] = {}
        query = {"fieldSelector": f"involvedObject.kind=Node,reason={reason}"}
        for event in self._pages("/api/v1/namespaces/default/events", "events", query):
            node = printable(str((event.get("involvedObject") or {}).get("name", "")), _LONGEST_NAME)
            messages.setdefault(node, []).append(printable(str(event.get("message", ""))))
        return messages


def _last_seen(event: Mapping[str, Any]) -> str:
    """Return the time of the last occurrence of an Event, written through either Event API.

    Each API sets at least one of the fields.
    """
    series = event.get("series") or {}
    result = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in result if time), "")
