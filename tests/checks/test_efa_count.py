"""EFA devices on PCI, in the kernel's RDMA class, and in the instance type's profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from healthcheck.checks.efa_count import CHECK
from healthcheck.expectation import Expectation
from healthcheck.model import Finding, Judgement, NotConfigured, Severity
from healthcheck.probes.infiniband import RDMA, Rdma
from healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import G6, P5, UNKNOWN_TYPE, efa_functions, functions, rdma, says


def judge(on_pci: int, seen: Rdma, expected: Expectation = P5) -> list[Judgement]:
    return says(CHECK, expected, {FUNCTIONS: (*functions("0000:53:00.0"), *efa_functions(on_pci)), RDMA: seen})


def found(reason: str, severity: Severity, detail: str) -> list[Finding]:
    return [Finding(reason, severity, "node", detail, flickers=True)]


NONE_HERE = [NotConfigured("no EFA device on PCI and none expected")]
TWO_DARK = found("EfaCountLow", Severity.REBOOT, "PCI shows 32 EFA devices, 30 have an RDMA device")
ALL_DARK = found("EfaCountLow", Severity.REBOOT, "PCI shows 32 EFA devices, 0 have an RDMA device")
NO_MODULE = found("EfaDriverNotLoaded", Severity.MONITOR, "PCI shows 32 EFA devices, /sys/module/efa is missing")
FEWER = found("EfaBelowProfile", Severity.MONITOR, "30 EFA devices, p5.48xlarge can have 32")
NO_EFA = found("EfaBelowProfile", Severity.MONITOR, "0 EFA devices, p5.48xlarge can have 32")


@pytest.mark.parametrize(
    ("on_pci", "seen", "expected", "said"),
    [
        (32, rdma(32), P5, []),
        (32, rdma(32), UNKNOWN_TYPE, []),
        (32, rdma(30), P5, TWO_DARK),
        (32, rdma(30), UNKNOWN_TYPE, TWO_DARK),
        (32, rdma(0), P5, ALL_DARK),
        (32, rdma(0, loaded=False), P5, NO_MODULE),
        (32, rdma(0, loaded=False), UNKNOWN_TYPE, NO_MODULE),
        (30, rdma(30), P5, FEWER),
        (0, rdma(0), P5, NO_EFA),
        (0, rdma(0, loaded=False), P5, NO_EFA),
        (0, rdma(0), UNKNOWN_TYPE, NONE_HERE),
        (0, rdma(0), G6, NONE_HERE),
        (1, rdma(1), G6, []),
        (0, rdma(0, mlx5=4), G6, NONE_HERE),
        (32, rdma(30, mlx5=4), P5, TWO_DARK),
        (31, rdma(32), P5, []),
    ],
)
def test_what_is_there_against_what_should_be(
    on_pci: int, seen: Rdma, expected: Expectation, said: list[Judgement]
) -> None:
    assert judge(on_pci, seen, expected) == said


def test_more_than_the_profile_says_is_no_fault() -> None:
    assert P5.profile
    fewer = replace(P5, profile=replace(P5.profile, efa=16))

    assert judge(32, rdma(32), fewer) == []
