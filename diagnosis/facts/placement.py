"""Compute the requests of a pod, the free amounts of a node, and what keeps the pod off the node. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.gpu_nodes import offers_gpus
from gpu_healthcheck.diagnosis.facts.gpu_requests import is_gpu
from gpu_healthcheck.diagnosis.facts.quantity import amount, shown
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import Volume
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, Taint
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, PodSpec, Toleration
from gpu_healthcheck.healthcheck.node.label_selector import Expression

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_NAME = "metadata.name"
ZERO = Decimal(0)
Amounts = Mapping[str, Decimal]
HOST = frozenset(("cpu", "memory", "pods", "ephemeral-storage"))
"""Resources of every node."""


class ObstacleKind(Enum):
    """Reason why a pod can't run on a node."""

    CORDONED = "it is cordoned"
    TAINTED = "it has a taint that the pod does not tolerate"
    UNSELECTED = "the pod's selector or affinity does not match it"
    ABSENT = "it offers none of a resource"
    TOO_SMALL = "its total is too small"
    IN_USE = "other pods use them"
    FAULTY = "its GPUs have an active fault, and no taint keeps the pod away"


class Obstacle(Struct, frozen=True):
    """One reason for one node.

    It has a `resource` with requested, offered and free amounts, or the obstacle in `what`.
    """

    why: ObstacleKind
    what: str = ""
    resource: str = ""
    asked: Decimal = ZERO
    offered: Decimal = ZERO
    free: Decimal = ZERO

    def __str__(self) -> str:
        if not self.resource:
            return f"{self.why.value}: {self.what}" if self.what else self.why.value
        asked, offered, free = (shown(self.resource, decimal) for decimal in (self.asked, self.offered, self.free))
        return f"{self.resource}: {asked} requested, {offered} offered, {free} free"


