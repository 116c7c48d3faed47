"""EFA devices on PCI, in the kernel's RDMA class, and the number of this machine and its type."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.efa_count import CHECK
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA, Rdma
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import EFA_ADDRESSES, G6, P5, UNKNOWN_TYPE, efa_functions, functions, judgements, rdma

ONE_EFA = replace(P5, profile=replace(P5.profile, efa=1)) if P5.profile else P5


def judge(on_pci: int | tuple[PciFunction, ...], seen: Rdma, expected: Expectation = P5) -> list[Judgement]:
    efa = efa_functions(on_pci) if isinstance(on_pci, int) else on_pci
    findings = judgements(CHECK, expected, {FUNCTIONS: (*functions("0000:53:00.0"), *efa), RDMA: seen})
    assert sum(isinstance(word, Observation | NotConfigured) for word in findings) == 1
    return [word for word in findings if not isinstance(word, Observation)]


def had(expected: Expectation, once: int | None, allocatable: int | None = None) -> Expectation:
    return replace(expected, first=EarlierHardware(efa=once), efa_allocatable=allocatable)


def low(detail: str) -> list[Finding]:
    return [Finding("EfaCountLow", Severity.REBOOT, "node", detail, flickers=True)]


def below(count: int) -> list[Finding]:
    detail = f"{count} EFA devices, p5.48xlarge can have 32"
    return [Finding("EfaBelowProfile", Severity.MONITOR, "node", detail, flickers=True)]


NONE_HERE = [NotConfigured("no EFA device")]
TWO_DARK = low("PCI shows 32 EFA devices, 30 have an RDMA device; no RDMA device: 0000:2e:00.0, 0000:2f:00.0")
ALL_DARK = low(
    "PCI shows 32 EFA devices, 0 have an RDMA device; no RDMA device: 0000:10:00.0, 0000:11:00.0, 0000:12:00.0, "
    "0000:13:00.0 and 28 more"
)


@pytest.mark.parametrize(
    ("on_pci", "seen", "expected", "findings"),
    [
        (32, rdma(32), P5, []),
        (32, rdma(32), UNKNOWN_TYPE, []),
        (32, rdma(30), P5, TWO_DARK),
        (32, rdma(30), UNKNOWN_TYPE, TWO_DARK),
        (32, rdma(0), P5, ALL_DARK),
        (30, rdma(30), P5, below(30)),
        (30, rdma(30), UNKNOWN_TYPE, []),
        # A launch template that attaches none: as most do for a job on one machine.
        (0, rdma(0), P5, NONE_HERE),
        (0, rdma(0, loaded=False), P5, NONE_HERE),
        (0, rdma(0), UNKNOWN_TYPE, NONE_HERE),
        (0, rdma(0), G6, NONE_HERE),
        (1, rdma(1), G6, []),
        (0, rdma(0, mlx5=4), G6, NONE_HERE),
        (32, rdma(30, mlx5=4), P5, TWO_DARK),
        (31, rdma(32), P5, []),
        (32, rdma(32), ONE_EFA, []),
        # Without the driver no device comes up. Another check reports this.
        (32, rdma(0, loaded=False), P5, []),
        (30, rdma(0, loaded=False), P5, below(30)),
    ],
)
def test_present_count_is_compared_with_the_types(
    on_pci: int, seen: Rdma, expected: Expectation, findings: list[Judgement]
) -> None:
    assert judge(on_pci, seen, expected) == findings


@pytest.mark.parametrize(
    ("count", "expected", "findings"),
    [
        (32, had(P5, 32), []),
        (31, had(P5, 32), low("31 EFA devices, this machine had 32")),
        (0, had(P5, 32), low("0 EFA devices, this machine had 32")),
        (31, had(UNKNOWN_TYPE, 32), low("31 EFA devices, this machine had 32")),
        # As many as ever, and fewer than the type can have.
        (30, had(P5, 30), below(30)),
        (30, had(UNKNOWN_TYPE, 30), []),
        (0, had(P5, 0), NONE_HERE),
        # The row of instance-profiles.conf shows that the devices were removed on purpose.
        (1, had(ONE_EFA, 32), []),
        (0, had(ONE_EFA, 32), low("0 EFA devices, this machine had 1")),
        # Devices that the Node advertises must exist, whatever an earlier count was.
        (32, had(P5, None, 32), []),
        (31, had(P5, None, 32), low("31 EFA devices, the Node offers 32")),
        (31, had(P5, 31, 32), low("31 EFA devices, the Node offers 32")),
        (0, had(UNKNOWN_TYPE, None, 1), low("0 EFA devices, the Node offers 1")),
        (31, had(P5, 32, 31), low("31 EFA devices, this machine had 32")),
        (32, had(P5, 32, 0), []),
        (0, had(P5, None, 0), NONE_HERE),
    ],
)
def test_present_count_is_compared_with_the_earlier_one(
    count: int, expected: Expectation, findings: list[Judgement]
) -> None:
    assert judge(count, rdma(count), expected) == findings


def test_functions_of_a_virtual_machine_need_no_rdma_device_and_are_not_missing() -> None:
    handed_on = (*efa_functions(30), *(replace(function, driver="vfio-pci") for function in efa_functions(32)[30:]))

    assert judge(handed_on, rdma(30), had(P5, 32)) == []


def test_a_function_that_no_driver_has_is_dark() -> None:
    unbound = (*efa_functions(31), replace(efa_functions(32)[31], driver=""))

    assert judge(unbound, rdma(31)) == low(
        f"PCI shows 32 EFA devices, 31 have an RDMA device; no RDMA device: {EFA_ADDRESSES[31]}"
    )


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        (P5, Observation("32 EFA devices, 32 on PCI", "32", "p5.48xlarge in instance-profiles.conf")),
        (had(P5, 32), Observation("32 EFA devices, 32 on PCI", "32", "this machine had")),
        (had(P5, 8, 32), Observation("32 EFA devices, 32 on PCI", "32", "the Node offers")),
        (UNKNOWN_TYPE, Observation("32 EFA devices, 32 on PCI")),
    ],
)
def test_a_person_reads_where_the_expectation_comes_from(expected: Expectation, line: Observation) -> None:
    assert judgements(CHECK, expected, {FUNCTIONS: efa_functions(32), RDMA: rdma(32)}) == [line]
