"""Compute GPU owners, the number of free GPUs, and the CPU and memory left for them. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.facts.gpu_nodes import (
    GPU,
    GPU_DRIVERS,
    MIG_INSTANCES,
    SHARED,
    WHOLE,
    copies,
    devices_in,
    gpu_nodes,
    pool_kind,
)
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods, gpu_pods_on
from gpu_healthcheck.diagnosis.facts.placement import ZERO, asked_by, held_on
from gpu_healthcheck.diagnosis.facts.quantity import amount, count_of, digits
from gpu_healthcheck.diagnosis.facts.utilization import CardLoad, loads
from gpu_healthcheck.diagnosis.hami.cards import CardUsage, MeasuredUse, Share, cards_of, measured_use
from gpu_healthcheck.diagnosis.hami.installation import installations, settings_of, settings_on
from gpu_healthcheck.diagnosis.hami.settings import node_memory_scaling
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.gpu_use import USE
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.node.device_pools import is_whole
from gpu_healthcheck.healthcheck.node.state import KEEPS_AWAY, MAINTENANCE, STARTUP, UNHEALTHY

OUR_TAINTS = (UNHEALTHY, MAINTENANCE, STARTUP)
FAULTY_OPEN = "faulty, without a taint"
"""Why GPUs of a node are not free although new pods start there."""
_Shared = tuple[str, tuple[CardUsage, ...]]
_PROFILE = re.compile(r"nvidia\.com/mig-\d{1,2}g\.(\d{1,4})gb", re.ASCII)


class PoolShare(Struct, frozen=True):
    """Share of a pool that one pod owns.

    `memory` (MiB) and `cores` (percent of a card) are set where HAMi assigned them.
    """

    pod: str
    amount: int
    memory: int = 0
    cores: int = 0


class Pool(Struct, frozen=True):
    """Resource of a node: whole GPUs, slots on shared GPUs, MIG instances, HAMi cards or DRA devices.

    `kind` names the resource for people. The part of `capacity` above `total` exists but is not offered. Nothing is
    free on a node that takes no new pods (`closed`).
    """

    resource: str
    kind: str
    capacity: int
    total: int
    holders: tuple[PoolShare, ...] = ()
    memory: int = 0
    """Total memory in MiB, and total `cores` in percent of a card, if HAMi shares the cards."""
    cores: int = 0
    closed: bool = False

    @property
    def held(self) -> int:
        return sum(holder.amount for holder in self.holders)

    @property
    def idle(self) -> int:
        """Return the amount without an owner, whether or not a new pod could get it."""
        return max(self.total - self.held, 0)

    @property
    def free(self) -> int:
        return 0 if self.closed else self.idle


class NodeAllocation(Struct, frozen=True):
    """GPU allocation of one node.

    `gpus` is the number of cards, or None if no source reports it. `cpu_free` (cores) and `memory_free` (bytes) are the
    amounts that no pod requests.
    """

    node: str
    product: str
    gpus: int | None
    closed: str
    """Why the node takes no new pods: not ready, cordoned, faulty, or our taint; '' if it does."""
    pools: tuple[Pool, ...]
    cpu_free: Decimal
    memory_free: Decimal
    cards: tuple[CardUsage, ...] = ()
    """Cards that HAMi shares."""
    loads: tuple[CardLoad, ...] = ()
    """Current load of each card, if Prometheus was queried and reports it."""
    used: Mapping[tuple[str, str], MeasuredUse] = field(default_factory=dict)
    """Measured use of HAMi's shares, by pod and card."""

    @property
    def usable(self) -> bool:
        return not self.closed

    @property
    def percent(self) -> float | None:
        """Return the average utilisation of the node's cards, in percent."""
        return _average(self.loads)


class NamespaceAllocation(Struct, frozen=True):
    """GPU allocation of one namespace. `devices` by resource. `memory`: MiB of its GPU memory, as far as known."""

    namespace: str
    pending: int = 0
    running: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)
    memory: int = 0


class Allocation(Struct, frozen=True):
    """GPU allocation of the cluster.

    If `pods_seen` is False, the owners are unknown and everything only appears to be free.
    """

    nodes: tuple[NodeAllocation, ...]
    namespaces: tuple[NamespaceAllocation, ...]
    pods_seen: bool
    memory_scaling: Mapping[str, float] = field(default_factory=dict)
    """Memory that HAMi registers for each MiB of a card, by node name; '' for all other nodes."""
    use_missing: str = ""
    """Why utilization is unknown although Prometheus was queried."""

    @property
    def percent(self) -> float | None:
        """Return the average utilisation of all cards that Prometheus reports, in percent."""
        return _average(load for node in self.nodes for load in node.loads)


