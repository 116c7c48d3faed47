"""GPU pods that arrive at any moment of a sweep, on the real scheduler: never on the tested GPUs, and soon on free
ones.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.gpu_work import JOBS, GpuNodes, wait
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import Stage
from go_programs.build import ProgramError
from sim.control_plane import ControlPlane, install
from sim.kubelet import Kubelets, put_program

AIM_SECONDS = 5.0
_ROUND = 20
"""Nodes, each with one GPU, one race on each."""
_TEST_SECONDS, _SWEEP_SECONDS = 3.0, 5.0
_NOTES = (
    "sweep-race: pods are processes of this machine (sim/kubelet); the simulated test ends at SIGTERM at once;",
    "            sweep-preempt measures a test that ignores SIGTERM",
)


def measure(stage: Stage) -> Outcome:
    folder = stage.folder / "race"
    folder.mkdir()
    image = folder / "image"
    put_program(image, ["sleep", str(_TEST_SECONDS)])
    chance = random.Random(1)
    try:
        with (
            ControlPlane(controllers=True, scheduler=True) as plane,
            Kubelets(plane, folder, programs=image) as kubelets,
        ):
            install(plane)
            nodes, names = GpuNodes(plane), [f"race-{number}" for number in range(_ROUND)]
            nodes.add(names)
            rounds = [_round(nodes, folder, names, chance) for _ in range(-(-stage.length.races // _ROUND))]
            preempted = sum(preempted for _, preempted in rounds)
            left = nodes.marked(names)
            most = max(kubelets.most_gpus.values())
    except ProgramError as error:
        raise CouldNotMeasure(str(error)) from error
    seconds = [value for each, _ in rounds for value in each]
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


def _round(nodes: GpuNodes, folder: Path, names: list[str], chance: random.Random) -> tuple[list[float], int]:
    """Run one sweep, and on each node one pod at its own time.

    Returns the seconds until each of them ran, and the number of preempted Jobs.
    """
    nodes.forget(names)  # otherwise their last test would be too recent
    with nodes.sweep(folder, len(names)), ThreadPoolExecutor(len(names)) as threads:
        races = [threads.submit(_race, nodes, name, chance.uniform(0, _SWEEP_SECONDS)) for name in names]
        seconds = [race.result() for race in races]
    jobs = nodes.plane.request("GET", JOBS).body["items"]
    failed = [job for job in jobs if any(entry["type"] == "Failed" for entry in job["status"].get("conditions", []))]
    return seconds, len(failed)


def _race(nodes: GpuNodes, node: str, after_seconds: float) -> float:
    time.sleep(after_seconds)
    nodes.want(node)
    began = time.monotonic()
    wait(lambda: nodes.runs(node))
    seconds = time.monotonic() - began
    nodes.leave(node)
    return seconds
