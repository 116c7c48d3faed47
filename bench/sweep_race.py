"""GPU pods that come at any moment of a sweep, on the real scheduler: never on the GPUs beside it, and soon on them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import INSTANCE_TYPE, Stage
from healthcheck.cluster import NAMESPACE, Cluster
from healthcheck.node import CONDITION, MODE, RUN, STATUS
from sim.control_plane import ControlPlane, ControlPlaneError, install
from sim.kubelet import Kubelets

AIM_SECONDS = 5.0
_ROUND = 20
"""Nodes, each with one GPU, one race on each."""
_TEST_SECONDS, _SWEEP_SECONDS = 3.0, 5.0
_GIVE_UP_SECONDS = 120.0
_PODS, _JOBS = "/api/v1/namespaces/default/pods", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_TEMPLATE = f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs/gpu-healthcheck-sweep-node"
_NOTES = (
    "sweep-race: pods are processes of this machine (sim/kubelet); what stands for the test ends at SIGTERM at once,",
    "            and DCGM takes up to 40 s to stop its plugins: until then the scheduler binds no other pod",
)


def measure(stage: Stage) -> Outcome:
    folder = stage.folder / "race"
    folder.mkdir()
    chance = random.Random(1)
    try:
        with ControlPlane(controllers=True, scheduler=True) as plane, Kubelets(plane, folder) as kubelets:
            install(plane)
            names = _set_up(plane)
            rounds = [_round(plane, folder, names, chance) for _ in range(-(-stage.length.races // _ROUND))]
            preempted = sum(preempted for _, preempted in rounds)
            left = _residue(plane, names)
            most = max(kubelets.most_gpus.values())
    except ControlPlaneError as error:
        raise CouldNotMeasure(str(error)) from error
    seconds = [one for each, _ in rounds for one in each]
    rows = (
        Row(
            f"GPU pods at any moment of a sweep, {len(seconds)} times, {preempted} of them after the Job: "
            "the most that ever ran on a GPU; marks left",
            "1; 0",
            f"{most}; {left}",
            stage.length.met(most == 1 and not left),
        ),
        Row(
            "from such a pod's creation until it ran",
            f"≤ {AIM_SECONDS:g} s",
            f"p50 {percentile(seconds, 0.5):.1f}, max {max(seconds):.1f} s",
            stage.length.met(max(seconds) <= AIM_SECONDS),
        ),
    )
    return Outcome(rows, {"seconds": summary(seconds), "preempted": preempted}, _NOTES)


def _set_up(plane: ControlPlane) -> list[str]:
    _wait(lambda: plane.request("GET", "/api/v1/namespaces/default/serviceaccounts/default").status == 200)
    pod = plane.request("GET", _TEMPLATE).body["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    container = pod["containers"][0] | {"command": ["sleep", str(_TEST_SECONDS)]}
    spec = {"jobTemplate": {"spec": {"template": {"spec": pod | {"containers": [container]}}}}}
    plane.request("PATCH", _TEMPLATE, {"spec": spec})
    names, cluster = [f"race-{number}" for number in range(_ROUND)], Cluster(plane.api)
    for name in names:
        plane.create_node(name, labels={STATUS: "pass"}, instance_type=INSTANCE_TYPE, devices={"nvidia.com/gpu": "1"})
        condition = {"type": CONDITION, "status": "True", "reason": "x", "message": "x"}
        cluster.beat(cluster.patch_condition(name, condition), datetime.now(UTC), 7200)
    return names


def _round(plane: ControlPlane, folder: Path, names: list[str], chance: random.Random) -> tuple[list[float], int]:
    """One sweep, and on each node one pod that comes at its own moment.

    Gives the seconds until each of them ran, and how many Jobs had to give way.
    """
    plane.request("DELETE", f"{_JOBS}?propagationPolicy=Background")  # or the nodes would have been tried just now
    _wait(lambda: not plane.request("GET", _JOBS).body["items"])
    (folder / "MAX_NODES_PER_SWEEP").write_text(str(_ROUND))
    (folder / "MAX_SWEEP_PERCENT").write_text("100")
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(plane.account_kubeconfig(f"{NAMESPACE}-sweeper")),
        "CONFIG_DIR": str(folder),
    }
    with (folder / "sweeper.log").open("ab") as log, ThreadPoolExecutor(len(names)) as threads:
        sweeper = subprocess.Popen(
            [sys.executable, "-m", "sweeper"], cwd=Path(__file__).parents[1], env=environment, stderr=log
        )
        try:
            races = [threads.submit(_race, plane, name, chance.uniform(0, _SWEEP_SECONDS)) for name in names]
            seconds = [race.result() for race in races]
            code = sweeper.wait(_GIVE_UP_SECONDS)
        finally:
            sweeper.kill()
            sweeper.wait()
    if code:
        raise CouldNotMeasure(f"a sweep ended with {code}:\n{(folder / 'sweeper.log').read_text()[-2000:]}")
    jobs = plane.request("GET", _JOBS).body["items"]
    failed = [job for job in jobs if any(one["type"] == "Failed" for one in job["status"].get("conditions", []))]
    return seconds, len(failed)


def _race(plane: ControlPlane, node: str, after_seconds: float) -> float:
    time.sleep(after_seconds)
    container = {"name": "work", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
    answer = plane.request("POST", _PODS, {"metadata": {"name": f"work-{node}"}, "spec": spec})
    if answer.status >= 400:
        raise CouldNotMeasure(answer.message)
    began, path = time.monotonic(), f"{_PODS}/work-{node}"
    _wait(lambda: plane.request("GET", path).body["status"].get("phase") == "Running")
    seconds = time.monotonic() - began
    plane.request("DELETE", f"{path}?gracePeriodSeconds=1")
    _wait(lambda: plane.request("GET", path).status == 404)
    return seconds


def _residue(plane: ControlPlane, names: list[str]) -> int:
    """On how many Nodes a mark of a run stands."""
    nodes = [plane.request("GET", f"/api/v1/nodes/{name}").body["metadata"] for name in names]
    return sum(RUN in node.get("annotations", {}) or MODE in node["labels"] for node in nodes)


def _wait(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise CouldNotMeasure(f"nothing came of it in {_GIVE_UP_SECONDS:g} s")
        time.sleep(0.1)
