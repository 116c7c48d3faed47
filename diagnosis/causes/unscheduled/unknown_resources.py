"""Find requested resources that no node has: misspelled, another MIG profile, renamed by time-slicing, or absent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.device_plugins import missing_labels, why_not_cut, why_not_offered
from gpu_healthcheck.diagnosis.causes.unscheduled import autoscaling, refused, sharing
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import Component, Role, components, is_for, is_ready
from gpu_healthcheck.diagnosis.facts.components import refused as refusing_taints
from gpu_healthcheck.diagnosis.facts.efa import EFA_CLASS, PORT_DOWN, claimable_nodes
from gpu_healthcheck.diagnosis.facts.gpu_nodes import (
    EFA,
    has_gpu,
    has_nvidia,
    is_changed,
    is_for_machines,
    switched_off,
)
from gpu_healthcheck.diagnosis.facts.gpu_requests import is_accelerator, is_gpu, meant_as_gpu
from gpu_healthcheck.diagnosis.facts.placement import is_extended, nodes_with, selects
from gpu_healthcheck.diagnosis.facts.quantity import counted, shown
from gpu_healthcheck.diagnosis.hami.installation import Installation, installation_of
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Family, FoundCause, Link, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED)
MISSPELLED = _scheduled(
    "ResourceNameUnknown",
    "A workload requests a resource that no node has; its name is similar to an existing one.",
    "Request the resource by the name that the nodes have.",
)
MIG_PROFILE_ABSENT = _scheduled(
    "MigProfileAbsent",
    "A workload requests a MIG profile that no node has, or that the MIG strategy names differently.",
    "Request an existing profile, or partition a node into this profile.",
    source="k8s-device-plugin: strategy mixed names each profile nvidia.com/mig-…, strategy single names all "
    "nvidia.com/gpu",
)
ONLY_MIG = _scheduled(
    "GpusOnlyAsMigSlices",
    "A workload requests whole GPUs, but the nodes offer their GPUs only as MIG slices.",
    "Request one of the profiles, or disable MIG on a node.",
)
RENAMED = _scheduled(
    "SharedGpuResourceRenamed",
    "Time-slicing or MPS offers the GPUs under a name with or without `.shared`; the workload requests the other.",
    "Request the name that the nodes have, or set `renameByDefault` of the device plugin's sharing.",
    source="k8s-device-plugin: sharing.timeSlicing.renameByDefault",
)
ABSENT = _scheduled(
    "GpuResourceAbsent",
    "No node advertises a resource of GPU workloads: no node has it, or its device plugin does not report it.",
    "Add a node with it, or find out why the device plugin of suitable nodes does not register.",
)
EFA_BY_NAME = _scheduled(
    "EfaRequestedByName",
    "A workload requests vpc.amazonaws.com/efa, and the nodes give out EFA by claims: DRANET publishes the devices, "
    "and no device plugin offers them by that name.",
    "Replace the resource by a claim of the DeviceClass efa.networking.k8s.aws in the pod's resourceClaims.",
    source="https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.md",
)
RDMA_ABSENT = _scheduled(
    "RdmaResourceAbsent",
    "Pods request an RDMA device or a virtual function by a name that no node offers: its device plugin is missing, "
    "runs elsewhere, or selects no device of the nodes.",
    "Run the device plugin on the nodes with RDMA devices, with this resource name in its ConfigMap.",
    source="https://github.com/Mellanox/k8s-rdma-shared-dev-plugin, "
    "https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin: resourceName, selectors",
)
RDMA_UNHEALTHY = _scheduled(
    "RdmaDevicesUnhealthy",
    "A node offers fewer virtual functions or RDMA devices than it has: the device plugin considers the others "
    "unhealthy, for example because their link is down.",
    "Repair the link (cable, optics, switch, or the state of the physical function): the SR-IOV device plugin then "
    "offers the devices again.",
    severity=CauseSeverity.MEDIUM,
    source="https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin: detects the link status",
)
CAUSES = (MISSPELLED, MIG_PROFILE_ABSENT, ONLY_MIG, RENAMED, ABSENT, EFA_BY_NAME, RDMA_ABSENT, RDMA_UNHEALTHY)

_MIG = "nvidia.com/mig-"
_SHARED = ".shared"
_WHOLE = "nvidia.com/gpu"
_STRATEGY, _CONFIG, _STATE = "nvidia.com/mig.strategy", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
_CAPABLE = "nvidia.com/mig.capable"
_NVIDIAS = "nvidia.com/"
_KNOWN = frozenset((_WHOLE, "amd.com/gpu"))
_MOST = 5
_RDMA = "rdma/"
"""Default prefix of the shared RDMA device plugin."""
_SRIOV = ("intel.com/", "openshift.io/", "mellanox.com/", "nvidia.com/")
"""Prefixes of the SR-IOV device plugin: its default, OpenShift's, an older one, NVIDIA's network operator's."""
_NOT_SRIOV = ("nvidia.com/gpu", "nvidia.com/mig", "nvidia.com/priority", "intel.com/sgx", "intel.com/qat")
_RDMA_STEPS = {
    Role.RDMA_PLUGIN: "rdmaSharedDevicePlugin of the network operator's NicClusterPolicy",
    Role.SRIOV_PLUGIN: "sriovDevicePlugin of the network operator's NicClusterPolicy, or the SR-IOV network operator",
}


