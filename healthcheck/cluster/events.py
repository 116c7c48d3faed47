"""Client that writes this project's Events for a Node, and reads warnings of other components."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gpu_healthcheck.healthcheck.cluster.connection import Requests
from gpu_healthcheck.healthcheck.cluster.errors import Conflict
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.text.moments import moment_or_none, timestamp
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent

_LONGEST_NAME = 253
_OF_PODS = "involvedObject.kind=Pod"


class PastEvent(Struct, frozen=True):
    """Message of an Event, and the time of its last occurrence."""

    message: str
    at: datetime | None


class Events(Requests):
    """Writes Events and reads warnings."""

    def create(self, node: NodeState, event: NodeEvent, now: datetime) -> None:
        """Create an Event about the Node or one of its pods. Creating the same Event twice has no further effect."""
        at = timestamp(now)
        about = {"kind": "Node", "name": node.name, "uid": node.uid}
        if event.pod is not None:
            about = {"kind": "Pod", **asdict(event.pod)}
        namespace = about.get("namespace", "default")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **about},
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
            self._json("create", f"/api/v1/namespaces/{namespace}/events", "events", body)
        except Conflict:
            return

    def list_warnings(self, namespace: str, uid: str) -> list[str]:
        """Return the warnings among the Events of an object as `reason: message`, the newest last."""
        query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
        warnings = list(self._pages(f"/api/v1/namespaces/{namespace}/events", "events", query))
        warnings.sort(key=_last_seen)
        return [_words(warning) for warning in warnings]

    def last_of_pods(self, namespace: str) -> dict[str, str]:
        """Return the last Event of each pod in the namespace as `reason: message`, by pod name."""
        events = list(self._pages(f"/api/v1/namespaces/{namespace}/events", "events", {"fieldSelector": _OF_PODS}))
        events.sort(key=_last_seen)
        return {
            printable(str((event.get("involvedObject") or {}).get("name", "")), _LONGEST_NAME): _words(event)
            for event in events
        }

    def list_of_nodes(self, reason: str) -> dict[str, list[PastEvent]]:
        """Return all Events about Nodes with this reason, by node name."""
        events: dict[str, list[PastEvent]] = {}
        query = {"fieldSelector": f"involvedObject.kind=Node,reason={reason}"}
        for event in self._pages("/api/v1/namespaces/default/events", "events", query):
            node = printable(str((event.get("involvedObject") or {}).get("name", "")), _LONGEST_NAME)
            past = PastEvent(printable(str(event.get("message", ""))), moment_or_none(_last_seen(event)))
            events.setdefault(node, []).append(past)
        return events


def _words(event: Mapping[str, Any]) -> str:
    return printable(f"{event.get('reason', '')}: {event.get('message', '')}")


def _last_seen(event: Mapping[str, Any]) -> str:
    """Return the time of the last occurrence of an Event, written through either Event API.

    Each API sets at least one of the fields.
    """
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), "")
