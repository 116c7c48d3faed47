"""Taints of faulty GPUs instead of their node, by device rules of a DRA node. Pure functions, no I/O.

The module decides whether device taints are enough, and which rules they need. If they cannot keep work off the faulty
GPU, the Node is tainted (docs/decisions/0046).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from healthcheck.memory.findings import Memory, gpu_address
from healthcheck.model import Finding, Severity
from healthcheck.node.device_rules import DeviceRule, is_whole, numbered_names, rule_name
from healthcheck.node.devices import Device
from healthcheck.node.state import NodeState
from healthcheck.probes.pci import normalise_address
from healthcheck.text.naming import named
from healthcheck.verdict.taint_decision import AgentView, TaintDecision
from healthcheck.verdict.verdict import worst

_LONGEST_NAME = 253
_MOST_NAMED = 4


class BadGpu(Struct, frozen=True):
    """A faulty GPU that must get no new work, and its worst severity."""

    address: str
    severity: Severity
    uuids: frozenset[str] = frozenset()


class DeviceTaintCover(Struct, frozen=True):
    """Whether rules keep work off each faulty GPU, so that the Node needs no taint, and the reason if not."""

    stands: bool
    why: str = ""


class MissingRule(Struct, frozen=True):
    """A rule to create."""

    name: str
    device: str
    tier: str


class RuleChange(Struct, frozen=True):
    """Rules to write. `why` is set if rules can't keep work off some GPU; then no rule is created."""

    made: tuple[MissingRule, ...] = ()
    changed: tuple[tuple[DeviceRule, str], ...] = ()
    """Rules to change, each with its new tier."""
    gone: tuple[DeviceRule, ...] = ()
    standing: tuple[DeviceRule, ...] = ()
    """Rules that are already correct."""
    why: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the rules that remain or are created."""
        kept = (*self.standing, *(old for old, _ in self.changed))
        return frozenset((*(rule.name for rule in self.made), *(rule.name for rule in kept)))


def gpus_to_taint(view: AgentView, decision: TaintDecision, node: NodeState) -> tuple[BadGpu, ...] | None:
    """Return the GPUs that must carry the requested taint; None if the Node must carry it.

    An empty result means that the GPUs could not be checked, and existing taints stay.
    """
    rules = view.rules
    # A Node taint that stays for an ended finding is not replaced by device taints.
    if not rules.device_taints or (node.tainted() and decision.kept):
        return None
    # A deep diagnostic's record names no GPU. A device plugin ignores taints of devices.
    if node.has_device_plugin or decision.deep_severity >= rules.taint_severity:
        return None
    bad = [finding.finding for finding in view.verdict.standing if finding.finding.severity >= rules.taint_severity]
    addresses = {gpu_address(finding.subject) for finding in bad}
    if any(normalise_address(address) != address for address in addresses):
        return None
    return tuple(_bad_gpu(address, bad, view.memory) for address in sorted(addresses))


def _bad_gpu(address: str, bad: Iterable[Finding], memory: Memory) -> BadGpu:
    here = [finding for finding in bad if gpu_address(finding.subject) == address]
    uuids = {memory.gpus.get(address, {}).get("uuid", ""), *(finding.about.get("uuid", "") for finding in here)}
    return BadGpu(address, worst(finding.severity for finding in here), frozenset(uuids - {""}))


def plan_rules(
    gpus: Sequence[BadGpu], devices: Sequence[Device], rules: Sequence[DeviceRule], node: NodeState
) -> RuleChange:
    """Compare with the existing rules and return the rules to write. Foreign rules with our names stay unchanged."""
    gpus = [_as_published(bad_gpu, devices) for bad_gpu in gpus]
    tiers = {device: gpu.severity.name for gpu in gpus for device in _devices_of(gpu, devices)}
    ours = [rule for rule in rules if rule.is_ours]
    # A rule of an earlier Node with the same name is deleted together with that Node.
    kept = {rule.device: rule for rule in ours if rule.node_uid == node.uid and rule.device in tiers}
    gone = tuple(rule for rule in ours if rule is not kept.get(rule.device))
    others = [rule for rule in rules if not rule.is_ours]
    if why := _why_not(gpus, devices, node, tiers, others):
        return RuleChange(gone=gone, why=why)
    free = iter(_free_names(node, (*kept.values(), *others)))
    return RuleChange(
        made=tuple(
            MissingRule(rule_name(node.name, device) if is_whole(device) else next(free), device, tier)
            for device, tier in tiers.items()
            if device not in kept
        ),
        changed=tuple((rule, tiers[rule.device]) for rule in kept.values() if rule.tier != tiers[rule.device]),
        gone=gone,
        standing=tuple(rule for rule in kept.values() if rule.tier == tiers[rule.device]),
    )


def _as_published(gpu: BadGpu, devices: Sequence[Device]) -> BadGpu:
    """Return the GPU with the UUIDs published at its address.

    NVML reports no UUID for a GPU that fell off the bus, but the driver may publish its parts with UUIDs.
    """
    return replace(gpu, uuids=gpu.uuids.union(*(device.uuids for device in devices if device.address == gpu.address)))


def _devices_of(gpu: BadGpu, devices: Sequence[Device]) -> Iterator[str]:
    return (device.name for device in devices if _is_of(device, gpu))


def _is_of(device: Device, gpu: BadGpu) -> bool:
    """Whether the device belongs to the GPU, by address or UUID.

    A GPU may answer at another address after a reboot, and an extra rule does no harm.
    """
    return device.address == gpu.address or bool(device.uuids & gpu.uuids)


def _why_not(
    gpus: Sequence[BadGpu],
    devices: Sequence[Device],
    node: NodeState,
    tiers: Mapping[str, str],
    others: Sequence[DeviceRule],
) -> str:
    unpublished = [gpu.address for gpu in gpus if not any(_is_of(device, gpu) for device in devices)]
    if unpublished:
        return f"no ResourceSlice of this node contains {named(unpublished, _MOST_NAMED)}"
    nameless = [one.name for one in devices if not (one.address or one.uuids)]
    if nameless:
        return f"the driver does not report the GPU of {named(nameless, _MOST_NAMED)}"
    elsewhere = [d.name for d in devices if d.pool != node.name and any(_is_of(d, gpu) for gpu in gpus)]
    if elsewhere:
        return f"{named(elsewhere, _MOST_NAMED)} is published in a pool that does not have the node's name"
    by_device = {rule_name(node.name, device) for device in tiers}
    if taken := sorted(rule.name for rule in others if rule.device in tiers or rule.name in by_device):
        return f"the rule {named(taken, _MOST_NAMED)} belongs to another program, or was changed"
    room = len(_free_names(node, others))
    if len(tiers) > room or any(len(name) > _LONGEST_NAME for name in (*by_device, *numbered_names(node.name))):
        return f"{len(tiers)} rules are too many (at most {room}), or their names are too long"
    return ""


def _free_names(node: NodeState, rules: Iterable[DeviceRule]) -> list[str]:
    taken = {rule.name for rule in rules}
    return [name for name in numbered_names(node.name) if name not in taken]
