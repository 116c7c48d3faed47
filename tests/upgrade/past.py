"""Earlier states of a Node, version by version of the object, in the fields that an agent writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

from tests.agent.world import NodeView, P

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OFTEN = f"{P}/last-check"
"""Says when, not what."""


@dataclass(frozen=True)
class Marks:
    """The fields that other controllers act on."""

    labels: tuple[str, ...]
    taints: tuple[str, ...]
    conditions: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(" ".join(some) or "-" for some in (self.labels, self.taints, self.conditions))


def marks(node: NodeView) -> Marks:
    """All labels but the time, all taints, and all conditions with their reasons."""
    labels = (f"{key.removeprefix(f'{P}/')}={value}" for key, value in node.labels.items() if key != _OFTEN)
    taints = (
        f"{taint['key'].removeprefix(f'{P}/')}={taint.get('value', '')}:{taint['effect']}" for taint in node.taints
    )
    conditions = node.object["status"].get("conditions") or []
    messages = (f"{condition['type']}={condition['status']}({condition.get('reason', '')})" for condition in conditions)
    return Marks(tuple(sorted(labels)), tuple(sorted(taints)), tuple(sorted(messages)))


def changes(nodes: Iterable[NodeView]) -> list[Marks]:
    """Each state that differs from the one before it; one alone means that nothing changed."""
    seen: list[Marks] = []
    for node in nodes:
        if not seen or marks(node) != seen[-1]:
            seen.append(marks(node))
    return seen


def standing(node: NodeView) -> dict[str, Any]:
    """Return the facts of the record on the Node that must outlive a version."""
    record = node.record
    rows = map(_row, record.get("findings", []))
    return {
        "findings": sorted(rows, key=lambda entry: (entry["reason"], entry["subject"])),
        **{key: record.get(key) for key in ("released", "acknowledged", "taken", "machine", "boot_id")},
    }


def _row(finding: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Times to the second: a version may tell them finer than the one before."""
    row = {key: finding.get(key) for key in (*_ROW, *keys)}
    return row | {"first_seen": finding["first_seen"][:_SECOND]}


_SECOND = len("2026-11-21T01:02:03")
_ROW = ("reason", "subject", "severity", "nature", "first_seen", "count", "check", "about")


_UNKNOWN_TO_0_3_0 = ("gpus", "rdma")
"""Parts of the memory's `first` that 0.3.0 neither writes nor keeps."""


def remembered(file: bytes) -> Mapping[str, Any]:
    """Return the facts of a memory file that must outlive a version."""
    content = json.loads(file.partition(b"\n")[2])
    keys = ("machine", "boot_id", "findings", "released", "acknowledged", "gpus", "recovery", "ended", "first", "taken")
    fields = {key: content.get(key) for key in keys}
    fields["findings"] = [_row(entry, "boot_id", "escalates") for entry in content["findings"]]
    fields["acknowledged"] = [entry | {"last_seen": entry["last_seen"][:_SECOND]} for entry in content["acknowledged"]]
    fields["released"] = content["released"] and content["released"]["by"]
    first = content.get("first") or {}
    fields["first"] = {key: value for key, value in first.items() if key not in _UNKNOWN_TO_0_3_0}
    return fields | {"ended": _ends(content["ended"])}


def same(what: str, before: Any, now: Any) -> None:
    """Raises AssertionError with the lines that differ."""
    was, comes = (json.dumps(entry, indent=1, sort_keys=True).splitlines() for entry in (before, now))
    assert before == now, f"{what} says other things:\n" + "\n".join(unified_diff(was, comes, lineterm="", n=2))


def _ends(rows: Iterable[list[str]]) -> dict[str, int]:
    """How many resets each finding has behind it."""
    return {f"{reason} {address}": len(ends) for reason, address, *ends in rows}
