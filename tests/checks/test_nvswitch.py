"""NVSwitches on PCI."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.nvswitch import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import ADDRESSES, G6, P5, UNKNOWN_TYPE, functions, judgements

P4D = replace(P5, instance_type="p4d.24xlarge")
P5_HYPERPOD = replace(P5, instance_type="ml.p5.48xlarge")
P5_SMALL = replace(P5, instance_type="p5.4xlarge")
B200 = replace(P5, instance_type="p6-b200.48xlarge")


def switches(count: int, driver: str = "nvidia-nvswitch") -> tuple[PciFunction, ...]:
    return tuple(PciFunction(f"0000:c{n}:00.0", 0x10DE, 0x22A3, 0x068000, driver) for n in range(count))


def judge(expected: Expectation, *seen: PciFunction) -> list[Judgement]:
    return judgements(CHECK, expected, {FUNCTIONS: (*functions(*ADDRESSES), *seen)})


@pytest.mark.parametrize(
    ("expected", "present", "wanted", "row"),
    [(P5, 3, 4, "p5.48xlarge"), (P5, 0, 4, "p5.48xlarge"), (P4D, 5, 6, "p4d.24xlarge")],
)
def test_fewer_than_the_board_has_are_found(expected: Expectation, present: int, wanted: int, row: str) -> None:
    detail = f"PCI shows {present} NVSwitches, {row} has {wanted}"

    assert judge(expected, *switches(present)) == [
        Finding("NvSwitchMissing", Severity.MONITOR, "node", detail, flickers=True),
        Observation(f"{present} NVSwitches on PCI", str(wanted), f"{row} in fabrics.csv"),
    ]


@pytest.mark.parametrize(
    ("expected", "present", "seen"),
    [
        (P5, 4, Observation("4 NVSwitches on PCI", "4", "p5.48xlarge in fabrics.csv")),
        (P5_HYPERPOD, 4, Observation("4 NVSwitches on PCI", "4", "p5.48xlarge in fabrics.csv")),
        (P4D, 6, Observation("6 NVSwitches on PCI", "6", "p4d.24xlarge in fabrics.csv")),
        (P4D, 7, Observation("7 NVSwitches on PCI", "6", "p4d.24xlarge in fabrics.csv")),
        (P5_SMALL, 1, Observation("1 NVSwitch on PCI")),
        (B200, 2, Observation("2 NVSwitches on PCI")),
        (UNKNOWN_TYPE, 3, Observation("3 NVSwitches on PCI")),
    ],
)
def test_as_many_or_more_or_nothing_expected_is_no_finding(
    expected: Expectation, present: int, seen: Observation
) -> None:
    assert judge(expected, *switches(present)) == [seen]


@pytest.mark.parametrize("expected", [P5_SMALL, B200, G6, UNKNOWN_TYPE])
def test_where_none_is_to_be_seen_nothing_is_looked_for(expected: Expectation) -> None:
    assert judge(expected) == [NotConfigured("no NVSwitch on PCI and none expected there")]


@pytest.mark.parametrize("driver", ["vfio-pci", ""])
def test_one_with_another_driver_or_none_is_there(driver: str) -> None:
    assert [type(judgement) for judgement in judge(P5, *switches(4, driver))] == [Observation]


@pytest.mark.parametrize(
    "function",
    [
        PciFunction("0000:c3:00.0", 0x1D0F, 0x22A3, 0x068000, ""),
        PciFunction("0000:c3:00.0", 0x10DE, 0x22A3, 0x060400, "pcieport"),
    ],
)
def test_another_bridge_is_no_nvswitch(function: PciFunction) -> None:
    assert [type(judgement) for judgement in judge(P5, *switches(3), function)] == [Finding, Observation]
