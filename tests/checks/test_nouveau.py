"""The kernel's own driver for NVIDIA GPUs."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.nouveau import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.driver_files import MODULES, KernelModules
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import ADDRESSES, P5, efa_functions, functions, judgements


def judge(nouveau: bool, *gpus: PciFunction) -> list[Judgement]:
    return judgements(CHECK, P5, {MODULES: KernelModules("570.133.20", nouveau), FUNCTIONS: (*gpus, *efa_functions(2))})


@pytest.mark.parametrize("taken", [0, 1, 8])
def test_loaded_it_is_found_with_the_gpus_that_it_has(taken: int) -> None:
    gpus = (*functions(*ADDRESSES[:taken], driver="nouveau"), *functions(*ADDRESSES[taken:]))

    assert judge(True, *gpus) == [
        Finding(
            "NouveauLoaded",
            Severity.MONITOR,
            "driver",
            f"the nouveau module is loaded; {taken} of 8 GPUs bound to it",
        ),
        Observation("nouveau is loaded", "not loaded"),
    ]


def test_not_loaded_it_is_no_finding() -> None:
    assert judge(False, *functions(*ADDRESSES)) == [Observation("nouveau is not loaded", "not loaded")]


@pytest.mark.parametrize("nouveau", [True, False])
def test_without_a_gpu_it_is_nobodys_business(nouveau: bool) -> None:
    assert judge(nouveau) == [NotConfigured("no GPU on PCI")]
