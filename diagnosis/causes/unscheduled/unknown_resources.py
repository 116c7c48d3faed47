"""Find requested resources that no node has: misspelled, another MIG profile, renamed by time-slicing, or absent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from diagnosis.causes.device_plugins import why_not_cut, why_not_offered
from diagnosis.causes.unscheduled import rdma_resources, refused
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting, is_extended
from diagnosis.facts import autoscaler
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.components import Role, components
from diagnosis.facts.efa import EFA_CLASS, claimable_nodes
from diagnosis.facts.gpu_nodes import EFA, has_nvidia, is_changed, is_for_machines, switched_off
from diagnosis.facts.gpu_requests import is_gpu, meant_as_gpu
from diagnosis.facts.placement import has, selects
from diagnosis.facts.quantity import counted, shown
from diagnosis.model import Cause, Family, FoundCause, Link
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from healthcheck.text.naming import named

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
CAUSES = (MISSPELLED, MIG_PROFILE_ABSENT, ONLY_MIG, RENAMED, ABSENT, EFA_BY_NAME, *rdma_resources.CAUSES)

_MIG = "nvidia.com/mig-"
_SHARED = ".shared"
_WHOLE = "nvidia.com/gpu"
_STRATEGY = "nvidia.com/mig.strategy"
_NVIDIAS = "nvidia.com/"
_KNOWN = frozenset((_WHOLE, "amd.com/gpu"))
_MOST_NAMED = 5


def absent(waiting: Waiting, rooms: Sequence[NodeUse]) -> tuple[str, ...]:
    """Return the requested resources of which no node has any."""
    return tuple(name for name in waiting.devices if not any(has(room.node, name) for room in rooms))


def find_absent(
    snapshot: Snapshot, waiting: Waiting, names: Iterable[str], rooms: Sequence[NodeUse]
) -> Iterator[FoundCause]:
    there = _offered(rooms)
    for name in names:
        if name == EFA and (claimable := claimable_nodes(snapshot)):
            yield _by_claim(snapshot, waiting, sorted(claimable))
            continue
        asked = f"{shown(name, waiting.asked[name])} {name} requested; no node has any"
        offered = _offer(there)
        cause, remedy = _judged(name, there)
        changed = [room.node for room in rooms if name.startswith(_NVIDIAS) and _is_on_its_way(waiting, room.node)]
        if cause is ABSENT and changed:
            yield from (refused.find_changed(node, name, waiting.names) for node in changed)
        elif cause is ABSENT and (role := rdma_resources.plugin_of(name)) is not None:
            yield rdma_resources.found_absent(snapshot, waiting, name, role, rooms)
        elif cause is ABSENT:
            messages = autoscaler.refusal_of(snapshot, waiting.pods)
            evidence = (f"{counted(len(rooms), 'node')}, none with {name}", *_hardware(name, rooms), offered, *messages)
            because = why_not_offered(snapshot)
            yield waiting.found(
                cause, *evidence, subject=f"resource/{name}", remedy=_look(snapshot, name, rooms), because_of=because
            )
        else:
            strategy = _strategies(rooms) if name.startswith(_MIG) else ()
            cut = why_not_cut(snapshot) if name.startswith(_MIG) else ()
            messages = (asked, offered, *strategy)
            yield waiting.found(cause, *messages, remedy=remedy, because_of=cut)


def _by_claim(snapshot: Snapshot, waiting: Waiting, nodes: Sequence[str]) -> FoundCause:
    classes = [each.meta.name for each in snapshot.device_classes if "efa" in each.meta.name]
    named_class = EFA_CLASS if EFA_CLASS in classes or not classes else classes[0]
    evidence = (
        f"{shown(EFA, waiting.asked[EFA])} {EFA} requested; no node with the GPUs has any",
        f"a DRA driver publishes EFA devices of {named((f'node/{name}' for name in nodes), _MOST_NAMED)}",
    )
    remedy = (
        f"Remove {EFA} from the container's resources.",
        f"Claim the DeviceClass {named_class}: in the pod's resourceClaims and the container's resources.claims.",
        f"See the devices: {command('kubectl', 'get', 'resourceslices')}",
    )
    return waiting.found(EFA_BY_NAME, *evidence, remedy=remedy)


def _is_on_its_way(waiting: Waiting, node: Node) -> bool:
    """Whether the node suits the pods, and offers its GPUs again when the operator has finished."""
    aside = switched_off(node) or is_for_machines(node)
    return has_nvidia(node) and is_changed(node) and not aside and selects(waiting.spec, node)


def find_apart(snapshot: Snapshot, waiting: Waiting) -> FoundCause:
    """Return the result for a pod whose resources all exist, but never together on one node."""
    if EFA in waiting.devices and (claimable := claimable_nodes(snapshot)):
        return _by_claim(snapshot, waiting, sorted(claimable))
    names = " and ".join(sorted(waiting.devices))
    evidence = (f"one pod requests {names}; no node has all of them",)
    remedy = ("Request resources that one kind of node has, or let the device plugin offer them together.",)
    return waiting.found(MISSPELLED, *evidence, remedy=remedy)


def _judged(name: str, there: Counter[str]) -> tuple[Cause, tuple[str, ...]]:
    ask = "Request `{}` in the workload's limits.".format
    twin = name.removesuffix(_SHARED) if name.endswith(_SHARED) else name + _SHARED
    mig = [text for text in there if text.startswith(_MIG)]
    if twin in there:
        return RENAMED, (ask(twin),)
    if name.startswith(_MIG):
        return MIG_PROFILE_ABSENT, _other_profiles(name, mig, there)
    if name == _WHOLE and mig:
        return ONLY_MIG, (f"Request one of {', '.join(sorted(mig))}, or set `nvidia.com/mig.config=all-disabled`.",)
    near = nearest(name, there)
    if near and name not in _KNOWN:
        return MISSPELLED, (ask(near),)
    others = [text for text in there if is_gpu(text)]
    if others and meant_as_gpu(name):
        return MISSPELLED, (f"Request an existing resource: {', '.join(sorted(others)[:_MOST_NAMED])}.",)
    return ABSENT, ()


def nearest(name: str, there: Iterable[str]) -> str:
    """Return the name that was probably meant; '' if none is similar."""
    by_lower = {text.lower(): text for text in there}
    close = get_close_matches(name.lower(), by_lower, 1, 0.75)
    return by_lower[close[0]] if close else ""


def _other_profiles(name: str, mig: list[str], there: Counter[str]) -> tuple[str, ...]:
    if mig:
        near = nearest(name, mig)
        first = f"Request `{near}`." if near else f"Request one of {', '.join(sorted(mig))}."
        return first, f"Or partition a node into {name.removeprefix(_MIG)} by its label `nvidia.com/mig.config`."
    if _WHOLE in there:
        return (
            f"With MIG strategy single, request {_WHOLE}; the label nvidia.com/gpu.product shows the profile.",
            "Without MIG: set `nvidia.com/mig.config` on a node, and strategy mixed in the device plugin.",
        )
    return ("Set `nvidia.com/mig.config` on a node, and strategy mixed in the device plugin.",)


def _offered(rooms: Iterable[NodeUse]) -> Counter[str]:
    """Return, by resource, how many nodes have any."""
    names = ((name, room) for room in rooms for name in {**room.node.capacity, **room.node.allocatable})
    return Counter(name for name, room in names if is_extended(name) and has(room.node, name))


def _offer(there: Counter[str]) -> str:
    gpus = [(name, nodes) for name, nodes in there.most_common() if meant_as_gpu(name)]
    if not gpus:
        return "no node offers any GPU resource"
    return "offered: " + ", ".join(f"{name} on {counted(nodes, 'node')}" for name, nodes in gpus[:_MOST_NAMED])


def _hardware(name: str, rooms: Iterable[NodeUse]) -> Iterator[str]:
    """Yield nodes that should have the resource."""
    for room in rooms:
        node = room.node
        if {**node.capacity, **node.allocatable}.get(name) == "0":
            yield f"{node.subject}: 0 {name} now; a device plugin offered it before"
        elif name.startswith(_NVIDIAS) and has_nvidia(node):
            off = switched_off(node)
            why = f": its label {off}={node.meta.labels[off]} keeps the device plugin off" if off else ""
            yield f"{node.subject}: a GPU node that offers no {name}{why}"


def _strategies(rooms: Iterable[NodeUse]) -> tuple[str, ...]:
    fields = Counter(room.node.meta.labels[_STRATEGY] for room in rooms if _STRATEGY in room.node.meta.labels)
    return tuple(f"MIG strategy {text} on {counted(nodes, 'node')}" for text, nodes in sorted(fields.items()))


def _look(snapshot: Snapshot, name: str, rooms: Sequence[NodeUse]) -> tuple[str, ...]:
    role = Role.EFA_PLUGIN if name == EFA else Role.DEVICE_PLUGIN if name.startswith(_NVIDIAS) else None
    if role is None:
        return (f"Run the device plugin that offers {name} on the nodes with such devices.", _offers(name))
    with_gpus = [room.node for room in rooms if has_nvidia(room.node)]
    if role is Role.DEVICE_PLUGIN and not with_gpus:
        return ("Add a GPU node to the cluster, or let its pool grow from zero.", _offers(name))
    if role is Role.DEVICE_PLUGIN and all(map(switched_off, with_gpus)):
        return (_switch_on(with_gpus[0]), _offers(name))
    plugin = next(
        (each for each in components(snapshot) if each.role is role and each.meta.kind == "DaemonSet"),
        None,
    )
    if plugin is None:
        return (f"Run the {role.value} on the nodes with such devices.", _offers(name))
    look = kubectl("describe", plugin.meta)
    return (f"Check whether the {role.value} runs on the nodes with such devices: {look}", _offers(name))


def _switch_on(node: Node) -> str:
    on = command("kubectl", "label", "node", node.name, f"{switched_off(node)}=true", "--overwrite")
    return f"Find out who disabled the device plugin there; if the node's GPUs are for containers: {on}"


def _offers(name: str) -> str:
    escaped = name.replace(".", "\\.")
    columns = f"custom-columns=NODE:.metadata.name,OFFERED:.status.allocatable.{escaped}"
    return f"List the resources of the nodes: {command('kubectl', 'get', 'nodes', '-o', columns)}"
