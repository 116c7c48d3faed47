"""The files of an earlier version, as `python -m tests.upgrade FROM --save FOLDER` captured them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from healthcheck.cluster.nodes import node_state
from healthcheck.memory import content

if TYPE_CHECKING:
    from healthcheck.memory.findings import Memory
    from healthcheck.node.state import NodeState

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Saved:
    """One situation: the memory's file, the Node, and the Leases of its agent."""

    memory: Memory
    node: NodeState
    leases: list[dict[str, Any]]


def saved(version: str, situation: str) -> Saved:
    document = json.loads((FOLDER / version / f"{situation}.json").read_text())
    return Saved(content.parse(document["memory"].encode()), node_state(document["node"]), document["leases"])
