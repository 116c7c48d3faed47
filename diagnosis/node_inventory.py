"""List one node's GPUs and all that they need, each with the source of the information. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from diagnosis.components import components, is_ready
from diagnosis.gpu_nodes import devices_in
from diagnosis.hami.books import cards_of
from diagnosis.hami.card_row import card_row
from diagnosis.hami.handshake import handshake
from diagnosis.hami.installation import installations, serving
from diagnosis.hami.node_lock import node_lock
from diagnosis.hami.registration import registrations
from diagnosis.hami.versions import ANSWERED_UNTIL
from diagnosis.placement import ZERO, held_on
from diagnosis.quantity import amount, counted, shown
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from healthcheck.verdict.inventory import Inventory

_UNSAID = "not told"
_LABELS = (
    *("nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"),
    *(
        "nvidia.com/mig.strategy",
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
        "nvidia.com/gpu.workload.config",
    ),
    *("nvidia.com/gpu-driver-upgrade-state", "node.kubernetes.io/instance-type"),
)
_DRIVER = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")


class Row(Struct, frozen=True):
    """One property of a node, with the source that reports it."""

    what: str
    value: str
    by: str


def inventory(snapshot: Snapshot, node: Node) -> tuple[Row, ...]:
    """Return rows from the driver to our verdict. Rows without a source are shown as unknown."""
    return (*_gpus(snapshot, node), *_below(node), *_labels(node), *_operands(snapshot, node), *_verdict(node))


def _gpus(snapshot: Snapshot, node: Node) -> Iterator[Row]:
    seen = node.record.inventory if node.record is not None else Inventory()
    yield Row("GPUs on PCI", _count(seen.pci), "agent")
    yield Row("GPUs in NVML", _count(seen.nvml), "agent")
    held = held_on(snapshot.pods).get(node.name, {})
    for resource in devices_in(dict.fromkeys((*node.capacity, *node.allocatable))):
        there, allocatable = (
            shown(resource, amount(one.get(resource, "0")) or ZERO) for one in (node.capacity, node.allocatable)
        )
        out = shown(resource, held.get(resource, ZERO)) if snapshot.sees("Pod") else _UNSAID
        yield Row(resource, f"capacity {there}, allocatable {allocatable}, given out {out}", "kubelet, pods")
    yield from _of_hami(snapshot, node)
    for one in cards_of(snapshot).get(node.name, ()):
        row = card_row(one, snapshot.sees("Pod"))
        free = f"free: {row.slots} places, {row.memory} memory, {row.cores} cores"
        yield Row(f"card {row.card}", "; ".join((free, *row.pods)), "HAMi, pods")


def _of_hami(snapshot: Snapshot, node: Node) -> Iterator[Row]:
    """Yield the annotations of HAMi's plugin and scheduler, interpreted for each release of HAMi."""
    for told in registrations(node):
        cards = counted(len(told.cards), "card")
        value = f"can't be read: {told.unreadable}" if told.unreadable else f"{cards}; {told.form.value}"
        yield Row(f"HAMi's registration, {told.vendor}", value, "HAMi's device plugin")
    said = handshake(node)
    if said is not None:
        own = serving(node, installations(snapshot))
        version = own.version if own is not None else None
        old = " (says nothing since 2.8)" if version is None or version > ANSWERED_UNTIL else ""
        yield Row("HAMi's handshake", f"{said.text}{old}", "HAMi's scheduler")
    lock = node_lock(node)
    if lock is not None:
        yield Row("HAMi's lock", lock.text, "HAMi's scheduler")


def _below(node: Node) -> Iterator[Row]:
    seen = node.record.inventory if node.record is not None else Inventory()
    labelled = next((node.meta.labels[key] for key in _DRIVER if key in node.meta.labels), "")
    yield Row("driver", seen.driver or labelled or _UNSAID, "agent" if seen.driver else "label")
    if seen.device_files is not None:
        others = ", ".join(seen.device_files.others or ()) or "nothing else"
        yield Row("device files", f"of {_count(seen.device_files.gpus)} GPUs; {others}", "agent")
    yield Row("container runtime", node.runtime or _UNSAID, "kubelet")
    if node.handlers is not None:
        yield Row("runtime handlers", ", ".join(sorted(filter(None, node.handlers))) or "runc alone", "kubelet")
    runtime = seen.runtime
    if runtime is not None:
        yield Row("its configuration", runtime.config or _UNSAID, "agent")
        if runtime.handlers is not None and node.handlers is None:
            yield Row("runtime handlers", ", ".join(runtime.handlers), "agent")
        yield Row("default runtime", runtime.default or _UNSAID, "agent")
        yield Row("CDI", {True: "on", False: "off", None: _UNSAID}[runtime.cdi], "agent")
        if elsewhere := [one for one in runtime.nvidia_in or () if one != runtime.config]:
            yield Row("NVIDIA's handler, not read by the kubelet's runtime", ", ".join(elsewhere), "agent")
    if seen.toolkit is not None:
        yield Row("toolkit", f"{seen.toolkit.config}, mode {seen.toolkit.mode or 'auto'}", "agent")


def _labels(node: Node) -> Iterator[Row]:
    for key in _LABELS:
        if key in node.meta.labels:
            yield Row(key, node.meta.labels[key], "label")


def _operands(snapshot: Snapshot, node: Node) -> Iterator[Row]:
    for component in components(snapshot):
        for pod in component.pods:
            if pod.spec.node == node.name:
                state = "ready" if is_ready(pod) else "not ready"
                version = f", {component.version}" if component.version else ""
                yield Row(component.role.value, f"{state}{version}", pod.subject)


def _verdict(node: Node) -> Iterator[Row]:
    if node.taints:
        yield Row("taints", ", ".join(map(str, node.taints)), "Node")
    if node.cordoned:
        yield Row("cordoned", "yes", "Node")
    if node.record is None:
        yield Row("verdict", _UNSAID, "no agent has written one")
        return
    found = ", ".join(f"{one.reason} {one.subject}" for one in node.record.findings) or "no finding"
    yield Row("verdict", f"{node.record.status}, {node.record.severity}: {found}", "agent")


def _count(number: int | None) -> str:
    return _UNSAID if number is None else str(number)
