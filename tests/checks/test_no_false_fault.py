"""Absent or unreadable facts are never a fault: any part of a healthy node's evidence is removed.

The evidence is the real child's answer on a simulated node of each kind; the removed part is recorded as the child
records it, and read as the agent reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Host, Outcome, Probe
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA
from gpu_healthcheck.healthcheck.probes.nvml import child as nvml_child
from gpu_healthcheck.healthcheck.probes.nvml.answer import read_answer
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, READINGS, DriverReading
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles
from gpu_healthcheck.sim.node import SimulatedNode

KINDS = ["p5.48xlarge", "p6-b200.48xlarge", "p6e-gb200.36xlarge", "p4d.24xlarge", "p3dn.24xlarge", "g6.xlarge"]
# Meanings of nvml.h's codes.
ABSENT = (3, 13)
NOT_OF_THE_HARDWARE = (1, 4, 6, 9, 10, 12, 17, 18, 19, 27, 999)
OF_THE_HARDWARE = {
    8: "GpuPowerInsufficient",
    11: "GpuIrqIssue",
    14: "InforomCorrupted",
    15: "GpuLost",
    16: "GpuResetRequired",
}
REPORTED = [name for name, row in READINGS.items() if row.on_failure != "none"]
"""Readings whose failure is reported, in the order of their calls."""
WITH_PAIRS = sorted([*REPORTED, "p2p"])
Loss = tuple[int, str, int]
"""The index of a GPU, a reading of it, and the code that came in its place."""


@dataclass(frozen=True)
class Healthy:
    """One cycle of a healthy node: the child's NVML answer as text, and the rest as facts."""

    line: bytes
    seen: dict[Probe[Any], Any]
    expected: Expectation


@cache
def healthy(instance_type: str) -> Healthy:
    with TemporaryDirectory() as folder, SimulatedNode.create(Path(folder) / "node", instance_type) as node:
        driver = Driver(node.root, use_loader=False)
        evidence = read_probes(Host(node.root, driver.read), CHECKS)
        line = driver._child.ask("read", 60.0)
        driver.end()
    places = {
        function.address: GpuPosition(function.numa_node, function.switch)
        for function in evidence[FUNCTIONS]
        if function.is_gpu
    }
    efa = len(evidence[RDMA].efa)
    return Healthy(
        line,
        {probe: evidence[probe] for probe in evidence.probes},
        Expectation(
            find_profile(packaged_profiles(), instance_type),
            instance_type,
            first=EarlierHardware(efa, places),
            efa_allocatable=efa or None,
        ),
    )


def judged(instance_type: str, losses: Sequence[Loss], after: float | None) -> tuple[Outcome, ...]:
    """Return the outcomes of all checks, so many seconds after the complete cycle, or of the first cycle (None)."""
    node = healthy(instance_type)
    answer = read_answer(json.dumps(without(json.loads(node.line), losses)).encode())
    seen = {**node.seen, NVML: replace(node.seen[NVML], answer=answer.gpus)}
    before = None if after is None else Evidence(node.seen, 1000.0)
    return judge(CHECKS, Evidence(seen, 1000.0 + (after or 0.0), before), node.expected)


def without(fields: dict[str, Any], losses: Sequence[Loss]) -> dict[str, Any]:
    """The child's answer had these calls failed."""
    gpus = fields["gpus"]
    for index, reading, code in losses:
        gpu, other = gpus[index % len(gpus)], gpus[(index + 1) % len(gpus)]
        if reading == "p2p":
            if len(gpus) > 1 and code not in ABSENT:
                gpu["errors"]["p2p"] = other["errors"]["p2p"] = code
            continue
        gpu.pop(reading, None)
        nvml_child._note_failure(gpu, reading, code, READINGS[reading].on_failure)
        if reading == "nvlinks":  # without links their counters are not read
            gpu.pop("nvlink_counters", None)
        if code in nvml_child._GONE:
            for later in REPORTED[REPORTED.index(reading) :]:
                gpu.pop(later, None)
    silent = {gpu["index"] for gpu in gpus if gpu["error"] or "p2p" in gpu["errors"]}
    fields["p2p"] = [pair for pair in fields["p2p"] if not silent & set(pair[:2])]
    return fields


