"""Find requests for RDMA devices that no node offers, and what keeps their device plugin from offering them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.causes.components import NOT_READY
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting
from diagnosis.facts import autoscaler
from diagnosis.facts.commands import kubectl, logs
from diagnosis.facts.components import Component, Role, components, is_for, is_ready, refused
from diagnosis.facts.efa import PORT_DOWN
from diagnosis.facts.gpu_nodes import has_gpu
from diagnosis.facts.gpu_requests import meant_as_gpu
from diagnosis.facts.quantity import counted, shown
from diagnosis.model import CauseSeverity, Family, FoundCause, Link, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED)
ABSENT = _scheduled(
    "RdmaResourceAbsent",
    "Pods request an RDMA device or a virtual function by a name that no node offers: its device plugin is missing, "
    "runs elsewhere, or selects no device of the nodes.",
    "Run the device plugin on the nodes with RDMA devices, with this resource name in its ConfigMap.",
    source="https://github.com/Mellanox/k8s-rdma-shared-dev-plugin, "
    "https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin: resourceName, selectors",
)
UNHEALTHY = _scheduled(
    "RdmaDevicesUnhealthy",
    "A node offers fewer virtual functions or RDMA devices than it has: the device plugin considers the others "
    "unhealthy, for example because their link is down.",
    "Repair the link (cable, optics, switch, or the state of the physical function): the SR-IOV device plugin then "
    "offers the devices again.",
    severity=CauseSeverity.MEDIUM,
    source="https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin: detects the link status",
)
CAUSES = (ABSENT, UNHEALTHY)
_SHARED = "rdma/"
"""Default prefix of the shared device plugin."""
_SRIOV = ("intel.com/", "openshift.io/", "mellanox.com/", "nvidia.com/")
"""Prefixes of the SR-IOV device plugin: its default, OpenShift's, an older one, NVIDIA's network operator's."""
_NEITHER = ("nvidia.com/gpu", "nvidia.com/mig", "nvidia.com/priority", "intel.com/sgx", "intel.com/qat")
_STEPS = {
    Role.RDMA_PLUGIN: "rdmaSharedDevicePlugin of the network operator's NicClusterPolicy",
    Role.SRIOV_PLUGIN: "sriovDevicePlugin of the network operator's NicClusterPolicy, or the SR-IOV network operator",
}
_MOST = 5


def plugin_of(resource: str) -> Role | None:
    """Return the device plugin that offers such a resource, by its prefix; None for other resources."""
    if resource.startswith(_SHARED):
        return Role.RDMA_PLUGIN
    if resource.startswith(_SRIOV) and not resource.startswith(_NEITHER) and not meant_as_gpu(resource):
        return Role.SRIOV_PLUGIN
    return None


def found_absent(snapshot: Snapshot, waiting: Waiting, name: str, role: Role, rooms: Sequence[NodeUse]) -> FoundCause:
    """Return the result for an RDMA resource of which no node has any."""
    nodes = [room.node for room in rooms if has_gpu(room.node)] or [room.node for room in rooms]
    plugins = [each for each in components(snapshot) if each.role is role]
    evidence = (
        f"{shown(name, waiting.asked[name])} {name} requested; {counted(len(rooms), 'node')}, none with {name}",
        *_offered(name, rooms),
        *_states(snapshot, role, plugins, nodes),
        *autoscaler.refusal_of(snapshot, waiting.pods),
    )
    subjects = (*(plugin.subject for plugin in plugins), *(node.subject for node in nodes))
    because = origins((NOT_READY[role],), *subjects)
    remedy = tuple(_remedy(name, role, plugins, nodes))
    return waiting.found(ABSENT, *evidence, subject=f"resource/{name}", remedy=remedy, because_of=because)


