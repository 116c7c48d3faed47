"""Repeat the agent's level 2 on several nodes at once: one input line `NAME ROOT KUBECONFIG FOLDER` for each.

Everything is the agent's except the waits: the test repeats at once, and waits two seconds for its taint.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from functools import partial
from pathlib import Path

from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from msgspec.structs import replace

from agent.deep.deep_runs import WAITS, DeepTests
from agent.deep.level_2 import Level2
from agent.state.agent_state import AgentState
from agent.telemetry import Telemetry
from healthcheck.cluster.client import Cluster
from healthcheck.host.log import log_as_json
from healthcheck.model import Evidence
from healthcheck.node.state import NodeState
from healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus
from healthcheck.settings.declaration import NodeSettings
from healthcheck.settings.reading import Settings

_INTERVAL_SECONDS = 3
_WAITS = replace(WAITS, settle=0.0, look_again=0.2, maintenance=2.0)
_PAUSE_SECONDS = 0.2


def main() -> None:
    log_as_json("info")
    for line in sys.stdin:
        name, root, kubeconfig, folder = line.split()
        tests = _tests(name, Path(root), Path(kubeconfig), Path(folder))
        threading.Thread(target=_again_and_again, args=(tests,), daemon=True).start()


def _again_and_again(tests: DeepTests) -> None:
    while True:
        tests.attempt()
        tests.tidy()
        time.sleep(_PAUSE_SECONDS)


class _Read(AgentState):
    """State that reads the Node each time, because no watch runs here."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(name)
        self._cluster = cluster
        values = NodeSettings(dcgm_l2_interval_seconds=_INTERVAL_SECONDS)
        self.configure(Settings(values), self.memory)
        self.see_look(Evidence({NVML: DriverReading(Gpus("570", "x", (Gpu(0),)))}, at=math.inf))

    @property
    def node(self) -> NodeState:
        return self._cluster.nodes.read(self.node_name)


class _NoLooks:
    def look_soon(self) -> None:
        """Do nothing: no check cycles run here."""


def _tests(name: str, root: Path, kubeconfig: Path, folder: Path) -> DeepTests:
    cluster = Cluster(partial(_client, kubeconfig))
    state = _Read(cluster, name)
    level_2 = Level2(root, state, f"{root}/usr/bin:/usr/bin:/bin")
    return DeepTests(state, cluster, level_2, _NoLooks(), Telemetry(), folder, _WAITS)


def _client(kubeconfig: Path) -> ApiClient:
    settings = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    settings.retries = False
    return ApiClient(settings)


if __name__ == "__main__":
    main()
    threading.Event().wait()  # until it is killed
