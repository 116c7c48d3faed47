"""`gpu-healthcheck status` on a terminal of 80 columns, for a fleet on a real control plane in which one rack fails."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.cli.cluster import P, run_here
from tests.cli.test_terminal_width import shown

pytestmark = pytest.mark.cluster

RACK = "topology.k8s.aws/network-node-layer-3"
NODES, PER_RACK = 36, 12
STRATEGIC = "application/strategic-merge-patch+json"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
CHOSEN = ("-l", "fleet=racks")
Break = Callable[[set[int]], None]


@pytest.fixture
def break_nodes(installed: ControlPlane) -> Iterator[Break]:
    """Yield the function that gives nodes of a healthy fleet an Xid 79, by their numbers."""
    leases = cluster_of(Access(str(installed.kubeconfig))).leases
    for number in range(NODES):
        installed.create_node(name(number), labels={"fleet": "racks", RACK: f"r{number // PER_RACK}"})
        uid = installed.request("GET", f"/api/v1/nodes/{name(number)}").body["metadata"]["uid"]
        leases.renew_heartbeat(NodeState(name(number), uid=uid), datetime.now(UTC), 900)

    def write(faulty: set[int]) -> None:
        for number in range(NODES):
            _report(installed, name(number), faulty=number in faulty)

    yield write
    for number in range(NODES):
        installed.request("DELETE", f"/api/v1/nodes/{name(number)}")
        installed.request("DELETE", f"{LEASES}/{name(number)}")


def name(number: int) -> str:
    return f"ip-10-0-{number // PER_RACK}-{number}.eu-central-1.compute.internal"


def _report(plane: ControlPlane, node: str, *, faulty: bool) -> None:
    status, severity = ("fail", "REBOOT") if faulty else ("pass", "PASS")
    xid = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "nature": "event"}
    record = {"schema": 1, "status": status, "severity": severity, "findings": [xid] if faulty else []}
    labels = {f"{P}/status": status, f"{P}/severity": severity}
    metadata = {"labels": labels, "annotations": {f"{P}/results": json.dumps(record)}}
    assert plane.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": metadata}).status == 200
    reason = "Xid79" if faulty else "GpuHealthPass"
    condition = {"type": "GpuHealthy", "status": str(not faulty), "reason": reason, "message": reason}
    body = {"status": {"conditions": [condition]}}
    path = f"/api/v1/nodes/{node}/status"
    assert plane.request("PATCH", path, body, content_type=STRATEGIC).status == 200


def test_one_reason_in_one_rack_comes_first_with_one_command_line_for_all_nodes(
    installed: ControlPlane, break_nodes: Break, tmp_path: Path
) -> None:
    faulty = [name(number) for number in range(12, 24)]
    break_nodes(set(range(12, 24)))

    lines = shown(installed.kubeconfig, 80, "status", *CHOSEN)
    header = next(number for number, line in enumerate(lines) if line.startswith("node "))
    pattern = " ".join(" ".join(lines[:header]).split())
    assert pattern.startswith(
        "12 of 12 faulty nodes are in rack r1, which has 12 of the 36 nodes. All 12 have one reason"
    )
    assert "reason: Xid79. First find what these nodes share" in pattern
    (command,) = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]

    # Each node gets the step that its own page prints first.
    recorded = tmp_path / "recorded"
    program = tmp_path / "bin/gpu-healthcheck"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{recorded}\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], env={**os.environ, "PATH": path}, check=True)
    assert recorded.read_text().splitlines() == [f"reset {node} --reboot" for node in faulty]
    assert f"$ gpu-healthcheck reset {faulty[0]} --reboot" in "\n".join(
        shown(installed.kubeconfig, 80, "status", faulty[0])
    )

    wide = "\n".join(shown(installed.kubeconfig, 80, "status", "-o", "wide", *CHOSEN))
    assert wide.count("gpu-healthcheck reset") == 1
    piped = run_here(installed.kubeconfig, "status", "-o", "wide", *CHOSEN).stdout
    assert piped.startswith("node ")
    assert piped.count("gpu-healthcheck reset") == 12 + 1


def test_as_many_faults_over_all_racks_have_no_pattern(installed: ControlPlane, break_nodes: Break) -> None:
    break_nodes(set(range(0, NODES, 3)))

    lines = shown(installed.kubeconfig, 80, "status", "-o", "wide", *CHOSEN)

    assert lines[0].startswith("node ")
    assert "\n".join(lines).count("gpu-healthcheck reset") == 12
