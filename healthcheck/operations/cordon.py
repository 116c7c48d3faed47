"""Owner of a node's cordon. Only the cordon of a quarantine run may be lifted automatically.

Pure functions, no I/O. The run writes the annotation `cordoned-by` in the same patch that sets `unschedulable`.
`kubectl uncordon` leaves the annotation behind. A cordon that a person sets later belongs to that person: the API
server records the last writer of the field. If it records no writer, the cordon is not ours. Any client can empty
`managedFields`, and later writes are then not recorded.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from healthcheck.deep.claim import RunKind, claim_on
from healthcheck.node.state import CORDONED_BY, FIELD_MANAGER, NodeState
from healthcheck.text.moments import timestamp
from healthcheck.text.printable import printable

_LONGEST = 320


def cordon(node: NodeState, by: str) -> dict[str, Any] | None:
    """Return the patch that cordons the node for this run; None if it is cordoned already, by any owner."""
    if node.cordoned:
        return None
    metadata = {"resourceVersion": node.resource_version, "annotations": {CORDONED_BY: by}}
    return {"metadata": metadata, "spec": {"unschedulable": True}}


def cordoned_by(node: NodeState) -> str:
    """Return the quarantine run that set the cordon.

    Return '' if there is no cordon, if a person set it, or if its owner is unknown.
    """
    is_ours = (
        {manager.name for manager in node.cordon_managers}
        == {manager.name for manager in node.mark_managers}
        == {FIELD_MANAGER}
    )
    by = printable(node.annotations.get(CORDONED_BY, ""), _LONGEST)
    return by if node.cordoned and is_ours else ""


def why_kept(node: NodeState, now: datetime) -> str:
    """Return the reason why the cordon must not be lifted; '' if it may be lifted, or if there is none."""
    if not node.cordoned:
        return ""
    if not cordoned_by(node):
        is_noted = node.cordon_managers or CORDONED_BY not in node.annotations
        return "it was not cordoned by a quarantine run" if is_noted else "the Node does not show who cordoned it"
    run = claim_on(node, now)
    if run is not None and run.kind is RunKind.QUARANTINE:
        return f"the quarantine run {run.holder} owns it until {timestamp(run.until)}"
    return ""


def lift(node: NodeState, now: datetime) -> dict[str, Any] | None:
    """Return the merge patch that lifts our cordon; None if there is nothing to lift.

    The patch removes the annotation `cordoned-by` together with the cordon. It removes only the annotation if a person
    has lifted the cordon or now owns it.
    """
    ours = cordoned_by(node)
    if CORDONED_BY not in node.annotations or (ours and why_kept(node, now)):
        return None
    metadata = {"resourceVersion": node.resource_version, "annotations": {CORDONED_BY: None}}
    return {"metadata": metadata, "spec": {"unschedulable": None}} if ours else {"metadata": metadata}
