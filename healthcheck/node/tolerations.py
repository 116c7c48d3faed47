"""Tolerations of pods, by the rules of the scheduler. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether the toleration matches the taint, both as API objects."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return toleration["key"] == taint.get("key") and (exists or same_value)