def find_absent(snapshot: Snapshot, waiting: Waiting, name: str) -> Iterator[FoundCause]:
    """Yield why no node has any of a resource that the pods request."""
    if name == EFA and (claimable := claimable_nodes(snapshot)):
        yield _by_claim(snapshot, waiting, sorted(claimable))
        return
    if waiting.hami and is_accelerator(name) and (installed := installation_of(snapshot, waiting.pods[0])) is not None:
        yield _not_managed(waiting, name, installed)
        return
    there = Counter({each: number for each, number in nodes_with(snapshot).items() if is_extended(each)})
    cause, remedy = _intended(snapshot, name, there)
    if cause is not ABSENT:
        strategies = _strategies(snapshot) if name.startswith(_MIG) else ()
        asked = f"{shown(name, waiting.asked[name])} {name} requested; no node has any"
        because = why_not_cut(snapshot) if name.startswith(_MIG) else ()
        whole = snapshot.nodes if name == _WHOLE + _SHARED else ()
        unread = list(sharing.find_unread(snapshot, whole, waiting.names))
        yield from unread
        because += tuple((found.cause.name, found.subject) for found in unread)
        yield waiting.found(cause, asked, _offered(there), *strategies, remedy=remedy, because_of=because)
    elif changing := [node for node in snapshot.nodes if name.startswith(_NVIDIAS) and _is_changing(waiting, node)]:
        yield from (refused.find_changed(node, name, waiting.names) for node in changing)
    elif (role := rdma_plugin(name)) is not None:
        yield _rdma_absent(snapshot, waiting, name, role)
    else:
        refusal = autoscaling.refusal_of(snapshot, waiting.pods)
        evidence = (
            f"{counted(len(snapshot.nodes), 'node')}, none with {name}",
            *_without(snapshot, name),
            _offered(there),
            *refusal,
        )
        added = () if any(map(has_nvidia, snapshot.nodes)) else autoscaling.after_refusal(refusal)
        steps, because = added or _check_plugin(snapshot, name), why_not_offered(snapshot)
        yield waiting.found(ABSENT, *evidence, subject=f"resource/{name}", remedy=steps, because_of=because)


def find_apart(snapshot: Snapshot, waiting: Waiting) -> FoundCause:
    """Return the result for a pod whose resources all exist, but never together on one node."""
    if EFA in waiting.devices and (claimable := claimable_nodes(snapshot)):
        return _by_claim(snapshot, waiting, sorted(claimable))
    names = " and ".join(sorted(waiting.devices))
    evidence = f"one pod requests {names}; no node has all of them"
    remedy = "Request resources that one kind of node has, or let the device plugin offer them together."
    return waiting.found(MISSPELLED, evidence, remedy=(remedy,))


