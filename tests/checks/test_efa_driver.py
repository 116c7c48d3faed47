"""EFA devices have their driver, and programs can open them."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.efa_driver import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA, Rdma
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import P5, efa_device, efa_functions, judgements, rdma


def judge(on_pci: tuple[PciFunction, ...], seen: Rdma) -> list[Judgement]:
    return judgements(CHECK, P5, {FUNCTIONS: on_pci, RDMA: seen})


def found(reason: str, detail: str) -> Finding:
    return Finding(reason, Severity.MONITOR, "node", detail, flickers=True)


def findings(said: list[Judgement]) -> list[Judgement]:
    return [word for word in said if not isinstance(word, Observation)]


NOT_LOADED = found("EfaDriverNotLoaded", "PCI shows 32 EFA devices, /sys/module/efa is missing")


def test_all_as_it_should_be_is_one_line() -> None:
    assert judge(efa_functions(32), rdma(32)) == [
        Observation("driver 2.17.2g; 32 EFA devices can be opened", "32", "PCI"),
    ]


def test_the_kernels_own_driver_has_no_version_to_tell() -> None:
    assert judge(efa_functions(1), Rdma((efa_device(0),), efa_driver_loaded=True)) == [
        Observation("driver built into the kernel; 1 EFA device can be opened", "1", "PCI"),
    ]


def test_devices_on_pci_without_the_module_are_a_finding() -> None:
    assert findings(judge(efa_functions(32, driver=""), rdma(0, loaded=False))) == [NOT_LOADED]


def test_a_driver_that_is_built_into_the_kernel_needs_no_module() -> None:
    assert findings(judge(efa_functions(32), rdma(32, loaded=False))) == []


def test_devices_of_a_virtual_machine_need_no_driver() -> None:
    assert judge(efa_functions(32, driver="vfio-pci"), rdma(0, loaded=False)) == [NotConfigured("no EFA device")]


def test_device_without_rdma_device_is_left_to_the_count_check() -> None:
    assert findings(judge(efa_functions(32), rdma(31))) == []


@pytest.mark.parametrize(("closed", "message"), [(1, "1 of 32"), (32, "32 of 32")])
def test_device_that_cannot_be_opened_is_a_finding(closed: int, message: str) -> None:
    devices = tuple(efa_device(index, **({"uverbs": ""} if index < closed else {})) for index in range(32))

    assert findings(judge(efa_functions(32), Rdma(devices, efa_driver_loaded=True))) == [
        found("EfaVerbsMissing", f"{message} EFA devices have no uverbs device")
    ]


def test_other_rdma_devices_are_none_of_its_business() -> None:
    assert judge((), rdma(0, mlx5=4, loaded=False)) == [NotConfigured("no EFA device")]
