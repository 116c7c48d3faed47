"""As many NVSwitches are on PCI as the instance type shows there."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.catalog.fabrics import fabric_of
from healthcheck.checks.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, NotConfigured, Reason, Seen, Severity
from healthcheck.probes import pci

# Only watched: EC2 publishes no number of switches. What a switch too few breaks is found where it breaks, by the
# fabric manager, the fabric's state and the NVLinks; this names the part.
MISSING = Reason(
    "NvSwitchMissing",
    Severity.MONITOR,
    "Fewer NVSwitches are on PCI than the instance type's board has.",
    "Compare with a healthy node of the type; drain and reboot, and replace the node when a switch is still missing.",
    flickers=True,
    threshold="fewer than fabrics.csv has for the type",
    source="the boards' documentation, as in fabrics.csv",
)


def judge(seen: Evidence, expected: Expectation) -> Iterator[Judgement]:
    present = sum(function.is_nvswitch for function in seen[pci.FUNCTIONS])
    row = fabric_of(expected.instance_type)
    wanted = row.nvswitches if row else None
    if not wanted and not present:
        yield NotConfigured("no NVSwitch on PCI and none expected there")
        return
    if wanted and present < wanted:
        detail = f"PCI shows {_switches(present)}, {expected.instance_type} has {wanted}"
        yield Finding(MISSING.name, MISSING.severity, "node", detail, flickers=MISSING.flickers)
    expectation = (str(wanted), f"{row.instance_type} in fabrics.csv") if row and wanted else ("", "")
    yield Seen(f"{_switches(present)} on PCI", *expectation)


def _switches(number: int) -> str:
    return "1 NVSwitch" if number == 1 else f"{number} NVSwitches"


CHECK = Check("nvswitch", "3-topology-check", (pci.FUNCTIONS,), judge, (MISSING,))
