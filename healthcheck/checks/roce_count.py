"""Check: the mlx5 devices of the GPU fabric are on PCI, as this machine had them and as its profile has them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.roce_fabric import GROUP, NEEDS, FabricPort, fabric_ports, why_not
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    counted,
)
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.mlx5 import MLX5

GONE = Reason(
    "RdmaDeviceGone",
    Severity.REBOOT,
    "An mlx5 device of the GPU fabric is gone: PCI does not show it, although its driver runs.",
    "Drain and reboot the node; replace it if the device is still missing. If it was removed on purpose, release the"
    " node.",
    flickers=True,
    threshold="it was on PCI, with an active port",
    source="the kernel's list of PCI functions",
)
BELOW_PROFILE = Reason(
    "RdmaBelowProfile",
    Severity.MONITOR,
    "The node has fewer RoCE devices than its instance type: it is so since the first check cycle.",
    "Compare with other nodes of the type; replace the node, or enter its number in instance-profiles.conf.",
    flickers=True,
    threshold="some, and fewer than in instance-profiles.conf",
    source="instance-profiles.conf",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    mlx5 = evidence[MLX5]
    present_addresses = {function.address for function in evidence[pci.FUNCTIONS] if function.vendor == pci.MELLANOX}
    present_addresses |= {device.address for device in mlx5.devices}
    ports = fabric_ports(evidence, expected)
    roce = expected.profile.roce if expected.profile else 0
    present = _present(evidence, ports)
    if reason := why_not(evidence, expected):
        yield NotConfigured(reason)
        return
    if not ports and not present:
        yield NotConfigured("no mlx5 device")
        return
    gone = [port for port in ports if port.address not in present_addresses]
    # A user who enters a smaller number in the profile has removed devices on purpose.
    is_loss = gone and mlx5.driver_loaded and not 0 < roce <= present
    for port in gone if is_loss else ():
        yield GONE.on(port.subject, f"no PCI function {port.address}, which had an active port", source=ONCE_HAD)
    if not is_loss and present < roce:
        yield BELOW_PROFILE.on("node", f"{counted(present, 'mlx5 device')}, {expected.instance_type} has {roce}")
    expected_count, source = (
        (roce, f"{expected.instance_type} in instance-profiles.conf") if roce else (len(ports), ONCE_HAD)
    )
    yield Observation(
        f"{counted(len(ports) - len(gone), 'device')} of the GPU fabric on PCI", f"{expected_count}", source
    )


def _present(evidence: Evidence, ports: list[FabricPort]) -> int:
    """Return the number of network functions that the driver mlx5 has or could have, except known other ones."""
    fabric = {port.address for port in ports} | {device.address for device in evidence[MLX5].fabric}
    of_other_purpose = {
        device.address
        for device in evidence[MLX5].devices
        if device.other_purpose or (fabric and device.address not in fabric)
    }
    functions = {function.address for function in evidence[pci.FUNCTIONS] if function.is_mlx5_here}
    return len((functions | {device.address for device in evidence[MLX5].devices}) - of_other_purpose)


CHECK = Check("roce-count", GROUP, NEEDS, judge, (GONE, BELOW_PROFILE))
