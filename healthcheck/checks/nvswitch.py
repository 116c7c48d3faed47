"""Check: PCI shows as many NVSwitches as the instance type should show."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, NotConfigured, Observation, Reason, Severity
from gpu_healthcheck.healthcheck.probes import pci

# The severity is only MONITOR, because EC2 publishes no number of switches. Other checks report the effects of a
# missing switch: fabric manager, fabric state, NVLinks. This finding names the part.
MISSING = Reason(
    "NvSwitchMissing",
    Severity.MONITOR,
    "NVSwitches are missing: PCI shows fewer than the instance type's board has.",
    "Compare with a healthy node of the type; drain and reboot, and replace the node if a switch is still missing.",
    flickers=True,
    threshold="fewer than fabrics.csv has for the type",
    source="the boards' documentation, as in fabrics.csv",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    present = sum(function.is_nvswitch for function in evidence[pci.FUNCTIONS])
    row = fabric_of(expected.instance_type)
    wanted = row.nvswitches if row else None
    found = f"{present} NVSwitch{'' if present == 1 else 'es'}"
    if not wanted and not present:
        yield NotConfigured("no NVSwitch on PCI and none expected there")
        return
    if wanted and present < wanted:
        detail = f"PCI shows {found}, {expected.instance_type} has {wanted}"
        yield MISSING.on("node", detail)
    expectation = (str(wanted), f"{row.instance_type} in fabrics.csv") if row and wanted else ("", "")
    yield Observation(f"{found} on PCI", *expectation)


CHECK = Check("nvswitch", "3-topology-check", (pci.FUNCTIONS,), judge, (MISSING,))
