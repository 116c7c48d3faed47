"""Cost of planning a sweep of a large fleet in the real API server: time, memory and requests.

Nodes and pods are as long as real ones: labels, records, the list of images, variables and volumes.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from bench.large_fleet import BUSY_PERCENT, PODS_PER_NODE, fill
from bench.outcome import CouldNotMeasure, Outcome, Row, summary
from bench.program import OneRun, run_once
from bench.stage import Stage
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig

AIM_SECONDS, AIM_MIB = 5.0, 250.0
_ACCOUNT = f"{NAMESPACE}-sweeper"
_TIMES = 3
_PAGE = 500
_NOTES = (
    "sweep-plan: the API server runs on the same machine; a Node is about 13 kB of JSON, a pod about 4 kB",
    "            the memory is the peak of the whole process, Python and the client with it",
)


def measure(stage: Stage) -> Outcome:
    with stage.separate_plane() as plane:  # thousands of heartbeats would disturb other measures
        return _measure(stage, plane)


def _measure(stage: Stage, plane: ControlPlane) -> Outcome:
    size = stage.length.nodes
    fill(plane, size)
    since = datetime.now(UTC)
    token = plane.kubectl("create", "token", _ACCOUNT, f"--namespace={NAMESPACE}").strip()
    path = stage.folder / "sweeper.kubeconfig"
    write_kubeconfig(path, url=plane.url, ca_file=plane.ca_file, token=token)
    runs = [_run(stage, path) for _ in range(_TIMES)]
    for fields in (run.figures for run in runs):
        if (fields["nodes"], fields["busy"]) != (size, size * BUSY_PERCENT // 100) or not fields["taken"]:
            raise CouldNotMeasure(f"the plan does not match the fleet: {fields}")
    asked = _asked(plane, since)
    seconds, peaks = [run.figures["seconds"] for run in runs], [run.peak_mib for run in runs]
    calls = {what: number // _TIMES for what, number in asked.items()}
    listed = sum(number for what, number in calls.items() if what.startswith("list"))
    # Heartbeats, Nodes and pods; one page each of slots, Jobs and ResourceSlices.
    pages = 2 * -(-size // _PAGE) + -(-size * PODS_PER_NODE // _PAGE) + 3
    what = f"plan of a sweep over {size} nodes and {size * PODS_PER_NODE} pods"
    rows = (
        stage.at_most(what, AIM_SECONDS, "s", max(seconds), f"{min(seconds):.1f} to {max(seconds):.1f} s"),
        stage.at_most("its peak memory", AIM_MIB, "MiB", max(peaks)),
        Row(
            "its requests: pages, and none per node",
            f"{pages} lists",
            ", ".join(f"{number} {name}" for name, number in calls.items()),
            stage.length.met(listed == pages and sum(calls.values()) == pages + 1),
        ),
    )
    raw = {
        "seconds": summary(seconds),
        "cpu_seconds": summary([run.cpu_seconds for run in runs]),
        "peak_mib": summary(peaks),
        "requests": calls,
    }
    return Outcome(rows, raw, _NOTES)


def _run(stage: Stage, kubeconfig: Path) -> OneRun:
    environment = {"KUBECONFIG": str(kubeconfig), "CONFIG_DIR": str(stage.folder / "none")}
    return run_once(("bench.sweep_plan_program",), stage.bare_environment | environment)


def _asked(plane: ControlPlane, since: datetime) -> dict[str, int]:
    user = f"system:serviceaccount:{NAMESPACE}:{_ACCOUNT}"
    events = [event for event in plane.audit(since) if event["user"]["username"] == user]
    return dict(Counter(f"{event['verb']} {event['objectRef']['resource']}" for event in events))
