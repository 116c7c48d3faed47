"""Our conditions as last written. After another client's change they are restored, at a limited rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_PUT_BACK_SECONDS = 10.0
"""Pause between two restorations. The EKS node monitoring agent writes the whole list every 15 s."""


class WrittenConditions:
    """Conditions as last written to the Node. The node writer's thread uses them."""

    def __init__(self) -> None:
        self._written: dict[str, Mapping[str, Any]] = {}
        self._put_back_at = -math.inf
        self._put_off_until: float | None = None

    def with_time(self, condition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Restore the transition times too: a repair program that measures by them must not start again."""
        before = self._written.get(condition["type"], {})
        if "lastTransitionTime" not in before or before.get("status") != condition.get("status"):
            return condition
        at = before["lastTransitionTime"]
        return {**condition, "lastTransitionTime": at, "lastHeartbeatTime": at}

    def may_go(self, conditions: Sequence[Mapping[str, Any]], now: float) -> bool:
        """Whether the conditions may be written now. Changes are written at once; a repeated restoration waits."""
        due = self._put_back_at + _PUT_BACK_SECONDS
        waits = bool(conditions) and now < due and all(map(self._is_put_back, conditions))
        self._put_off_until = due if waits else None
        return not waits

    def went(self, conditions: Sequence[Mapping[str, Any]], now: float) -> None:
        if any(map(self._is_put_back, conditions)):
            self._put_back_at = now
        self._written.update((condition["type"], condition) for condition in conditions)

    def put_off_seconds(self, now: float) -> float | None:
        """Return the time until a delayed write is due, in seconds; None without one. The due time is returned once.

        Nothing is written while a cycle settles, so a caller that polled would never rest.
        """
        until = self._put_off_until
        if until is not None and now >= until:
            self._put_off_until = None
        return None if until is None else max(0.0, until - now)

    def _is_put_back(self, condition: Mapping[str, Any]) -> bool:
        before = self._written.get(condition["type"])
        return before is not None and _words(before) == _words(condition)


def _words(condition: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(condition.get(key) for key in ("status", "reason", "message"))
