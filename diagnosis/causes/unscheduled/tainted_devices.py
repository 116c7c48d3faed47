"""Find claims that wait for tainted devices. The taint is from a DeviceTaintRule, or from the driver itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.causes.unscheduled.offers import BlockingTaint
from diagnosis.causes.unscheduled.waiting import Waiting
from diagnosis.causes.verdicts import release_of
from diagnosis.facts.commands import command, explain, kubectl
from diagnosis.model import Certainty, Family, FoundCause, Link
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.dra import DeviceTaintRule
from healthcheck.memory.findings import gpu_address
from healthcheck.node.device_pools import address_of
from healthcheck.node.device_rules import is_rule_name
from healthcheck.node.state import CONDITION, UNHEALTHY

_scheduled = Family(Link.SCHEDULED)
TAINTED = _scheduled(
    "DevicesTainted",
    "A claim waits for devices that are free but have a taint.",
    "Fix the reason of the taint: the taint is then removed, or ends when its DeviceTaintRule is deleted.",
    source="https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/",
)
_MOST, _MOST_REASONS = 5, 3


def find_tainted(
    snapshot: Snapshot, waiting: Waiting, subject: str, asks: Sequence[str], taints: Sequence[BlockingTaint]
) -> FoundCause:
    """Return the result for a claim that device taints block.

    `asks`: the request of the claim, and the devices that exist.
    """
    rules = [taint.rule for taint in taints if taint.rule is not None]
    unheeded = len(rules) == len(taints) and not any(rule.is_heeded for rule in rules)
    evidence = (*asks, *(_described(snapshot, taint) for taint in taints))
    remedy = tuple(dict.fromkeys(step for taint in taints[:_MOST] for step in _steps(snapshot, taint)))
    certainty = Certainty.LIKELY if unheeded else Certainty.PROVEN
    return waiting.found(TAINTED, *evidence, subject=subject, remedy=remedy, certainty=certainty)


def _described(snapshot: Snapshot, taint: BlockingTaint) -> str:
    where = f"node/{taint.offer.node}" if taint.offer.node else f"the pool {taint.offer.pool}"
    device = f"{taint.offer.device.name} of {where} has the taint {taint.taint}"
    if taint.rule is None:
        return f"{device} in its ResourceSlice, from {taint.offer.driver}"
    heeded = "" if taint.rule.is_heeded else ", which the cluster's controllers have not processed"
    reasons = ", ".join(_reasons(snapshot, taint)) if is_ours(taint.rule) else ""
    return f"{device} by {taint.rule.meta.subject}{heeded}{f': {reasons}' if reasons else ''}"


def _steps(snapshot: Snapshot, taint: BlockingTaint) -> Iterator[str]:
    if taint.rule is None:
        look = command(
            "kubectl", "get", "resourceslices", f"--field-selector=spec.nodeName={taint.offer.node}", "-o=yaml"
        )
        yield f"Its driver removes the taint when the device is healthy: {look}"
    elif is_ours(taint.rule):
        for reason in _reasons(snapshot, taint):
            yield f"See the action for {reason}: {explain(reason)}"
        yield f"When the GPU is fixed: {release_of(taint.offer.node)}"
    else:
        yield f"Find out who created the rule, and why: {kubectl('get', taint.rule.meta, '-o=yaml')}"
        yield f"To remove the taint: {kubectl('delete', taint.rule.meta)}"


def _reasons(snapshot: Snapshot, taint: BlockingTaint) -> list[str]:
    """Return the reasons of our agent's findings on that GPU.

    If none match the device's address, use those of the Node's condition.
    """
    node = snapshot.by_node.get(taint.offer.node)
    if node is None:
        return []
    address = address_of(taint.offer.device.attributes)
    here = [found.reason for found in node.findings if address and gpu_address(found.subject) == address]
    condition = node.condition(CONDITION, "False")
    messages = here or ([condition.reason] if condition is not None else [])
    return list(dict.fromkeys(messages))[:_MOST_REASONS]


def is_ours(rule: DeviceTaintRule) -> bool:
    """Whether an agent made the rule, judged by its name and the key of its taint."""
    return is_rule_name(rule.meta.name, rule.pool, rule.device) and rule.taint.key == UNHEALTHY
