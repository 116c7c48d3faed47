"""Find nodes without their EFA devices, and device plugins that leave nodes out or offer other devices as EFA."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.device_plugins import why_not_on
from gpu_healthcheck.diagnosis.causes.verdicts import KEPT_FROM_WORK
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, pods_on
from gpu_healthcheck.diagnosis.facts.components import Component, Role, components, is_for, is_ready, refused, tag_of
from gpu_healthcheck.diagnosis.facts.efa import (
    NETWORK_DRIVERS,
    claimable_nodes,
    is_multi_node_type,
    mlx5_on,
    observed_efa,
    offered_efa,
    profile_of,
    type_of,
)
from gpu_healthcheck.diagnosis.facts.gpu_nodes import EFA, is_judged, sliced_nodes
from gpu_healthcheck.diagnosis.facts.placement import expression_takes
from gpu_healthcheck.diagnosis.facts.quantity import count_of
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Search, found_on, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE
from gpu_healthcheck.healthcheck.text.naming import named

_fault = Family(None, severity=CauseSeverity.MEDIUM)
NO_EFA = _fault(
    "EfaNotOffered",
    "A node has EFA devices and offers only some or none of them: multi-node jobs fall back to TCP or wait.",
    "Check the EFA device plugin pod on the node.",
    source="https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html",
)
LEAVES_OUT = _fault(
    "EfaPluginLeavesTypeOut",
    "The EFA device plugin runs only on the instance types in its list, and a type with EFA is missing there: no pod "
    "gets EFA on its nodes, and multi-node jobs fall back to TCP or wait.",
    "Add the type to the node affinity of the plugin, or upgrade its chart: the Helm value "
    "supportedInstanceLabels.values has the list.",
    source="https://github.com/aws/eks-charts/tree/master/stable/aws-efa-k8s-device-plugin",
)
COUNTS_MLX5 = _fault(
    "EfaPluginCountsMlx5",
    "The EFA device plugin offers the mlx5 devices of a node as EFA: a job that gets one fails or falls back to TCP.",
    "Upgrade the EFA device plugin to 0.5.10 or newer, then restart the pods that have EFA devices there.",
    source="https://github.com/aws/sagemaker-hyperpod-cli/pull/282: 10 devices instead of 8 on p6-b200.48xlarge",
)
_COMPUTE = "eks.amazonaws.com/compute-type"
_LISTED = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type", _COMPUTE)
"""Labels by which the plugin's chart lists its nodes; EKS Auto Mode has `compute-type` auto."""
_FIXED = (0, 5, 10)
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_MOST = 8


def efa_plugins(snapshot: Snapshot) -> list[Component]:
    return [each for each in components(snapshot) if each.role is Role.EFA_PLUGIN]


def left_out_by(plugins: Sequence[Component], node: Node) -> Component | None:
    """Return a plugin whose list lacks the node's type; None if a plugin selects the node, or none has such a list."""
    if any(plugin.meta.kind != "DaemonSet" or plugin.pod_on(node.name) is not None for plugin in plugins):
        return None
    excluding = [plugin for plugin in plugins if _missing_in_list(plugin, node)]
    return excluding[0] if excluding and len(excluding) == len(plugins) else None


