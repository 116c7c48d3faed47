"""A whole agent with its own level 2 in parallel to its check cycles: findings, without contradictions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.agent.process.wiring import Agent
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.sim.host_services import Container
from tests.agent.deep.test_deep import GPU_POD, MAINTENANCE, MODE, QUICK, SWEEP, Rig, answer, client, rig
from tests.agent.parts import agent_settings
from tests.agent.world import NOBODY, UNHEALTHY, NodeView, World
from tests.host.test_command import is_gone
from tests.probes.dcgm.documents import FAULTY
from tests.waiting import eventually

__all__ = ["rig"]
WARP = "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)"
POD = "0a1b2c3d-4e5f-4a6b-8c7d-0123456789ab"
OUR_TEST, THEIR_TEST = 812, 813
OFTEN = replace(QUICK, check_again=0.2, adoption=60.0)


@pytest.fixture(autouse=True)
def _finds_dcgmi(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", f"{rig.world.host.root}/usr/bin:/usr/bin:/bin")
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def _processes(rig: Rig) -> None:
    """Start a process in our pod and a process with the same name in another pod."""
    host = rig.world.host
    (host.root / f"var/log/pods/gpu-healthcheck_gpu-healthcheck-agent-x_{POD}").mkdir(parents=True)
    for pid, uid in ((OUR_TEST, POD), (THEIR_TEST, POD.replace("0a1b", "ffff"))):
        host.services.start_in_container(pid, "nvvs", Container(f"0::/kubepods/pod{uid}/{'f' * 64}"))


@contextmanager
def running(world: World) -> Iterator[Agent]:
    environment = {
        "HOST_ROOT": world.host.root,
        "STATE_DIR": world.folder / "state",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": NOBODY,
    }
    settings = agent_settings(world.cluster.name, world.config, **environment)
    file = MemoryFile(settings.state_dir)
    assert file.acquire()
    agent = Agent(settings, Cluster(lambda: client(world.kubeconfig)), file, Telemetry(), waits=OFTEN)
    agent.start()
    try:
        yield agent
    finally:
        agent.end()
        file.unlock()


def versions(world: World, true: Callable[[NodeView], Any]) -> list[NodeView]:
    return [node for node in world.stand_in.past() if true(node)]


def result_of(node: NodeView) -> str:
    return str((node.object["metadata"].get("annotations") or {}).get(SWEEP, ""))


def test_level_2_finding_taints_the_node_before_the_tests_taint_ends(rig: Rig) -> None:
    rig.dcgm(answer=answer(("memory", 1), FAULTY), code="205")
    with running(rig.world):
        node = rig.world.wait(lambda node: "DcgmDiagMemory" in node.findings and MODE not in node.labels)

    gpu = rig.world.host.gpus[1]
    finding = node.findings["DcgmDiagMemory"]
    assert (finding["subject"], finding["about"]["serial"]) == (f"gpu/{gpu.address}", gpu.serial)
    assert (node.severity, node.tainted, MAINTENANCE in node.taints) == ("ISOLATE", True, False)
    views = versions(rig.world, lambda node: '"by":"agent"' in result_of(node))
    assert views
    assert all(UNHEALTHY in node.taints or MAINTENANCE in node.taints for node in views)
    assert rig.asked == ["2"]


def test_check_cycles_continue_during_a_run_and_a_pod_ends_it(rig: Rig) -> None:
    rig.dcgm(hang="")
    rig.world.configure(CHECK_INTERVAL="10")
    with running(rig.world) as agent:
        rig.world.wait(lambda _: rig.asked)
        looks = agent.host.cycle.ended
        rig.world.wait(lambda _: agent.host.cycle.ended >= looks + 2)
        assert rig.marks[MODE] == "l2"
        rig.world.host.xid(3, 13, WARP, process=(OUR_TEST, "nvvs"))
        rig.world.host.xid(4, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        node = rig.world.wait(lambda node: "Xid48" in node.findings)
        assert "Xid13" not in node.findings
        rig.pods(GPU_POD)
        node = rig.world.wait(lambda node: MODE not in node.labels and node.tainted)

    assert (rig.marks, node.status, node.tainted) == ({}, "fail", True)


def test_an_xid_of_a_pod_that_calls_itself_a_test_counts_during_a_run(rig: Rig) -> None:
    rig.dcgm(hang="")
    with running(rig.world) as agent:
        rig.world.wait(lambda _: rig.asked)
        rig.world.host.xid(4, 13, WARP, process=(THEIR_TEST, "nvvs"))
        eventually(lambda: "Xid13" in standing(agent))
        assert standing(agent)["Xid13"] == {f"gpu/{rig.world.host.gpus[4].address}"}

        # An ended process is known by its number for a while.
        eventually(lambda: OUR_TEST in agent.state.known.deep_processes)
        shutil.rmtree(rig.world.host.root / f"proc/{OUR_TEST}")
        rig.world.host.xid(3, 13, WARP, process=(OUR_TEST, "nvvs"))
        rig.world.host.xid(5, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        eventually(lambda: "Xid48" in standing(agent))
        assert standing(agent)["Xid13"] == {f"gpu/{rig.world.host.gpus[4].address}"}


def standing(agent: Agent) -> dict[str, set[str]]:
    """Return the subjects of active findings in its memory, by reason."""
    found: dict[str, set[str]] = {}
    for finding in agent.state.memory.active:
        found.setdefault(finding.finding.reason, set()).add(finding.finding.subject)
    return found


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
