"""Evictions of a Node's pods by the evict program: the annotation `evict`, which only this module reads and writes.

The annotation exists while an eviction is announced, requested or refused. Any client may have written it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.node.state import EVICT, NodeState
from gpu_healthcheck.healthcheck.text import strict_json
from gpu_healthcheck.healthcheck.text.boundary import JsonObject, as_json, attempt, listed, read_row
from gpu_healthcheck.healthcheck.text.moments import exact
from gpu_healthcheck.healthcheck.text.printable import printable

MOST_PODS = 64
"""Most pods of one annotation: the others follow when these are gone."""
VALID = timedelta(hours=1)
"""Time until the annotation counts as left behind, unless the program renews it."""
_LONGEST, _LONGEST_WHY = 32 * 1024, 160
"""Bytes of the annotation: 64 pods with the longest names have fewer, without `why`. Characters of a shown `why`."""
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_BUDGET = re.compile(rf"disruption ?budget (?:[a-z0-9-]{{1,63}}/)?({_NAME})(?=[\s:,;])", re.IGNORECASE)
"""Name of a budget in the API server's answer, which may be cut."""


class EvictionState(StrEnum):
    """State of one pod's eviction."""

    ANNOUNCED = "announced"
    """The pod is evicted at `due`."""
    REQUESTED = "requested"
    """The API server accepted the eviction, and the pod still exists."""
    REFUSED = "refused"
    """A disruption budget, a webhook or a permission refuses it; it is tried again."""
    SLURM = "slurm"
    """The pod is a Slurm node, which Slurm must drain. It is not evicted."""


class PodEviction(JsonObject, frozen=True):
    """Eviction of one pod. `at`: time of its announcement."""

    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    state: EvictionState | None = None
    at: datetime | None = None
    due: datetime | None = None
    why: str | None = None
    """Answer of the API server to a refused eviction, with the name of the disruption budget."""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def budget(self) -> str:
        """Return the disruption budget that refuses the eviction; '' if the API server's answer names none."""
        found = _BUDGET.search(self.why or "")
        return f"PodDisruptionBudget {self.namespace}/{found[1]}" if found else ""

    @property
    def obstacle(self) -> str:
        """Return that budget, or else the answer."""
        return self.budget or printable(self.why or "the API server", _LONGEST_WHY)


def _is_valid(pod: PodEviction) -> bool:
    names = (pod.namespace, pod.name)
    return bool(pod.uid and pod.state) and all(name and re.fullmatch(_NAME, name) for name in names)


def _pods(value: object) -> tuple[PodEviction, ...]:
    found = (attempt(partial(read_row, PodEviction), entry) for entry in listed(value)[:MOST_PODS])
    return tuple(pod for pod in found if pod and _is_valid(pod))


class NodeEvictions(JsonObject, frozen=True):
    """Evictions of one Node. `until`: time after which the annotation counts as left behind."""

    finding: str | None = None
    """Worst finding, as `REASON SUBJECT`."""
    until: datetime | None = None
    pods: Annotated[tuple[PodEviction, ...], _pods] = ()

    def in_state(self, state: EvictionState) -> tuple[PodEviction, ...]:
        return tuple(pod for pod in self.pods if pod.state is state)


def evictions_on(node: NodeState, now: datetime) -> NodeEvictions:
    """Return the evictions of the Node; empty if there are none, or if the annotation is old or unreadable."""
    text = node.annotations.get(EVICT, "")
    found = attempt(_parse, text) if text else None
    if found is None or found.until is None or not now < found.until <= now + 2 * VALID:
        return NodeEvictions()
    return found


def eviction_text(finding: str, pods: Iterable[PodEviction], now: datetime) -> str | None:
    """Return the annotation's text; None without pods, which removes the annotation. The longest one has no `why`."""
    rows = tuple(pods)[:MOST_PODS]
    if not rows:
        return None
    evictions = NodeEvictions(finding=finding, until=now + VALID, pods=rows)
    text = json.dumps(as_json(evictions, exact), separators=(",", ":"))
    if len(text) > _LONGEST and any(pod.why for pod in rows):
        return eviction_text(finding, (replace(pod, why=None) for pod in rows), now)
    return text


def _parse(text: str) -> NodeEvictions:
    raw: Any = strict_json.loads(text, _LONGEST)
    return read_row(NodeEvictions, raw)