def find_left_out(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield plugins whose list lacks a type with EFA, each with the nodes of such types."""
    plugins, claimable = efa_plugins(snapshot), claimable_nodes(snapshot)
    left: list[tuple[str, tuple[Component, Node, str]]] = []
    for node in snapshot.nodes:
        if node.name in claimable or offered_efa(node) or not is_judged(node, snapshot.now):
            continue
        plugin, proof = left_out_by(plugins, node), _proof(node)
        if plugin is not None and proof:
            left.append((plugin.subject, (plugin, node, proof)))
    for subject, some in grouped(left).items():
        plugin = some[0][0]
        nodes = tuple(node.subject for _, node, _ in some)
        why = {_missing_in_list(plugin, node): f"{node.subject}: {proof}" for _, node, proof in some}
        evidence = (f"{named(nodes, _MOST)}: no {EFA}", *why.values(), *(f"{subject} requires {text}" for text in why))
        certainty = Certainty.PROVEN if any(node.record is not None for _, node, _ in some) else Certainty.LIKELY
        yield FoundCause(LEAVES_OUT, subject, evidence, tuple(_remedy(plugin, some[0][1])), nodes, certainty)


def _proof(node: Node) -> str:
    """Return the evidence that the node has EFA: its agent's, or else its type's."""
    observed, profile = observed_efa(node, ()), profile_of(node)
    if observed is None and profile is not None and is_multi_node_type(node):
        return f"the type {profile.instance_type} has {profile.efa} EFA interfaces"
    return observed or ""


def _missing_in_list(plugin: Component, node: Node) -> str:
    """Return the requirement that keeps the plugin off the node; '' if it is not one about the type."""
    labels = node.meta.labels
    if refused(plugin.spec, node) or any(labels.get(key) != text for key, text in plugin.spec.node_selector.items()):
        return ""
    missed = [[each for each in term if not expression_takes(each, node)] for term in plugin.spec.affinity or ()]
    if not missed or not all(missed):
        return ""
    of_types = (some for some in missed if all(each.key in _LISTED for each in some))
    return next((f"{some[0].key} {some[0].operator} {named(some[0].values, 4)}" for some in of_types), "")


def _remedy(plugin: Component, node: Node) -> Iterator[str]:
    edit = kubectl("edit", plugin.meta)
    if node.meta.labels.get(_COMPUTE) == "auto" and _missing_in_list(plugin, node).startswith(_COMPUTE):
        yield f"Remove the requirement {_COMPUTE} NotIn auto from the plugin's node affinity: {edit}"
    else:
        yield f"Add {type_of(node)} to the Helm value supportedInstanceLabels.values, or to the node affinity: {edit}"
    see = command("kubectl", "get", "nodes", "-L", INSTANCE_TYPE, "-o", "wide")
    yield f"Then the nodes offer {EFA}, and the jobs have to request it. See the types: {see}"


def find_miscounted(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield plugins that offer more devices than the type has EFA, on nodes with mlx5 devices."""
    plugins = efa_plugins(snapshot)
    wrong: list[tuple[str, tuple[Node, str]]] = []
    for node in snapshot.nodes:
        profile, mlx5, offered = profile_of(node), mlx5_on(node), offered_efa(node)
        if profile is None or not 0 < profile.efa < offered or not mlx5:
            continue
        own = [plugin for plugin in plugins if plugin.pod_on(node.name)] or plugins
        image = _image(own[0], node) if own else ""
        found = _VERSION.match(tag_of(image))
        if found is None or tuple(map(int, found.groups())) < _FIXED:
            text = f"{node.subject} offers {offered} {EFA}; {type_of(node)} has {profile.efa}, and mlx5 ({mlx5})"
            wrong.append((plugins[0].subject if plugins else node.subject, (node, text)))
    for subject, some in grouped(wrong).items():
        evidence, remedy = [text for _, text in some], [COUNTS_MLX5.remedy]
        if plugins:
            evidence.append(f"{subject}: image {plugins[0].version or 'without a version'}")
            remedy.append(f"See the image: {kubectl('get', plugins[0].meta, '-o', 'wide')}")
        nodes = tuple(node.subject for node, _ in some)
        yield FoundCause(COUNTS_MLX5, subject, tuple(evidence), tuple(remedy), nodes)


def _image(plugin: Component, node: Node) -> str:
    pod = plugin.pod_on(node.name)
    spec = pod.spec if pod is not None else plugin.spec
    return next((container.image for container in spec.containers if not container.init), "")


def find_efa(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes without EFA devices that should have them.

    The proof is the node's own capacity, or other nodes like it.
    """
    plugins = efa_plugins(snapshot)
    claimed = sliced_nodes(snapshot, NETWORK_DRIVERS)
    drivers = [component for component in components(snapshot) if component.role is Role.NETWORK_DRA]
    types = {one.meta.labels.get(INSTANCE_TYPE, "") for one in snapshot.nodes if count_of(one.allocatable, EFA)} - {""}
    for node in snapshot.nodes:
        if not is_judged(node, snapshot.now):
            continue
        there, offered = count_of(node.capacity, EFA), count_of(node.allocatable, EFA)
        above = origins((NOT_READY[Role.EFA_PLUGIN],), node.subject, *(plugin.subject for plugin in plugins))
        remedy = (f"Check the EFA device plugin there, and restart its pod: {pods_on(node.name)}",)
        if offered < there:
            evidence = (f"{node.subject}: capacity {there} {EFA}, allocatable {offered}",)
            yield found_on(node.subject, NO_EFA, evidence, remedy, (*above, (KEPT_FROM_WORK.name, node.subject)))
        elif not offered and plugins and snapshot.sees("Pod") and (proof := observed_efa(node, types)):
            absent = [
                plugin
                for plugin in plugins
                if plugin.meta.kind == "DaemonSet" and not ((pod := plugin.pod_on(node.name)) and is_ready(pod))
            ]
            by_claims = node.name in claimed or any(is_for(driver.spec, node) for driver in drivers)
            if absent and len(absent) == len(plugins) and not by_claims and not left_out_by(plugins, node):
                why = (f"{node.subject} offers no {EFA}", proof, why_not_on(absent[0], node))
                yield found_on(node.subject, NO_EFA, why, remedy, above, Certainty.LIKELY)


SEARCHES = (
    Search((NO_EFA,), ("Node",), find_efa),
    Search((LEAVES_OUT,), ("Node", "Pod", "DaemonSet"), find_left_out),
    Search((COUNTS_MLX5,), ("Node",), find_miscounted),
)
