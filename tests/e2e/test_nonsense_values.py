"""Nonsense in the place of the driver's values: the child lives, the checks go on, and no number is no fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.examine import read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Finding, Host, Judgement, Probe, Unobserved
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML
from gpu_healthcheck.sim.node import SimulatedNode
from tests.checks.any_facts import LEVEL_CHECKS, is_in_order

EXPECTED = Expectation(InstanceProfile("p5.48xlarge", 2, 32, True, "efa"), "p5.48xlarge")


@dataclass(frozen=True)
class Stage:
    """Two GPUs, one child, and the files of the first GPU."""

    node: SimulatedNode
    driver: Driver
    seen: dict[Probe[Any], Any]
    files: tuple[Path, ...]

    def says(self, values: Sequence[tuple[int, str]]) -> list[Judgement]:
        """All that is said ten seconds after the healthy look, with these texts in the place of values."""
        child = self.driver.child_pid
        whole = {file: file.read_bytes() for file in (self.files[place % len(self.files)] for place, _ in values)}
        try:
            for place, text in values:
                self.files[place % len(self.files)].write_bytes(text.encode("utf-8", "surrogateescape") + b"\n")
            answer = self.driver.read()
        finally:
            for file, content in whole.items():
                file.write_bytes(content)
        assert self.driver.child_pid == child
        assert not isinstance(answer.answer, Unobserved) or answer.answer.cause.name == "NvmlNonsense"
        seen = Evidence({**self.seen, NVML: answer}, 1010.0, Evidence(self.seen, 1000.0))
        reported = []
        for check in LEVEL_CHECKS:
            findings = list(check.judge(seen, EXPECTED))
            is_in_order(check, findings)
            reported += findings
        return reported


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with SimulatedNode.create(tmp_path_factory.mktemp("nonsense") / "node", "p5.48xlarge") as node:
        for index in range(2, 8):
            node.remove_gpu(index)
        driver = Driver(node.root, use_loader=False)
        evidence = read_probes(Host(node.root, driver.read), CHECKS)
        files = sorted(file for file in (node.root / "nvml/gpu0").rglob("*") if file.is_file())
        # Of eighteen links one is as good as all.
        some = tuple(file for file in files if "nvlink" not in file.parts or "nvlink/3/" in str(file))
        yield Stage(node, driver, {probe: evidence[probe] for probe in evidence.probes}, some)
        driver.end()


places = st.integers(0, 100)
words = st.text(st.characters(exclude_categories=["Nd"], max_codepoint=0x24F, exclude_characters="\n"), max_size=40)
no_numbers = words | st.sampled_from(["", "nan", "-", "0x", "N/A", "[Not Supported]", "\udcff\udcfe", "x" * 300])
whatever = (
    no_numbers | st.integers(-(2**65), 2**65).map(str) | st.sampled_from(["-1", "4294967295", "1 2 3 4 5", "1e9"])
)
once = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@once
@given(values=st.lists(st.tuples(places, no_numbers), min_size=1, max_size=4))
def test_missing_number_is_no_fault(stage: Stage, values: list[tuple[int, str]]) -> None:
    assert [finding for finding in stage.says(values) if isinstance(finding, Finding)] == []


@once
@given(values=st.lists(st.tuples(places, whatever), min_size=1, max_size=4))
def test_whatever_the_driver_answers_is_judged(stage: Stage, values: list[tuple[int, str]]) -> None:
    stage.says(values)
