"""Real work on a node during a test, with a dcgmi and children that ignore SIGTERM for 40 s."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bench.gpu_work import GIVE_UP_SECONDS, SWEEPS, GpuNodes, wait
from bench.outcome import CouldNotMeasure, Outcome, Row, percentile, summary
from bench.stage import Stage
from go_programs.build import ProgramError
from healthcheck.node.state import STATUS
from sim.control_plane import ControlPlane, install
from sim.kubelet import Kubelets
from sim.node import SimulatedNode

AIM_SECONDS = 5.0
_DEAF_SECONDS = 40
"""Seconds that DCGM may need to stop its tests (hardware facts: dcgmi and nvvs)."""
_NODE = "preempted"
_NOTES = (
    "sweep-preempt: the Job's own program, sweep-run, with a stand-in for dcgmi; the pod is a process of this machine,",
    "               without the PID namespace in which a real container's processes die with its first one",
)


@dataclass(frozen=True)
class _Times:
    """Seconds since the work was created: end request to the test's pod, exit of its processes, start of the work's
    pod.
    """

    end_requested: float
    free: float
    runs: float


def measure(stage: Stage) -> Outcome:
    folder = stage.folder / "preempt"
    folder.mkdir()
    host = stage.make_node()
    host.install_dcgmi()
    for name, text in (("seconds", str(_DEAF_SECONDS)), ("deaf", ""), ("session", "")):
        host.write_value(f"dcgm/{name}", text)
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "CONFIG_DIR": str(folder)}
    try:
        with (
            ControlPlane(controllers=True, scheduler=True) as plane,
            Kubelets(plane, folder, {_NODE: host.root}, environment) as kubelets,
        ):
            install(plane)
            nodes = GpuNodes(plane)
            nodes.add([_NODE])
            times = [_preempt(nodes, folder, host) for _ in range(stage.length.preemptions)]
            left, most = nodes.marked([_NODE]), kubelets.most_gpus[_NODE]
    except ProgramError as error:
        raise CouldNotMeasure(str(error)) from error
    free, runs = [time.free for time in times], [time.runs for time in times]
    what = f"work for the GPU of a test that ignores SIGTERM for {_DEAF_SECONDS} s, {len(times)} times"
    rows = (
        _row(stage, f"{what}: created → nothing of the test left", free),
        _row(stage, "created → it runs", runs),
        Row(
            "the most that ever ran on the GPU; marks left",
            "1; 0",
            f"{most}; {left}",
            stage.length.met(most == 1 and not left),
        ),
    )
    raw = {name: summary([getattr(time, name) for time in times]) for name in ("end_requested", "free", "runs")}
    return Outcome(rows, raw, _NOTES)


def _row(stage: Stage, what: str, seconds: list[float]) -> Row:
    figure = f"p50 {percentile(seconds, 0.5):.1f}, max {max(seconds):.1f} s"
    return Row(what, f"≤ {AIM_SECONDS:g} s", figure, stage.length.met(max(seconds) <= AIM_SECONDS))


def _preempt(nodes: GpuNodes, folder: Path, host: SimulatedNode) -> _Times:
    sleeper = host.root / "dcgm/sleeper"
    sleeper.unlink(missing_ok=True)
    nodes.forget([_NODE])
    nodes.plane.request("PATCH", f"/api/v1/nodes/{_NODE}", {"metadata": {"labels": {STATUS: "pass"}}})
    with nodes.sweep(folder, 1):
        wait(lambda: sleeper.exists() and sleeper.read_text().strip() != "")
        process = Path(f"/proc/{int(sleeper.read_text())}")
        times = _watch(nodes, process)
    nodes.leave(_NODE)
    return times


def _watch(nodes: GpuNodes, process: Path) -> _Times:
    """Wait for the end of the test. `process`: the test's, in its own session, the last to end."""
    nodes.want(_NODE)
    began = time.monotonic()
    end_requested = free = 0.0
    while not nodes.runs(_NODE):
        now = time.monotonic() - began
        if now > GIVE_UP_SECONDS:
            raise CouldNotMeasure(f"the work did not run within {GIVE_UP_SECONDS:g} s")
        pods = nodes.plane.request("GET", SWEEPS).body["items"]
        end_requested = end_requested or (now if any("deletionTimestamp" in pod["metadata"] for pod in pods) else 0.0)
        free = free or (now if not _is_there(process) else 0.0)
        time.sleep(0.05)
    if not free:
        raise CouldNotMeasure("the work ran during the test")
    return _Times(end_requested, free, time.monotonic() - began)


def _is_there(process: Path) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
