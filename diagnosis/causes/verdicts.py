"""Nodes that our own verdict keeps from work, each with its finding and the way back."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.cause import Cause, Found, Search, Severity, command
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from healthcheck.node.state import CONDITION, MAINTENANCE, STARTUP, UNHEALTHY

WITHHELD = Cause(
    "NodeWithheld",
    Severity.HIGH,
    None,
    "A GPU node is kept from work by this system's own verdict: its taint stands on it.",
    "Do what the finding asks for; after a repair, `gpu-healthcheck release` gives the node back.",
)
IN_MAINTENANCE = Cause(
    "NodeUnderDiagnosis",
    Severity.LOW,
    None,
    "A deep diagnostic of this system has the node for now.",
    "Wait: the taint goes with the end of the run.",
)
NOT_LOOKED = Cause(
    "NodeAwaitsFirstLook",
    Severity.MEDIUM,
    None,
    "A new node is kept from work until this system has looked at it once.",
    "Look at the agent's pod on the node.",
)


def find_taints(snapshot: Snapshot) -> Iterator[Found]:
    """One for each node with a taint of ours."""
    for node in snapshot.nodes:
        for taint in node.taints:
            if taint.key == UNHEALTHY:
                yield _withheld(node)
            elif taint.key == MAINTENANCE:
                evidence = (f"taint {taint}",)
                yield Found(IN_MAINTENANCE, node.subject, evidence, (IN_MAINTENANCE.remedy,))
            elif taint.key == STARTUP:
                pods = command(
                    "kubectl",
                    "-n",
                    "gpu-healthcheck",
                    "get",
                    "pods",
                    "-o",
                    "wide",
                    f"--field-selector=spec.nodeName={node.name}",
                )
                yield Found(NOT_LOOKED, node.subject, (f"taint {taint}",), (f"Look at the agent's pod: {pods}",))


def _withheld(node: Node) -> Found:
    told = next((one for one in node.conditions if one.type == CONDITION), None)
    evidence = [f"taint {UNHEALTHY}"]
    if told is not None:
        evidence.append(f"condition {CONDITION}={told.status}, {told.reason}: {told.message}")
    remedy = []
    if told is not None and told.reason:
        remedy.append(f"See what {told.reason} asks for: {command('gpu-healthcheck', 'explain', told.reason)}")
    remedy.append(f"Once the node is mended: {command('gpu-healthcheck', 'release', node.name)}")
    return Found(WITHHELD, node.subject, tuple(evidence), tuple(remedy))


SEARCHES = (Search((WITHHELD, IN_MAINTENANCE, NOT_LOOKED), ("Node",), find_taints),)
