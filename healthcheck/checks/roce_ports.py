"""Check: the ports of the GPU fabric have a link, at full speed, and keep it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.roce_fabric import GROUP, NEEDS, FabricPort, fabric_ports, why_not
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    Unobserved,
    counted,
)
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD, OUTAGE_WINDOW_SECONDS, SHORTEST_OUTAGE_SECONDS, SPEED
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.mlx5 import IN_POD, MLX5, NOT_ANSWERING, Mlx5, Mlx5Device

MOST_OUTAGES = 2
"""Most outages within the window that are not reported."""
DOWN = Reason(
    "RdmaPortDown",
    Severity.MONITOR,
    "A port of the GPU fabric is down: it was active, and has no link or no RDMA device now. Jobs over several nodes "
    "fail.",
    "Check cable, transceiver and switch port; reboot the node if they are good. If the port is no longer used, release"
    " the node.",
    flickers=True,
    threshold="its state is not ACTIVE, and it was",
    source="kernel, Documentation/ABI/stable/sysfs-class-infiniband",
)
MOST_DOWN = Reason(
    "RdmaFabricDown",
    Severity.RESET,
    "Half or more of the ports of the GPU fabric are down: they were active before. Jobs over several nodes fail, or "
    "use TCP.",
    "Check the switch and the cables that these ports share; reboot the node if they are good. The finding ends when"
    " more than half of the ports are active. If the ports are unused, release the node.",
    flickers=True,
    threshold="half of the ports or more, and at least two",
    source="NCCL, net_ib: only active ports are used",
)
FLAPPING = Reason(
    "RdmaPortFlapping",
    Severity.MONITOR,
    "A port of the GPU fabric loses its link again and again.",
    "Clean or replace cable and transceiver, and check the switch port. The finding ends 12 hours after the outages, or"
    " with a reboot.",
    threshold=f"{MOST_OUTAGES + 1} outages of {SHORTEST_OUTAGE_SECONDS:.0f} s in {OUTAGE_WINDOW_SECONDS / 3600:.0f} h",
    source="gpud, components/accelerator/nvidia/infiniband",
)
RATE_LOW = Reason(
    "RdmaRateLow",
    Severity.MONITOR,
    "A port of the GPU fabric is too slow: it was faster, or most ports of the same model are. Jobs run at its speed.",
    "Check cable, transceiver and the speed of the switch port. If the lower speed is intended, release the node.",
    flickers=True,
    threshold="less than its highest speed so far, or than the speed of most ports of its model",
    source="kernel, Documentation/ABI/stable/sysfs-class-infiniband",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    if reason := why_not(evidence, expected):
        yield NotConfigured(reason)
        return
    ports = fabric_ports(evidence, expected)
    if not ports:
        yield NotConfigured("no port of an mlx5 device was active yet")
        return
    usual = _usual_rates(ports)
    functions = {function.address: function for function in evidence[pci.FUNCTIONS]}
    down = 0
    for port in ports:
        for judgement in _state(port, functions.get(port.address), evidence[MLX5], usual):
            down += isinstance(judgement, Finding) and judgement.reason == DOWN.name
            yield judgement
        yield from _outages(port, evidence.at)
    if down > 1 and 2 * down >= len(ports):
        yield MOST_DOWN.on("node", f"{down} of {counted(len(ports), 'port')} of the GPU fabric down")
    active = [port.device for port in ports if port.device and port.device.is_active]
    without_gid = sum(not device.has_gid for device in active)
    summary = f"{len(active)} of {counted(len(ports), 'port')} of the GPU fabric active"
    yield Observation(f"{summary}, {without_gid} without a GID" if without_gid else summary, f"{len(ports)}", ONCE_HAD)


def _state(
    port: FabricPort, function: pci.PciFunction | None, mlx5: Mlx5, usual: Mapping[str, float]
) -> Iterator[Judgement]:
    device = port.device
    if device is None:
        yield from _missing(port, function, mlx5)
    elif device.error:
        yield Unobserved(NOT_ANSWERING, f"{port.subject}: {device.error}", port.subject)
    elif device.is_active:
        yield from _rate(port, device, usual.get(device.kind, 0.0))
    elif device.is_in_a_pod:
        yield TooEarly("its net device is in the network namespace of a pod", port.subject)
    else:
        states = ", ".join(state for state in (device.state, device.phys_state) if state) or "no state"
        yield DOWN.on(port.subject, f"port 1 is {states}", source=ONCE_HAD if port.earlier else "")


def _missing(port: FabricPort, function: pci.PciFunction | None, mlx5: Mlx5) -> Iterator[Judgement]:
    """Judge a port without an RDMA device. The check `roce-count` reports a function that is gone from PCI."""
    if function is None or not function.is_mlx5_here:
        return
    if mlx5.exclusive and mlx5.holders != ():
        holders = ", ".join((mlx5.holders or ())[:2]) or "unknown: the kubelet does not answer"
        detail = f"{port.subject}: not in the host's network namespace; pods with RDMA devices: {holders}"
        yield Unobserved(IN_POD, detail, port.subject)
        return
    bound = function.driver or "no driver"
    yield DOWN.on(port.subject, f"no RDMA device; {port.address} is bound to {bound}", source=ONCE_HAD)


def _rate(port: FabricPort, device: Mlx5Device, usual: float) -> Iterator[Judgement]:
    earlier = port.earlier.rate if port.earlier else 0.0
    if port.earlier and port.earlier.released == SPEED:
        return
    if 0 < device.rate < earlier:
        yield RATE_LOW.on(port.subject, f"{device.rate:g} Gb/s, {earlier:g} before", source=ONCE_HAD)
    elif 0 < device.rate < usual:
        source = ONCE_HAD if port.earlier else ""
        yield RATE_LOW.on(port.subject, f"{device.rate:g} Gb/s, most ports of its model have {usual:g}", source=source)


def _usual_rates(ports: list[FabricPort]) -> Mapping[str, float]:
    """Return the speed of most active ports by kind, where more than half have the same."""
    rates: dict[str, list[float]] = {}
    for port in ports:
        if port.device and port.device.is_active and port.device.rate:
            rates.setdefault(port.device.kind, []).append(port.device.rate)
    usual = {kind: Counter(found).most_common(1)[0] for kind, found in rates.items()}
    return {kind: rate for kind, (rate, count) in usual.items() if count > len(rates[kind]) / 2}


def _outages(port: FabricPort, at: float) -> Iterator[Judgement]:
    outages = port.earlier.outages if port.earlier else ()
    recent = [began for began in outages if at - began <= OUTAGE_WINDOW_SECONDS]
    if len(recent) > MOST_OUTAGES:
        yield FLAPPING.on(port.subject, f"{MOST_OUTAGES + 1} or more outages of its link within 12 h")


CHECK = Check("roce-ports", GROUP, NEEDS, judge, (DOWN, MOST_DOWN, FLAPPING, RATE_LOW))
