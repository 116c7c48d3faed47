"""GPU pods that arrive at any moment of the agent's level 2, on the real scheduler: how long both use the GPUs.

A pod that respects the taint waits for the end of the test. If a pod tolerates it, or was bound just before, the test
is stopped at once.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from bench.gpu_work import GpuNodes, wait
from bench.outcome import CouldNotMeasure, Outcome, Row, summary
from bench.stage import Stage
from go_programs.build import ProgramError
from healthcheck.node.state import MAINTENANCE
from sim.control_plane import ControlPlane, install
from sim.kubelet import Kubelets
from sim.node import SimulatedNode
from sim.pod_resources import serving_pod_resources

AIM_SECONDS = 5.0
_NODES = 5
_TEST_SECONDS, _CYCLE_SECONDS = 6, 11.0
"""Duration of a test that ignores SIGTERM, and time from one test to the next, including the wait for the taint."""
_WORK_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_TOLERATES = ({"key": MAINTENANCE, "operator": "Exists"},)
_NOTES = (
    "agent-race: the agent's own code; the stand-in for dcgmi ignores SIGTERM; waits for the taint: 2 s, not 10;",
    "            every second pod tolerates the taint, and gets its GPU whatever runs there",
)


def measure(stage: Stage) -> Outcome:
    folder = stage.folder / "agent-race"
    folder.mkdir()
    hosts = {f"tested-{number}": _host(stage) for number in range(_NODES)}
    try:
        with ControlPlane(controllers=True, scheduler=True) as plane, Kubelets(plane, folder) as kubelets:
            install(plane)
            nodes = GpuNodes(plane)
            nodes.add(hosts)
            with _testing(nodes, folder, hosts, kubelets), _Both(hosts, kubelets) as both:
                _race_all(nodes, hosts, stage.length.races, both)
                tests = sum(_asked(host) for host in hosts.values())
    except ProgramError as error:
        raise CouldNotMeasure(str(error)) from error
    kept_away, tolerating = both.seconds(tolerates=False), both.seconds(tolerates=True)
    met = [seconds for seconds in tolerating if seconds]
    rows = (
        Row(
            f"GPU pods at any moment of the agent's level 2, {len(kept_away)} times, {tests} tests: overlaps",
            "0",
            str(sum(map(bool, kept_away))),
            stage.length.met(not any(kept_away)),
        ),
        Row(
            f"pods that tolerate its taint, {len(tolerating)} times, {len(met)} into a test: longest overlap",
            f"≤ {AIM_SECONDS:g} s",
            f"{max(tolerating):.1f} s",
            stage.length.met(max(tolerating) <= AIM_SECONDS and bool(met)),
        ),
    )
    raw = {"kept_away": summary(kept_away), "tolerating": summary(tolerating)}
    return Outcome(rows, raw, _NOTES)


def _host(stage: Stage) -> SimulatedNode:
    host = stage.make_node()
    host.install_dcgmi()
    for name, text in (("seconds", str(_TEST_SECONDS)), ("deaf", ""), ("session", "")):
        host.write_value(f"dcgm/{name}", text)
    return host


def _asked(host: SimulatedNode) -> int:
    """Return the number of tests started on the node."""
    return (host.root / "dcgm/asked").read_text().count("what=")


@contextmanager
def _testing(nodes: GpuNodes, folder: Path, hosts: dict[str, SimulatedNode], kubelets: Kubelets) -> Iterator[None]:
    """Run the agent of each node in a loop of tests while the caller works."""
    with ExitStack() as undo:
        lines = []
        for name, host in hosts.items():
            undo.enter_context(serving_pod_resources(host.root, partial(kubelets.held_on, name)))
            (folder / name).mkdir()
            lines.append(f"{name} {host.root} {nodes.plane.agent_kubeconfig(name)} {folder / name}\n")
        log = undo.enter_context((folder / "agents.log").open("wb"))
        program = [sys.executable, "-m", "bench.agent_race_program"]
        agents = subprocess.Popen(program, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stderr=log)
        undo.callback(agents.wait)
        undo.callback(agents.kill)
        assert agents.stdin is not None
        agents.stdin.write("".join(lines).encode())
        agents.stdin.close()
        for host in hosts.values():
            wait((host.root / "dcgm/sleeper").exists)
        yield


def _race_all(nodes: GpuNodes, hosts: dict[str, SimulatedNode], times: int, both: _Both) -> None:
    share = -(-times // len(hosts))
    with ThreadPoolExecutor(len(hosts)) as threads:
        for race in [threads.submit(_race, nodes, name, share, both) for name in hosts]:
            race.result()


def _race(nodes: GpuNodes, name: str, times: int, both: _Both) -> None:
    chance = random.Random(name)
    for number in range(times):
        time.sleep(chance.uniform(0, _CYCLE_SECONDS))
        tolerates = number % 2 == 1
        with both.race(name, tolerates):
            nodes.want(name, _TOLERATES if tolerates else ())
            wait(lambda: nodes.runs(name))
            time.sleep(_WORK_SECONDS)  # longer than a test may take to be stopped
        nodes.leave(name)


class _Both:
    """Measurement of the time in which work and a test use a node's GPU together."""

    def __init__(self, hosts: dict[str, SimulatedNode], kubelets: Kubelets) -> None:
        self._sleepers = {name: host.root / "dcgm/sleeper" for name, host in hosts.items()}
        self._kubelets = kubelets
        self._seconds = dict.fromkeys(hosts, 0.0)
        self._races: list[tuple[bool, float]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @contextmanager
    def race(self, name: str, tolerates: bool) -> Iterator[None]:
        before = self._seconds[name]
        yield
        self._races.append((tolerates, round(self._seconds[name] - before, 3)))

    def seconds(self, *, tolerates: bool) -> list[float]:
        return [seconds for flag, seconds in self._races if flag is tolerates]

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._end.wait(_LOOK_SECONDS):
            now = time.monotonic()
            for name, sleeper in self._sleepers.items():
                if any(self._kubelets.held_on(name)) and _runs(sleeper):
                    self._seconds[name] += now - last
            last = now


def _runs(sleeper: Path) -> bool:
    """Whether the test's process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{int(sleeper.read_text())}/stat").read_text()
    except (OSError, ValueError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
