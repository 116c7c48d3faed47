"""Our conditions with a program that writes all conditions of a Node at once, on the real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.agent.node.node_update import WrittenConditions
from gpu_healthcheck.healthcheck.node.state import (
    HARDWARE_READY,
    OUR_WORD,
    REBOOT_REQUIRED,
    REPAIR_CONDITIONS,
    REPLACEMENT_REQUIRED,
    RUN,
)
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.agent.world import RealCluster, World
from tests.waiting import eventually

RIVAL = "eks-node-monitoring-agent"
Json = dict[str, Any]


def written_condition(status: str = "False", message: str = "x", kind: str = HARDWARE_READY) -> Json:
    return {"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": f"at {status}"}


class TestPutBack:
    def test_is_done_at_once_and_then_in_turn(self) -> None:
        ours = WrittenConditions()
        assert ours.may_go([written_condition()], 100.0)
        ours.went([written_condition()], 100.0)

        assert (ours.may_go([written_condition()], 100.1), ours.put_off_seconds(100.1)) == (True, None)
        ours.went([written_condition()], 100.1)
        assert not ours.may_go([written_condition()], 103.1)
        assert ours.put_off_seconds(103.1) == pytest.approx(7.0)
        assert (ours.may_go([written_condition()], 110.2), ours.put_off_seconds(110.2)) == (True, None)

    @pytest.mark.parametrize(
        "news",
        [
            written_condition("True"),
            written_condition(message="y"),
            written_condition(kind=REBOOT_REQUIRED),
            {"type": HARDWARE_READY, "$patch": "delete"},
        ],
    )
    def test_holds_up_nothing_new(self, news: Json) -> None:
        ours = WrittenConditions()
        ours.went([written_condition()], 100.0)
        ours.went([written_condition()], 100.1)

        assert ours.may_go([written_condition(), news], 100.2)
        assert not ours.may_go([written_condition()], 100.2)

    def test_due_restoration_is_reported_once(self) -> None:
        ours = WrittenConditions()
        for now in (100.0, 100.1):
            ours.went([written_condition()], now)
        ours.may_go([written_condition()], 100.2)

        assert [ours.put_off_seconds(now) for now in (105.1, 110.2, 110.3)] == [pytest.approx(5.0), 0.0, None]

    def test_waits_no_longer_once_nothing_is_undone(self) -> None:
        ours = WrittenConditions()
        for now in (100.0, 100.1):
            ours.went([written_condition()], now)
        ours.may_go([written_condition()], 100.2)

        assert (ours.may_go([], 100.3), ours.put_off_seconds(100.3)) == (True, None)

    def test_keeps_the_time_of_the_transition(self) -> None:
        ours = WrittenConditions()
        ours.went([written_condition("False")], 100.0)

        again = written_condition("False", message="y") | {"lastTransitionTime": "now"}
        assert ours.with_time(again)["lastTransitionTime"] == "at False"
        assert ours.with_time(written_condition("True"))["lastTransitionTime"] == "at True"


@pytest.fixture
def world(installed: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    name = getattr(request, "param", "repair-conditions")
    with World(tmp_path / "world", RealCluster(installed, name)) as world:
        world.hurry()
        world.configure(MAX_UNHEALTHY_PERCENT="100", REPAIR_CONDITIONS=",".join(REPAIR_CONDITIONS))
        world.start()
        yield world


def conditions(world: World) -> dict[str, Json]:
    return {entry["type"]: entry for entry in world.node().object["status"]["conditions"]}


def repairs(found: dict[str, Json]) -> list[tuple[str, ...]]:
    """Return the conditions as a repair controller reads them."""
    keys = ("type", "status", "reason", "lastTransitionTime")
    return [tuple(found[kind][key] for key in keys) for kind in REPAIR_CONDITIONS if kind in found]


def statuses(world: World) -> list[str]:
    found = conditions(world)
    return [found[kind]["status"] if kind in found else "" for kind in REPAIR_CONDITIONS]


def rewrite(plane: ControlPlane, world: World, all_of_them: list[Json]) -> None:
    """Replace all conditions as the EKS node monitoring agent does.

    It sends a merge patch of the whole list, from any version of the Node.
    """
    path = f"/api/v1/nodes/{world.cluster.name}/status?fieldManager={RIVAL}"
    answer = plane.request("PATCH", path, {"status": {"conditions": all_of_them}})
    assert answer.status == 200, answer.message


@pytest.mark.cluster
def test_ours_come_back_from_a_writer_of_the_whole_list_and_his_own_is_his(
    installed: ControlPlane, world: World
) -> None:
    world.wait_for_status("pass")
    eventually(lambda: statuses(world) == ["False", "False", "True"], lambda: conditions(world))
    well = list(conditions(world).values())

    world.host.xid(3, 54, "Auxiliary power is not connected to the GPU board")
    node = world.wait_for_taint()
    eventually(lambda: statuses(world) == ["False", "True", "False"], lambda: conditions(world))
    sick = conditions(world)
    assert (node.tainted, sick[HARDWARE_READY]["reason"]) == (True, "NvidiaXID54Error")

    # It writes an older state, and then one without ours. Ours return unchanged.
    for stale in (well, [sick["Ready"]]):
        rewrite(installed, world, stale)
        eventually(lambda: repairs(conditions(world)) == repairs(sick), lambda: (sick, conditions(world)))
        assert conditions(world)["GpuHealthy"]["status"] == "False"
    assert not world.events("ConditionOwnedByOther")

    # He has one of his own.
    his = {**sick[HARDWARE_READY], "status": "True", "reason": "NvidiaAcceleratedHardwareIsReady", "message": "his"}
    rewrite(installed, world, [*(entry for kind, entry in sick.items() if kind != HARDWARE_READY), his])
    assert RIVAL in world.wait_for_event("ConditionOwnedByOther")["message"]
    world.host.reboot()
    world.restart().wait_for_looks()
    assert conditions(world)[HARDWARE_READY] == his

    world.configure(REPAIR_CONDITIONS="")
    eventually(lambda: statuses(world) == ["", "", "True"], lambda: conditions(world))
    world.wait_for_event("SwitchedOff")
    found = conditions(world)
    assert (found[HARDWARE_READY], REPLACEMENT_REQUIRED in found, "GpuHealthy" in found) == (his, False, True)
    assert not his["message"].startswith(OUR_WORD)


@pytest.mark.cluster
@pytest.mark.parametrize("world", ["repair-quarantine"], indirect=True)
def test_no_repair_is_requested_while_a_quarantine_uses_the_node(installed: ControlPlane, world: World) -> None:
    world.wait_for_status("pass")
    world.host.xid(3, 54, "Auxiliary power is not connected to the GPU board")
    eventually(lambda: statuses(world) == ["False", "True", "False"], lambda: conditions(world))
    path, until = f"/api/v1/nodes/{world.cluster.name}", timestamp(datetime.now(UTC) + timedelta(hours=1))

    for kind, expected in (("quarantine", ["False", "False", "Unknown"]), ("l2", ["False", "True", "False"])):
        claim = json.dumps({"kind": kind, "holder": "x", "until": until})
        assert installed.request("PATCH", path, {"metadata": {"annotations": {RUN: claim}}}).status == 200
        eventually(lambda: statuses(world) == expected, lambda: conditions(world))  # noqa: B023 - called at once
