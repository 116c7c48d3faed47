"""Content that any client may write into the fleet's objects: a malformed object is skipped and reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.cli.cluster import Json, P, run

pytestmark = pytest.mark.cluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
NODES = "/api/v1/nodes"
WELL, FUTURE, LAST, FIRST, LONG = NAMES = ("odd-well", "odd-future", "odd-last", "odd-first", "odd-long")
BEATS = {
    FUTURE: {"renewTime": "2999-01-01T00:00:00.000000Z", "leaseDurationSeconds": 900},
    LAST: {"renewTime": "9999-12-31T23:59:59.999999Z", "leaseDurationSeconds": 900},
    FIRST: {"renewTime": "0000-01-01T00:00:00.000000Z", "leaseDurationSeconds": 900},
    LONG: {"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 2**31 - 1},
    WELL: {"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 900},
}
SAID = {
    FUTURE: "renewTime 2999-01-01T00:00:00.000000Z is later than now",
    LAST: "only the years from 1970 to 9998 are supported",
    FIRST: "year 0 is out of range",
    LONG: "leaseDurationSeconds 2147483647: at most 259200 are a heartbeat",
}
RECORDS = [
    json.dumps({"schema": 1, "timestamp": at, "status": "pass", "severity": "PASS"})
    for at in ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "2999-01-01T00:00:00Z")
]


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a separate control plane: on the shared one, other tests' heartbeats would be counted."""
    with ControlPlane() as own:
        own.request("POST", "/api/v1/namespaces", {"metadata": {"name": "gpu-healthcheck"}})
        for name in NAMES:
            own.create_node(name, devices={"nvidia.com/gpu": "8"})
            written(own.request("PATCH", f"{NODES}/{name}", {"metadata": {"labels": {f"{P}/status": "pass"}}}))
            written(own.request("POST", LEASES, {"metadata": {"name": name}, "spec": BEATS[name]}))
        for name, record in zip(NAMES, RECORDS, strict=False):
            marks = {f"{P}/{key}": record for key in ("sweep-result", "quarantine-result", "results")}
            written(own.request("PATCH", f"{NODES}/{name}", {"metadata": {"annotations": marks}}))
        yield own


def written(answer: Any) -> None:
    assert answer.status in (200, 201), answer.message


def test_status_lists_every_node_and_names_skipped_ones(plane: ControlPlane) -> None:
    done = run(plane.kubeconfig, "status", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    fleet: Json = json.loads(done.stdout)

    rows = {row["node"]: row for row in fleet["nodes"]}
    assert set(rows) == set(NAMES)
    assert (rows[WELL]["silent"], [rows[name]["heartbeat_age_seconds"] for name in SAID]) == (True, [None] * len(SAID))
    assert [row["tested_at"] for row in rows.values()] == [""] * len(rows)
    for name, why in SAID.items():
        (result,) = [entry for entry in fleet["passed_over"] if entry.startswith(f"leases gpu-healthcheck/{name}: ")]
        assert why in result


def test_status_table_gives_the_same(plane: ControlPlane) -> None:
    done = run(plane.kubeconfig, "status")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("skipped: leases gpu-healthcheck/odd-") == len(SAID)
