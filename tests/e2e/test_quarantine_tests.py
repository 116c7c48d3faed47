"""Quarantine tests other than DCGM, on a simulated node: real programs, judges and recommendations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpu_healthcheck.healthcheck.checks import efa_loopback, nccl_allreduce
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Host, Outcome, Status
from gpu_healthcheck.healthcheck.probes.efa.loopback import EfaLoopback
from gpu_healthcheck.healthcheck.probes.nccl import AllReduce
from gpu_healthcheck.healthcheck.verdict.record import LEVEL_4
from gpu_healthcheck.healthcheck.verdict.verdict import status_of, worst
from gpu_healthcheck.quarantine.recommendation import Advice, GroupResult, RunResult, recommend
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode

CHECKS = (nccl_allreduce.CHECK, efa_loopback.CHECK)
EXPECTED = Expectation(None, "p5.48xlarge", efa_min_bandwidth=3000)


@dataclass
class Quarantine:
    """A p5.48xlarge with two of its EFA devices, so that a run is short."""

    node: SimulatedNode
    all_reduce: AllReduce
    loopback: EfaLoopback

    def outcomes(self) -> tuple[Outcome, ...]:
        host = Host(self.node.root, ask_efa_loopback=self.loopback.run, ask_all_reduce=self.all_reduce.run)
        return judge(CHECKS, read_probes(host, CHECKS), EXPECTED)


@pytest.fixture
def quarantine(node: SimulatedNode) -> Iterator[Quarantine]:
    for device in range(2, len(node.efa_names)):
        node.remove_efa(device)
    programs = node.install_nccl_tests()
    path = f"{node.root}/{EFA_PROGRAMS}:/usr/bin:/bin"
    one = Quarantine(
        node,
        AllReduce(node.root, 30.0, f"{programs}:/usr/bin:/bin"),
        EfaLoopback(node.root, 30.0, path=path, patience_seconds=0.5),
    )
    yield one
    one.all_reduce.stop()
    one.loopback.stop()


def advice(outcomes: tuple[Outcome, ...]) -> Advice:
    """With a level 4 that passed."""
    results = [GroupResult(LEVEL_4, Status.PASS)]
    for outcome in outcomes:
        severity = worst(finding.severity for finding in outcome.findings)
        status = status_of(severity, could_not_check=not outcome.observed)
        results.append(GroupResult(outcome.group, status if outcome.configured else Status.NOT_CONFIGURED))
    return recommend(RunResult(tuple(results), tuple(finding for outcome in outcomes for finding in outcome.findings)))


def test_a_node_that_passes_all_goes_back_to_service(quarantine: Quarantine) -> None:
    outcomes = quarantine.outcomes()

    assert [(outcome.group, outcome.findings, outcome.observed, outcome.configured) for outcome in outcomes] == [
        ("5-nccl-allreduce", (), True, True),
        ("6-efa-loopback", (), True, True),
    ]
    assert advice(outcomes).recommendation == "return-to-service"


@pytest.mark.parametrize(
    ("file", "value", "reason", "recommendation"),
    [
        ("fi_pingpong/fails", "DEVICE error", "EfaLoopbackFailed", "reboot"),
        ("fi_pingpong/fails", "DEVICE corrupt", "EfaLoopbackCorrupt", "replace"),
        ("fi_pingpong/megabytes", "DEVICE 2999.99", "EfaLoopbackSlow", "reboot"),
        ("nccl/fails", "nvlink", "NcclFailed", "reset"),
        ("nccl/fails", "wrong", "NcclWrongResults", "replace"),
        ("nccl/bandwidth", "295.99", "NcclSlow", "reset"),
    ],
)
def test_each_fault_is_found_and_has_its_recommendation(
    quarantine: Quarantine, file: str, value: str, reason: str, recommendation: str
) -> None:
    value = value.replace("DEVICE", quarantine.node.efa_names[0])
    quarantine.node.write_value(file, value)

    outcomes = quarantine.outcomes()

    assert [finding.reason for outcome in outcomes for finding in outcome.findings] == [reason]
    assert advice(outcomes).recommendation == recommendation


@pytest.mark.parametrize(
    ("file", "value"), [("fi_pingpong/fails", "DEVICE memory"), ("nccl/fails", "memory"), ("nccl/fails", "library")]
)
def test_test_that_could_not_run_is_repeated(quarantine: Quarantine, file: str, value: str) -> None:
    quarantine.node.write_value(file, value.replace("DEVICE", quarantine.node.efa_names[0]))

    outcomes = quarantine.outcomes()

    assert [finding.reason for outcome in outcomes for finding in outcome.findings] == []
    assert advice(outcomes).recommendation == "rerun"


def test_an_image_without_these_programs_is_judged_by_level_4_alone(quarantine: Quarantine) -> None:
    quarantine.all_reduce.path = quarantine.loopback.path = "/nowhere"

    outcomes = quarantine.outcomes()

    assert [outcome.configured for outcome in outcomes] == [False, False]
    assert advice(outcomes).recommendation == "return-to-service"
