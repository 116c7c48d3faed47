"""Pods of DRA drivers: the kubelet plugin on each node, and the controller. Pure."""

from __future__ import annotations

from diagnosis.facts.commands import kubectl, pods_on
from diagnosis.facts.components import Role, components
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import Pod


def plugin_on(snapshot: Snapshot, node: str, role: Role = Role.DRA_DRIVER) -> Pod | None:
    """Return the pod of the driver's kubelet plugin on the node."""
    there = (each.pod_on(node) for each in components(snapshot) if each.role is role and each.meta.kind == "DaemonSet")
    return next(filter(None, there), None)


def controller(snapshot: Snapshot) -> Pod | None:
    """Return the pod of the controller of NVIDIA's driver."""
    drivers = (each for each in components(snapshot) if each.role is Role.DRA_DRIVER and each.meta.kind == "Deployment")
    return next((pod for each in drivers for pod in each.pods if not pod.over), None)


def no_driver(snapshot: Snapshot, node: str, role: Role = Role.DRA_DRIVER) -> str:
    """Return the step that shows why no ready pod of the driver's kubelet plugin is on the node."""
    sets = (each.meta for each in components(snapshot) if each.role is role and each.meta.kind == "DaemonSet")
    plugin = plugin_on(snapshot, node, role)
    meta = plugin.meta if plugin is not None else next(sets, None)
    look = kubectl("describe", meta) if meta is not None else pods_on(node)
    return f"Find out why the driver has no ready pod on {node}: {look}"
