"""Find faults of devices without the GPU device plugin: EFA, and GPUs that a DRA driver publishes."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.causes.efa_plugins import efa_plugins, left_out_by
from diagnosis.causes.unready_components import NOT_READY
from diagnosis.causes.verdicts import KEPT_FROM_WORK
from diagnosis.facts.commands import kubectl, logs, pods_on
from diagnosis.facts.components import YOUNG, Component, Role, components, is_for, is_ready, refused
from diagnosis.facts.efa import NETWORK_DRIVERS, observed_efa
from diagnosis.facts.gpu_nodes import EFA, has_nvidia, is_changed, is_for_machines, is_judged, offers_gpus, sliced_nodes
from diagnosis.facts.quantity import count_of
from diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Origin, Search, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from healthcheck.node.state import INSTANCE_TYPE

_GPU_DRIVER = "gpu.nvidia.com"
_fault = Family(None, severity=CauseSeverity.MEDIUM)
NO_EFA = _fault(
    "EfaNotOffered",
    "A node has EFA devices and offers only some or none of them: multi-node jobs fall back to TCP or wait.",
    "Check the EFA device plugin pod on the node.",
    source="https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html",
)
NO_SLICES = _fault(
    "GpuSlicesMissing",
    "The DRA driver publishes none of a node's GPUs, so no claim gets one there.",
    "Read the log of the driver's container `gpus` on the node; if the pod is missing there, find the reason.",
    severity=CauseSeverity.HIGH,
    source="https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu",
)


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
        evidence = f"{node.subject}: capacity {there} {EFA}, allocatable {offered}"
        above = [*origins((NOT_READY[Role.EFA_PLUGIN],), node.subject, *(part.subject for part in plugins))]
        if offered < there:
            above.append((KEPT_FROM_WORK.name, node.subject))
            yield _efa(node, (evidence,), tuple(above), Certainty.PROVEN)
        elif not offered and plugins and snapshot.sees("Pod") and (proof := observed_efa(node, types)):
            absent = [plugin for plugin in plugins if plugin.meta.kind == "DaemonSet" and not _works_on(plugin, node)]
            by_claims = node.name in claimed or any(is_for(driver.spec, node) for driver in drivers)
            if absent and len(absent) == len(plugins) and not by_claims and not left_out_by(plugins, node):
                result = (f"{node.subject} offers no {EFA}", proof, _why_not(absent[0], node))
                yield _efa(node, result, tuple(above), Certainty.LIKELY)


def find_slices(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield GPU nodes on which the DRA driver runs with GPUs enabled and that no ResourceSlice lists."""
    drivers = [each for each in components(snapshot) if each.role is Role.DRA_DRIVER and each.meta.kind == "DaemonSet"]
    messages = sliced_nodes(snapshot, (_GPU_DRIVER,))
    served = bool(messages) or any(device_class.meta.name == _GPU_DRIVER for device_class in snapshot.device_classes)
    for node in snapshot.nodes if served else ():
        if not has_nvidia(node) or node.name in messages or not is_judged(node, snapshot.now) or is_changed(node):
            continue
        if snapshot.gpu_clusters and drivers and not any(component.pod_on(node.name) for component in drivers):
            if not offers_gpus(node) and not is_for_machines(node):
                yield _without_driver(node, drivers[0])
            continue
        for driver in drivers:
            pod = driver.pod_on(node.name)
            young = pod is None or snapshot.is_new(pod.meta, YOUNG)
            if pod is None or young or not is_ready(pod) or not _gives_gpus(driver):
                continue
            evidence = (
                f"{pod.subject} is ready on {node.subject}",
                f"no ResourceSlice of {_GPU_DRIVER} lists {node.subject}",
            )
            because = origins((NOT_READY[Role.DRIVER], KEPT_FROM_WORK), node.subject)
            remedy = (f"Read its log there: {logs(pod.meta, '-c', 'gpus', '--tail=50')}",)
            yield FoundCause(NO_SLICES, node.subject, evidence, remedy, (node.subject,), because_of=because)


def _without_driver(node: Node, driver: Component) -> FoundCause:
    """Return the result for a node without driver pod that a GPUCluster should serve."""
    evidence = (f"{node.subject} has GPUs, and the GPU operator offers them by DRA", _why_not(driver, node))
    labels = kubectl("get", node.meta, "--show-labels")
    wanted = ", ".join(f"{key}={value}" for key, value in driver.spec.node_selector.items())
    remedy = f"Find out why the operator has not set the label {wanted or 'for it'}: {labels}"
    because = origins((NOT_READY[Role.OPERATOR], NOT_READY[Role.DRA_DRIVER]), driver.subject)
    return FoundCause(NO_SLICES, node.subject, evidence, (remedy,), (node.subject,), because_of=because)


def _gives_gpus(driver: Component) -> bool:
    """Whether GPUs are enabled: off by default in the chart, which has one container for each enabled kind."""
    return any(container.name in ("gpus", "gpu-kubelet-plugin") for container in driver.spec.containers)


def _efa(node: Node, evidence: tuple[str, ...], above: tuple[Origin, ...], certainty: Certainty) -> FoundCause:
    remedy = (f"Check the EFA device plugin there, and restart its pod: {pods_on(node.name)}",)
    return FoundCause(NO_EFA, node.subject, evidence, remedy, (node.subject,), certainty, above)


def _works_on(plugin: Component, node: Node) -> bool:
    pod = plugin.pod_on(node.name)
    return pod is not None and is_ready(pod)


def _why_not(plugin: Component, node: Node) -> str:
    taints = refused(plugin.spec, node)
    if taints:
        return f"{plugin.subject} does not tolerate {', '.join(map(str, taints))}"
    if not is_for(plugin.spec, node):
        return f"{plugin.subject} does not select it"
    return f"{plugin.subject} has no ready pod there"


SEARCHES = (Search((NO_EFA,), ("Node",), find_efa), Search((NO_SLICES,), ("Node", "Pod", "ResourceSlice"), find_slices))
