"""Patches of a Node, one kind of change each."""

from __future__ import annotations

from typing import Any


def annotated(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


def labelled(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {key: value}}}


def tainted(*taints: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"taints": list(taints)}}
