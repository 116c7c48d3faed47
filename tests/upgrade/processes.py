"""The story with agents as processes, on a real kube-apiserver: upgrade and rollback, and the state in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.agent.walks import BACK_TO_NONE
from tests.agent.world import NodeView, P
from tests.upgrade.past import marks, same, standing
from tests.upgrade.stage import Stage, refusals, settled, stage
from tests.upgrade.versions import HERE
from tests.waiting import eventually

if TYPE_CHECKING:
    import subprocess

    from tests.upgrade.versions import Version

_OFF_THE_BUS = "GPU has fallen off the bus."
_DOUBLE_BIT = "An uncorrectable double bit error (DBE) has been detected on GPU."
_UNCONTAINED = "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"
_MMU_FAULT = "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted"
_MEMORY = "DcgmDiagMemory"
SWEEP = ("sweep-run", "gpu-healthcheck-sweep")
QUARANTINE = ("quarantine-run", "gpu-healthcheck-quarantine")


def tell(before: Version, after: Version) -> None:
    """Raises AssertionError where something is lost on the way."""
    with stage() as upgraded:
        upgraded.apply(before)
        stand_faults(upgraded, before)
        up(upgraded, before, after)
        back(upgraded, before, after)
        upgraded.apply(after)
        upgraded.world.host.write_value("nvml/gpu6/remap_pending", 0)
        for agent, policies in ((before, after), (after, before)):
            fault_is_reported(upgraded, agent, policies)
            upgraded.sweep(agent)
            print(f"the sweeper of {agent.name} makes its Job under the policies of {policies.name}", flush=True)
        upgraded.apply(after)
        for ran, agent in ((before, after), (after, before), (after, after)):
            in_flight(upgraded, ran, agent)


def stand_faults(stage: Stage, version: Version) -> None:
    """A reset that counts, an acknowledgement, an Xid with its taint, a level, and findings of a sweep."""
    world = stage.world
    stage.start(version)
    world.wait_for_status("pass")
    world.host.xid(5, 48, _DOUBLE_BIT)
    world.wait_for_taint()
    stage.release(version)
    world.wait_for_status("pass")
    assert reset_of_95(stage) == "RESET"
    world.host.xid(3, 79, _OFF_THE_BUS)
    world.wait_for_taint()
    world.host.write_value("nvml/gpu6/remap_pending", 1)
    ends(stage.deep_run(version, *SWEEP, failing_gpu=1))
    world.wait(lambda node: {_MEMORY, "RowRemapPending"} <= node.findings.keys())
    settled(world.agent)
    memory = stage.memory
    print(f"under {version.name} stand {', '.join(sorted(world.node().findings))}, tainted", flush=True)
    assert list(memory["ended"].values()) == [1]
    assert len(memory["acknowledged"]) == 1


def up(stage: Stage, before: Version, after: Version) -> None:
    """Policies first, then the agent: for a while there are two on the node."""
    old = stage.world.agent
    with stage.nothing_changes(f"the policies of {after.name}, the agent of {before.name}"):
        stage.apply(after)
        settled(old)
    stage.world.host.xid(2, 31, _MMU_FAULT)
    stage.world.wait(lambda node: "Xid31" in node.findings)
    settled(old)
    print(f"  refused to that agent: {refusals(old)}", flush=True)
    with stage.nothing_changes(f"an agent of {after.name} beside it"):
        new = stage.start_second(after)
        eventually(lambda: any("another agent" in line["event"] for line in new.lines), new.log.read_text)
        settled(old)
    with stage.nothing_changes("the older one ends, the newer one takes over"):
        assert old.terminate() == 0
        stage.world.host.kernel_log.replay()
        settled(new)


def back(stage: Stage, before: Version, after: Version) -> None:
    """The agent first, then the policies; and the results of another order, and of a lost file."""
    with stage.nothing_changes(f"back to the agent of {before.name}, the policies of {after.name}"):
        stage.stop()
        settled(stage.start(before))
    assert reset_of_95(stage) == "RESET"
    with stage.nothing_changes(f"back to the policies of {before.name}"):
        stage.apply(before)
        settled(stage.world.agent)
    with stage.nothing_changes(f"the agent of {after.name}, the policies of {before.name}"):
        stage.stop()
        settled(stage.start(after))
    print(f"  refused to that agent: {refusals(stage.world.agent)}", flush=True)
    assert reset_of_95(stage) == "ISOLATE"
    print("two resets, one counted by each version: the third Xid 95 is ISOLATE", flush=True)
    for version in (before, after):
        seen = stage.world.node()
        stage.stop()
        stage.world.memory_file.unlink()
        settled(stage.start(version))
        now = stage.world.node()
        same("the Node", str(marks(seen)), str(marks(now)))
        same("the record", standing(seen), standing(now))
        print(f"without the memory's file the agent of {version.name} has all from the Node", flush=True)


def reset_of_95(stage: Stage) -> str:
    """Return the severity of an Xid 95 after a reset of its GPU."""
    world = stage.world
    world.host.xid(0, 95, _UNCONTAINED)
    node = world.wait(lambda node: "Xid95" in node.findings)
    severity = str(node.findings["Xid95"]["severity"])
    if severity == "RESET":
        world.host.xid(0, 154, BACK_TO_NONE)
        world.wait(lambda node: "Xid95" not in node.findings)
    return severity


def fault_is_reported(stage: Stage, agent: Version, policies: Version) -> None:
    """While the other version's policies stand; the other's agent then finds the place in the budget, and frees it."""
    stage.apply(policies)
    release_all(stage, agent)
    world = stage.world
    before = len(world.events("Xid79"))
    world.host.xid(7, 79, _OFF_THE_BUS)
    world.wait_for_taint()
    eventually(lambda: len(world.events("Xid79")) > before)
    settled(world.agent)
    print(f"the agent of {agent.name} under the policies of {policies.name} taints and tells a new fault", flush=True)
    with stage.nothing_changes(f"then the agent of {policies.name}"):
        stage.stop()
        settled(stage.start(policies))
    if policies.name != HERE.name:
        stage.plane.kubectl(
            "delete", "leases", "--all", "--namespace=gpu-healthcheck-budget"
        )  # docs/upgrading.md, "Go back to an older version"
    eventually(lambda: len(stage.cluster.slots()) == 1, stage.cluster.slots)
    stage.release(policies)
    world.wait_for_status("pass")
    eventually(lambda: not stage.cluster.slots())


def in_flight(stage: Stage, ran: Version, agent: Version) -> None:
    """A Job of one version ends under an agent of the other, on a node without our taint."""
    for program, failing_gpu in ((SWEEP, 1), (QUARANTINE, 2)):
        release_all(stage, agent)
        ends(stage.deep_run(ran, *program, failing_gpu=failing_gpu))
        stage.world.wait(lambda node: _MEMORY in node.findings and node.tainted and _is_free(node))
        print(f"{program[0]} of {ran.name}: its finding is with the agent of {agent.name}", flush=True)
    ends(stage.deep_run(ran, *QUARANTINE, failing_gpu=None))
    stage.world.wait_for_status("pass")
    print(f"a run of {ran.name} that passes ends it under the agent of {agent.name}", flush=True)


def release_all(stage: Stage, version: Version) -> None:
    """Its agent runs, and nothing stands."""
    stage.stop()
    stage.start(version)
    settled(stage.world.agent)
    if stage.world.node().status != "pass":
        stage.release(version)
        stage.world.wait_for_status("pass")


def ends(process: subprocess.Popen[str]) -> None:
    """It has written its record; its exit code depends on its findings."""
    out, err = process.communicate()
    assert process.returncode in (0, 1), out + err


def _is_free(node: NodeView) -> bool:
    """Whether no deep run has the node any more."""
    return f"{P}/run" not in (node.object["metadata"].get("annotations") or {})