def found_unhealthy(room: NodeUse, numbers: str, affected: tuple[str, ...]) -> FoundCause:
    """Return the result for RDMA devices of a node that their plugin does not offer. `numbers`: the evidence."""
    node = room.node
    down = [finding.subject for finding in node.findings if finding.reason == PORT_DOWN]
    evidence = (numbers, *((f"the agent finds ports down: {named(down, _MOST)}",) if down else ()))
    remedy = (
        UNHEALTHY.remedy,
        f"See the state of its links and devices: {kubectl('describe', node.meta)}",
    )
    return FoundCause(UNHEALTHY, node.subject, evidence, remedy, affected)


def _offered(name: str, rooms: Sequence[NodeUse]) -> Iterator[str]:
    """Yield the resources of the same kind that nodes do offer."""
    prefix = name.partition("/")[0] + "/"
    amounts = ({**room.node.capacity, **room.node.allocatable} for room in rooms)
    others = sorted({each for amount in amounts for each in amount if each.startswith(prefix) and plugin_of(each)})
    zero = [room.node.subject for room in rooms if {**room.node.capacity, **room.node.allocatable}.get(name) == "0"]
    if zero:
        yield f"{named(zero, _MOST)}: 0 {name} now; a device plugin offered it before"
    if others := [each for each in others if each != name]:
        yield f"offered instead: {named(others, _MOST)}"


def _states(snapshot: Snapshot, role: Role, plugins: Sequence[Component], nodes: Sequence[Node]) -> Iterator[str]:
    if not plugins and snapshot.sees("DaemonSet", "Pod"):
        yield f"the cluster has no {role.value}"
    for plugin in plugins[:_MOST]:
        ready = [node.subject for node in nodes if _is_ready_on(plugin, node)]
        if ready:
            yield f"{plugin.subject} is ready on {named(ready, _MOST)}, and offers no such resource there"
        elif (why := _why_elsewhere(plugin, nodes)) and snapshot.sees("Node"):
            yield f"{plugin.subject} {why}"


def _why_elsewhere(plugin: Component, nodes: Sequence[Node]) -> str:
    """Return what keeps a DaemonSet off all GPU nodes; '' if it selects one."""
    if plugin.meta.kind != "DaemonSet" or not nodes or any(is_for(plugin.spec, node) for node in nodes):
        return ""
    node = nodes[0]
    missing = [f"{key}={text}" for key, text in plugin.spec.node_selector.items() if node.meta.labels.get(key) != text]
    if missing:
        return f"requires {named(missing, _MOST)}, which {node.subject} lacks"
    taints = refused(plugin.spec, node)
    return f"does not tolerate {named(map(str, taints), _MOST)}" if taints else f"does not select {node.subject}"


def _remedy(name: str, role: Role, plugins: Sequence[Component], nodes: Sequence[Node]) -> Iterator[str]:
    resource = name.partition("/")[2]
    if not plugins:
        yield f"Install the {role.value} ({_STEPS[role]}), with the resourceName {resource} in its configuration."
        return
    plugin = plugins[0]
    if pod := next((pod for node in nodes if (pod := plugin.pod_on(node.name)) and is_ready(pod)), None):
        yield (
            f"Compare the resourceName {resource}, the prefix and the selectors in the plugin's ConfigMap, which "
            f"{kubectl('describe', plugin.meta)} shows, with the node's devices."
        )
        yield f"Then restart the plugin, and read whether its log skips the resource: {logs(pod.meta, '--tail=100')}"
        return
    why = _why_elsewhere(plugin, nodes)
    if why.startswith("requires"):
        yield (
            "Find out why the nodes lack these labels: node feature discovery sets pci-15b3.present, and the network "
            "operator sets operator.mofed.wait=false once its driver is loaded."
        )
    yield f"Let the plugin run on the nodes with such devices: {kubectl('describe', plugin.meta)}"


def _is_ready_on(plugin: Component, node: Node) -> bool:
    pod = plugin.pod_on(node.name)
    return pod is not None and is_ready(pod)
