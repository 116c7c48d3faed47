"""What a kubelet counted as free when it rejected a pod, against the requests of the pods on its node. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.gpu_nodes import devices_in
from gpu_healthcheck.diagnosis.facts.node_services import distribution_of, kubelet_unit, restart_of
from gpu_healthcheck.diagnosis.facts.placement import ZERO, asked_by, has, offers
from gpu_healthcheck.diagnosis.facts.quantity import count_of
from gpu_healthcheck.diagnosis.facts.symptoms import ended_of, scheduled_at
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import K0S, MICROK8S, TALOS

_UNAVAILABLE = re.compile(
    r"unavailable for (?P<resource>\S{1,200}?)\. ?Requested: ?(?P<requested>\d{1,9}), ?Available: ?(?P<free>\d{1,9})"
)
OUT_OF = re.compile(
    r"enough (?:resource|capacity): (?P<resource>\S{1,200}), requested: (?P<requested>\d{1,12}), "
    r"used: (?P<used>\d{1,12}), capacity: (?P<capacity>\d{1,12})"
)
_LOST_GPU = re.compile(
    r"GPU is lost|GPU_IS_LOST|fallen off the bus|error creating nvml\.Device|error getting (?:P2P link|NVLink)",
    re.IGNORECASE,
)
"""Errors of the device plugin that name a GPU: the choice of devices looks at all of them, also at those in use.

Source: k8s-device-plugin issues 231 and 2038, go-gpuallocator.
"""
_NO_LOSS = re.compile(r"Not Supported|Uninitialized|Insufficient Permissions", re.IGNORECASE)
"""Results of NVML that are about the platform, or the plugin's own process or rights, not about the GPU."""
_RECENT, _REPEATS = timedelta(hours=1), timedelta(minutes=5)
_FOLDERS = {K0S: "/var/lib/k0s/kubelet", MICROK8S: "/var/snap/microk8s/common/var/lib/kubelet"}


class FreeCount(Struct, frozen=True):
    """Devices that a kubelet counted as free in a rejection, and those that its node's pods did not request then."""

    resource: str
    requested: Decimal
    by_kubelet: Decimal
    by_pods: Decimal
    offered: Decimal
    at: datetime | None

    @property
    def contradicts(self) -> bool:
        """Whether the pod would have fitted by the requests of the pods."""
        return self.by_pods > self.by_kubelet and self.by_pods >= self.requested

    def __str__(self) -> str:
        used = self.offered - self.by_pods
        by_pods = f"{self.offered} {self.resource} - {used} requested by pods then = {self.by_pods} free"
        return f"{by_pods}; the kubelet counted {self.by_kubelet} free"


def partly_offered(node: Node) -> Iterator[tuple[str, int, int]]:
    """Yield each device of which the node offers a part only: its name, the number that it has, and that it offers.

    A resource at 0 next to offered ones is left over from an older configuration, and is ignored.
    """
    for name in devices_in(node.capacity):
        there, offered = count_of(node.capacity, name), count_of(node.allocatable, name)
        if 0 < offered < there:
            yield name, there, offered


def names_lost_gpu(pod: Pod) -> bool:
    """Whether the pod was rejected because the device plugin failed on one GPU, which then rejects every pod there."""
    names_gpu = pod.phase == "Failed" and _LOST_GPU.search(pod.message) is not None
    return names_gpu and _NO_LOSS.search(pod.message) is None


def free_counts(snapshot: Snapshot, node: Node | None, pods: Iterable[Pod]) -> list[FreeCount]:
    """Return the counts of rejected pods in time order.

    Empty if not all pods of the node are visible, or some of its devices are unhealthy, which explains the difference.
    """
    if node is None or not snapshot.sees_all_pods or not snapshot.spans_namespaces:
        return []
    found = [count for pod in pods for count in _count(snapshot, node, pod)]
    return sorted(found, key=lambda count: str(count.at))


def is_stale(snapshot: Snapshot, counts: list[FreeCount]) -> bool:
    """Whether the kubelet has contradicted the pods for minutes, and lately: its own list has devices of no pod."""
    times = [count.at for count in counts if count.contradicts and count.at is not None]
    is_last = bool(times) and counts[-1].contradicts and snapshot.now - max(times) <= _RECENT
    return is_last and max(times) - min(times) >= _REPEATS


def restart_kubelet(node: Node) -> str:
    """Return how to restart the kubelet on the node, and where its list of devices in use lies."""
    distribution = distribution_of(node)
    restart = f"`{restart_of(kubelet_unit(node))}`"
    if distribution == TALOS:
        restart = command("talosctl", "-n", node.name, "service", "kubelet", "restart")
    folder = _FOLDERS.get(distribution, "/var/lib/kubelet")
    return f"{restart} (its list is {folder}/device-plugins/kubelet_internal_checkpoint)"


def _count(snapshot: Snapshot, node: Node, pod: Pod) -> Iterator[FreeCount]:
    match = _UNAVAILABLE.search(pod.message) or OUT_OF.search(pod.message)
    if match is None:
        return
    groups, resource, at = match.groupdict(), match["resource"], scheduled_at(pod)
    offered = offers(node, resource)
    if not offered or offered < has(node, resource):
        return
    by_kubelet = groups["free"] if "free" in groups else max(int(match["capacity"]) - int(match["used"]), 0)
    used = sum((_used(one, resource, at) for one in snapshot.pods_on.get(node.name, ()) if one is not pod), ZERO)
    free = max(offered - used, ZERO)
    yield FreeCount(resource, Decimal(match["requested"]), Decimal(by_kubelet), free, offered, at)


def _used(pod: Pod, resource: str, at: datetime | None) -> Decimal:
    """Return the pod's devices if it was on the node at the time and had not ended."""
    bound, ends = scheduled_at(pod), [end.at for state in pod.states if (end := ended_of(state)) and end.at]
    if pod.over and not (ends and at is not None and max(ends) >= at):
        return ZERO
    if at is not None and bound is not None and bound > at:
        return ZERO
    return asked_by(pod.spec).get(resource, ZERO)
