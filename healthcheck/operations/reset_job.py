"""Job that resets GPUs of one node, and the choice of a node for an automatic reset. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from gpu_healthcheck.healthcheck.deep import job
from gpu_healthcheck.healthcheck.deep.claim import RunKind, claim_on
from gpu_healthcheck.healthcheck.deep.job import MADE_BY_LABEL, JobName, job_on, pod_of
from gpu_healthcheck.healthcheck.deep.reset_command import OPERANDS, operands_before, switched_off
from gpu_healthcheck.healthcheck.deep.reset_plan import (
    boot_name,
    gpu_name,
    may_have_begun,
    reset_targets,
    why_not_reset,
)
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.state import RESET_RESULT, RESULTS, SEVERITY, NodeState
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, RunRecord

CRON_JOB = "gpu-healthcheck-reset-node"
"""Name of the CronJob that is its template."""
COMPONENT = "reset"
AUTOMATION = "gpu-healthcheck-reset-automation"
"""Account of automatic resets, which may delete only the Jobs that name it."""
_BEGINNING = "gpu-reset"


def reset_job(
    template: Mapping[str, Any],
    node: NodeState,
    namespace: str,
    gpus: Sequence[str],
    wait_seconds: float,
    reboot: str = "",
    made_by: str = "",
) -> dict[str, Any]:
    """Return the Job for these GPUs, which waits this long until they are free. Raises TemplateError.

    `reboot` is the boot that it may end if the reset fails; without GPUs, it tries no reset. `made_by` is the account
    of the program that creates it for itself.
    """
    made = job_on(template, JobName(job_name(node.name), namespace, COMPONENT), node.name, node.uid)
    if made_by:
        made["metadata"]["labels"][MADE_BY_LABEL] = made_by
    _, container = pod_of(made)
    container["args"] = [f"--gpu={gpu_name(gpu)}" for gpu in gpus] + [f"--wait={wait_seconds:.0f}"]
    if reboot:
        container["args"].append(f"--reboot={boot_name(reboot)}")
    return made


def job_name(node_name: str) -> str:
    """Return the name `gpu-reset-<NODE>`, shortened if it is too long. It also is the owner's name in the claim."""
    return job.job_name(_BEGINNING, node_name)


MAY_NEED_RESET = f"{SEVERITY} in ({Severity.RESET.name},{Severity.REBOOT.name},{Severity.ISOLATE.name})"
"""Selector of the nodes that a reset may help; a finding that recurs after resets is ISOLATE."""
AGAIN = timedelta(hours=24)
"""Time after a reset of a node, by a person or a program, without an automatic one."""


def is_reset_now(node: NodeState, now: datetime) -> bool:
    """Whether a reset has the node. Any other claim says nothing about resets, whatever the label `mode`."""
    run = claim_on(node, now)
    return run is not None and (run.kind, run.holder) == (RunKind.RESET, job_name(node.name))


def is_left_off(node: NodeState, now: datetime) -> bool:
    """Whether a dead reset left operands of the GPU operator off, and its continuation resets no GPU a second time."""
    if claim_on(node, now) is not None or not switched_off(node.labels, node.annotations):
        return False
    return not reset_targets(node, ()) or not may_have_begun(records.on_node(RunRecord, node, RESET_RESULT))


def why_not_automatic(node: NodeState, now: datetime) -> str:
    """Return the first reason against an automatic reset of this node's GPUs; '' without one. Ignores its pods."""
    return next(_reasons(node, now), "")


def _reasons(node: NodeState, now: datetime) -> Iterator[str]:
    findings = records.on_node(AgentRecord, node, RESULTS).findings or ()
    if worse := next((row for row in findings if (row.severity or Severity.PASS) > Severity.RESET), None):
        yield f"{worse.reason} on {worse.subject} needs more than a reset"
    yield from why_not_reset(node, reset_targets(node, ()), job_name(node.name), now, force=False)
    if not node.tainted():
        yield "its fault set no taint: the limit of tainted nodes is reached, or taints are off"
    if node.has_device_plugin and OPERANDS[0] not in operands_before(node):
        yield "the GPU operator does not run its device plugin, and no pod is evicted"
    if node.cordoned:
        yield "it is cordoned"
    last = records.time_of(records.on_node(RunRecord, node, RESET_RESULT))
    if last is not None and now - last < AGAIN:
        yield f"its last reset was at {timestamp(last)}, less than 24 h ago"
