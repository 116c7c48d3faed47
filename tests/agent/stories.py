"""Stories that take an interval or more. They run at the same time, in parallel with the other tests.

Each begins on a node of its own, with ten seconds between two cycles, after its agent has reported `pass`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gpu_healthcheck.sim.api_objects import LEASES
from tests.agent.walks import WALKS
from tests.agent.world import RESULTS, UNHEALTHY, Json, NodeView, P, World
from tests.waiting import eventually

PAUSED = {"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}}}
RESUMED = {"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "true"}}}
BAD_SETTINGS = {
    "CHECK_INTERVAL": "5",
    "CHECKS_LIGHTWEIGHT": "0 word",
    "TAINT_SEVERITY": "AWFUL",
    "instance-profiles.conf": "# ours\np5.48xlarge|eight|32|true|efa\n",
}
HEARTBEATS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
BUDGET = "gpu-healthcheck-budget"


def slots(world: World) -> list[Json]:
    """Return the occupied slots of the fleet budget."""
    return world.api.store.find_all(LEASES, BUDGET)[0]


def hold(world: World, *numbers: int, holder: str = "", group: str = "") -> None:
    """Acquire these slots for other nodes, or all of them for one named node."""
    for number in numbers:
        metadata = {"name": f"slot-{number}", "labels": {f"{P}/group": group} if group else {}}
        lease = {"metadata": metadata, "spec": {"holderIdentity": holder or f"another-{number}"}}
        world.api.store.create(LEASES, BUDGET, lease)


def beat(world: World, others: int, group: str = "") -> None:
    """Create heartbeats of this number of other nodes with an agent."""
    for number in range(others):
        lease = _beat(f"another-{group}{number}")
        lease["metadata"]["labels"] = {f"{P}/group": group} if group else {}
        world.api.store.create(LEASES, "gpu-healthcheck", lease)


def _beat(name: str) -> Json:
    times = {"renewTime": "2026-11-21T01:02:03.000000Z", "leaseDurationSeconds": 900}
    return {"metadata": {"name": name}, "spec": {"holderIdentity": name, **times}}


def past(world: World, since: int = 0) -> list[NodeView]:
    """Return all versions of the Node, starting with the version at index `since`."""
    return world.stand_in.past()[since:]


def now(world: World) -> int:
    return len(world.stand_in.past())


def a_gpu_that_nvml_keeps_calling_lost_fails_the_node(world: World) -> None:
    world.host.lose_gpu(5)
    node = world.wait_for_taint()

    assert node.findings["GpuLost"]["subject"] == f"gpu/{world.host.gpus[5].address}"
    assert node.tainted


def an_xid_that_asks_for_no_reset_waits_for_the_look_and_sets_no_taint(world: World) -> None:
    looks = world.agent.metric("looks_total")
    world.host.xid(3, 13, "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)")
    node = world.wait_for_status("warn")

    assert (node.severity, node.taints, set(node.findings)) == ("MONITOR", [], {"Xid13"})
    assert node.condition["status"] == "True"
    assert world.agent.metric("looks_total") > looks
    assert world.wait_for_event("Xid13")["type"] == "Warning"


def a_driver_that_crashes_its_reader_is_unknown_and_the_agent_goes_on(world: World) -> None:
    world.host.crash()
    node = world.wait_for_status("unknown")

    assert node.causes == {"NvmlCrashed"}
    assert "SIGSEGV" in node.condition["message"]
    assert not node.tainted
    world.host.stop_crashing()
    assert world.wait_for_status("pass").causes == set()


def an_unloaded_driver_is_unknown_and_adds_no_taint(world: World) -> None:
    world.host.driver_unload()
    node = world.wait_for_status("unknown")

    assert node.causes <= {"DriverNotLoaded", "DriverBeingChanged"}
    world.wait(lambda node: node.causes == {"DriverNotLoaded"})
    world.agent.wait_for_looks(1)
    assert {node.tainted for node in past(world)} == {False}


def looks_pause_while_somebody_changes_the_driver(world: World) -> None:
    world.cluster.edit(PAUSED)
    node = world.wait_for_status("unknown")

    assert node.causes == {"DriverBeingChanged"}
    assert not node.tainted
    world.cluster.edit(RESUMED)
    world.wait_for_status("pass")


def a_taint_is_neither_added_nor_lifted_while_somebody_changes_the_driver(world: World) -> None:
    world.host.xid(3, 79, "GPU has fallen off the bus.")
    world.wait_for_taint()
    before = now(world)
    world.cluster.edit(PAUSED)
    world.host.lose_gpu(5)
    node = world.wait(lambda node: node.causes)

    assert (node.status, node.tainted, set(node.findings)) == ("fail", True, {"Xid79"})
    assert {node.tainted for node in past(world, before)} == {True}
    world.cluster.edit(RESUMED)
    world.wait(lambda node: set(node.findings) == {"Xid79", "GpuLost"})


def an_annotation_without_json_is_rewritten_and_reported(world: World) -> None:
    world.cluster.edit({"metadata": {"annotations": {RESULTS: "no JSON"}}})
    node = world.wait(lambda node: node.object["metadata"]["annotations"][RESULTS] != "no JSON")

    assert node.record["status"] == "pass"
    assert RESULTS in world.wait_for_event("BadAnnotation")["message"]
    assert world.agent.metric("bad_annotations_total") == 1


def the_last_good_settings_stay_and_an_event_names_each_bad_one(world: World) -> None:
    world.configure(**BAD_SETTINGS)
    eventually(lambda: len({event["message"] for event in world.events("BadSetting")}) >= len(BAD_SETTINGS))
    metrics = world.agent.metrics()
    message = "\n".join(event["message"] for event in world.events("BadSetting"))

    assert [metrics[f"bad_settings{{{key}}}"] for key in BAD_SETTINGS] == [1.0] * 4
    for words in (
        f"{world.config}/CHECK_INTERVAL: CHECK_INTERVAL = '5': a whole number of seconds, 10 to 86400",
        "CHECKS_LIGHTWEIGHT = '0 word': no check 'word'; allowed are 0, 2, 3, 7, 8, 9, 0-nvidia-smi",
        "TAINT_SEVERITY = 'AWFUL': allowed are MONITOR, RESET, REBOOT or ISOLATE",
        "instance-profiles.conf:2: gpus 'eight'; write a whole number",
    ):
        assert words in message
    number = len(world.events("BadSetting"))
    world.agent.wait_for_looks(1)  # at the interval of before: ten seconds
    assert world.node().status == "pass"

    (world.config / "instance-profiles.conf").unlink()
    world.configure(CHECK_INTERVAL="10", CHECKS_LIGHTWEIGHT="0", TAINT_SEVERITY="REBOOT")
    eventually(lambda: sum(world.agent.metric(f"bad_settings{{{key}}}") for key in BAD_SETTINGS) == 0)
    world.wait(lambda node: [row["check"] for row in node.record["checks"]] == ["0-nvidia-smi"])
    assert len(world.events("BadSetting")) == number


def the_limit_of_retired_pages_is_the_clusters_from_the_next_look_on(world: World) -> None:
    for name, value in (("retired_sbe", 4), ("retired_dbe", 0), ("retired_pending", 0)):
        world.host.write_value(f"nvml/gpu5/{name}", value)
    world.agent.wait_for_looks(1)
    assert world.node().status == "pass"

    world.configure(CHECK_INTERVAL="10", MAX_RETIRED_PAGES_SBE="3")
    node = world.wait_for_taint()
    assert (node.severity, set(node.findings)) == ("ISOLATE", {"RetiredPagesLimit"})


def a_switch_thrown_without_a_restart_takes_ours_away_once(world: World) -> None:
    world.host.xid(3, 79, "GPU has fallen off the bus.")
    world.wait_for_taint()
    world.configure(ENABLE_TAINT="false")
    node = world.wait(lambda node: not node.tainted)
    assert (node.status, node.record["taint"]) == ("fail", "off")
    eventually(lambda: not slots(world))
    assert "removed this program's taint" in world.wait_for_event("SwitchedOff")["message"]

    world.configure(ENABLE_LABEL="false", KERNEL_LOG_LINES="500")
    node = world.wait(lambda node: not [key for key in node.labels if key.startswith(P)])
    assert node.condition["status"] == "False"
    eventually(lambda: len(world.events("SwitchedOff")) == 2)
    world.configure(ENABLE_TAINT="true", ENABLE_LABEL="true")
    assert world.wait(lambda node: node.tainted).status == "fail"
    assert len(slots(world)) == 1


def a_taint_is_withheld_while_the_budget_is_full_and_set_once_a_place_is_free(world: World) -> None:
    beat(world, 9)  # with ours 10 nodes, of which two may be tainted
    hold(world, 0, 1)
    world.host.xid(3, 79, "GPU has fallen off the bus.")
    node = world.wait_for_status("fail")
    assert (node.tainted, node.record["taint"], node.severity) == (False, "withheld", "REBOOT")
    eventually(lambda: world.agent.metric("taint_withheld") == 1)
    budget = ("tainted", "budget_slots_used", "budget_slots_allowed")
    eventually(lambda: [world.agent.metrics().get(name) for name in budget] == [0, 2, 2])
    # A verdict waits 2 s for its slot. If the listing takes longer, as on a loaded machine, the Event gives that
    # reason.
    fields = world.wait_for_event("TaintWithheld")
    whys = ("2 of at most 2 nodes are tainted already", "the API server has not answered yet")
    assert any(why in fields["message"] for why in whys)

    # It is tried again in each cycle, and neither written nor reported again.
    before = now(world)
    world.agent.wait_for_looks(1)
    assert past(world, before) == []
    assert len(world.events("TaintWithheld")) == 1
    assert {slot["spec"]["holderIdentity"] for slot in slots(world)} == {"another-0", "another-1"}

    world.api.store.delete(LEASES, BUDGET, "slot-1")
    node = world.wait(lambda node: node.tainted)
    assert node.record["taint"] == "set"
    eventually(lambda: world.agent.metric("taint_withheld") == 0)
    assert {slot["spec"]["holderIdentity"] for slot in slots(world)} == {"another-0", world.cluster.name}


def a_startup_taint_stays_until_a_look_ends_well(world: World) -> None:
    startup = {"key": f"{P}/startup", "effect": "NoSchedule"}
    world.host.driver_unload()
    world.wait_for_status("unknown")
    world.cluster.edit({"spec": {"taints": [startup]}})
    world.agent.wait_for_looks(1)
    assert world.node().taints == [startup]

    world.host.driver_load()
    assert world.wait_for_status("pass").taints == []
    assert UNHEALTHY not in [taint for node in past(world) for taint in node.taints]


def a_gpu_missing_in_one_cycle_is_never_reported(world: World) -> None:
    before = now(world)
    looks = world.agent.metric("looks_total")
    world.host.write_value("nvml/count", 7)
    eventually(lambda: world.agent.metric("looks_total") > looks)
    (world.host.root / "nvml/count").unlink()
    world.agent.wait_for_looks(1)

    assert past(world, before) == []


def a_missing_gpu_counts_only_after_three_more_looks(world: World) -> None:
    counts_only_after_three_more_looks(world, lambda: world.host.remove_gpu(5), "GpuCountLow", "fail")
    assert world.node().tainted


def a_missing_efa_device_counts_only_after_three_more_looks(world: World) -> None:
    counts_only_after_three_more_looks(world, lambda: world.host.remove_efa(3), "EfaCountLow", "fail")
    assert world.node().tainted


def counts_only_after_three_more_looks(world: World, remove: Callable[[], None], reason: str, status: str) -> None:
    before, looks = now(world), world.agent.metric("looks_total")
    remove()
    node = world.wait_for_status(status)

    assert set(node.findings) == {reason}
    assert world.agent.metric("looks_total") >= looks + 4
    # Nothing was written while it settled.
    assert {node.status for node in past(world, before)} == {status}


def a_driver_that_hangs_is_unknown_first_and_a_fault_when_it_still_hangs(world: World) -> None:
    children, before = world.agent.children, now(world)
    world.host.hang()
    node = world.wait_for_taint()

    assert (set(node.findings), node.severity, node.tainted) == ({"DriverUnresponsive"}, "REBOOT", True)
    assert list(dict.fromkeys(node.status for node in past(world, before))) == ["unknown", "fail"]
    assert {node.tainted for node in past(world, before) if node.status == "unknown"} == {False}
    assert world.agent.metric("driver_deadlines_missed_total") >= 2
    assert [pid for pid in children if pid in world.agent.children] == []

    # The finding is unchanged: no later check cycle writes it again.
    before = now(world)
    world.agent.wait_for_looks(1)
    assert past(world, before) == []

    world.host.unhang()
    assert world.wait_for_status("pass").taints == []


def a_healthy_node_is_written_no_more_than_its_heartbeat(world: World) -> None:
    looks = world.agent.metric("looks_total")
    eventually(lambda: world.agent.metric("looks_total") >= looks + 2)
    heartbeat = f"PATCH {HEARTBEATS}/{world.cluster.name}"
    eventually(lambda: len(world.stand_in.writes(heartbeat)) >= 3)

    # Events and heartbeat are sent in parallel with the verdict, in any order.
    assert sorted(write for write in world.stand_in.writes() if write != heartbeat) == [
        f"PATCH /api/v1/nodes/{world.cluster.name}",
        f"PATCH /api/v1/nodes/{world.cluster.name}/status",
        "POST /api/v1/namespaces/default/events",
        f"POST {HEARTBEATS}",
    ]
    assert len(world.events("GpuHealthPass")) == 1


def a_slow_look_at_nvml_is_no_hung_driver(world: World) -> None:
    """35 s, longer than two and than three intervals."""
    file = world.host.root / "nvml/gpu7/name"
    quick = file.rename(file.with_suffix(".quick"))
    os.mkfifo(file)
    with file.open("w") as slow:  # opens when a check cycle reads it
        ends_at = time.monotonic() + 35
        while time.monotonic() < ends_at:
            assert world.agent.get("/healthz")[0] == 200
            time.sleep(1)
        name = quick.read_text()
        quick.replace(file)
        slow.write(name)
    world.agent.wait_for_looks(1)

    assert world.agent.metric("driver_deadlines_missed_total") == 0
    assert {node.status for node in past(world)} - {""} == {"pass"}


def healthz_is_well_while_the_api_server_is_away(world: World) -> None:
    world.api.refuse()
    world.agent.wait_for_looks(4)

    assert world.agent.get("/healthz")[0] == 200
    world.api.accept()


def a_lease_is_made_again_when_its_node_came_back_under_another_uid(world: World) -> None:
    world.api.delete_node(world.cluster.name)
    world.agent.wait_for_looks(1)
    world.api.add_node(world.cluster.name)
    node = world.wait_for_status("pass")

    assert node.record["node_uid"] == node.uid
    eventually(lambda: node.uid in str(world.cluster.lease()))


def a_missing_permission_is_named_and_the_rest_goes_on(world: World, part: str, resource: str, message: str) -> None:
    world.api.fail_with(403, path_part=part)
    world.host.xid(3, 79, "GPU has fallen off the bus.")
    world.host.lose_gpu(4)  # in the next cycle, to be written with it
    eventually(lambda: world.agent.metric(f"forbidden{{{resource}}}") == 1)
    eventually(lambda: [line for line in world.agent.lines if message in line.get("answer", "")])
    if resource == "nodes":
        assert world.agent.metric("verdict_pending") == 1
    else:
        world.wait(lambda node: node.tainted)
    world.agent.wait_for_looks(1)
    assert world.agent.get("/healthz")[0] == 200
    # One log line for each resource, not one for each try.
    refusals = [line["resource"] for line in world.agent.lines if line["level"] == "error"]
    assert len(refusals) == len(set(refusals))

    world.api.recover()
    world.wait(lambda node: set(node.findings) == {"Xid79", "GpuLost"})
    world.wait_for_taint()
    eventually(lambda: world.agent.metric(f"forbidden{{{resource}}}") == 0)
    eventually(lambda: world.agent.metric("verdict_pending") == 0)
    world.wait_for_event("Xid79")
    world.wait_for_event("GpuLost")


def without_patch_on_nodes_it_goes_on(world: World) -> None:
    message = 'cannot patch resource "nodes" in API group "" at the cluster scope'
    a_missing_permission_is_named_and_the_rest_goes_on(world, f"/nodes/{world.cluster.name}", "nodes", message)


def without_patch_on_the_status_it_goes_on(world: World) -> None:
    message = 'cannot patch resource "nodes/status" in API group "" at the cluster scope'
    a_missing_permission_is_named_and_the_rest_goes_on(world, "/status", "nodes/status", message)


def without_events_it_goes_on(world: World) -> None:
    message = 'cannot create resource "events" in API group "" in the namespace "default"'
    a_missing_permission_is_named_and_the_rest_goes_on(world, "/events", "events", message)


def without_leases_it_goes_on(world: World) -> None:
    message = 'cannot patch resource "leases" in API group "coordination.k8s.io" in the namespace "gpu-healthcheck"'
    a_missing_permission_is_named_and_the_rest_goes_on(world, "/namespaces/gpu-healthcheck/leases", "leases", message)


STORIES = (
    a_gpu_that_nvml_keeps_calling_lost_fails_the_node,
    an_xid_that_asks_for_no_reset_waits_for_the_look_and_sets_no_taint,
    a_driver_that_crashes_its_reader_is_unknown_and_the_agent_goes_on,
    an_unloaded_driver_is_unknown_and_adds_no_taint,
    looks_pause_while_somebody_changes_the_driver,
    a_taint_is_neither_added_nor_lifted_while_somebody_changes_the_driver,
    an_annotation_without_json_is_rewritten_and_reported,
    the_last_good_settings_stay_and_an_event_names_each_bad_one,
    the_limit_of_retired_pages_is_the_clusters_from_the_next_look_on,
    a_switch_thrown_without_a_restart_takes_ours_away_once,
    a_taint_is_withheld_while_the_budget_is_full_and_set_once_a_place_is_free,
    a_startup_taint_stays_until_a_look_ends_well,
    a_gpu_missing_in_one_cycle_is_never_reported,
    a_missing_gpu_counts_only_after_three_more_looks,
    a_missing_efa_device_counts_only_after_three_more_looks,
    a_driver_that_hangs_is_unknown_first_and_a_fault_when_it_still_hangs,
    a_healthy_node_is_written_no_more_than_its_heartbeat,
    a_slow_look_at_nvml_is_no_hung_driver,
    healthz_is_well_while_the_api_server_is_away,
    a_lease_is_made_again_when_its_node_came_back_under_another_uid,
    without_patch_on_nodes_it_goes_on,
    without_patch_on_the_status_it_goes_on,
    without_events_it_goes_on,
    without_leases_it_goes_on,
    *WALKS,
)
Story = Callable[[World], None]
HANG: frozenset[Story] = frozenset(
    {
        a_driver_that_hangs_is_unknown_first_and_a_fault_when_it_still_hangs,
    }
)
"""In which a deadline is missed, or waited for."""
