"""Devices beside those of the device plugin: EFA, and GPUs that a driver of dynamic resource allocation publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diagnosis.cause import Cause, Certainty, Found, Search, Severity, command
from diagnosis.causes.components import NOT_READY
from diagnosis.causes.verdicts import WITHHELD
from diagnosis.components import YOUNG, Component, Role, components, is_for, is_ready, refused
from diagnosis.gpu_nodes import EFA, has_nvidia, is_changed, is_judged, sliced_nodes
from diagnosis.placement import ZERO
from diagnosis.quantity import amount
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from healthcheck.node.state import INSTANCE_TYPE

_GPU_DRIVER = "gpu.nvidia.com"
NO_EFA = Cause(
    "EfaNotOffered",
    Severity.MEDIUM,
    None,
    "A node has EFA devices and does not offer them, or not all: jobs over several nodes fall back to TCP or wait.",
    "Look at the EFA device plugin's pod on the node.",
    "https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html",
)
NO_SLICES = Cause(
    "GpuSlicesMissing",
    Severity.HIGH,
    None,
    "The DRA driver runs on a GPU node and publishes none of its GPUs, so no claim gets one there.",
    "Read the log of the driver's container `gpus` on the node.",
    "https://github.com/NVIDIA/k8s-dra-driver-gpu",
)


def find_efa(snapshot: Snapshot) -> Iterator[Found]:
    """Nodes whose own capacity, or whose like, proves that they have EFA devices."""
    plugins = [one for one in components(snapshot) if one.role is Role.EFA_PLUGIN]
    types = {one.meta.labels.get(INSTANCE_TYPE, "") for one in snapshot.nodes if _number(one.allocatable)} - {""}
    for node in snapshot.nodes:
        if not is_judged(node, snapshot.now):
            continue
        there, offered = _number(node.capacity), _number(node.allocatable)
        evidence = f"{node.subject}: {there} {EFA} in capacity, {offered} allocatable"
        above = [(NOT_READY[Role.EFA_PLUGIN], one) for one in (node.subject, *(part.subject for part in plugins))]
        if offered < there:
            above.append((WITHHELD, node.subject))
            yield _efa(node, (evidence,), tuple(above), Certainty.PROVEN)
        elif not offered and node.meta.labels.get(INSTANCE_TYPE, "") in types and snapshot.sees("Pod"):
            absent = [one for one in plugins if one.meta.kind == "DaemonSet" and not _works_on(one, node)]
            if absent and len(absent) == len(plugins):
                same = f"other nodes of type {node.meta.labels[INSTANCE_TYPE]} offer {EFA}"
                told = (f"{node.subject} offers no {EFA}", same, _why_not(absent[0], node))
                yield _efa(node, told, tuple(above), Certainty.LIKELY)


def find_slices(snapshot: Snapshot) -> Iterator[Found]:
    """GPU nodes on which the driver runs with its GPUs switched on, and of which no slice tells."""
    drivers = [one for one in components(snapshot) if one.role is Role.DRA_DRIVER and one.meta.kind == "DaemonSet"]
    told = sliced_nodes(snapshot, (_GPU_DRIVER,))
    served = bool(told) or any(one.meta.name == _GPU_DRIVER for one in snapshot.device_classes)
    for node in snapshot.nodes if served else ():
        if not has_nvidia(node) or node.name in told or not is_judged(node, snapshot.now) or is_changed(node):
            continue
        for driver in drivers:
            pod = driver.pod_on(node.name)
            young = pod is None or (pod.meta.created is not None and snapshot.now - pod.meta.created < YOUNG)
            if pod is None or young or not is_ready(pod) or not _gives_gpus(driver):
                continue
            words = ("kubectl", "-n", pod.meta.namespace, "logs", pod.meta.name, "-c", "gpus", "--tail=50")
            evidence = (
                f"{pod.subject} is ready on {node.subject}",
                f"no ResourceSlice of {_GPU_DRIVER} tells of {node.subject}",
            )
            because = ((NOT_READY[Role.DRIVER], node.subject), (WITHHELD, node.subject))
            remedy = (f"Read what it finds there: {command(*words)}",)
            yield Found(NO_SLICES, node.subject, evidence, remedy, (node.subject,), because_of=because)


def _gives_gpus(driver: Component) -> bool:
    """The chart switches GPUs off by default, and has a container for each thing that is on."""
    return any(one.name in ("gpus", "gpu-kubelet-plugin") for one in driver.spec.containers)


def _efa(node: Node, evidence: tuple[str, ...], above: tuple[tuple[Cause, str], ...], certainty: Certainty) -> Found:
    pods = command("kubectl", "get", "pods", "-A", "-o", "wide", f"--field-selector=spec.nodeName={node.name}")
    remedy = (f"Look at the EFA device plugin there, restart its pod: {pods}",)
    return Found(NO_EFA, node.subject, evidence, remedy, (node.subject,), certainty, above)


def _works_on(plugin: Component, node: Node) -> bool:
    pod = plugin.pod_on(node.name)
    return pod is not None and is_ready(pod)


def _why_not(plugin: Component, node: Node) -> str:
    taints = refused(plugin.spec, node)
    if taints:
        return f"{plugin.subject} does not tolerate {', '.join(map(str, taints))}"
    if not is_for(plugin.spec, node):
        return f"{plugin.subject} does not select it"
    return f"{plugin.subject} has no pod there that is ready"


def _number(amounts: Mapping[str, str]) -> int:
    return int(amount(amounts.get(EFA, "0")) or ZERO)


SEARCHES = (
    Search((NO_EFA,), ("Node",), find_efa),
    Search((NO_SLICES,), ("Node", "Pod", "ResourceSlice"), find_slices),
)