class NodeUse(Struct, frozen=True, dict=True):
    """Node with the amounts that its pods own, and these pods."""

    node: Node
    held: Amounts
    pods: tuple[Pod, ...] = ()

    def free(self, resource: str) -> Decimal:
        return max(offers(self.node, resource) - self.held.get(resource, ZERO), ZERO)

    def fits(self, asked: Amounts) -> bool:
        return not any(shortages(asked, self.node, self.held))

    def places(self, asked: Amounts) -> int:
        """Return for how many pods with these requests the node has room."""
        return int(min(self.free(name) // amount for name, amount in asked.items()))

    def without(self, pods: Sequence[Pod]) -> NodeUse:
        """Return the node as it is once these pods are gone."""
        if not pods:
            return self
        held = dict(self.held)
        for pod in pods:
            for name, value in asked_by(pod.spec).items():
                held[name] = held.get(name, ZERO) - value
        return NodeUse(self.node, held)

    def holders(self, resource: str) -> list[tuple[Decimal, Pod]]:
        """Return the pods that own some of the resource, the largest amount first."""
        return self._holders.get(resource, [])

    @cached_property
    def _holders(self) -> Mapping[str, list[tuple[Decimal, Pod]]]:
        held = grouped((name, (value, pod)) for pod in self.pods for name, value in asked_by(pod.spec).items())
        return {name: sorted(some, key=lambda pair: (-pair[0], pair[1].subject)) for name, some in held.items()}


def node_uses(snapshot: Snapshot) -> tuple[NodeUse, ...]:
    """Return all nodes with what their pods own, sorted by name."""
    held, on = held_on(snapshot.pods), snapshot.pods_on
    return tuple(
        NodeUse(node, held.get(node.name, {}), tuple(pod for pod in on.get(node.name, ()) if not pod.over))
        for node in sorted(snapshot.nodes, key=lambda one: one.name)
    )


def is_extended(resource: str) -> bool:
    """Whether only nodes with a plugin for the resource offer it."""
    return "/" in resource and not resource.startswith("kubernetes.io/")


def asked_by(spec: PodSpec) -> dict[str, Decimal]:
    """Return the requested amounts, as the scheduler counts them.

    Containers and sidecars run in parallel; other init containers run one after another.
    """
    running: defaultdict[str, Decimal] = defaultdict(Decimal)
    sidecars: defaultdict[str, Decimal] = defaultdict(Decimal)
    starting: dict[str, Decimal] = {}
    for container in spec.containers:
        # An extended resource and a container without requests: the limit is the request.
        amounts = _amounts({**container.limits, **container.requests})
        if not container.init:
            _add(running, amounts)
        elif container.sidecar:
            _add(sidecars, amounts)
            _raise(starting, sidecars)
        else:
            together = defaultdict(Decimal, sidecars)
            _add(together, amounts)
            _raise(starting, together)
    _add(running, sidecars)
    _raise(running, starting)
    _add(running, _amounts(spec.overhead))
    running["pods"] = Decimal(1)
    return {name: value for name, value in running.items() if value}


def held_on(pods: Iterable[Pod]) -> dict[str, dict[str, Decimal]]:
    """Return, by node, the amounts that its pods own.

    A pod that is being deleted owns its amounts until it is gone; a pod that has ended owns nothing.
    """
    held: defaultdict[str, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for pod in pods:
        if pod.spec.node and not pod.over:
            _add(held[pod.spec.node], asked_by(pod.spec))
    return {node: dict(amounts) for node, amounts in held.items()}


def refusals(spec: PodSpec, node: Node) -> Iterator[Obstacle]:
    """Yield obstacles for the pod on the node that do not depend on free amounts."""
    unschedulable = Taint(UNSCHEDULABLE, "", "NoSchedule")
    if node.cordoned and not tolerates(spec.tolerations, unschedulable):
        yield Obstacle(ObstacleKind.CORDONED)
    for taint in untolerated(spec, node):
        yield Obstacle(ObstacleKind.TAINTED, str(taint))
    if not selects(spec, node):
        yield Obstacle(ObstacleKind.UNSELECTED)


def untolerated(spec: PodSpec, node: Node) -> Iterator[Taint]:
    """Yield taints that keep the pod off; the taint of a cordon is not repeated."""
    for taint in node.taints:
        if taint.effect == "PreferNoSchedule" or (taint.key == UNSCHEDULABLE and node.cordoned):
            continue
        if not tolerates(spec.tolerations, taint):
            yield taint


def shortages(asked: Amounts, node: Node, held: Amounts) -> Iterator[Obstacle]:
    """Yield the resources of which the node has too little."""
    for resource, wanted in asked.items():
        offered = offers(node, resource)
        free = max(offered - held.get(resource, ZERO), ZERO)
        if wanted > free:
            larger = ObstacleKind.TOO_SMALL if offered else ObstacleKind.ABSENT
            why = larger if wanted > offered else ObstacleKind.IN_USE
            yield Obstacle(why, resource=resource, asked=wanted, offered=offered, free=free)


def offers(node: Node, resource: str) -> Decimal:
    """Return the total of the resource that pods may use on the node."""
    return amount(node.allocatable.get(resource, "0")) or ZERO


def has(node: Node, resource: str) -> Decimal:
    """Return the total of the resource on the node, whether or not pods may use it.

    A GPU resource at 0 next to an offered one is left over from another configuration of the device plugin.
    """
    offered = offers(node, resource)
    if not offered and is_gpu(resource) and offers_gpus(node):
        return ZERO
    return max(amount(node.capacity.get(resource, "0")) or ZERO, offered)


@lru_cache(maxsize=1)
def nodes_with(snapshot: Snapshot) -> Counter[str]:
    """Return, by resource, how many nodes have any."""
    names = ((name, node) for node in snapshot.nodes for name in {**node.capacity, **node.allocatable})
    return Counter(name for name, node in names if has(node, name))


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def selects(spec: PodSpec, node: Node) -> bool:
    """Whether the pod's node selector and its required node affinity match the node."""
    labels = node.meta.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    return spec.affinity is None or any(_term_takes(term, node) for term in spec.affinity)


def holds_volume(volume: Volume, node: Node) -> bool:
    """Whether the node can mount the volume."""
    if not all(expression_takes(zone, node) for zone in volume.zones):
        return False
    return volume.terms is None or any(_term_takes(term, node) for term in volume.terms)


def expression_takes(expression: Expression, node: Node) -> bool:
    """Whether the node meets one requirement of a node affinity."""
    value = node.name if expression.key == _NAME else node.meta.labels.get(expression.key)
    return _compares(expression, value) if expression.operator in ("Gt", "Lt") else expression.takes(value)


def _amounts(texts: Mapping[str, str]) -> dict[str, Decimal]:
    return {name: value for name, text in texts.items() if (value := amount(text))}


def _add(total: defaultdict[str, Decimal], amounts: Amounts) -> None:
    for name, value in amounts.items():
        total[name] += value


def _raise(most: dict[str, Decimal], amounts: Amounts) -> None:
    for name, value in amounts.items():
        most[name] = max(most.get(name, ZERO), value)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def _term_takes(term: tuple[Expression, ...], node: Node) -> bool:
    # An empty term matches no node.
    return bool(term) and all(expression_takes(expression, node) for expression in term)


def _compares(expression: Expression, value: str | None) -> bool:
    try:
        there, wanted = int(value or ""), int(expression.values[0])
    except (ValueError, IndexError):
        return False
    return there > wanted if expression.operator == "Gt" else there < wanted
