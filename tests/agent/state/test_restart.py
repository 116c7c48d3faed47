"""Changes of the Node by a restart, a reboot or a lost memory: only true ones."""

from __future__ import annotations

import json
import os

import pytest

from tests.agent.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."


@pytest.fixture
def failed(watched: World) -> World:
    """Xid 79 came three times; node and memory file know."""
    for _ in range(3):
        watched.host.xid(3, 79, ERROR)
    watched.wait_for_taint()
    eventually(lambda: watched.agent.xids("79") == 3)
    watched.wait_for_event("GpuHealthFail")
    watched.wait_for_event("Xid79")
    if any(node.record.get("taint") == "withheld" for node in watched.stand_in.past()):
        watched.wait_for_event("TaintWithheld")  # where the budget's Leases took their time
    return watched


def settle(world: World) -> None:
    """Wait until the present agent has finished a cycle, read the whole ring, and reported all."""
    records = len(world.host.kernel_log.ring)
    eventually(lambda: world.agent.metric("kernel_log_records_total") >= records or caught_up(world))
    eventually(lambda: world.agent.metric("looks_total") >= 1)
    # The heartbeat is renewed after all reports of the check cycle.
    eventually(lambda: world.agent.metric("cluster_writes_total{leases,ok}") >= 1)


def caught_up(world: World) -> bool:
    """A record that the memory knows is passed over and not counted: a new one is read after all of them."""
    before = world.agent.metric("kernel_log_records_total")
    world.host.kernel_log.write("systemd[1]: Started")
    eventually(lambda: world.agent.metric("kernel_log_records_total") > before)
    return True


def seen_since(world: World, versions: int) -> list[tuple[object, ...]]:
    return [(node.status, node.severity, node.tainted) for node in world.stand_in.past()[versions:]]