class Total(Struct, frozen=True):
    """Totals of one kind of resource in the whole cluster."""

    resource: str
    kind: str
    capacity: int
    total: int
    held: int
    free: int


def totals(allocation: Allocation) -> tuple[Total, ...]:
    """Return the totals of all nodes, by resource and kind."""
    pools = grouped(((pool.resource, pool.kind), pool) for node in allocation.nodes for pool in node.pools)
    return tuple(
        Total(*names, *(sum(getattr(pool, each) for pool in some) for each in ("capacity", "total", "held", "free")))
        for names, some in sorted(pools.items())
    )


def _average(loads: Iterable[CardLoad]) -> float | None:
    percentages = [load.percent for load in loads]
    return sum(percentages) / len(percentages) if percentages else None


def allocation(snapshot: Snapshot) -> Allocation:
    """Return the allocation of all nodes with GPUs, sorted by node name."""
    held, pods = held_on(snapshot.pods), gpu_pods_on(snapshot)
    claimed, cards = _claimed(snapshot), cards_of(snapshot)
    nodes = sorted(gpu_nodes(snapshot), key=lambda one: one.name)
    loaded = loads(snapshot, snapshot.gpu_use, {node: [pod.subject for pod in some] for node, some in pods.items()})
    in_use, shared = measured_use(snapshot), dict(_shared(snapshot))
    allocations = tuple(
        replace(
            _of_node(one, pods.get(one.name, ()), held.get(one.name, {}), claimed, shared.get(one.name)),
            loads=tuple(loaded.get(one.name, ())),
            used=in_use,
        )
        for one in nodes
    )
    scaling = dict(_scaling(snapshot, cards)) if cards else {}
    return Allocation(
        allocations, _namespaces(snapshot, allocations), snapshot.sees_all_pods, scaling, snapshot.missing.get(USE, "")
    )