def _not_managed(waiting: Waiting, name: str, installed: Installation) -> FoundCause:
    """Return the result for a share that HAMi's scheduler does not know, so kube-scheduler looks for it on nodes."""
    config_map = f"{installed.name}-scheduler-device"
    settings = command("kubectl", "-n", installed.namespace, "get", "configmap", config_map, "-o", "yaml")
    enabled = "enable it in HAMi's chart, for Ascend by `devices.ascend.enabled=true`, and run its device plugin"
    remedy = (
        f"Compare the name with HAMi's device settings: {settings}",
        f"If they lack this vendor, {enabled}: HAMi's extender then manages the resource.",
    )
    evidence = f"{shown(name, waiting.asked[name])} {name} requested from {waiting.spec.scheduler}; no node has any"
    return waiting.found(
        ABSENT, evidence, f"the scheduler: {waiting.message}", subject=f"resource/{name}", remedy=remedy
    )


def _by_claim(snapshot: Snapshot, waiting: Waiting, nodes: Sequence[str]) -> FoundCause:
    classes = [each.meta.name for each in snapshot.device_classes if "efa" in each.meta.name]
    named_class = EFA_CLASS if EFA_CLASS in classes or not classes else classes[0]
    evidence = (
        f"{shown(EFA, waiting.asked[EFA])} {EFA} requested; no node with the GPUs has any",
        f"a DRA driver publishes EFA devices of {named((f'node/{name}' for name in nodes), _MOST)}",
    )
    remedy = (
        f"Remove {EFA} from the container's resources.",
        f"Claim the DeviceClass {named_class}: in the pod's resourceClaims and the container's resources.claims.",
        f"See the devices: {command('kubectl', 'get', 'resourceslices')}",
    )
    return waiting.found(EFA_BY_NAME, *evidence, remedy=remedy)


def _is_changing(waiting: Waiting, node: Node) -> bool:
    """Whether the node suits the pods, and offers its GPUs again when the operator has finished."""
    aside = switched_off(node) or is_for_machines(node)
    return has_nvidia(node) and is_changed(node) and not aside and selects(waiting.spec, node)


def _intended(snapshot: Snapshot, name: str, there: Counter[str]) -> tuple[Cause, tuple[str, ...]]:
    """Return why the name is absent by the names that nodes have, and the name to request instead."""
    ask = "Request `{}` in the workload's limits.".format
    twin = name.removesuffix(_SHARED) if name.endswith(_SHARED) else name + _SHARED
    mig = [text for text in there if text.startswith(_MIG)]
    if twin in there:
        return RENAMED, (ask(twin),)
    if name.startswith(_MIG):
        return MIG_PROFILE_ABSENT, _other_profiles(snapshot, name, mig, there)
    if name == _WHOLE and mig:
        return ONLY_MIG, (f"Request one of {', '.join(sorted(mig))}, or set `nvidia.com/mig.config=all-disabled`.",)
    near = nearest(name, there)
    if near and name not in _KNOWN:
        return MISSPELLED, (ask(near),)
    others = sorted(text for text in there if is_gpu(text))
    if others and meant_as_gpu(name):
        return MISSPELLED, (f"Request an existing resource: {', '.join(others[:_MOST])}.",)
    return ABSENT, ()


def nearest(name: str, there: Iterable[str]) -> str:
    """Return the name that was probably meant; '' if none is similar."""
    by_lower = {text.lower(): text for text in there}
    close = get_close_matches(name.lower(), by_lower, 1, 0.75)
    return by_lower[close[0]] if close else ""


def _other_profiles(snapshot: Snapshot, name: str, mig: list[str], there: Counter[str]) -> tuple[str, ...]:
    profile = name.removeprefix(_MIG)
    if changing := [node for node in snapshot.nodes if _awaits_profile(node, profile)]:
        state = changing[0].meta.labels[_STATE]
        return (f"Leave the workload: it starts once {changing[0].subject} has its profiles ({_STATE}={state}).",)
    partition = f"partition a node into {profile} by its label `nvidia.com/mig.config`"
    if mig:
        near = nearest(name, mig)
        first = f"Request `{near}`." if near else f"Request one of {', '.join(sorted(mig))}."
        return first, f"Or {partition}."
    if any(node.meta.labels.get(_STRATEGY) == "mixed" for node in snapshot.nodes):
        return (f"P{partition[1:]}.",)
    capable = {node.meta.labels[_CAPABLE] for node in snapshot.nodes if _CAPABLE in node.meta.labels}
    if capable == {"false"} and _WHOLE in there:
        return (f"Request {_WHOLE}: no GPU of these nodes can be partitioned ({_CAPABLE}=false).",)
    mixed = "Without MIG: set `nvidia.com/mig.config` on a node, and strategy mixed in the device plugin."
    single = f"With MIG strategy single, request {_WHOLE}; the label nvidia.com/gpu.product shows the profile."
    is_cut = any("-MIG-" in node.meta.labels.get("nvidia.com/gpu.product", "") for node in snapshot.nodes)
    if _WHOLE in there:
        return (single,) if is_cut else (single, mixed)
    return (mixed,)


