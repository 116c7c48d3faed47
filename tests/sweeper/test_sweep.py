"""Whole sweeps on the real control plane: scheduler, controllers, admission policies, and real processes as pods."""

from __future__ import annotations

import json

import pytest

from gpu_healthcheck.healthcheck.settings.reading import read_settings
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sweeper import sweep
from tests.sweeper.world import LEASES, Fleet, P, make_sweep_namespace
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
SPOT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
WRITES = [["patch", "nodes"], ["create", "jobs"], ["patch", "nodes"]]
"""Of a sweep that tests one node: the run is taken, the Job made, the run given back."""


def test_a_sweep_tests_every_idle_node_and_leaves_nothing_behind(fleet: Fleet, kubelets: Kubelets) -> None:
    for number in range(3):
        fleet.add(f"swept-{number}", taints=[SPOT])
    fleet.configure(MAX_SWEEP_PERCENT="100")

    code, _, message = fleet.sweep()

    assert code == 0, message
    assert (fleet.tested(), fleet.residue()) == (dict.fromkeys(fleet.names, "pass"), {})
    assert [job["spec"]["template"]["spec"]["priorityClassName"] for job in fleet.jobs()] == [
        "gpu-healthcheck-sweep"
    ] * 3
    assert all(fleet.node(name).taints == [SPOT] for name in fleet.names)
    # And no node is due now.
    code, printed, _ = fleet.sweep("--dry-run")
    assert (code, printed.count("TAKEN"), printed.count("tested at")) == (0, 0, 3)


