"""Compare a report of missing or faulty GPUs with the agent's record of the node, which may be newer. Pure."""

from __future__ import annotations

from datetime import datetime

from diagnosis.snapshot.nodes import Node

_HEALTHY = ("pass", "warn")


def recorded_gpus(node: Node) -> str:
    """Return the record's time and counts of GPUs as evidence; '' if it has no counts."""
    pci, nvml = node.inventory.pci, node.inventory.nvml
    if pci is None and nvml is None:
        return ""
    at = node.record.timestamp if node.record is not None else None
    shown = ("?" if number is None else number for number in (pci, nvml))
    return "agent's record{}: {} GPUs on PCI, {} respond to NVML".format(f" of {at:%H:%M}Z" if at else "", *shown)


def all_respond_since(node: Node, at: datetime | None) -> bool:
    """Whether a record newer than `at` has no fault, and all GPUs respond."""
    record = node.record
    if record is None or node.faults or record.status not in _HEALTHY or at is None or record.timestamp is None:
        return False
    pci, nvml = node.inventory.pci, node.inventory.nvml
    return record.timestamp > at and bool(nvml) and pci in (None, nvml)
