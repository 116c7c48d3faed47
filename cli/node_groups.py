"""Groups of nodes by zone, network, rack, pool or instance type, and the group in which faults concentrate. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import exp, lgamma

from msgspec import Struct

from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE

GROUPINGS = {
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    "network core": ("topology.k8s.aws/network-node-layer-1", "network.topology.nvidia.com/core"),
    "network block": (
        *("topology.k8s.aws/network-node-layer-2", "cloud.google.com/gce-topology-block"),
        "network.topology.nvidia.com/spine",
    ),
    "rack": (
        *("topology.k8s.aws/network-node-layer-3", "cloud.google.com/gce-topology-subblock"),
        "network.topology.nvidia.com/leaf",
    ),
    "NVLink domain": ("nvidia.com/gpu.clique", "network.topology.nvidia.com/accelerator"),
    "pool": (
        *("eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool"),
        *("kubernetes.azure.com/agentpool", "agentpool", "sagemaker.amazonaws.com/instance-group-name"),
    ),
    "instance type": (INSTANCE_TYPE,),
}
"""Labels of each grouping, from the widest part of a cluster to the narrowest; the first label on the Node counts."""
_RACK = re.compile(r"(?:.*[-_.])?rack(?:[-_.]?(?:id|name))?\Z", re.ASCII | re.IGNORECASE)
"""Names of labels, without their prefix, by which other tools name the rack."""
_FEWEST, _LEAST_SHARE, _CHANCE = 3, 0.5, 0.05
"""Faults concentrate in a group that has this number and share of them, if chance would do that less often."""


class Concentration(Struct, frozen=True):
    """A group that has most of the faulty nodes, far more than its size explains."""

    grouping: str
    group: str
    inside: int
    among: int
    """Number of all faulty nodes."""
    size: int
    total: int
    chance: float
    """Upper limit of the probability that any group of this grouping has as many by chance."""


def groups_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the Node's group in each grouping for which it has a label."""
    groups = {}
    for grouping, keys in GROUPINGS.items():
        if value := next((labels[key] for key in keys if labels.get(key)), ""):
            groups[grouping] = value
        elif grouping == "rack" and (key := next((key for key in labels if _RACK.match(key.rpartition("/")[2])), "")):
            groups[grouping] = labels[key]
    return groups


def dividing(nodes: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the groupings that divide the nodes into several groups of several nodes."""
    return [grouping for grouping in GROUPINGS if 1 < len({node.get(grouping, "") for node in nodes}) < len(nodes)]


def concentration(
    nodes: Sequence[Mapping[str, str]], groupings: Iterable[str], faulty: Collection[int]
) -> Concentration | None:
    """Return the group in which the faulty nodes, given by position, concentrate most; None if they do not."""
    found = [each for grouping in groupings for each in _concentrations(nodes, faulty, grouping)]
    return min(reversed(found), key=lambda each: each.chance, default=None)


def _concentrations(
    nodes: Sequence[Mapping[str, str]], faulty: Collection[int], grouping: str
) -> Iterator[Concentration]:
    sizes = Counter(node[grouping] for node in nodes if grouping in node)
    inside = Counter(nodes[place][grouping] for place in faulty if grouping in nodes[place])
    for group, number in inside.items():
        if number >= max(_FEWEST, _LEAST_SHARE * len(faulty)):
            chance = len(sizes) * _tail(number, sizes[group], len(faulty), len(nodes))
            if chance < _CHANCE:
                yield Concentration(grouping, group, number, len(faulty), sizes[group], len(nodes), chance)


def _tail(inside: int, size: int, faulty: int, total: int) -> float:
    """Return the probability that a random group of this size has so many faulty nodes (hypergeometric)."""
    numbers = range(max(inside, faulty - (total - size)), min(size, faulty) + 1)
    return sum(
        exp(_log_choose(size, number) + _log_choose(total - size, faulty - number) - _log_choose(total, faulty))
        for number in numbers
    )


def _log_choose(many: int, some: int) -> float:
    return lgamma(many + 1) - lgamma(some + 1) - lgamma(many - some + 1)
