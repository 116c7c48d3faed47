"""Whose a node's cordon is. Only what a quarantine run cordoned is anybody's to lift but a person's. Pure.

The run writes the annotation `cordoned-by` in the patch that sets `unschedulable`. `kubectl uncordon` leaves the
annotation behind, and a cordon that a person sets after it is his: the API server notes who wrote the field last. Where
it notes nobody (anybody can empty `managedFields`, and what is written then goes unnoted), a cordon is not ours.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from healthcheck.deep.claim import Kind, claim_on
from healthcheck.node.state import CORDONED_BY, FIELD_MANAGER, NodeState
from healthcheck.text.moments import timestamp
from healthcheck.text.printable import printable

_LONGEST = 320


def cordon(node: NodeState, by: str) -> dict[str, Any] | None:
    """The patch that cordons the node in the name of that run; None where it is cordoned already, by whomever."""
    if node.cordoned:
        return None
    metadata = {"resourceVersion": node.resource_version, "annotations": {CORDONED_BY: by}}
    return {"metadata": metadata, "spec": {"unschedulable": True}}


def cordoned_by(node: NodeState) -> str:
    """The quarantine run that set the cordon; '' where there is none, it is a person's, or nobody can tell."""
    is_ours = {one.name for one in node.cordon_managers} == {one.name for one in node.mark_managers} == {FIELD_MANAGER}
    by = printable(node.annotations.get(CORDONED_BY, ""), _LONGEST)
    return by if node.cordoned and is_ours else ""


def why_kept(node: NodeState, now: datetime) -> str:
    """Why the cordon is not to be lifted; '' where it may be, or where there is none."""
    if not node.cordoned:
        return ""
    if not cordoned_by(node):
        is_noted = node.cordon_managers or CORDONED_BY not in node.annotations
        return "no quarantine run of ours cordoned it" if is_noted else "nothing on it tells who cordoned it"
    run = claim_on(node, now)
    if run is not None and run.kind is Kind.QUARANTINE:
        return f"the quarantine run {run.holder} has it until {timestamp(run.until)}"
    return ""


def lift(node: NodeState, now: datetime) -> dict[str, Any] | None:
    """The merge patch that lifts our cordon; None where there is nothing to lift.

    The mark goes with the cordon, and by itself where a person has taken the cordon away or made it his own.
    """
    ours = cordoned_by(node)
    if CORDONED_BY not in node.annotations or (ours and why_kept(node, now)):
        return None
    metadata = {"resourceVersion": node.resource_version, "annotations": {CORDONED_BY: None}}
    return {"metadata": metadata, "spec": {"unschedulable": None}} if ours else {"metadata": metadata}
