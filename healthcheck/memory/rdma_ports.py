"""Ports of the GPU fabric that were once active, with their outages: what check cycles and link messages add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from healthcheck.model import Evidence
from healthcheck.model.node_facts import OUTAGE_WINDOW_SECONDS, SHORTEST_OUTAGE_SECONDS, RdmaPort
from healthcheck.probes.mlx5 import MLX5, Mlx5Device

Ports = Mapping[str, RdmaPort]
MOST_PORTS = 64
_MOST_OUTAGES = 16


def after_ports(known: Ports | None, seen: Evidence) -> Ports | None:
    """Return the ports after a check cycle. A cycle that could not read them changes nothing.

    A port is added when it is active. It is removed when its device is shown to be no part of the GPU fabric.
    """
    if seen.unread(MLX5):
        return known
    mlx5 = seen[MLX5]
    devices = {device.address: device for device in mlx5.devices}
    kinds = {port.kind for port in (known or {}).values()}
    ports = {
        address: _observed(port, devices.get(address), seen.at)
        for address, port in (known or {}).items()
        if address not in devices or is_of_fabric(port, devices[address])
    }
    for device in mlx5.fabric:
        if device.is_active and device.address not in ports and (not kinds or device.kind in kinds):
            ports[device.address] = RdmaPort(device.name, device.kind, device.rate)
    return dict([*ports.items()][:MOST_PORTS])


def is_of_fabric(port: RdmaPort, device: Mlx5Device) -> bool:
    """Whether a device that was in the fabric still may be: it carries no default route, and is in no new bond."""
    was_bonded = port.kind.endswith("bond")
    return not (device.virtual or device.default_route or (device.bonded and not was_bonded))


def with_link(known: Ports | None, address: str, at: float, *, up: bool) -> Ports | None:
    """Return the ports after a message of the driver about the link of this PCI function."""
    port = (known or {}).get(address)
    if known is None or port is None:
        return known
    return {**known, address: _up(port, at) if up else replace(port, down=port.down or (at, at))}


def rebooted(known: Ports | None) -> Ports | None:
    """Return the ports in a new boot, without the times of the previous boot."""
    return known and {address: replace(port, outages=(), down=None) for address, port in known.items()}


def without(known: Ports | None, names: Iterable[str]) -> Ports | None:
    """Return the ports without those of the named devices."""
    gone = set(names)
    return known and {address: port for address, port in known.items() if port.name not in gone}


def _observed(port: RdmaPort, device: Mlx5Device | None, at: float) -> RdmaPort:
    recent = tuple(outage for outage in port.outages if at - outage <= OUTAGE_WINDOW_SECONDS)
    if recent != port.outages:
        port = replace(port, outages=recent)
    if device is None or device.error:
        return port
    if device.is_active:
        if (device.name, max(port.rate, device.rate), port.down) == (port.name, port.rate, None):
            return port
        return replace(_up(port), name=device.name, rate=max(port.rate, device.rate))
    return replace(port, name=device.name, down=(port.down[0] if port.down else at, at))


def _up(port: RdmaPort, at: float | None = None) -> RdmaPort:
    """Return the port without its present outage, which is counted if it was observed for long enough."""
    if port.down is None:
        return port
    first, last = port.down[0], port.down[1] if at is None else at
    counts = last - first >= SHORTEST_OUTAGE_SECONDS
    return replace(port, down=None, outages=(*port.outages, first)[-_MOST_OUTAGES:] if counts else port.outages)
