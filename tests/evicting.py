"""The annotation of the evict program, written for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_healthcheck.healthcheck.node.evictions import VALID, EvictionState, PodEviction, eviction_text
from gpu_healthcheck.healthcheck.node.state import EVICT

FINDING = "Xid79 gpu/0000:18:00.0"
BUDGET_ANSWER = (
    "create pods/eviction: 429: Cannot evict pod as it would violate the pod's disruption budget.: The disruption "
    "budget {} needs 1 healthy pods and has 1 currently"
)


def eviction(name: str, state: str, *, at: datetime | None = None, **changes: Any) -> PodEviction:
    """Eviction of a pod in the namespace `team`, announced a minute before it is due."""
    at = at or datetime.now(UTC)
    fields: dict[str, Any] = {"namespace": "team", "name": name, "uid": name, "due": at + timedelta(minutes=1)}
    return PodEviction(state=EvictionState(state), at=at, **fields | changes)


def annotation(*pods: PodEviction, age: timedelta = timedelta(0), now: datetime | None = None) -> dict[str, str]:
    """Return the annotation, written so long ago; it is left behind after VALID."""
    text = eviction_text(FINDING, pods, (now or datetime.now(UTC)) - age)
    assert text is not None
    return {EVICT: text}


STALE = VALID + timedelta(minutes=1)
