"""Evictions from faulty nodes, from the fault to the replacement. Each scenario has pods or nodes that must stay."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.agent.world import P, RealCluster, World
from tests.cli.cluster import run
from tests.evict.world import BUDGETS, FINALIZER, JOBS, NODES, PODS, SELECTED, SETS, EvictWorld
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FELL_OFF, GSP = "GPU has fallen off the bus.", "Timeout waiting for RPC from GSP!"
GPU_POD = {
    "nodeSelector": SELECTED,
    "automountServiceAccountToken": False,
    "terminationGracePeriodSeconds": 0,
    "containers": [{"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
}


def test_xid_79_under_a_job_moves_its_pod_and_counts_no_failure(world: EvictWorld, tmp_path: Path) -> None:
    cluster = RealCluster(world.plane, "train-0", labels=SELECTED, devices={"nvidia.com/gpu": "8"})
    world.add_node("train-1")
    with World(tmp_path / "agent", cluster) as agent:
        agent.hurry()
        agent.configure(MAX_UNHEALTHY_PERCENT="100", EVICT_SEVERITY="REBOOT")
        agent.start()
        agent.wait_for_status("pass")
        rules = {"podFailurePolicy": {"rules": [DISRUPTION]}, "backoffLimit": 0, "completionMode": "Indexed"}
        template = {"spec": {**GPU_POD, "restartPolicy": "Never"}}
        world.make(JOBS, "train", spec={"parallelism": 2, "completions": 2, "template": template, **rules})
        eventually(lambda: len(world.on("train-0")) == len(world.on("train-1")) == 1)
        (first,), second = world.on("train-0"), world.on("train-1")
        world.add_node("spare")
        world.configure(EVICT_DELAY="3")
        world.start()

        # Healthy twin: a RESET finding taints the node and evicts no pod.
        agent.host.xid(0, 119, GSP)
        agent.wait_for_taint()
        agent.host.xid(0, 79, FELL_OFF)
        agent.wait(lambda node: node.severity == "REBOOT")

        announced = world.wait_for_event("train-0", "EvictionAnnounced")
        assert first in announced, announced
        assert "Xid79 (REBOOT) on gpu/" in announced, announced
        assert "Write a checkpoint now" in world.wait_for_event(first, "EvictionAnnounced")
        announced_at = datetime.fromisoformat(world.evictions("train-0")[first]["at"])
        world.wait_for_evicted(first)
        ((_, evicted_at),) = world.requests()
        assert evicted_at - announced_at >= timedelta(seconds=3)
        eventually(lambda: len(world.on("spare")) == 1)
        assert world.on("train-1") == second
        status = world.plane.request("GET", f"{JOBS}/train").body["status"]
        assert (status.get("failed", 0), status["active"], status.get("conditions")) == (0, 2, None)
        eventually(lambda: not world.evictions("train-0"))
        assert len(world.events("train-0", "EvictionAnnounced")) == 1
        assert world.evicted() == [first]


def test_disruption_budget_refuses_until_it_allows(world: EvictWorld) -> None:
    world.add_node("node")
    world.start_pod("guarded", "node", metadata={"labels": {"app": "guarded"}})
    world.start_pod("free", "node")
    world.make(BUDGETS, "guard", spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}})
    eventually(lambda: world.plane.request("GET", f"{BUDGETS}/guard").body["status"].get("currentHealthy"))
    process = world.start()

    world.fail("node")

    world.wait_for_states("node", guarded="refused")
    assert "PodDisruptionBudget default/guard" in world.wait_for_event("guarded", "EvictionRefused")
    shown = run(world.plane.kubeconfig, "status").stdout
    assert "PodDisruptionBudget default/guard" in shown, shown
    eventually(lambda: len(world.requests(429)) >= 2)
    metrics = process.metrics()
    assert (metrics["evictions_refused"], metrics["evictions_total{refused}"]) == (1, 1)
    assert (world.evicted(), list(world.on("node"))) == (["free"], ["guarded"])

    world.plane.request("DELETE", f"{BUDGETS}/guard")

    world.wait_for_evicted("free", "guarded")
    eventually(lambda: process.metrics()["evict_nodes"] == 0)
    metrics = process.metrics()
    assert (metrics["evictions_refused"], metrics["evictions_total{requested}"]) == (0, 2)
    assert len(world.events("guarded", "EvictionRefused")) == 1
    assert "guard" not in run(world.plane.kubeconfig, "status").stdout


def test_end_of_the_fault_or_a_release_within_the_delay_cancels_the_eviction(world: EvictWorld) -> None:
    world.configure(EVICT_DELAY="8")
    nodes = ("faulty", "healed", "released", "acknowledged")
    for name in nodes:
        world.add_node(name)
        world.start_pod(f"on-{name}", name)
    world.start()
    for name in nodes:
        world.fail(name)
    for name in nodes:
        world.wait_for_states(name, **{f"on-{name}": "announced"})

    world.heal("healed")
    world.edit("released", {"metadata": {"labels": {f"{P}/status": "pass"}}})
    world.edit("acknowledged", {"metadata": {"annotations": {f"{P}/release": '{"by":"ann"}'}}})

    for name in nodes[1:]:
        world.wait_for_states(name)
        assert "is not evicted" in world.wait_for_event(f"on-{name}", "EvictionCancelled")
    world.wait_for_evicted("on-faulty")
    assert set(world.running()) == {f"on-{name}" for name in nodes[1:]}
    assert world.events("on-faulty", "EvictionCancelled") == []


def test_nodes_with_requested_evictions_stay_within_the_fleet_budget(world: EvictWorld) -> None:
    failing = [f"node-{number}" for number in range(4)]
    for number in range(12):
        world.add_node(f"node-{number}", has_agent=True)
    for name in failing:
        world.start_pod(f"on-{name}", name, metadata={"finalizers": [FINALIZER]})
    world.configure(MAX_UNHEALTHY_PERCENT="20")
    world.start()
    for name in failing:
        world.fail(name)

    def waiting() -> list[str]:
        rows = {name: world.evictions(name).get(f"on-{name}", {}) for name in failing}
        return [name for name, row in rows.items() if "MAX_UNHEALTHY_PERCENT" in row.get("why", "")]

    eventually(lambda: len(waiting()) == len(world.evicted()) == 2, world.logs)
    # A new process counts the evictions that the killed one requested.
    world.processes[-1].kill()
    restarted = world.start()
    eventually(lambda: restarted.metrics()["evict_nodes"] == 4)
    assert len(world.evicted()) == 2

    gone = world.evicted()[0]
    world.plane.request("PATCH", f"{PODS.format('default')}/{gone}", {"metadata": {"finalizers": None}})
    eventually(lambda: len(world.evicted()) == 3, world.logs)
    eventually(lambda: len(waiting()) == 1)

    # Healthy twin: a budget of the whole fleet lets the fourth go, while the pods of the others still end.
    world.configure(MAX_UNHEALTHY_PERCENT="100")
    world.wait_for_evicted(*(f"on-{name}" for name in failing))


def test_program_killed_at_each_write_evicts_each_pod_once(world: EvictWorld) -> None:
    def evict_pair(pair: int, kill_at: str) -> int:
        """Fail the node of a StatefulSet's pod, and return the number of the program's writes."""
        faulty, spare, pod = f"faulty-{pair}", f"spare-{pair}", f"rank-{pair}-0"
        world.add_node(faulty, pair=str(pair))
        template = {
            "metadata": {"labels": {"app": f"rank-{pair}"}},
            "spec": {**GPU_POD, "nodeSelector": {"pair": str(pair)}},
        }
        labels = {"matchLabels": {"app": f"rank-{pair}"}}
        world.make(SETS, f"rank-{pair}", spec={"selector": labels, "serviceName": "rank", "template": template})
        eventually(lambda: pod in world.on(faulty))
        world.add_node(spare, pair=str(pair))
        first = world.start(kill_at)
        world.fail(faulty)
        if kill_at != "never":
            assert first.exit_code() == -9, kill_at
            world.start()
        eventually(lambda: pod in world.on(spare), lambda: (kill_at, world.logs()))
        replacement = world.on(spare)
        # The annotation goes after the pod: the program has then read the node without it.
        eventually(lambda: not world.evictions(faulty), lambda: (kill_at, world.logs()))
        eventually(lambda: world.processes[-1].metrics()["evict_nodes"] == 0)
        assert world.processes[-1].terminate() == 0
        assert (world.evicted().count(pod), world.on(spare)) == (1, replacement), kill_at
        assert world.events(pod, "EvictionAnnounced"), kill_at
        # Later processes would handle this node too.
        world.heal(faulty)
        return first.log.read_text().count("WRITE ")

    writes = evict_pair(0, "never")
    assert writes == 7, world.logs()
    for number in range(1, writes + 1):
        evict_pair(number, f"{number} before")
    evict_pair(writes + 1, f"{writes} after")


def test_node_group_without_evict_severity_stays_untouched(world: EvictWorld) -> None:
    world.configure(node_overrides="team=research: EVICT_SEVERITY=\nteam=slow: EVICT_DELAY=3600\n")
    teams = {"research": "research", "slow": "slow", "serving": "serving"}
    for name, team in teams.items():
        world.add_node(name, team=team)
        world.start_pod(f"on-{name}", name)
    world.start()
    for name in teams:
        world.fail(name)

    world.wait_for_states("slow", on_slow="announced")
    world.wait_for_evicted("on-serving")
    assert set(world.running()) == {"on-research", "on-slow"}
    assert world.events("research", "EvictionAnnounced") == world.events("on-research", "EvictionAnnounced") == []

    # A change of the ConfigMap reaches the nodes that already failed.
    world.configure(node_overrides="")
    world.wait_for_evicted("on-research", "on-serving", "on-slow")


def test_announcement_of_a_later_pod_does_not_delay_an_eviction_that_is_due(world: EvictWorld) -> None:
    delay = 4
    world.configure(EVICT_DELAY=str(delay))
    world.add_node("node")
    world.start_pod("early", "node")
    world.start()
    world.fail("node")
    world.wait_for_states("node", early="announced")
    world.start_pod("later", "node")

    world.wait_for_evicted("early", "later")
    at = dict(world.requests())
    assert at["later"] - at["early"] >= timedelta(seconds=delay - 1), at


def test_severity_below_evict_severity_evicts_no_pod(world: EvictWorld) -> None:
    world.configure(EVICT_SEVERITY="ISOLATE")
    for severity in ("MONITOR", "RESET", "REBOOT", "ISOLATE"):
        name = severity.lower()
        world.add_node(name)
        world.start_pod(f"on-{name}", name)
        world.fail(name, severity)
    world.start()

    world.wait_for_evicted("on-isolate")
    assert set(world.running()) == {"on-monitor", "on-reset", "on-reboot"}

    world.configure(EVICT_SEVERITY="REBOOT")
    world.wait_for_evicted("on-isolate", "on-reboot")
    assert set(world.running()) == {"on-monitor", "on-reset"}


def test_run_that_uses_the_node_keeps_its_pods_until_it_ends(world: EvictWorld) -> None:
    until = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    claim = json.dumps({"kind": "quarantine", "holder": "tester", "until": until})
    for name in ("claimed", "free"):
        world.add_node(name)
        world.start_pod(f"on-{name}", name)
    world.start()
    world.fail("claimed", run=claim)
    world.fail("free")

    world.wait_for_evicted("on-free")
    assert (list(world.running()), world.evictions("claimed")) == (["on-claimed"], {})

    world.edit("claimed", {"metadata": {"annotations": {f"{P}/run": None}}})
    world.wait_for_evicted("on-claimed", "on-free")


def test_annotation_of_a_deleted_node_is_no_obstacle(world: EvictWorld) -> None:
    world.configure(EVICT_DELAY="5")
    for name in ("deleted", "kept"):
        world.add_node(name)
        world.start_pod(f"on-{name}", name)
    process = world.start()
    for name in ("deleted", "kept"):
        world.fail(name)
        world.wait_for_states(name, **{f"on-{name}": "announced"})
    world.plane.request("DELETE", f"{NODES}/deleted")

    eventually(lambda: "on-kept" in world.evicted())
    eventually(lambda: process.metrics()["evict_nodes"] == 0)
    assert "on-deleted" not in world.evicted()
