"""Ports of the GPU fabric that were once active, with their outages: what check cycles and link messages add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory, worst_first
from gpu_healthcheck.healthcheck.memory.reason_names import MLX5_UNRECOVERABLE, NOT_COUNTED_YET, RDMA, RDMA_RATE_LOW
from gpu_healthcheck.healthcheck.model import Evidence, Finding, Severity
from gpu_healthcheck.healthcheck.model.node_facts import (
    LINK,
    OUTAGE_WINDOW_SECONDS,
    SHORTEST_OUTAGE_SECONDS,
    SPEED,
    RdmaPort,
)
from gpu_healthcheck.healthcheck.probes.mlx5 import MLX5, Mlx5Device

Ports = Mapping[str, RdmaPort]
MOST_PORTS = 64
_MOST_OUTAGES = 16


def after_ports(known: Ports | None, evidence: Evidence, *, has_efa: bool) -> Ports | None:
    """Return the ports after a check cycle. A cycle that could not read them changes nothing.

    A port is added when it is active, or was active in this boot. It is removed when its device is shown to be no part
    of the GPU fabric: by its purpose, or by a larger group of ports that became active after it. With EFA devices, the
    fabric is theirs.
    """
    if evidence.unread(MLX5):
        return known
    if has_efa:
        return {}
    mlx5 = evidence[MLX5]
    devices = {device.address: device for device in mlx5.devices}
    ports = {
        address: _observed(port, devices.get(address), evidence.at)
        for address, port in (known or {}).items()
        if address not in devices or not devices[address].left_fabric(port.kind)
    }
    kinds = {port.kind for port in ports.values()}
    active = [device for device in mlx5.fabric if device.is_active]
    if len(active) > len(ports) and kinds.isdisjoint(device.kind for device in active):
        ports, kinds = {}, set()
    for device in mlx5.fabric:
        if device.was_active and device.address not in ports and (not kinds or device.kind in kinds):
            ports[device.address] = RdmaPort(device.name, device.kind, device.rate)
    return dict([*ports.items()][:MOST_PORTS])


def with_link(known: Ports | None, subject: str, at: float, *, up: bool) -> Ports | None:
    """Return the ports after a message of the driver about the link of this subject, `rdma/mlx5_0`."""
    for address, port in (known or {}).items():
        if known and subject == f"{RDMA}{port.name}":
            return {**known, address: _up(port, at) if up else replace(port, down=port.down or (at, at))}
    return known


def settled(memory: Memory, evidence: Evidence) -> Memory:
    """Return the memory with the messages that came before the first check cycle showed the devices of the fabric.

    Those of other devices are removed.
    """
    ports = memory.first.rdma
    if ports is None or all(finding.finding.base[1] != NOT_COUNTED_YET for finding in memory.active):
        return memory
    fabric = evidence[MLX5].fabric if not evidence.unread(MLX5) and ports else ()
    names = {f"{RDMA}{device.address}": device.name for device in fabric}
    names |= {f"{RDMA}{address}": port.name for address, port in ports.items()}
    kept = (_settled(finding, names) for finding in memory.active)
    return replace(memory, active=worst_first(finding for finding in kept if finding is not None))


def _settled(active: ActiveFinding, names: Mapping[str, str]) -> ActiveFinding | None:
    finding = active.finding
    if finding.base[1] != NOT_COUNTED_YET:
        return active
    if finding.subject not in names:
        return None
    severity = Severity.REBOOT if finding.reason == MLX5_UNRECOVERABLE else Severity.MONITOR
    subject = f"{RDMA}{names[finding.subject]}"
    counted = replace(finding, severity=severity, rule=finding.reason, subject=subject)
    return replace(active, finding=replace(counted, catalogued=None, catalogued_rule=""))


def rebooted(known: Ports | None) -> Ports | None:
    """Return the ports in a new boot, without the times of the previous boot."""
    return known and {address: replace(port, outages=(), down=None) for address, port in known.items()}


def accepted(known: Ports | None, released: Iterable[Finding]) -> Ports | None:
    """Return the ports after a release of these findings about them."""
    parts = {finding.subject: SPEED if finding.reason == RDMA_RATE_LOW else LINK for finding in released}
    return known and {
        address: replace(port, rate=0.0, released=part) if (part := parts.get(f"{RDMA}{port.name}")) else port
        for address, port in known.items()
    }


def _observed(port: RdmaPort, device: Mlx5Device | None, at: float) -> RdmaPort:
    recent = tuple(outage for outage in port.outages if at - outage <= OUTAGE_WINDOW_SECONDS)
    if recent != port.outages:
        port = replace(port, outages=recent)
    if device is None or device.error or device.is_in_a_pod:
        return port
    if device.is_active:
        released = port.released if port.released == SPEED else ""
        if (device.name, max(port.rate, device.rate), None, released) == (
            port.name,
            port.rate,
            port.down,
            port.released,
        ):
            return port
        return replace(_up(port), name=device.name, rate=max(port.rate, device.rate), released=released)
    if port.released == LINK:
        return port
    return replace(port, name=device.name, down=(port.down[0] if port.down else at, at))


def _up(port: RdmaPort, at: float | None = None) -> RdmaPort:
    """Return the port without its present outage, which is counted if it was observed for long enough."""
    if port.down is None:
        return port
    first, last = port.down[0], port.down[1] if at is None else at
    counts = last - first >= SHORTEST_OUTAGE_SECONDS
    return replace(port, down=None, outages=(*port.outages, first)[-_MOST_OUTAGES:] if counts else port.outages)
