"""Peer memory that the EFA driver can reach."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.efa_gpudirect import CHECK
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, Severity
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import ADDRESSES, P5, UNKNOWN_TYPE, functions, judgements, rdma


def judge(word: str | None, expected: Expectation = P5, driver: str = "nvidia", efa: int = 32) -> list[Judgement]:
    return judgements(CHECK, expected, {FUNCTIONS: functions(*ADDRESSES, driver=driver), RDMA: rdma(efa, p2p=word)})


def of_type(name: str) -> Expectation:
    return replace(UNKNOWN_TYPE, instance_type=name)


def found(what: str) -> Finding:
    detail = f"the EFA driver's p2p is {what}, not NVIDIA"
    return Finding("EfaGpudirectOff", Severity.MONITOR, "node", detail, flickers=True)


@pytest.mark.parametrize("word", ["NVIDIA", "NVIDIA peermem"])
def test_nvidias_memory_is_as_it_should_be(word: str) -> None:
    assert judge(word) == [Observation(f"p2p: {word}", "NVIDIA", "the efa driver")]


@pytest.mark.parametrize(("word", "what"), [("", "empty"), ("NEURON", "NEURON")])
def test_another_word_is_a_finding_and_stands_in_the_line(word: str, what: str) -> None:
    assert judge(word) == [
        found(what),
        Observation(f"p2p: {word or 'empty'}", "NVIDIA", "the efa driver"),
    ]


@pytest.mark.parametrize("name", ["p4d.24xlarge", "p5en.48xlarge", "p5.4xlarge", "p6-b300.48xlarge", "ml.p5.48xlarge"])
def test_it_is_expected_of_the_types_that_can(name: str) -> None:
    assert found("empty") in judge("", of_type(name))


@pytest.mark.parametrize("name", ["p3dn.24xlarge", "g6e.48xlarge", "g5.48xlarge", "", "x9.metal"])
def test_it_is_not_expected_of_the_others(name: str) -> None:
    assert judge("", of_type(name)) == [NotConfigured("EFA can access GPU memory on p4, p5, p6 only")]


def test_a_node_without_efa_has_none() -> None:
    assert judge("", efa=0) == [NotConfigured("no EFA device")]


def test_kernels_own_driver_gives_no_finding() -> None:
    assert judge(None) == [
        NotConfigured("the EFA driver does not report it: the kernel's own EFA driver relies on dma-buf")
    ]


@pytest.mark.parametrize("driver", ["", "vfio-pci"])
def test_without_nvidias_driver_there_is_nothing_to_reach(driver: str) -> None:
    assert judge("", driver=driver) == [NotConfigured("no GPU is bound to the NVIDIA driver")]
