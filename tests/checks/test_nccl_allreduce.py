"""An all-reduce over all GPUs: right values first, then the speed that is known of the type."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.nccl_allreduce import CHECK
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Severity,
    TooEarly,
    Unobserved,
)
from gpu_healthcheck.healthcheck.probes.nccl import ALL_REDUCE, NOT_RUN, AllReduceReading, Failed, Reduced
from tests.checks.evidence import P5, UNKNOWN_TYPE, judgements

P4D = Expectation(None, "p4d.24xlarge")


def judge(look: AllReduceReading, expected: Expectation = P5) -> list[Judgement]:
    return judgements(CHECK, expected, {ALL_REDUCE: look})


def reduced(bandwidth: float, wrong: int = 0, gpus: int = 8) -> AllReduceReading:
    return AllReduceReading(Reduced(gpus, bandwidth, wrong))


def shown(bandwidth: str) -> Observation:
    return Observation(f"{bandwidth} GB/s bus bandwidth over 8 GPUs", "at least 296 GB/s", "all_reduce.csv")


@pytest.mark.parametrize("bandwidth", [296.0, 370.0, 480.0])
def test_four_fifths_of_the_published_figure_are_enough(bandwidth: float) -> None:
    assert judge(reduced(bandwidth)) == [shown(f"{bandwidth}")]


@pytest.mark.parametrize("instance_type", ["p5.48xlarge", "ml.p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"])
def test_less_is_slow(instance_type: str) -> None:
    name = instance_type.removeprefix("ml.")
    slow = Finding(
        "NcclSlow",
        Severity.RESET,
        "node",
        f"239.6 GB/s bus bandwidth over 8 GPUs; at least 296 expected of a {name}",
        rule=f"all_reduce.csv:{name}",
    )

    assert judge(reduced(239.6), Expectation(None, instance_type)) == [slow, shown("239.6")]


@pytest.mark.parametrize(("bandwidth", "is_slow"), [(182.3, True), (182.5, False), (230.77, False)])
def test_each_type_has_a_figure_of_its_own(bandwidth: float, is_slow: bool) -> None:
    *found, judgement = judge(reduced(bandwidth), P4D)

    assert [finding.reason for finding in found if isinstance(finding, Finding)] == ["NcclSlow"] * is_slow
    assert judgement == Observation(
        f"{bandwidth:.1f} GB/s bus bandwidth over 8 GPUs", "at least 182 GB/s", "all_reduce.csv"
    )


@pytest.mark.parametrize("expected", [P5, P4D, UNKNOWN_TYPE])
@pytest.mark.parametrize("gpus", [8, 4])
def test_clusters_figure_outranks_the_types(expected: Expectation, gpus: int) -> None:
    asking = replace(expected, nccl_min_bus_bandwidth=30)
    seen = Observation(f"29.9 GB/s bus bandwidth over {gpus} GPUs", "at least 30 GB/s", "NCCL_MIN_BUS_BW")
    slow = Finding("NcclSlow", Severity.RESET, "node", f"{seen.what}; NCCL_MIN_BUS_BW is 30", rule="NCCL_MIN_BUS_BW")

    assert judge(reduced(29.9, gpus=gpus), asking) == [slow, seen]
    assert judge(reduced(30.0, gpus=gpus), asking) == [replace(seen, what=f"30.0 GB/s bus bandwidth over {gpus} GPUs")]


@pytest.mark.parametrize(
    ("expected", "gpus"), [(UNKNOWN_TYPE, 8), (Expectation(None, "p6-b200.48xlarge"), 8), (P5, 7), (P4D, 7)]
)
def test_without_a_figure_for_these_gpus_the_speed_is_shown_and_not_judged(expected: Expectation, gpus: int) -> None:
    observation = Observation(f"1.0 GB/s bus bandwidth over {gpus} GPUs", "no figure for this type and number of GPUs")

    assert judge(reduced(1.0, gpus=gpus), expected) == [observation]


def test_wrong_values_are_a_fault_at_any_speed_and_on_any_type() -> None:
    wrong = Finding("NcclWrongResults", Severity.ISOLATE, "node", "1 wrong value over 8 GPUs")

    assert judge(reduced(480.0, wrong=1)) == [wrong, shown("480.0")]
    assert judge(reduced(480.0, wrong=1), UNKNOWN_TYPE)[0] == wrong
    assert [type(judgement).__name__ for judgement in judge(reduced(100.0, wrong=2))] == [
        "Finding",
        "Finding",
        "Observation",
    ]


def test_an_error_of_the_hardware_is_a_fault() -> None:
    message = "uncorrectable NVLink error detected during the execution"

    assert judge(AllReduceReading(Failed(message))) == [Finding("NcclFailed", Severity.RESET, "node", message)]


def test_test_that_could_not_run_or_does_not_apply_is_no_fault() -> None:
    blind = Unobserved(NOT_RUN, "all_reduce_perf: out of memory")

    assert judge(AllReduceReading(blind)) == [blind]
    assert judge(AllReduceReading(absent="not installed")) == [NotConfigured("not installed")]
    assert judge(AllReduceReading()) == [TooEarly("all_reduce_perf has not answered yet")]
