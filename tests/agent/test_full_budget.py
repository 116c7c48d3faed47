"""Two nodes, their agents and a fleet budget of one slot on a real kube-apiserver, on a terminal of 80 columns."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.text.moments import exact, moment, timestamp
from gpu_healthcheck.sim.control_plane import ControlPlane, install
from tests.agent.world import RealCluster, World
from tests.cli.cluster import run_here
from tests.cli.test_terminal_width import shown
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
ACCEPTS, KEPT = "FaultyNodeAcceptsWork", "NodeKeptFromWork"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a separate control plane: the budget is that of a whole cluster."""
    del control_plane  # it builds the programs
    with ControlPlane() as own:
        install(own)
        yield own


@pytest.fixture
def worlds(plane: ControlPlane, tmp_path: Path) -> Iterator[list[World]]:
    """Yield two healthy nodes with eight GPUs each. One of them may be tainted: at least one slot is always allowed."""
    with ExitStack() as closing:
        worlds = []
        for name in ("gpu-a", "gpu-b"):
            labels = {"nvidia.com/gpu.present": "true"}
            cluster = RealCluster(plane, name, labels=labels, devices={"nvidia.com/gpu": "8"})
            worlds.append(closing.enter_context(World(tmp_path / name, cluster)))
            worlds[-1].hurry()
            worlds[-1].start()
        for world in worlds:
            world.wait_for_status("pass")
            eventually(world.cluster.lease)
        yield worlds


def fleet(plane: ControlPlane) -> Json:
    return dict(json.loads(run_here(plane.kubeconfig, "status", "-o", "json").stdout))


def causes(plane: ControlPlane) -> list[tuple[str, str]]:
    found = json.loads(run_here(plane.kubeconfig, "diagnose", "--json").stdout)["causes"]
    return [(cause["cause"], cause["subject"]) for cause in found if cause["cause"] in (ACCEPTS, KEPT)]


def first_commands(lines: list[str]) -> list[str]:
    return [line.strip().removeprefix("$ ") for line in lines if line.strip().startswith("$ ")]


def test_a_faulty_node_without_a_slot_is_to_be_cordoned_first(plane: ControlPlane, worlds: list[World]) -> None:
    assert causes(plane) == []
    assert "16 of 16 free" in run_here(plane.kubeconfig, "status", "--allocation").stdout
    assert "accept" not in run_here(plane.kubeconfig, "status").stdout

    for world in worlds:
        world.host.xid(3, 79, "GPU has fallen off the bus.")
    for world in worlds:
        world.wait_for_status("fail")
    eventually(lambda: {world.node().record["taint"] for world in worlds} == {"set", "withheld"})
    (accepting,) = (world.cluster.name for world in worlds if not world.node().tainted)
    (tainted,) = (world.cluster.name for world in worlds if world.node().tainted)

    assert causes(plane) == [(ACCEPTS, f"node/{accepting}"), (KEPT, f"node/{tainted}")]
    text = run_here(plane.kubeconfig, "diagnose").stdout
    assert text.index(f"kubectl cordon {accepting}") < text.index("gpu-healthcheck explain")
    assert "0 of 16 free" in run_here(plane.kubeconfig, "status", "--allocation").stdout
    lines = shown(plane.kubeconfig, 80, "status")
    assert "1 faulty node accepts new work (limit of tainted nodes). Cordon it:" in lines
    assert first_commands(lines)[-1] == f"kubectl cordon {accepting}"
    commands = first_commands(shown(plane.kubeconfig, 80, "status", accepting))
    assert commands[:2] == [f"kubectl cordon {accepting}", f"gpu-healthcheck reset {accepting} --reboot"]
    assert "kubectl cordon" not in " ".join(shown(plane.kubeconfig, 80, "status", tainted))

    plane.kubectl(*shlex.split(commands[0])[1:])

    assert sorted(causes(plane)) == [(KEPT, "node/gpu-a"), (KEPT, "node/gpu-b")]
    assert "accept" not in run_here(plane.kubeconfig, "status").stdout
    assert first_commands(shown(plane.kubeconfig, 80, "status", accepting))[0] == commands[1]


def test_a_node_whose_agent_has_died_does_not_count_as_pass(plane: ControlPlane, worlds: list[World]) -> None:
    lines = shown(plane.kubeconfig, 80, "status")
    assert "2 nodes: 2 pass" in lines
    assert any(line.startswith("2 of 2 nodes have a live agent; ") for line in lines)
    assert run_here(plane.kubeconfig, "status", "-o", "html").stdout.count("silent, last pass") == 0

    worlds[1].agent.kill()
    renewed = exact(datetime.now(UTC) - timedelta(minutes=29))
    assert plane.request("PATCH", f"{LEASES}/gpu-b", {"spec": {"renewTime": renewed}}).status == 200

    lines = shown(plane.kubeconfig, 80, "status")
    assert [line.split()[:3] for line in lines[1:3]] == [["gpu-b", "silent", "PASS"], ["gpu-a", "pass", "PASS"]]
    assert "last report: pass" in lines[1]
    assert "2 nodes: 1 silent, 1 pass" in lines
    assert any(line.startswith("1 of 2 nodes have a live agent; ") for line in lines)
    assert fleet(plane)["totals"] == {"nodes": 2, "by_status": {"silent": 1, "pass": 1}, "live_agents": 1}
    page = run_here(plane.kubeconfig, "status", "-o", "html").stdout
    assert page.count("silent, last pass") == 1
    assert "<b>1 of 2</b>nodes have a live agent" in page
    assert "status      silent, last report: pass" in "\n".join(shown(plane.kubeconfig, 80, "status", "gpu-b"))


def test_since_is_the_start_of_the_severity_and_a_finding_has_its_own(plane: ControlPlane, worlds: list[World]) -> None:
    world = worlds[0]
    world.host.xid(3, 13, "Graphics Engine Exception")
    world.wait_for_status("warn")
    first = moment(world.node().findings["Xid13"]["first_seen"])
    assert fleet(plane)["nodes"][0]["since"] == timestamp(first)
    eventually(lambda: datetime.now(UTC) > first + timedelta(seconds=2))

    world.configure(**{"severity-overrides": "xid 13 = RESET"})
    node = world.wait_for_status("fail")

    row = fleet(plane)["nodes"][0]
    assert row["since"] == node.condition["lastTransitionTime"]
    assert moment(row["since"]) > moment(row["findings"][0]["since"]) == first
    text = " ".join(" ".join(shown(plane.kubeconfig, 80, "status", "gpu-a")).split())
    assert f"status fail, RESET, since {row['since']} (" in text
    assert f"first {row['findings'][0]['since']} (" in text