def losses(codes: Sequence[int]) -> st.SearchStrategy[list[Loss]]:
    return st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(WITH_PAIRS), st.sampled_from(codes)), min_size=1, max_size=12
    )


def findings(outcomes: Sequence[Outcome]) -> Iterator[str]:
    return (finding.reason for outcome in outcomes for finding in outcome.findings)


def unobserved(outcomes: Sequence[Outcome]) -> set[str]:
    return {cause.subject for outcome in outcomes for cause in outcome.unobserved}


def is_missed(instance_type: str, loss: Loss) -> bool:
    """Whether a check needs the removed fact."""
    _, reading, code = loss
    if reading in READINGS and READINGS[reading].on_failure == "gpu":
        return code != 4  # without permission to read a name, the GPU is still observed
    if reading == "minor":
        return False  # the tree is a copy, without device files
    if reading == "instances":
        return False  # not read while MIG is off
    return reading != "p2p" or len(json.loads(healthy(instance_type).line)["gpus"]) > 1


afters = st.sampled_from([None, 10.0, 300.0])


@pytest.mark.parametrize("instance_type", KINDS)
def test_healthy_twin_has_no_finding(instance_type: str) -> None:
    assert isinstance(healthy(instance_type).seen[NVML], DriverReading)
    for after in (None, 10.0):
        outcomes = judged(instance_type, [], after)
        assert ([*findings(outcomes)], unobserved(outcomes)) == ([], set())


@pytest.mark.parametrize("instance_type", KINDS)
@settings(max_examples=30)
@given(lost=losses(ABSENT), after=afters)
def test_absent_reading_is_no_fault_and_not_unobserved(
    instance_type: str, lost: list[Loss], after: float | None
) -> None:
    outcomes = judged(instance_type, lost, after)

    assert ([*findings(outcomes)], unobserved(outcomes)) == ([], set())


@pytest.mark.parametrize("instance_type", KINDS)
@settings(max_examples=30)
@given(lost=losses(NOT_OF_THE_HARDWARE), more=losses(ABSENT), after=afters)
def test_an_error_that_is_not_the_hardwares_is_no_fault(
    instance_type: str, lost: list[Loss], more: list[Loss], after: float | None
) -> None:
    outcomes = judged(instance_type, lost + more, after)

    assert [*findings(outcomes)] == []


@pytest.mark.parametrize("instance_type", KINDS)
def test_error_outside_the_hardware_is_unobserved(instance_type: str) -> None:
    lost = [(0, reading, code) for reading in WITH_PAIRS for code in NOT_OF_THE_HARDWARE]

    blind = {pair: bool(unobserved(judged(instance_type, [pair], None))) for pair in lost}

    assert [pair for pair in lost if blind[pair] != is_missed(instance_type, pair)] == []


@pytest.mark.parametrize("instance_type", KINDS)
def test_an_error_of_the_hardware_is_the_gpus_one_fault(instance_type: str) -> None:
    lost = [(0, reading, code) for reading in REPORTED for code in OF_THE_HARDWARE]

    found = {pair: [*findings(judged(instance_type, [pair], 10.0))] for pair in lost}

    assert found == {pair: [OF_THE_HARDWARE[pair[2]]] for pair in lost}


@pytest.mark.parametrize("code", OF_THE_HARDWARE)
def test_an_error_of_a_pair_is_nobodys_fault(code: int) -> None:
    """The error does not identify the faulty GPU of the pair. That GPU reports its own error."""
    outcomes = judged("p5.48xlarge", [(index, "p2p", code) for index in range(8)], None)

    assert [*findings(outcomes)] == []
    assert len(unobserved(outcomes)) == 8
