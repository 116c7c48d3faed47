"""Environment of the measures: a real API server with our policies, simulated nodes, and folders for agents."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Self

import yaml

from bench.node_watch import NodeWatch
from bench.outcome import CouldNotMeasure, Row
from bench.program import Program
from gpu_healthcheck.healthcheck.cluster.names import BUDGET_NAMESPACE
from gpu_healthcheck.healthcheck.memory.file import MemoryFile
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.probes.machine import machine_id
from gpu_healthcheck.sim.c_library import CompilerError
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane, install
from gpu_healthcheck.sim.control_plane.daemon import AfterUs
from gpu_healthcheck.sim.control_plane.files import free_ports
from gpu_healthcheck.sim.imds import SimulatedImds
from gpu_healthcheck.sim.node import SimulatedNode
from tools.go_programs.build import ProgramError

INSTANCE_TYPE = "p5.48xlarge"
"""Instance type with 8 GPUs and 32 EFA devices."""
_SLOTS = f"/apis/coordination.k8s.io/v1/namespaces/{BUDGET_NAMESPACE}/leases"
_TOKEN_SECONDS = 3 * 3600
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")


@dataclass(frozen=True)
class Length:
    """Number of runs and samples of each measure, and the size of its load: as the aims require, or shortened."""

    detections: int = 200
    detections_reconnecting: int = 50
    cycles: int = 100
    starts: int = 20
    commands: int = 10
    replay_megabytes: int = 100
    replays: int = 5
    window_seconds: float = 300.0
    """Idle time of the agents before their memory is read."""
    interval_seconds: int = 300
    """CHECK_INTERVAL of the idle agents; 300 is the default."""
    fleet: int = 1000
    """Agents that fail at once."""
    heartbeats: int = 50_000
    """Heartbeat Leases of the fleet of which a group is counted."""
    gates: int = 5
    resets: int = 20
    nodes: int = 5000
    """Nodes of the cluster that a sweep, a diagnosis and the start of evict read."""
    evictable_nodes: int = 200
    """Nodes with GPU pods that are evicted."""
    slow_node_hours: int = 300_000
    slow_gpus: int = 20_000
    """Simulated slow GPUs, each for an hour."""
    quick: bool = False

    def met(self, claim: bool) -> bool | None:
        """Whether aims are checked: a shortened run checks none."""
        return None if self.quick else claim


FULL = Length()
QUICK = Length(
    detections=8,
    detections_reconnecting=4,
    cycles=10,
    starts=3,
    commands=2,
    replay_megabytes=10,
    replays=2,
    window_seconds=30.0,
    interval_seconds=20,
    fleet=50,
    heartbeats=1000,
    gates=1,
    resets=2,
    nodes=100,
    evictable_nodes=10,
    slow_node_hours=3000,
    slow_gpus=500,
    quick=True,
)


@dataclass(frozen=True)
class Seat:
    """Environment of one agent: its simulated machine, its Node's name, its folders and variables."""

    name: str
    folder: Path
    node: SimulatedNode
    metrics_port: int
    environment: dict[str, str]

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    def run(self, *words: str) -> Program:
        return Program(words, self.environment, self.folder)

    def remember(self, cursor: int | None, driver_loaded_at: float) -> None:
        """Write the state of an agent of this boot that has read the kernel log up to `cursor`."""
        file = MemoryFile(self.state_dir)
        file.acquire()
        file.write(Memory(machine_id(self.node.root), self.node.boot_id, cursor, driver_loaded_at))
        file.unlock()