def _awaits_profile(node: Node, profile: str) -> bool:
    """Whether the MIG manager has not yet given the node profiles that may contain this one."""
    wanted, state = node.meta.labels.get(_CONFIG, ""), node.meta.labels.get(_STATE, "")
    contains = wanted in (f"all-{profile}", "all-balanced") or not wanted.startswith("all-")
    return has_nvidia(node) and state in ("failed", "pending", "rebooting") and contains


def _offered(there: Counter[str]) -> str:
    gpus = [(name, nodes) for name, nodes in there.most_common() if meant_as_gpu(name)]
    if not gpus:
        return "no node offers any GPU resource"
    return "offered: " + ", ".join(f"{name} on {counted(nodes, 'node')}" for name, nodes in gpus[:_MOST])


def _without(snapshot: Snapshot, name: str) -> Iterator[str]:
    """Yield nodes that should have the resource."""
    for node in snapshot.nodes:
        if {**node.capacity, **node.allocatable}.get(name) == "0":
            yield f"{node.subject}: 0 {name} now; a device plugin offered it before"
        elif name.startswith(_NVIDIAS) and has_nvidia(node):
            off = switched_off(node)
            why = f": its label {off}={node.meta.labels[off]} keeps the device plugin off" if off else ""
            yield f"{node.subject}: a GPU node that offers no {name}{why}"


def _strategies(snapshot: Snapshot) -> Iterator[str]:
    strategies = Counter(node.meta.labels[_STRATEGY] for node in snapshot.nodes if _STRATEGY in node.meta.labels)
    return (f"MIG strategy {text} on {counted(nodes, 'node')}" for text, nodes in sorted(strategies.items()))


def _check_plugin(snapshot: Snapshot, name: str) -> tuple[str, str]:
    """Return the steps that lead to a device plugin which offers the resource."""
    columns = f"custom-columns=NODE:.metadata.name,OFFERED:.status.allocatable.{name.replace('.', chr(92) + '.')}"
    look = f"List the resources of the nodes: {command('kubectl', 'get', 'nodes', '-o', columns)}"
    role = Role.EFA_PLUGIN if name == EFA else Role.DEVICE_PLUGIN if name.startswith(_NVIDIAS) else None
    if role is None:
        return f"Run the device plugin that offers {name} on the nodes with such devices.", look
    with_gpus = [node for node in snapshot.nodes if has_nvidia(node)]
    if role is Role.DEVICE_PLUGIN and not with_gpus:
        return "Add a GPU node to the cluster, or let its pool grow from zero.", look
    if role is Role.DEVICE_PLUGIN and all(map(switched_off, with_gpus)):
        node = with_gpus[0]
        on = command("kubectl", "label", "node", node.name, f"{switched_off(node)}=true", "--overwrite")
        return f"Find out who disabled the device plugin there; if the node's GPUs are for containers: {on}", look
    plugins = (each for each in components(snapshot) if each.role is role and each.meta.kind == "DaemonSet")
    plugin = next(plugins, None)
    if plugin is None:
        return f"Run the {role.value} on the nodes with such devices.", look
    see = kubectl("describe", plugin.meta)
    return f"Check whether the {role.value} runs on the nodes with such devices: {see}", look


def rdma_plugin(resource: str) -> Role | None:
    """Return the RDMA device plugin that offers such a resource, by its prefix; None for other resources."""
    if resource.startswith(_RDMA):
        return Role.RDMA_PLUGIN
    if resource.startswith(_SRIOV) and not resource.startswith(_NOT_SRIOV) and not meant_as_gpu(resource):
        return Role.SRIOV_PLUGIN
    return None


