"""GDRCopy: expected where the host is set up for it, and nowhere else."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.checks.gdrcopy import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.gdrcopy import GDRCOPY, GdrCopy
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from tests.checks.evidence import ADDRESSES, P5, functions, judgements

UNIT = "gdrcopy.service"


def judge(copy: GdrCopy, *gpus: PciFunction) -> list[Judgement]:
    return judgements(CHECK, P5, {GDRCOPY: copy, FUNCTIONS: gpus or functions(*ADDRESSES)})


@pytest.mark.parametrize(
    ("copy", "lacks"),
    [
        (GdrCopy(UNIT, loaded=False, device=False), "the module gdrdrv is not loaded"),
        (GdrCopy(UNIT, loaded=False, device=True), "the module gdrdrv is not loaded"),
        (GdrCopy(UNIT, loaded=True, device=False), "gdrdrv is loaded, but /dev/gdrdrv is missing"),
    ],
)
def test_set_up_and_not_there_it_is_found(copy: GdrCopy, lacks: str) -> None:
    detail = f"{lacks}; gdrcopy.service sets it up"

    assert judge(copy) == [
        Finding("GdrcopyNotReady", Severity.MONITOR, "node", detail, flickers=True),
        Observation(lacks, "loaded, with its device", UNIT),
    ]


def test_loaded_with_its_device_it_is_no_finding() -> None:
    assert judge(GdrCopy(UNIT, loaded=True, device=True)) == [
        Observation("gdrdrv is loaded and has its device", "loaded, with its device", UNIT)
    ]


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("device", [True, False])
def test_where_nothing_sets_it_up_nothing_is_expected(loaded: bool, device: bool) -> None:
    assert judge(GdrCopy("", loaded, device)) == [NotConfigured("GDRCopy is not set up on this host")]


def test_before_the_driver_has_a_gpu_it_can_not_be_loaded() -> None:
    copy = GdrCopy(UNIT, loaded=False, device=False)

    assert judge(copy, *functions(*ADDRESSES, driver="")) == [NotConfigured("no GPU is bound to the NVIDIA driver")]
