"""Choice of a node for an automatic reset. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from healthcheck.deep.claim import claim_on
from healthcheck.deep.reset_plan import operands_before, reset_targets, switched_off, why_not_reset
from healthcheck.deep.reset_steps import may_have_begun
from healthcheck.model import Severity
from healthcheck.node.state import RESET_RESULT, RESULTS, SEVERITY, NodeState
from healthcheck.operations.reset_job import job_name
from healthcheck.text.moments import timestamp
from healthcheck.verdict import record as records
from healthcheck.verdict.record import AgentRecord, RunRecord

WORST_IS_RESET = f"{SEVERITY}={Severity.RESET.name}"
"""Selector of the nodes with a finding of RESET and none worse: a finding that recurs after resets is ISOLATE."""
AGAIN = timedelta(hours=24)
"""Time after a reset of a node, by a person or a program, without an automatic one."""


def is_left_off(node: NodeState, now: datetime) -> bool:
    """Whether a dead reset left operands of the GPU operator off, and its continuation resets no GPU a second time."""
    if claim_on(node, now) is not None or not switched_off(node.labels, node.annotations):
        return False
    return not reset_targets(node, ()) or not may_have_begun(records.on_node(RunRecord, node, RESET_RESULT))


def why_not_automatic(node: NodeState, heard: datetime | None, now: datetime) -> str:
    """Return the reason against an automatic reset of this node's GPUs; '' without one.

    Pods are not considered. `heard` is the time until which the agent's heartbeat is valid.
    """
    return next(_reasons(node, heard, now), "")


def _reasons(node: NodeState, heard: datetime | None, now: datetime) -> Iterator[str]:
    if heard is None or heard < now:
        yield "its agent is silent"
    findings = records.on_node(AgentRecord, node, RESULTS).findings or ()
    if any((row.severity or Severity.PASS) > Severity.RESET for row in findings):
        yield "a finding needs more than a reset"
    yield from why_not_reset(node, reset_targets(node, ()), job_name(node.name), now, force=False)
    if claim_on(node, now) is not None:
        yield "a reset of it is active"
    if not node.tainted():
        yield "it has no taint of the verdict: no slot of the fleet budget, or taints are off"
    if node.has_device_plugin and not operands_before(node):
        yield "the GPU operator does not run its device plugin, and no pod is evicted"
    if node.cordoned:
        yield "it is cordoned"
    last = records.time_of(records.on_node(RunRecord, node, RESET_RESULT))
    if last is not None and now - last < AGAIN:
        yield f"its last reset was at {timestamp(last)}, less than 24 h ago"
