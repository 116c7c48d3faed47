"""List one node's GPUs and all that they need, each with the source of the information. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.components import components, is_ready
from gpu_healthcheck.diagnosis.facts.gpu_nodes import devices_in
from gpu_healthcheck.diagnosis.facts.placement import ZERO, held_on
from gpu_healthcheck.diagnosis.facts.quantity import amount, counted, shown
from gpu_healthcheck.diagnosis.hami.cards import card_row, cards_of
from gpu_healthcheck.diagnosis.hami.installation import serving
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.hami_node import RegistrationFormat
from gpu_healthcheck.diagnosis.snapshot.nodes import Node

_UNSAID = "unknown"
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


class InventoryRow(Struct, frozen=True):
    """One property of a node, with the source that reports it."""

    what: str
    value: str
    by: str


def inventory(snapshot: Snapshot, node: Node) -> tuple[InventoryRow, ...]:
    """Return rows from the driver to our verdict. Rows without a source are shown as unknown."""
    return (*_gpus(snapshot, node), *_below(node), *_labels(node), *_operands(snapshot, node), *_verdict(node))


def _gpus(snapshot: Snapshot, node: Node) -> Iterator[InventoryRow]:
    seen = node.inventory
    yield InventoryRow("GPUs on PCI", _count(seen.pci), "agent")
    yield InventoryRow("GPUs in NVML", _count(seen.nvml), "agent")
    held = held_on(snapshot.pods).get(node.name, {})
    for resource in devices_in(dict.fromkeys((*node.capacity, *node.allocatable))):
        there, allocatable = (
            shown(resource, amount(entry.get(resource, "0")) or ZERO) for entry in (node.capacity, node.allocatable)
        )
        out = shown(resource, held.get(resource, ZERO)) if snapshot.sees_all_pods else _UNSAID
        yield InventoryRow(resource, f"capacity {there}, allocatable {allocatable}, in use {out}", "kubelet, pods")
    yield from _of_hami(snapshot, node)
    for usage in cards_of(snapshot).get(node.name, ()):
        row = card_row(usage, snapshot.sees_all_pods)
        free = f"free: {row.slots} slots, {row.memory} memory, {row.cores} cores"
        yield InventoryRow(f"card {row.card}", "; ".join((free, *row.pods)), "HAMi, pods")


def _of_hami(snapshot: Snapshot, node: Node) -> Iterator[InventoryRow]:
    """Yield the annotations of HAMi's plugin and scheduler, interpreted for each release of HAMi."""
    for registration in node.hami.registrations:
        cards = counted(len(registration.cards), "card")
        value = (
            f"can't be read: {registration.unreadable}"
            if registration.unreadable
            else f"{cards}; {registration.form.value}"
        )
        yield InventoryRow(f"HAMi's registration, {registration.vendor}", value, "HAMi's device plugin")
    if (handshake := node.hami.handshake) is not None:
        installation = serving(snapshot, node)
        is_old = installation is not None and installation.reads is RegistrationFormat.TEXT
        note = "" if is_old else " (meaningless since 2.8)"
        yield InventoryRow("HAMi's handshake", f"{handshake.annotation}{note}", "HAMi's scheduler")
    if (lock := node.hami.lock) is not None:
        yield InventoryRow("HAMi's lock", lock.annotation, "HAMi's scheduler")


def _below(node: Node) -> Iterator[InventoryRow]:
    seen = node.inventory
    labelled = next((node.meta.labels[key] for key in _DRIVER if key in node.meta.labels), "")
    yield InventoryRow("driver", seen.driver or labelled or _UNSAID, "agent" if seen.driver else "label")
    if seen.device_files is not None:
        others = ", ".join(seen.device_files.others or ()) or "nothing else"
        yield InventoryRow("device files", f"of {_count(seen.device_files.gpus)} GPUs; {others}", "agent")
    yield InventoryRow("container runtime", node.runtime or _UNSAID, "kubelet")
    if node.handlers is not None:
        yield InventoryRow("runtime handlers", ", ".join(sorted(filter(None, node.handlers))) or "runc only", "kubelet")
    runtime = seen.runtime
    if runtime is not None:
        yield InventoryRow("its configuration", runtime.config or _UNSAID, "agent")
        if runtime.handlers is not None and node.handlers is None:
            yield InventoryRow("runtime handlers", ", ".join(runtime.handlers), "agent")
        yield InventoryRow("default runtime", runtime.default or _UNSAID, "agent")
        yield InventoryRow("CDI", {True: "on", False: "off", None: _UNSAID}[runtime.cdi], "agent")
        if elsewhere := [text for text in runtime.nvidia_in or () if text != runtime.config]:
            yield InventoryRow("NVIDIA's handler, not read by the kubelet's runtime", ", ".join(elsewhere), "agent")
    if seen.toolkit is not None:
        yield InventoryRow("toolkit", f"{seen.toolkit.config}, mode {seen.toolkit.mode or 'auto'}", "agent")


def _labels(node: Node) -> Iterator[InventoryRow]:
    for key in _LABELS:
        if key in node.meta.labels:
            yield InventoryRow(key, node.meta.labels[key], "label")


def _operands(snapshot: Snapshot, node: Node) -> Iterator[InventoryRow]:
    for component in components(snapshot):
        for pod in component.pods:
            if pod.spec.node == node.name:
                state = "ready" if is_ready(pod) else "not ready"
                version = f", {component.version}" if component.version else ""
                yield InventoryRow(component.role.value, f"{state}{version}", pod.subject)


def _verdict(node: Node) -> Iterator[InventoryRow]:
    if node.taints:
        yield InventoryRow("taints", ", ".join(map(str, node.taints)), "Node")
    if node.cordoned:
        yield InventoryRow("cordoned", "yes", "Node")
    if node.record is None:
        yield InventoryRow("verdict", _UNSAID, "no agent has written one")
        return
    found = ", ".join(f"{finding.reason} {finding.subject}" for finding in node.findings) or "no finding"
    yield InventoryRow("verdict", f"{node.record.status}, {node.record.severity}: {found}", "agent")


def _count(number: int | None) -> str:
    return _UNSAID if number is None else str(number)