class Stage:
    """Environment of the bench: parts are created on first use, and removed however the bench ends."""

    def __init__(self, length: Length) -> None:
        self.length = length
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-healthcheck-bench-"))
        self._after_us = AfterUs(self.folder)
        self._exits = ExitStack()
        self._exits.callback(self._after_us.finish)
        self._numbers = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    @cached_property
    def plane(self) -> ControlPlane:
        """Return a real etcd and kube-apiserver with kubernetes/manifests/ applied and the policies active."""
        return self._exits.enter_context(self.separate_plane())

    @contextmanager
    def separate_plane(self, *, complete: bool = False) -> Iterator[ControlPlane]:
        """Start another such cluster, for Nodes that would disturb other measures; `complete`: with all programs."""
        try:
            with ControlPlane(controllers=complete, scheduler=complete) as plane:
                install(plane)
                yield plane
        except ProgramError as error:
            raise CouldNotMeasure(str(error)) from error

    def at_most(self, what: str, limit: float, unit: str, value: float, figure: str = "") -> Row:
        """Return the row of a figure with an upper limit."""
        met = None if self.length.quick else value <= limit
        return Row(what, f"≤ {limit:g} {unit}".strip(), figure or f"{value:.3g} {unit}".strip(), met)

    @property
    def bare_environment(self) -> dict[str, str]:
        """Return the environment that every program here needs."""
        return {key: os.environ[key] for key in _KEPT_VARIABLES if key in os.environ}

    def make_node(self) -> SimulatedNode:
        """Create a healthy simulated machine, booted an hour ago."""
        try:
            root = self.folder / f"machine-{next(self._numbers)}"
            return self._exits.enter_context(SimulatedNode.create(root, INSTANCE_TYPE))
        except CompilerError as error:
            raise CouldNotMeasure(str(error)) from error

    def seat(self, node: SimulatedNode, *, interval_seconds: int = 300, in_cluster: bool = True) -> Seat:
        """Create an agent's environment on the machine: an empty state folder, a new Node and the agent's token."""
        name = f"bench-{next(self._numbers)}"
        folder = self.folder / name
        folder.mkdir()
        port = free_ports(1)[0]
        environment = self.bare_environment | {
            "NODE_NAME": name,
            "HOST_ROOT": str(node.root),
            "STATE_DIR": str(folder / "state"),
            "CONFIG_DIR": str(self._config(interval_seconds)),
            "METRICS_PORT": str(port),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self._imds.endpoint,
        }
        if in_cluster:
            self.plane.create_node(name, instance_type=INSTANCE_TYPE)
            environment["KUBECONFIG"] = str(self.plane.agent_kubeconfig(name, seconds=_TOKEN_SECONDS))
        return Seat(name, folder, node, port, environment)

    def leave(self, seat: Seat) -> None:
        """Remove an unneeded folder of an agent, and its Node's slot of the fleet budget."""
        shutil.rmtree(seat.folder)
        for lease in self.plane.request("GET", _SLOTS).body["items"]:
            if lease["spec"]["holderIdentity"] == seat.name:
                self.plane.request("DELETE", f"{_SLOTS}/{lease['metadata']['name']}")

    def watch(self, seat: Seat) -> NodeWatch:
        return NodeWatch(self.plane, seat.name)

    @cached_property
    def _imds(self) -> SimulatedImds:
        return self._exits.enter_context(SimulatedImds(INSTANCE_TYPE))

    def _config(self, interval_seconds: int) -> Path:
        """Write the ConfigMap of our manifests as the kubelet mounts it: links to links to files."""
        folder = self.folder / f"config-{interval_seconds}"
        if not folder.exists():
            content = yaml.safe_load((MANIFESTS / "03-config.yaml").read_text())["data"]
            files = folder / "..2026_11_21_01_02_03.000000001"
            files.mkdir(parents=True)
            (folder / "..data").symlink_to(files.name)
            # Agents of one measure must not wait for each other's slots of the fleet budget.
            ours = {"CHECK_INTERVAL": str(interval_seconds), "MAX_UNHEALTHY_PERCENT": "100"}
            for key, value in (content | ours).items():
                (files / key).write_text(value)
                (folder / key).symlink_to(f"..data/{key}")
        return folder
