"""Taints of faulty GPUs instead of their node: device rules of a DRA node, cordons of cards that HAMi shares.

Pure functions, no I/O. The module decides whether they are enough, and which rules or cordons they need. If they cannot
keep work off the faulty GPU, the Node is tainted (docs/decisions/0046).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.findings import gpu_address
from gpu_healthcheck.healthcheck.model import Finding, Severity
from gpu_healthcheck.healthcheck.node import hami
from gpu_healthcheck.healthcheck.node.device_rules import DeviceRule, RuleTaint, is_whole, numbered_names, rule_name
from gpu_healthcheck.healthcheck.node.devices import Device
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.probes.pci import normalise_address
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.verdict.taint_decision import AgentView, TaintDecision
from gpu_healthcheck.healthcheck.verdict.verdict import worst

_LONGEST_NAME = 253
_MOST_NAMED = 4


class BadGpu(Struct, frozen=True):
    """A faulty GPU that must get no new work, and its worst severity.

    `evicts`: its device rules also end the pods that claim it.
    """

    address: str
    severity: Severity
    uuids: frozenset[str] = frozenset()
    evicts: bool = False


class DeviceTaintCover(Struct, frozen=True):
    """Whether rules keep work off each faulty GPU, so that the Node needs no taint, and the reason if not.

    `cordons`: UUIDs of the GPUs that HAMi's list must contain for that, written together with the verdict.
    """

    is_complete: bool
    why: str = ""
    cordons: frozenset[str] = frozenset()


class CordonPlan(Struct, frozen=True):
    """UUIDs of the faulty GPUs for HAMi's list. `why` is set if the list can't keep work off some GPU."""

    uuids: frozenset[str] = frozenset()
    why: str = ""


class MissingRule(Struct, frozen=True):
    """A rule to create."""

    name: str
    device: str
    taint: RuleTaint


class RuleChange(Struct, frozen=True):
    """Rules to write. `why` is set if rules can't keep work off some GPU; then no rule is created."""

    made: tuple[MissingRule, ...] = ()
    changed: tuple[tuple[DeviceRule, RuleTaint], ...] = ()
    """Rules to change, each with its new taint."""
    gone: tuple[DeviceRule, ...] = ()
    unchanged: tuple[DeviceRule, ...] = ()
    """Rules that are already correct."""
    why: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the rules that remain or are created."""
        kept = (*self.unchanged, *(old for old, _ in self.changed))
        return frozenset((*(rule.name for rule in self.made), *(rule.name for rule in kept)))


def gpus_to_taint(view: AgentView, decision: TaintDecision, node: NodeState) -> tuple[BadGpu, ...] | None:
    """Return the GPUs that must carry the requested taint; None if the Node must carry it.

    An empty result means that the GPUs could not be checked, and existing taints stay.
    """
    rules = view.rules
    # A Node taint that stays for an ended finding is not replaced by device taints.
    if not rules.device_taints or (node.tainted() and decision.kept):
        return None
    # A deep diagnostic's record names no GPU. Device plugins other than HAMi's ignore taints of devices.
    if (node.has_device_plugin and not hami.is_shared(node)) or decision.deep_severity >= rules.taint_severity:
        return None
    bad = [finding.finding for finding in view.verdict.active if finding.finding.severity >= rules.taint_severity]
    addresses = {gpu_address(finding.subject) for finding in bad}
    if any(normalise_address(address) != address for address in addresses):
        return None
    return tuple(_bad_gpu(address, bad, view) for address in sorted(addresses))


def _bad_gpu(address: str, bad: Iterable[Finding], view: AgentView) -> BadGpu:
    here = [finding for finding in bad if gpu_address(finding.subject) == address]
    uuids = {view.memory.gpus.get(address, {}).get("uuid", ""), *(finding.about.get("uuid", "") for finding in here)}
    severity, limit = worst(finding.severity for finding in here), view.rules.evict_severity
    return BadGpu(address, severity, frozenset(uuids - {""}), evicts=limit is not None and severity >= limit)


def plan_cordons(gpus: Sequence[BadGpu], view: AgentView, decision: TaintDecision, node: NodeState) -> CordonPlan:
    """Return the cordons that keep work off these GPUs of a node that HAMi shares.

    Cordons of GPUs that can't be checked now stay.
    """
    uuids = {gpu.address: frozenset(filter(hami.UUID.fullmatch, gpu.uuids)) for gpu in gpus}
    wanted, known = frozenset().union(*uuids.values()), view.memory.gpus
    if nameless := [address for address, named_by in uuids.items() if not named_by]:
        return CordonPlan(why=f"the UUID of {named(nameless, _MOST_NAMED)} is unknown")
    known_uuids = {about.get("uuid", "") for about in known.values()}
    if why := next(_why_not_cordoned(wanted, known_uuids, view, node), ""):
        return CordonPlan(why=why)
    kept = {known.get(gpu_address(row.subject or ""), {}).get("uuid", "") for row in decision.kept}
    return CordonPlan(wanted | (hami.our_cordons(node) & kept))


def _why_not_cordoned(wanted: frozenset[str], known_uuids: set[str], view: AgentView, node: NodeState) -> Iterator[str]:
    """Yield the reasons why another GPU than the cordoned ones may be faulty, or may be allocated without HAMi.

    HAMi may have dropped a card that it can't open, so a faulty GPU need not be registered. But each registered card
    must be a known GPU, or it may be the faulty one. The registration alone does not prove that HAMi runs: it remains
    if another device plugin takes its place.
    """
    if view.hami_runs is False:
        yield f"HAMi does not run on the node, although the Node has its annotation {hami.CARDS}"
    if view.hami_runs is None and not wanted <= hami.our_cordons(node):  # existing ones stay until this can be checked
        yield "the node's processes, which show whether HAMi runs, could not be read yet"
    if len(node.gpus) > 1:
        yield f"pods can request the GPUs by several resources: {named(sorted(node.gpus), _MOST_NAMED)}"
    try:
        foreign = hami.card_ids(node) - wanted - known_uuids
    except ValueError as error:
        yield f"HAMi's annotation {hami.CARDS} can't be read: {error}"
    else:
        if foreign:
            yield f"HAMi registered {named(sorted(foreign), _MOST_NAMED)}, which is no known GPU of this node"


def plan_rules(
    gpus: Sequence[BadGpu], devices: Sequence[Device], rules: Sequence[DeviceRule], node: NodeState
) -> RuleChange:
    """Compare with the existing rules and return the rules to write. Foreign rules with our names stay unchanged."""
    gpus = [_as_published(bad_gpu, devices) for bad_gpu in gpus]
    taints = {device: RuleTaint(gpu.severity.name, gpu.evicts) for gpu in gpus for device in _devices_of(gpu, devices)}
    ours = [rule for rule in rules if rule.is_ours]
    # A rule of an earlier Node with the same name is deleted together with that Node.
    kept = {rule.device: rule for rule in ours if rule.node_uid == node.uid and rule.device in taints}
    gone = tuple(rule for rule in ours if rule is not kept.get(rule.device))
    foreign_rules = [rule for rule in rules if not rule.is_ours]
    if why := _why_not(gpus, devices, node, taints, foreign_rules):
        return RuleChange(gone=gone, why=why)
    free = iter(_free_names(node, (*kept.values(), *foreign_rules)))
    return RuleChange(
        made=tuple(
            MissingRule(rule_name(node.name, device) if is_whole(device) else next(free), device, taint)
            for device, taint in taints.items()
            if device not in kept
        ),
        changed=tuple((rule, taints[rule.device]) for rule in kept.values() if rule.taint != taints[rule.device]),
        gone=gone,
        unchanged=tuple(rule for rule in kept.values() if rule.taint == taints[rule.device]),
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
    tainted: Collection[str],
    foreign_rules: Sequence[DeviceRule],
) -> str:
    unpublished = [gpu.address for gpu in gpus if not any(_is_of(device, gpu) for device in devices)]
    if unpublished:
        return f"no ResourceSlice of this node contains {named(unpublished, _MOST_NAMED)}"
    nameless = [device.name for device in devices if not (device.address or device.uuids)]
    if nameless:
        return f"the driver does not report the GPU of {named(nameless, _MOST_NAMED)}"
    elsewhere = [d.name for d in devices if d.pool != node.name and any(_is_of(d, gpu) for gpu in gpus)]
    if elsewhere:
        return f"{named(elsewhere, _MOST_NAMED)} is published in a pool that does not have the node's name"
    by_device = {rule_name(node.name, device) for device in tainted}
    if conflicting := sorted(rule.name for rule in foreign_rules if rule.device in tainted or rule.name in by_device):
        return f"the rule {named(conflicting, _MOST_NAMED)} belongs to another program, or was changed"
    free = len(_free_names(node, foreign_rules))
    if len(tainted) > free or any(len(name) > _LONGEST_NAME for name in (*by_device, *numbered_names(node.name))):
        return f"{len(tainted)} rules are too many (at most {free}), or their names are too long"
    return ""


def _free_names(node: NodeState, rules: Iterable[DeviceRule]) -> list[str]:
    taken = {rule.name for rule in rules}
    return [name for name in numbered_names(node.name) if name not in taken]
