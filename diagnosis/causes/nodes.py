"""Find GPU nodes that do not answer, and missing nodes to which pods are still bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

from gpu_healthcheck.diagnosis.causes.hami.allocating import ALLOCATION_HANGS
from gpu_healthcheck.diagnosis.causes.pod_startup_table import RUNTIME_SILENT
from gpu_healthcheck.diagnosis.causes.unscheduled.refused import NOT_READY
from gpu_healthcheck.diagnosis.facts.gpu_nodes import gpu_nodes
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods, gpu_pods_on
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.node_services import runtime_is_down, steps_until_ready
from gpu_healthcheck.diagnosis.facts.runtime_advice import keep_version
from gpu_healthcheck.diagnosis.facts.symptoms import is_stuck, older, scheduled_at
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Search, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE

_accepted = Family(Link.ACCEPTED, severity=CauseSeverity.MEDIUM)
GONE = _accepted(
    "GpuNodeGone",
    "GPU pods are bound to a node that no longer exists, or never did.",
    "Delete the pods; remove nodeName from their template.",
)
SILENT = _accepted(
    "KubeletDoesNotAct",
    "A GPU pod was bound to the node long ago, and the node's kubelet has not reported anything about it.",
    "Check the kubelet on the node: `systemctl status kubelet`, and its log.",
    severity=CauseSeverity.HIGH,
)
_NEW, _PATIENCE, _GONE_FOR = 10.0, 5.0, 10.0
"""Minutes: a node joins or misses a report; pods bound to a missing node are deleted."""
_SILENT = timedelta(minutes=5)
_LEASES = "kube-node-lease"
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_UPGRADED = ("", "upgrade-done", "upgrade-failed")
_MOST_SHOWN = 4


def find_nodes(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield GPU nodes that are not ready, with their waiting GPU pods."""
    on_node, silent = gpu_pods_on(snapshot), _silent(snapshot)
    for node in gpu_nodes(snapshot):
        pods = on_node.get(node.name, ())
        evidence = tuple(_not_ready(snapshot, node)) or silent.get(node.name, ())
        waiting = any(is_stuck(one) or one.meta.deleted is not None for one in pods)
        # A cordoned node may be under maintenance. Report it only if pods wait for it.
        if evidence and (waiting or not node.cordoned) and not _is_meant(snapshot, node):
            affected = tuple(one.subject for one in pods)
            above = origins((RUNTIME_SILENT,), node.subject) if runtime_is_down(node) else ()
            steps = (*steps_until_ready(node), *(keep_version(snapshot, node) if runtime_is_down(node) else ()))
            yield FoundCause(NOT_READY, node.subject, evidence, steps, affected, because_of=above)


def find_silent(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes that count as ready but have not started pods bound to them long ago."""
    left: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in gpu_pods(snapshot):
        node = snapshot.by_node.get(pod.spec.node)
        if node is None or not node.ready or _is_meant(snapshot, node) or not _has_not_begun(pod):
            continue
        is_reported = any(event.by.startswith("kubelet") for event in snapshot.events_about.get(pod.subject, ()))
        if not is_reported and older(snapshot, scheduled_at(pod), _GONE_FOR):
            left[node.name].append(pod)
    leases = {lease.meta.name: lease.renewed for lease in snapshot.leases if lease.meta.namespace == _LEASES}
    for name, pods in left.items():
        renewed = leases.get(name)
        stale = renewed is not None and snapshot.now - renewed > _SILENT
        evidence = [f"{one.subject} is bound to it and has no container state" for one in pods[:_MOST_SHOWN]]
        evidence += [f"lease {_LEASES}/{name}: last renewed at {renewed:%H:%M:%S}Z"] if renewed and stale else []
        certainty = Certainty.PROVEN if stale else Certainty.LIKELY
        # A device plugin that does not answer keeps a working kubelet from starting pods.
        above = origins((NOT_READY, *(() if stale else (ALLOCATION_HANGS,))), f"node/{name}")
        affected = tuple(one.subject for one in pods)
        yield FoundCause(SILENT, f"node/{name}", tuple(evidence), (SILENT.remedy,), affected, certainty, above)


def find_gone(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes that do not exist but have pods bound to them. A text never has all nodes."""
    if snapshot.recognised:
        return
    lost = (pod for pod in gpu_pods(snapshot) if pod.spec.node and pod.spec.node not in snapshot.by_node)
    bound = grouped((pod.spec.node, pod) for pod in lost if _has_not_begun(pod))
    for name, pods in bound.items():
        lasting = [one for one in pods if older(snapshot, one.meta.created, _GONE_FOR)]
        if lasting:
            evidence = (f"there is no node {name}", *(f"{one.subject} is bound to it" for one in lasting[:_MOST_SHOWN]))
            again = steps_to_move(snapshot, lasting, "a node that exists", works=False)
            remedy = ("If the pods' template names the node, first remove nodeName there.", *again)
            yield FoundCause(GONE, f"node/{name}", evidence, remedy, tuple(one.subject for one in lasting))


def _has_not_begun(pod: Pod) -> bool:
    """Whether no container of the pod has started.

    A pod that runs has a node, even if that Node is not in the saved state.
    """
    return pod.phase == "Pending" and pod.meta.deleted is None and not pod.states


def _not_ready(snapshot: Snapshot, node: Node) -> Iterator[str]:
    condition = node.condition("Ready")
    if condition is None or condition.status == "True" or not older(snapshot, condition.since, _PATIENCE):
        return
    since = f" since {condition.since:%Y-%m-%d %H:%M:%S}Z" if condition.since else ""
    yield f"{node.subject}: condition Ready={condition.status}{since}, {condition.reason}: {condition.message}".rstrip(
        ": ,"
    )


def _silent(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """Return nodes whose Lease is no longer renewed while other Leases are.

    A node controller that hangs does not report them as not ready.
    """
    renewed = {
        lease.meta.name: lease.renewed
        for lease in snapshot.leases
        if lease.meta.namespace == _LEASES and lease.renewed is not None and lease.meta.name in snapshot.by_node
    }
    stale = {name: at for name, at in renewed.items() if snapshot.now - at > _SILENT}
    # If most Leases are stale, the Leases were saved long before the other objects.
    if len(stale) * 2 > len(renewed):
        return {}
    return {name: (f"lease {_LEASES}/{name}: last renewed at {at:%H:%M:%S}Z",) for name, at in stale.items()}


def _is_meant(snapshot: Snapshot, node: Node) -> bool:
    """Whether the node joins, is being deleted, or is being upgraded or tested."""
    if node.meta.deleted is not None or not older(snapshot, node.meta.created, _NEW):
        return True
    if any(taint.key == MAINTENANCE for taint in node.taints):
        return True
    return node.cordoned and node.meta.labels.get(_UPGRADE, "") not in _UPGRADED


SEARCHES = (
    Search((NOT_READY,), ("Node",), find_nodes),
    Search((GONE,), ("Node", "Pod"), find_gone),
    Search((SILENT,), ("Node", "Pod", "Event"), find_silent),
)
