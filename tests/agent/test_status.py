"""`gpu-healthcheck status`: the fleet, as reported by its nodes and the cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.sim.api_objects import CONFIG_MAPS
from tests.agent.node.test_release import by_command
from tests.agent.stories import BUDGET, beat, hold
from tests.agent.world import World

Json = dict[str, Any]


def run(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(world.kubeconfig), "COLUMNS": "250"}
    command = [sys.executable, "-m", "cli", "status", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def asked(world: World) -> Json:
    done = run(world, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    fleet = json.loads(done.stdout)
    assert isinstance(fleet, dict)
    return fleet


def configure(world: World, **data: str) -> None:
    config = {"metadata": {"name": "gpu-healthcheck-config"}, "data": data}
    world.api.store.create(CONFIG_MAPS, "gpu-healthcheck", config)


@pytest.fixture
def withheld(watched: World) -> World:
    """Return a world in which one of ten nodes has failed while both slots were already acquired."""
    configure(watched, MAX_UNHEALTHY_PERCENT="20")
    beat(watched, 9)
    hold(watched, 0, 1)
    watched.host.xid(3, 79, "GPU has fallen off the bus.")
    watched.wait_for_status("fail")
    return watched


def test_who_is_withheld_and_how_many_places_are_taken(withheld: World) -> None:
    fleet = asked(withheld)
    (node,) = fleet["nodes"]

    assert fleet["budget"] == {"used": 2, "allowed": 2, "fleet": 10}
    assert (node["node"], node["tainted"], node["taint"]) == ("gpu-node-1", False, "withheld")
    lines = run(withheld).stdout.splitlines()
    assert lines[1].split()[:4] == ["gpu-node-1", "fail", "REBOOT", "limit"]
    assert lines[-3:] == [
        "1 of 1 node has a live agent; tainted nodes: 2, at most 2",
        "1 faulty node accepts new work (limit of tainted nodes). Cordon it:",
        "$ kubectl cordon gpu-node-1",
    ]


def test_released_node_names_the_author(watched: World) -> None:
    watched.host.xid(3, 79, "GPU has fallen off the bus.")
    watched.wait_for_taint()
    by_command(watched)
    watched.wait_for_status("pass")

    (node,) = asked(watched)["nodes"]
    assert node["released"].startswith("by mia at 20")
    assert "released by mia at 20" in run(watched).stdout


@pytest.mark.parametrize("value", ["many", ""])
def test_a_percentage_that_is_none_leaves_the_number_of_places_open(watched: World, value: str) -> None:
    configure(watched, MAX_UNHEALTHY_PERCENT=value)

    assert asked(watched)["budget"] == {"used": 0, "allowed": None, "fleet": 1}


def test_what_one_may_not_see_is_left_open(withheld: World) -> None:
    withheld.api.fail_with(403, path_part=BUDGET)

    assert asked(withheld)["budget"]["used"] is None
    assert "tainted nodes: ?, at most 2" in run(withheld).stdout


def test_a_cluster_without_the_config_map_has_no_number(watched: World) -> None:
    assert asked(watched)["budget"]["allowed"] is None


def test_a_cluster_that_is_away_is_exit_code_2(world: World) -> None:
    world.api.refuse()
    done = run(world)
    world.api.accept()

    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("hours", "interval", "message", "why"),
    [
        (2, "21600", "pass 2h ago", ""),
        (19, "21600", "pass 19h ago, overdue", "offers no GPUs to pods"),
        (19, "0", "pass 19h ago", ""),
        (19, "often", "pass 19h ago", ""),
    ],
)
def test_when_it_was_tested_deeply_and_whether_that_is_overdue(
    watched: World, hours: float, interval: str, message: str, why: str
) -> None:
    configure(watched, DCGM_L2_INTERVAL=interval)
    at = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
    record = json.dumps({"schema": 1, "timestamp": at, "status": "pass", "severity": "PASS", "by": "agent"})
    watched.cluster.edit({"metadata": {"annotations": {"gpu-healthcheck.aws-samples.io/sweep-result": record}}})

    (node,) = asked(watched)["nodes"]

    assert (node["test_result"], node["tested_by"], node["overdue"]) == ("pass", "agent", why)
    table = run(watched).stdout
    assert message in cells(table)
    assert ("overdue for a deep test: gpu-node-1: offers no GPUs to pods" in table) is bool(why)


def test_untested_node_is_reported_as_never_tested(watched: World) -> None:
    (node,) = asked(watched)["nodes"]

    assert (node["tested_at"], node["overdue"]) == ("", "")
    assert "never" in cells(run(watched).stdout)


def cells(table: str) -> list[str]:
    """Return the cells of the node's row that are not empty."""
    return next(re.split(" {2,}", row) for row in table.splitlines() if row.startswith("gpu-node-1 "))


def test_why_a_test_came_to_nothing_is_why_it_is_overdue(watched: World) -> None:
    configure(watched, DCGM_L2_INTERVAL="21600")
    watched.cluster.edit({"status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    old = (datetime.now(UTC) - timedelta(hours=30)).isoformat()
    record = {
        "schema": 1,
        "timestamp": (datetime.now(UTC) - timedelta(hours=1)).isoformat(),
        "status": "unknown",
        "unobserved": [{"cause": "DcgmNotInstalled", "detail": "no [dcgmi] here"}],
        "before": {"timestamp": old, "status": "pass", "by": "sweep"},
    }
    annotations = {"gpu-healthcheck.aws-samples.io/sweep-result": json.dumps(record)}
    watched.cluster.edit({"metadata": {"annotations": annotations}})

    (node,) = asked(watched)["nodes"]

    assert node["overdue"].startswith("tried without a result at ")
    assert "DcgmNotInstalled: no [dcgmi] here" in run(watched).stdout
