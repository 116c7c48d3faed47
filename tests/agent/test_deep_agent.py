"""A whole agent with its own level 2 beside its light looks: what is found, and that both never contradict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from agent.settings import AgentSettings
from agent.wire import Agent
from healthcheck.cluster import Cluster
from healthcheck.memory_file import MemoryFile
from healthcheck.telemetry import Telemetry
from tests.agent.test_deep import GPU_POD, MAINTENANCE, MODE, QUICK, SWEEP, Rig, answer, client, rig
from tests.agent.world import NOBODY, UNHEALTHY, NodeView, World
from tests.healthcheck.test_command import is_gone
from tests.probes.dcgm_documents import FAULTY

__all__ = ["rig"]
OFTEN = replace(QUICK, look_again=0.2, told=60.0)


@pytest.fixture(autouse=True)
def _finds_dcgmi(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", f"{rig.world.host.root}/usr/bin:/usr/bin:/bin")
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


@contextmanager
def running(world: World) -> Iterator[Agent]:
    environment = {
        "NODE_NAME": world.cluster.name,
        "HOST_ROOT": world.host.root,
        "CONFIG_DIR": world.config,
        "STATE_DIR": world.folder / "state",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": NOBODY,
    }
    settings = AgentSettings.model_validate(environment)
    file = MemoryFile(settings.state_dir)
    assert file.acquire()
    agent = Agent(settings, Cluster(lambda: client(world.kubeconfig)), file, Telemetry(), waits=OFTEN)
    agent.start()
    try:
        yield agent
    finally:
        agent.end()
        file.release()


def versions(world: World, true: Callable[[NodeView], Any]) -> list[NodeView]:
    return [node for node in world.stand_in.past() if true(node)]


def result_of(node: NodeView) -> str:
    return str((node.object["metadata"].get("annotations") or {}).get(SWEEP, ""))


def test_what_level_2_finds_taints_the_node_before_the_taint_of_the_test_goes(rig: Rig) -> None:
    rig.dcgm(answer=answer(("memory", 1), FAULTY), code="205")
    with running(rig.world):
        node = rig.world.wait(lambda node: "DcgmDiagMemory" in node.findings and MODE not in node.labels)

    gpu = rig.world.host.gpus[1]
    finding = node.findings["DcgmDiagMemory"]
    assert (finding["subject"], finding["about"]["serial"]) == (f"gpu/{gpu.address}", gpu.serial)
    assert (node.severity, node.tainted, MAINTENANCE in node.taints) == ("ISOLATE", True, False)
    told = versions(rig.world, lambda node: '"by":"agent"' in result_of(node))
    assert told
    assert all(UNHEALTHY in node.taints or MAINTENANCE in node.taints for node in told)
    assert rig.asked == ["2"]


def test_light_looks_go_on_beside_a_run_and_a_pod_ends_it(rig: Rig) -> None:
    rig.dcgm(hang="")
    rig.world.configure(CHECK_INTERVAL="10")
    with running(rig.world) as agent:
        rig.world.wait(lambda _: rig.asked)
        looks = agent.cycle.ended
        rig.world.wait(lambda _: agent.cycle.ended >= looks + 2)
        assert rig.marks[MODE] == "l2"
        rig.world.host.xid(3, 13, "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)", process=(812, "nvvs"))
        rig.world.host.xid(4, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        node = rig.world.wait(lambda node: "Xid48" in node.findings)
        assert "Xid13" not in node.findings
        rig.pods(GPU_POD)
        node = rig.world.wait(lambda node: MODE not in node.labels)

    assert (rig.marks, node.status, node.tainted) == ({}, "fail", True)


def test_a_pod_that_comes_has_gpus_that_nothing_of_the_diagnostic_uses(rig: Rig) -> None:
    """Whatever it started, in whatever session, and though it hears nothing."""
    rig.dcgm(hang="", deaf="", session="")
    sleeper = rig.world.host.root / "dcgm/sleeper"
    with running(rig.world):
        rig.world.wait(lambda _: sleeper.exists() and sleeper.read_text().strip())
        rig.pods(GPU_POD)
        rig.world.wait(lambda node: MODE not in node.labels)
        assert is_gone(int(sleeper.read_text()))

    assert rig.marks == {}
