"""Claims that wait for devices which a taint keeps work off: of a rule, ours or another's, or of the driver itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.cause import Cause, CauseSeverity, Certainty, FoundCause, Link, command
from diagnosis.causes.unscheduled.offers import BlockingTaint
from diagnosis.causes.unscheduled.waiting import Waiting
from diagnosis.causes.verdicts import release_of
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.dra import DeviceTaintRule
from healthcheck.memory.findings import gpu_address
from healthcheck.node.device_pools import address_of
from healthcheck.node.device_rules import is_rule_name
from healthcheck.node.state import CONDITION, UNHEALTHY

TAINTED = Cause(
    "DevicesTainted",
    CauseSeverity.HIGH,
    Link.SCHEDULED,
    "A claim waits for devices that nobody holds: a taint keeps work off them.",
    "Mend what the taint is for: it goes with that, or with its DeviceTaintRule.",
    "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/",
)
_MOST, _MOST_REASONS = 5, 3


def find_tainted(
    snapshot: Snapshot, waiting: Waiting, subject: str, asks: Sequence[str], taints: Sequence[BlockingTaint]
) -> FoundCause:
    """Return the result for a claim that device taints block.

    `asks`: the request of the claim, and the devices that exist.
    """
    rules = [one.rule for one in taints if one.rule is not None]
    unheeded = len(rules) == len(taints) and not any(one.is_heeded for one in rules)
    evidence = (*asks, *(_told(snapshot, one) for one in taints))
    remedy = tuple(dict.fromkeys(step for one in taints[:_MOST] for step in _steps(snapshot, one)))
    certainty = Certainty.LIKELY if unheeded else Certainty.PROVEN
    return FoundCause(TAINTED, subject, evidence, remedy, waiting.names, certainty)


def _told(snapshot: Snapshot, one: BlockingTaint) -> str:
    where = f"node/{one.offer.node}" if one.offer.node else f"the pool {one.offer.pool}"
    device = f"{one.offer.device.name} of {where} has the taint {one.taint}"
    if one.rule is None:
        return f"{device} in its ResourceSlice, from {one.offer.driver}"
    heeded = "" if one.rule.is_heeded else ", which the cluster's controllers have not noted"
    reasons = ", ".join(_reasons(snapshot, one)) if is_ours(one.rule) else ""
    return f"{device} by {one.rule.meta.subject}{heeded}{f': {reasons}' if reasons else ''}"


def _steps(snapshot: Snapshot, one: BlockingTaint) -> Iterator[str]:
    if one.rule is None:
        look = command(
            "kubectl", "get", "resourceslices", f"--field-selector=spec.nodeName={one.offer.node}", "-o=yaml"
        )
        yield f"Its driver takes the taint away once the device is well: {look}"
    elif is_ours(one.rule):
        for reason in _reasons(snapshot, one):
            yield f"See what {reason} asks for: {command('gpu-healthcheck', 'explain', reason)}"
        yield f"Once the GPU is mended: {release_of(one.offer.node)}"
    else:
        name = one.rule.meta.name
        yield f"Ask who made the rule, and why: {command('kubectl', 'get', 'devicetaintrule', name, '-o=yaml')}"
        yield f"It ends with: {command('kubectl', 'delete', 'devicetaintrule', name)}"


def _reasons(snapshot: Snapshot, one: BlockingTaint) -> list[str]:
    """Return the reasons of our agent's findings on that GPU.

    If none match the device's address, use those of the Node's condition.
    """
    node = snapshot.by_node.get(one.offer.node)
    if node is None:
        return []
    address = address_of(one.offer.device.attributes)
    findings = node.record.findings if node.record is not None else ()
    here = [found.reason for found in findings if address and gpu_address(found.subject) == address]
    told = here or [found.reason for found in node.conditions if found.type == CONDITION and found.status == "False"]
    return list(dict.fromkeys(told))[:_MOST_REASONS]


def is_ours(rule: DeviceTaintRule) -> bool:
    """Whether an agent made the rule, judged by its name and the key of its taint."""
    return is_rule_name(rule.meta.name, rule.pool, rule.device) and rule.taint.key == UNHEALTHY