def _scaling(snapshot: Snapshot, cards: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield HAMi's memory scaling by node name.

    The key '' covers all nodes that are not named; it is yielded only if there is at most one installation.
    """
    every = installations(snapshot)
    if len(every) < 2 and (plain := settings_of(snapshot).memory_scaling) is not None:
        yield "", plain
    for its in every if len(every) > 1 else ():
        if its.settings.memory_scaling is not None:
            yield from ((name, its.settings.memory_scaling) for name in sorted(its.nodes.intersection(cards)))
    yield from ((name, scaling) for name, scaling in node_memory_scaling(snapshot) if name in cards)


def _shared(snapshot: Snapshot) -> Iterator[tuple[str, _Shared]]:
    """Yield, by node name, the cards that HAMi shares and the resource name that requests them."""
    for name, cards in cards_of(snapshot).items():
        yield name, (settings_on(snapshot, snapshot.by_node[name]).count_name, cards)


def _of_node(
    node: Node,
    pods: Iterable[Pod],
    held: Mapping[str, Decimal],
    claimed: Mapping[str, list[Pool]],
    shared: _Shared | None,
) -> NodeAllocation:
    count, cards = shared or ("", ())
    closed = why_closed(node)
    own = [_places(count, cards)] if cards else []
    pools = [*own, *_plain(node, list(pods), without=count)]
    pools += claimed.get(node.name, [])
    return NodeAllocation(
        node.name,
        node.meta.labels.get("nvidia.com/gpu.product", "") or next((card.card.model for card in cards), ""),
        _cards(node, pools, len(cards)),
        closed,
        tuple(replace(pool, closed=bool(closed)) for pool in pools),
        _left(node, held, "cpu"),
        _left(node, held, "memory"),
        cards,
    )


def why_closed(node: Node) -> str:
    """Return why the node should or can take no new GPU pods, regardless of their tolerations; '' if it can."""
    if not node.ready:
        return "not ready"
    if node.cordoned:
        return "cordoned"
    if node.accepts_work_on_faults:
        return FAULTY_OPEN
    taint = next((one for one in node.taints if one.key in OUR_TAINTS and one.effect in KEEPS_AWAY), None)
    return f"our taint {taint.key.partition('/')[2]}" if taint is not None else ""


def _plain(node: Node, pods: list[Pod], without: str = "") -> Iterator[Pool]:
    asked = [(pod, asked_by(pod.spec)) for pod in pods]
    for name in devices_in({**node.capacity, **node.allocatable}):
        capacity, total = count_of(node.capacity, name), count_of(node.allocatable, name)
        if name == without or (not capacity and not total):
            continue
        holders = tuple(PoolShare(pod.subject, int(amounts[name])) for pod, amounts in asked if amounts.get(name))
        yield Pool(name, pool_kind(node, name), capacity, total, holders)


def _places(resource: str, cards: Iterable[CardUsage]) -> Pool:
    """Return the pool of HAMi's slots on these cards.

    The node offers these slots, regardless of how much memory and how many cores are free.
    """
    parts: defaultdict[str, Share] = defaultdict(Share)
    for card in cards:
        for pod, part in card.pods:
            parts[pod] = parts[pod].plus(part)
    holders = tuple(PoolShare(pod, part.slots, part.memory, part.cores) for pod, part in parts.items())
    usable = [card.card for card in cards if card.usable]
    slots, memory, cores = (sum(getattr(card, name) for card in usable) for name in ("slots", "memory", "cores"))
    there = sum(card.card.slots for card in cards)
    return Pool(resource, "places on cards by HAMi", there, slots, holders, memory, cores)


def _claimed(snapshot: Snapshot) -> Mapping[str, list[Pool]]:
    """Return, by node, the GPUs that a DRA driver publishes and the pods that they are reserved for."""
    owner_of: dict[str, str] = {}
    for claim in snapshot.claims:
        pod = next((subject("Pod", claim.meta.namespace, name) for name in claim.reserved_for), claim.meta.subject)
        for device in claim.devices:
            owner_of.setdefault(device, pod)
    devices: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for pool in snapshot.pools.values():
        kind = "devices by DRA" if is_whole(pool) else "devices by DRA, not all published yet"
        for piece in pool:
            if piece.node and piece.driver in GPU_DRIVERS:
                prefix = f"{piece.driver}/{piece.pool}"
                devices[piece.node, piece.driver, kind] += (f"{prefix}/{device.name}" for device in piece.devices)
    pools: defaultdict[str, list[Pool]] = defaultdict(list)
    for (node, driver, kind), names in sorted(devices.items()):
        owners = Counter(owner_of[name] for name in names if name in owner_of)
        shares = tuple(PoolShare(pod, number) for pod, number in sorted(owners.items()))
        pools[node].append(Pool(driver, kind, len(names), len(names), shares))
    return pools


def _cards(node: Node, pools: Iterable[Pool], registered_cards: int) -> int | None:
    """Return the number of cards (not of slots on them), or None if it is unknown.

    Sources in order: our agent's inventory, HAMi's registration, the count of GPU feature discovery, the resources that
    the node offers.
    """
    seen = node.inventory.nvml
    if seen is not None or registered_cards:
        return registered_cards if seen is None else seen
    product = node.meta.labels.get("nvidia.com/gpu.product", "")
    counted = digits(node.meta.labels.get("nvidia.com/gpu.count", ""), -1)
    if counted >= 0 and "-MIG-" not in product:
        return counted
    plain = [pool for pool in pools if pool.resource in (GPU, SHARED)]
    if plain and "-MIG-" not in product:
        return sum(pool.capacity for pool in plain) // max(copies(node), 1)
    by_claims = [pool.capacity for pool in pools if pool.resource in GPU_DRIVERS]
    return sum(by_claims) if by_claims else None


def _left(node: Node, held: Mapping[str, Decimal], name: str) -> Decimal:
    return max((amount(node.allocatable.get(name, "0")) or ZERO) - held.get(name, ZERO), ZERO)


def _namespaces(snapshot: Snapshot, nodes: Iterable[NodeAllocation]) -> tuple[NamespaceAllocation, ...]:
    phases = Counter((pod.meta.namespace, pod.phase) for pod in gpu_pods(snapshot))
    devices: defaultdict[str, Counter[str]] = defaultdict(Counter)
    memory: Counter[str] = Counter()
    for node in nodes:
        for pool in node.pools:
            for holder in pool.holders:
                namespace = holder.pod.split("/")[1]
                devices[namespace][pool.resource] += holder.amount
                memory[namespace] += holder.memory or _memory(snapshot.by_node.get(node.node), pool, holder.amount)
    waiting_or_running = (name for name, phase in phases if phase in ("Pending", "Running"))
    return tuple(
        NamespaceAllocation(
            *(name, phases[name, "Pending"], phases[name, "Running"]), dict(devices[name]), memory[name]
        )
        for name in sorted({*waiting_or_running, *devices})
    )


def _memory(node: Node | None, pool: Pool, number: int) -> int:
    """Return the memory of whole cards and MIG instances in MiB; 0 for slots on shared cards."""
    profile = _PROFILE.match(pool.resource)
    if profile is not None:
        return number * int(profile[1]) * 1024
    text = node.meta.labels.get("nvidia.com/gpu.memory", "") if node is not None else ""
    whole = pool.kind in (WHOLE, MIG_INSTANCES) and text.isascii() and text.isdigit() and len(text) < 9
    return number * int(text) if whole else 0