class TestAStandingVerdict:
    @pytest.mark.parametrize("way", ["SIGTERM", "SIGKILL"])
    def test_is_unchanged_before_during_and_after_a_restart(self, failed: World, way: str) -> None:
        before = failed.node()
        versions = len(failed.stand_in.past())
        events = len(failed.cluster.events())

        if way == "SIGTERM":
            assert failed.agent.terminate() == 0
        else:
            failed.agent.kill()
        assert failed.node().object == before.object

        failed.host.kernel_log.replay()
        failed.start()
        settle(failed)
        after = failed.node()
        assert after.ours == before.ours
        assert set(seen_since(failed, versions)) <= {("fail", "REBOOT", True)}
        assert failed.agent.metric("cluster_writes_total{nodes/status,ok}") == 0
        assert len(failed.cluster.events()) == events

    def test_counts_nothing_twice_when_the_ring_is_read_again(self, failed: World) -> None:
        failed.restart()
        settle(failed)
        failed.host.xid(5, 79, ERROR)
        node = failed.wait(lambda node: len(node.record["findings"]) == 2)

        counts = {entry["subject"]: entry["count"] for entry in node.record["findings"]}
        assert counts == {
            f"gpu/{failed.host.gpus[3].address}": 3,
            f"gpu/{failed.host.gpus[5].address}": 1,
        }

    def test_counts_what_came_while_no_agent_ran(self, failed: World) -> None:
        assert failed.agent.terminate() == 0
        failed.host.xid(3, 79, ERROR)
        failed.host.xid(4, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        failed.host.kernel_log.replay()
        failed.start()
        node = failed.wait(lambda node: "Xid48" in node.findings)

        assert node.findings["Xid79"]["count"] == 4

    def test_ends_with_a_reboot(self, failed: World) -> None:
        assert failed.agent.terminate() == 0
        failed.host.reboot()
        failed.start()
        node = failed.wait_for_status("pass")

        assert (node.severity, node.taints, node.findings) == ("PASS", [], {})
        assert node.record["boot_id"] == failed.host.boot_id
        failed.wait_for_event("GpuHealthPass")

    def test_that_asks_for_isolation_outlives_a_reboot(self, world: World) -> None:
        world.configure(**{"severity-overrides": "xid 79 = ISOLATE"})
        world.start()
        world.wait_for_status("pass")
        world.host.xid(3, 79, ERROR)
        world.wait(lambda node: node.severity == "ISOLATE" and node.tainted)
        assert world.agent.terminate() == 0
        world.host.reboot()
        world.start()
        settle(world)
        node = world.wait(lambda node: node.record["boot_id"] == world.host.boot_id)

        assert (node.severity, node.tainted) == ("ISOLATE", True)

    def test_survives_a_restart_into_a_driver_that_cannot_be_asked(self, failed: World) -> None:
        assert failed.agent.terminate() == 0
        for file in failed.host.library.parent.glob("libnvidia-ml*"):
            file.unlink()
        failed.host.kernel_log.replay()
        failed.start()
        node = failed.wait(lambda node: node.causes)

        assert (node.status, node.tainted, set(node.findings)) == ("fail", True, {"Xid79"})

    def test_ends_when_the_look_of_a_new_process_shows_the_fault_gone(self, world: World) -> None:
        world.host.lose_gpu(3)
        world.start()
        world.wait_for_taint()
        assert world.agent.terminate() == 0
        (world.host.root / "nvml/gpu3/error").unlink()
        world.host.kernel_log.replay()
        world.start()

        assert world.wait_for_status("pass").taints == []


class TestTheMemoryFile:
    def test_when_lost_is_rebuilt_from_the_node(self, failed: World) -> None:
        before = failed.node()
        assert failed.agent.terminate() == 0
        failed.memory_file.unlink()
        # And nothing in the ring either: only the Node still knows.
        failed.host.kernel_log.clear()
        versions = len(failed.stand_in.past())
        failed.start()
        settle(failed)

        assert standing(failed) == {("Xid79", f"gpu/{failed.host.gpus[3].address}")}
        assert failed.node().findings["Xid79"]["first_seen"] == before.findings["Xid79"]["first_seen"]
        assert set(seen_since(failed, versions)) <= {("fail", "REBOOT", True)}

    def test_when_lost_with_the_api_server_away_is_rebuilt_once_that_is_back(self, failed: World) -> None:
        assert failed.agent.terminate() == 0
        failed.memory_file.unlink()
        failed.host.kernel_log.clear()
        failed.api.refuse()
        failed.start()
        failed.agent.wait_for_log("the API server is unavailable; the newest verdict is kept")
        eventually(lambda: failed.agent.metric("looks_total") >= 1)
        failed.api.accept()
        eventually(lambda: standing(failed))

        assert failed.node().tainted

    def test_that_is_garbage_is_set_aside(self, failed: World) -> None:
        """Other contents: tests/memory/test_file.py."""
        garbage = b"\xff\xfe\x00"
        assert failed.agent.terminate() == 0
        failed.memory_file.write_bytes(garbage)
        failed.host.kernel_log.replay()
        failed.start()
        settle(failed)

        assert failed.memory_file.with_name("memory.unreadable").read_bytes() == garbage
        assert failed.agent.metric("memory_file_errors_total") == 1
        assert "renamed to memory.unreadable" in failed.wait_for_event("MemoryUnreadable")["message"]
        assert (failed.node().status, failed.node().tainted) == ("fail", True)
        assert len(failed.events("Xid79")) == 1

    @pytest.mark.parametrize("name", ["memory.json", "lock"])
    def test_a_pipe_in_place_of_a_file_is_skipped(self, failed: World, name: str) -> None:
        assert failed.agent.terminate() == 0
        path = failed.memory_file.with_name(name)
        path.unlink()
        os.mkfifo(path)
        failed.host.kernel_log.replay()
        failed.start()
        settle(failed)

        assert "not a regular file" in failed.wait_for_event("MemoryUnreadable")["message"]
        assert (failed.node().status, failed.node().tainted) == ("fail", True)

    def test_of_another_machine_gives_nothing(self, failed: World) -> None:
        assert failed.agent.terminate() == 0
        failed.host.write_value("sys/class/dmi/id/product_uuid", "ec2fffff-0000-4000-8000-000000000001")
        failed.host.kernel_log.clear()
        failed.start()
        node = failed.wait_for_status("pass")

        assert node.taints == []
        assert node.record["machine"] == "ec2fffff-0000-4000-8000-000000000001"

    def test_and_the_record_of_another_machine_give_nothing(self, failed: World) -> None:
        assert failed.agent.terminate() == 0
        failed.memory_file.unlink()
        failed.host.write_value("sys/class/dmi/id/product_uuid", "ec2fffff-0000-4000-8000-000000000001")
        failed.host.kernel_log.clear()
        failed.start()

        assert failed.wait_for_status("pass").taints == []

    def test_that_cannot_be_written_any_more_stops_nothing(self, watched: World) -> None:
        watched.memory_file.unlink()
        (watched.memory_file.parent / "memory.new").mkdir()
        watched.host.xid(3, 79, ERROR)

        watched.wait_for_taint()
        eventually(lambda: watched.agent.metric("memory_file_errors_total") >= 1)


class TestTwoAgentsOnOneNode:
    def test_second_agent_checks_and_writes_nothing_until_the_first_ends(self, watched: World) -> None:
        first = watched.agent
        written = watched.stand_in.writes("nodes")
        second = watched.start()
        eventually(lambda: second.metric("looks_total") >= 1)
        assert (first.metric("standby"), second.metric("standby")) == (0, 1)
        assert (second.get("/healthz")[0], second.get("/readyz")[0]) == (200, 200)
        assert sum(second.metric(f"cluster_writes_total{{{text},ok}}") for text in ("nodes", "leases", "events")) == 0
        assert watched.stand_in.writes("nodes") == written

        assert first.terminate() == 0
        eventually(lambda: len(second.logged("memory")) == 2)
        watched.host.kernel_log.replay()
        eventually(lambda: second.metric("cluster_writes_total{leases,ok}") == 1)
        watched.host.xid(3, 79, ERROR)

        watched.wait_for_taint()
        assert second.metric("standby") == 0

    def test_the_second_ends_at_sigterm_while_it_waits(self, watched: World) -> None:
        second = watched.start()
        second.wait_for_log(
            "another agent of this node holds the lock of the memory; checking without writes until it exits"
        )

        assert second.terminate() == 0
        assert watched.agents[0].running


def standing(world: World) -> set[tuple[str, str]]:
    """Return the present content of the memory file."""
    try:
        _, content = world.memory_file.read_text().splitlines()
    except FileNotFoundError:
        return set()
    return {(row["reason"], row["subject"]) for row in json.loads(content)["findings"]}