def found_unhealthy_rdma(node: Node, numbers: str, affected: tuple[str, ...]) -> FoundCause:
    """Return the result for RDMA devices of a node that their plugin does not offer. `numbers`: the evidence."""
    down = [finding.subject for finding in node.findings if finding.reason == PORT_DOWN]
    evidence = (numbers, *((f"the agent finds ports down: {named(down, _MOST)}",) if down else ()))
    see = f"See the state of its links and devices: {kubectl('describe', node.meta)}"
    return FoundCause(RDMA_UNHEALTHY, node.subject, evidence, (RDMA_UNHEALTHY.remedy, see), affected)


def _rdma_absent(snapshot: Snapshot, waiting: Waiting, name: str, role: Role) -> FoundCause:
    nodes = [node for node in snapshot.nodes if has_gpu(node)] or list(snapshot.nodes)
    plugins = [each for each in components(snapshot) if each.role is role]
    zero = [node.subject for node in snapshot.nodes if {**node.capacity, **node.allocatable}.get(name) == "0"]
    prefix = name.partition("/")[0] + "/"
    others = sorted(each for each in nodes_with(snapshot) if each.startswith(prefix) and rdma_plugin(each))
    evidence = [
        f"{shown(name, waiting.asked[name])} {name} requested; {counted(len(snapshot.nodes), 'node')}, none with {name}"
    ]
    evidence += [f"{named(zero, _MOST)}: 0 {name} now; a device plugin offered it before"] if zero else []
    evidence += [f"offered instead: {named(others, _MOST)}"] if others else []
    if plugins:
        state, remedy = _rdma_plugin_state(plugins[0], name, nodes)
        evidence += [state] if state else []
    else:
        evidence += [f"the cluster has no {role.value}"] if snapshot.sees("DaemonSet", "Pod") else []
        resource = f"the resourceName {name.partition('/')[2]} in its configuration"
        remedy = (f"Install the {role.value} ({_RDMA_STEPS[role]}), with {resource}.",)
    because = origins((NOT_READY[role],), *(each.subject for each in plugins), *(node.subject for node in nodes))
    evidence += autoscaling.refusal_of(snapshot, waiting.pods)
    return waiting.found(RDMA_ABSENT, *evidence, subject=f"resource/{name}", remedy=remedy, because_of=because)


def _rdma_plugin_state(plugin: Component, name: str, nodes: Sequence[Node]) -> tuple[str, tuple[str, ...]]:
    """Return how the plugin runs on the GPU nodes, and the steps that make it offer the resource."""
    describe = kubectl("describe", plugin.meta)
    on_nodes = ((node, plugin.pod_on(node.name)) for node in nodes)
    ready = [(node, pod) for node, pod in on_nodes if pod is not None and is_ready(pod)]
    if ready:
        there, resource = named((node.subject for node, _ in ready), _MOST), name.partition("/")[2]
        tail = logs(ready[0][1].meta, "--tail=100")
        compare = (
            f"Compare the resourceName {resource}, the prefix and the selectors in the plugin's ConfigMap, which "
            f"{describe} shows, with the node's devices."
        )
        return f"{plugin.subject} is ready on {there}, and offers no such resource there", (
            compare,
            f"Then restart the plugin, and read whether its log skips the resource: {tail}",
        )
    run = f"Let the plugin run on the nodes with such devices: {describe}"
    if plugin.meta.kind != "DaemonSet" or not nodes or any(is_for(plugin.spec, node) for node in nodes):
        return "", (run,)
    node = nodes[0]
    if missing := missing_labels(plugin, node):
        discovery = (
            "Find out why the nodes lack these labels: node feature discovery sets pci-15b3.present, and the network "
            "operator sets operator.mofed.wait=false once its driver is loaded."
        )
        return f"{plugin.subject} requires {named(missing, _MOST)}, which {node.subject} lacks", (discovery, run)
    taints = named(map(str, refusing_taints(plugin.spec, node)), _MOST)
    refusal = f"does not tolerate {taints}" if taints else f"does not select {node.subject}"
    return f"{plugin.subject} {refusal}", (run,)
