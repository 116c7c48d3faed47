"""A deep cycle with a real process in DCGM's place: errors that count at once, and those that count when repeated."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.deep.diagnostic import run_diagnostic
from gpu_healthcheck.healthcheck.model import Outcome
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm
from gpu_healthcheck.sim.node import SimulatedNode
from tests.probes.dcgm.documents import FAULTY, Said, Story, dcgm_4

SLOW = Said("Bandwidth of GPU 1 is 3.0 GB/s, below 10.0", 30, 2, 2)
BUSY = "A diag instance is already running, cannot run a new diag until the current one finishes"


class Node:
    """One GPU node with a dcgmi that answers as a test sets it."""

    def __init__(self, folder: Path) -> None:
        self.host = SimulatedNode.create(folder / "node", "p5.48xlarge")
        self.dcgm = Dcgm(path=f"{self.host.install_dcgmi()}:/usr/bin:/bin")

    def answers(self, what: str, tests: tuple[str, ...] = ("software", "memory", "pcie"), **errors: Said) -> None:
        story = Story(gpus=8, tests=tests, errors={(test, 1): (error,) for test, error in errors.items()})
        self.host.write_value(f"dcgm/answer-{what}", json.dumps(dcgm_4(story)))

    def look(self) -> tuple[dict[str, str], set[str]]:
        outcome = run_diagnostic(self.dcgm, Expectation())
        return found(outcome), {unobserved.cause.name for unobserved in outcome.unobserved}

    @property
    def asked(self) -> list[str]:
        lines = (self.host.root / "dcgm/asked").read_text().splitlines()
        return [line.split()[0].removeprefix("what=") for line in lines if line.startswith("what=")]


def found(outcome: Outcome) -> dict[str, str]:
    return {finding.reason: finding.severity.name for finding in outcome.findings}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_healthy_node_is_checked_once(node: Node) -> None:
    assert node.look() == ({}, set())
    assert node.asked == ["2"]


def test_a_sure_fault_is_believed_at_once(node: Node) -> None:
    node.answers("2", memory=FAULTY)

    assert node.look() == ({"DcgmDiagMemory": "ISOLATE"}, set())
    assert node.asked == ["2"]


def test_a_doubtful_fault_that_does_not_come_again_is_none(node: Node) -> None:
    node.answers("2", pcie=SLOW)
    node.answers("pcie", ("pcie",))

    assert node.look() == ({}, set())
    assert node.asked == ["2", "pcie"]


def test_a_doubtful_fault_that_comes_again_is_one(node: Node) -> None:
    node.answers("2", pcie=SLOW)
    node.answers("pcie", ("pcie",), pcie=SLOW)

    faults, _ = node.look()
    assert set(faults) == {"DcgmDiagPcie"}


def test_unsettled_doubt_is_neither_fault_nor_pass_and_the_sure_fault_stays(node: Node) -> None:
    node.answers("2", pcie=SLOW, memory=FAULTY)
    node.host.write_value("dcgm/answer-pcie", BUSY)

    outcome = run_diagnostic(node.dcgm, Expectation())
    assert found(outcome) == {"DcgmDiagMemory": "ISOLATE"}
    assert not [result for result in outcome.passed if result.reason == "DcgmDiagPcie"]
    assert node.asked == ["2", "pcie"]


def test_stopped_diagnostic_is_unobserved(node: Node) -> None:
    node.host.write_value("dcgm/hang", "")
    stopper = threading.Timer(0.5, node.dcgm.stop)
    stopper.start()

    assert node.look() == ({}, {"DcgmStopped"})
    assert node.look() == ({}, {"DcgmStopped"})