def test_a_node_that_is_in_use_is_left_alone(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.add("in-use")
    fleet.gpu_pod("work", "in-use", gpus=1)
    eventually(
        lambda: fleet.plane.request("GET", "/api/v1/namespaces/default/pods/work").body["status"]["phase"] == "Running"
    )

    code, _, message = fleet.sweep()

    assert (code, fleet.jobs(), fleet.residue()) == (0, [], {}), message
    _, printed, _ = fleet.sweep("--dry-run")
    assert "in use: default/work holds 1 nvidia.com/gpu" in printed


def test_malformed_heartbeat_is_named_and_stops_no_other_node(fleet: Fleet) -> None:
    odd = {
        "last": "9999-12-31T23:59:59.999999Z",
        "first": "0000-01-01T00:00:00.000000Z",
        "ahead": "2999-01-01T00:00:00.000000Z",
    }
    for name, renewed in odd.items():
        fleet.add(name)
        beat = {"spec": {"renewTime": renewed}}
        assert fleet.plane.request("PATCH", f"{LEASES}/{name}", beat).status == 200
    record = json.dumps({"schema": 1, "timestamp": "9999-01-01T00:00:00Z", "status": "pass", "severity": "PASS"})
    fleet.mark(fleet.add("well"), {"metadata": {"annotations": {f"{P}/sweep-result": record}}})
    fleet.configure(MAX_SWEEP_PERCENT="100")

    code, printed, message = fleet.sweep("--dry-run")

    assert code == 0, message
    rows = {line.split()[0]: line for line in printed.splitlines()[1:] if line.strip()}
    assert {name: "its heartbeat is overdue" in rows[name] for name in odd} == dict.fromkeys(odd, True)
    assert (rows["well"].split()[-1], "never" in rows["well"]) == ("TAKEN", True)
    assert [f"leases gpu-healthcheck/{name}: " in message for name in odd] == [True] * len(odd)


def test_6_a_node_is_given_back_as_soon_as_its_own_job_has_ended(fleet: Fleet, kubelets: Kubelets) -> None:
    """Defect 6 of the scripts: every node was kept until the slowest Job had ended."""
    fleet.configure(MAX_SWEEP_PERCENT="100")
    for name in ("quick", "slow"):
        fleet.hold(fleet.add(name))

    sweeper = fleet.sweeper()
    eventually(lambda: list(fleet.residue()) == ["quick", "slow"])
    fleet.let_go("quick")

    eventually(lambda: list(fleet.residue()) == ["slow"])
    assert (sweeper.poll(), fleet.tested()) == (None, {"quick": "pass"})
    sweeper.terminate()
    sweeper.wait()


def test_a_lost_api_server_ends_no_sweep(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.hold(fleet.add("outage"))
    sweeper = fleet.sweeper()
    eventually(fleet.working)

    fleet.plane.stop_api()
    fleet.let_go("outage")
    fleet.plane.start_api()

    _, message = sweeper.communicate()
    assert (sweeper.returncode, fleet.tested(), fleet.residue()) == (0, {"outage": "pass"}, {}), message


def test_6_a_stopped_sweeper_leaves_its_jobs_to_the_next(fleet: Fleet, kubelets: Kubelets) -> None:
    """Defect 6: a CronJob's pod that was killed left its taints behind."""
    fleet.hold(fleet.add("followed"))
    first = fleet.sweeper()
    eventually(fleet.working)
    first.terminate()
    assert first.wait() == 0
    assert list(fleet.residue()) == ["followed"]
    fleet.let_go("followed")

    code, _, message = fleet.sweep()

    assert (code, fleet.tested(), fleet.residue()) == (0, {"followed": "pass"}, {}), message
    assert len(fleet.jobs()) == 1


@pytest.mark.parametrize(("write", "when"), [(1, "after"), (2, "after"), (3, "before"), (3, "after")])
def test_a_sweeper_that_is_killed_at_any_write_leaves_nothing_that_the_next_one_does_not_clear(
    fleet: Fleet, kubelets: Kubelets, write: int, when: str
) -> None:
    """Before the first write nothing has changed, and before the second all is as after the first."""
    fleet.add("killed", taints=[SPOT])

    code, printed, message = fleet.sweep(KILL_AT=f"{write} {when}")
    assert (code, printed.split()[-2:]) == (-9, WRITES[write - 1]), message
    eventually(lambda: not fleet.working())
    fleet.sweep()

    # A run cut off before its Job existed is tested by the sweep after the next.
    fleet.sweep()
    assert (fleet.residue(), fleet.working(), fleet.node("killed").taints) == ({}, [], [SPOT])
    assert fleet.tested() == {"killed": "pass"}


@pytest.mark.parametrize("moment", ["1 before", "1 after", "3 before"])
def test_an_api_server_that_is_killed_at_any_step_of_a_sweep_ends_it_not(
    fleet: Fleet, kubelets: Kubelets, moment: str
) -> None:
    """Before the run is taken, before there is a Job, and before the node is given back; while it runs, see above."""
    fleet.add("outlived", taints=[SPOT])
    reached = fleet.folder / "reached"
    sweeper = fleet.sweeper(KILL_AT=moment, WAIT_AT=str(reached))
    eventually(reached.exists)

    fleet.plane.stop_api()
    reached.unlink()
    fleet.plane.start_api()

    _, message = sweeper.communicate()
    assert (sweeper.returncode, fleet.residue(), fleet.working()) == (0, {}, []), message
    assert (fleet.tested(), fleet.node("outlived").taints) == ({"outlived": "pass"}, [SPOT])


def test_these_are_all_the_writes_of_a_sweep(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.add("counted")

    _, printed, message = fleet.sweep(KILL_AT="never")

    assert [line.split()[1:] for line in printed.splitlines()] == WRITES, message


def test_6_leftovers_of_the_scripts_are_cleared_and_no_others(fleet: Fleet) -> None:
    """Defect 6: taints that no Job answered for stayed for ever."""
    left = {"key": f"{P}/maintenance", "value": "sweep", "effect": "NoSchedule"}
    foreign = [SPOT, {"key": f"{P}/maintenance", "value": "sweep", "effect": "NoExecute"}]
    fleet.add("scripts", gpus=0, taints=[*foreign, left], labels={f"{P}/mode": "sweep"})
    fleet.mark("scripts", {"spec": {"unschedulable": True}})

    code, _, message = fleet.sweep()

    node = fleet.node("scripts")
    assert code == 0, message
    ours = [taint for taint in node.taints if taint["key"] != "node.kubernetes.io/unschedulable"]
    assert (ours, node.cordoned, f"{P}/mode" in node.labels) == (foreign, True, False)


def test_job_without_an_active_claim_is_stopped(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.hold(fleet.add("stray"))
    sweeper = fleet.sweeper()
    eventually(fleet.working)
    sweeper.kill()
    sweeper.wait()
    fleet.mark("stray", {"metadata": {"annotations": {f"{P}/run": None}, "labels": {f"{P}/mode": None}}})

    fleet.sweep()

    eventually(lambda: not fleet.working())
    assert fleet.residue() == {}


def test_6_work_that_comes_between_plan_and_job_keeps_its_gpus(
    fleet: Fleet, kubelets: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 6: nothing held the GPUs between the listing and the Job. Here the scheduler does."""
    monkeypatch.setattr(sweep, "_PLACE_SECONDS", 1.0)
    fleet.add("raced", gpus=1)
    sweeping = sweep.Sweep(fleet.cluster, read_settings(fleet.config).values)

    plan = sweeping.plan()
    fleet.gpu_pod("work", "raced", gpus=1)
    eventually(lambda: fleet.work() == {"Running"})
    sweeping.run(plan)

    assert [decision.why for decision in plan.decisions if decision.node.name == "raced"] == [""]
    assert (fleet.work(), fleet.tested(), fleet.residue()) == ({"Running"}, {}, {})
    assert kubelets.most_gpus["raced"] == 1


def test_real_work_gets_the_gpus_of_a_sweep_at_once(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.hold(fleet.add("preempted", gpus=1))
    sweeper = fleet.sweeper()
    eventually(lambda: kubelets.most_gpus["preempted"])

    fleet.gpu_pod("work", "preempted", gpus=1)

    eventually(lambda: fleet.work() == {"Running"})
    _, message = sweeper.communicate()
    assert (sweeper.returncode, fleet.tested(), fleet.residue()) == (0, {}, {}), message
    assert kubelets.most_gpus["preempted"] == 1
    _, printed, _ = fleet.sweep("--dry-run")
    assert "in use: default/work holds 1 nvidia.com/gpu" in printed


def test_work_that_arrives_during_a_sweep_never_shares_its_gpus(fleet: Fleet, kubelets: Kubelets) -> None:
    names = [fleet.add(f"race-{number}", gpus=1) for number in range(12)]
    fleet.configure(MAX_NODES_PER_SWEEP="100", MAX_SWEEP_PERCENT="100")
    sweeper = fleet.sweeper()
    assert sweeper.stderr is not None
    while "planned" not in sweeper.stderr.readline():
        continue

    for name in reversed(names):  # before it comes to the one, after it has come to the other
        fleet.gpu_pod(f"work-{name}", name, gpus=1)
    eventually(lambda: fleet.work() == {"Running"})
    fleet.plane.request("DELETE", "/api/v1/namespaces/default/pods")  # or the Jobs behind it would wait a minute
    sweeper.communicate()

    assert sweeper.returncode == 0
    assert {kubelets.most_gpus[name] for name in names} == {1}
    assert fleet.residue() == {}


def test_a_node_that_is_refused_keeps_the_test_from_no_other(fleet: Fleet, kubelets: Kubelets) -> None:
    """Another admission webhook may reject writes to a node from all clients."""
    fleet.configure(MAX_SWEEP_PERCENT="100")
    fleet.add("a-protected", labels={"example.com/protected": "true"})
    fleet.add("b-free")
    with fleet.protected("example.com/protected"):
        code, _, message = fleet.sweep(FORBIDDEN_SECONDS="1")

    assert (code, fleet.tested(), fleet.residue()) == (2, {"b-free": "pass"}, {}), message
    assert "nobody changes this node" in message


def test_a_template_that_the_policy_rejects_is_reported_and_blocks_no_node(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.configure(MAX_SWEEP_PERCENT="100")
    for name in ("a-refused", "b-refused"):
        fleet.add(name)
    fleet.set_in_pods(hostNetwork=True)
    code, _, message = fleet.sweep(FORBIDDEN_SECONDS="1")
    fleet.set_in_pods(hostNetwork=None)

    assert (code, fleet.jobs(), fleet.residue()) == (2, [], {}), message
    assert message.count("skipped") == 2
    assert "'gpu-healthcheck-sweeper-jobs'" in message.splitlines()[-1]
    assert message.endswith("denied request: a sweep's pod may not set hostNetwork\n")

    code, _, message = fleet.sweep()

    assert (code, fleet.tested()) == (0, dict.fromkeys(fleet.names, "pass")), message


def test_a_sweep_may_have_a_namespace_of_its_own(fleet: Fleet, kubelets: Kubelets) -> None:
    make_sweep_namespace(fleet.plane, "sweeps")
    fleet.configure(SWEEP_NAMESPACE="sweeps")
    fleet.add("elsewhere")

    code, _, message = fleet.sweep()

    assert (code, fleet.tested(), fleet.residue()) == (0, {"elsewhere": "pass"}, {}), message
    assert fleet.jobs() == []
    fleet.plane.kubectl("delete", "clusterrolebinding/sweeps", "namespace/sweeps", "--wait=false")


def test_a_test_that_is_killed_comes_to_no_verdict_and_is_not_tried_again_at_once(
    fleet: Fleet, kubelets: Kubelets
) -> None:
    fleet.hold(fleet.add("victim"))
    sweeper = fleet.sweeper()
    eventually(lambda: kubelets.most_gpus["victim"])

    kubelets.kill("victim")

    _, message = sweeper.communicate()
    assert (sweeper.returncode, fleet.tested(), fleet.residue()) == (0, {}, {}), message
    _, printed, _ = fleet.sweep("--dry-run")
    assert "tried without a result at" in printed


def test_a_node_with_a_plugin_that_rejects_all_replicas_is_left_to_its_agent(fleet: Fleet, kubelets: Kubelets) -> None:
    """Time-slicing with `failRequestsGreaterThanOne`: the scheduler places the pod, and the kubelet refuses it."""
    words = "maximum request size for shared resources is 1; found 8"
    kubelets.refuses[fleet.add("sliced")] = f"Pod was rejected: Allocate failed due to rpc error: {words}"

    code, _, message = fleet.sweep()

    assert (code, fleet.tested(), fleet.residue()) == (0, {}, {}), message
    _, printed, _ = fleet.sweep("--dry-run")
    row = " ".join(printed.split())
    assert "tried without a result at" in row
    assert "the kubelet rejected the pod, so only an agent of the full image can run level 2" in row
    assert words in row


def test_a_node_may_have_the_longest_name(fleet: Fleet, kubelets: Kubelets) -> None:
    name = ".".join(["n" * 60] * 4 + ["9" * 9])
    assert len(name) == 253
    fleet.add(name, labels={"kubernetes.io/hostname": "short"})

    code, _, message = fleet.sweep()

    assert (code, fleet.tested(), fleet.residue()) == (0, {name: "pass"}, {}), message


def test_6_pods_that_have_finished_keep_no_node_busy(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.add("done")
    fleet.gpu_pod("finished", "done", command=["true"])
    eventually(lambda: fleet.work() == {"Succeeded"})

    code, _, message = fleet.sweep()

    assert (code, fleet.tested()) == (0, {"done": "pass"}), message
