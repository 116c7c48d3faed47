"""One attempt at a level 2 in a separate process, for tests that kill it: ROOT KUBECONFIG NODE FOLDER.

With KILL_AT it kills itself at one of its own writes, as described in tests/sweeper/dying.py.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gpu_healthcheck.agent.deep.deep_runs import DeepTests
from gpu_healthcheck.agent.deep.level_2 import Level2
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from tests.agent.deep.test_deep import QUICK, client, saw
from tests.sweeper.dying import die_at_writes

WAITS = replace(QUICK, adoption=2.0)


class _Watched(AgentState):
    """Agent state that reads the Node on each access.

    While the API server is away, it returns the Node as it was last read.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(name)
        self._cluster = cluster

    @property
    def node(self) -> NodeState | None:
        with suppress(ClusterError):
            self.set_node(self._cluster.nodes.read(self.node_name))
        return super().node


class _NoLooks:
    def start_cycle_soon(self) -> None:
        """Do nothing: the only check cycle of this process is already recorded, with a time in the future."""


def main(root: Path, kubeconfig: Path, name: str, folder: Path) -> None:
    if os.environ.get("KILL_AT"):
        die_at_writes()
    cluster = Cluster(partial(client, kubeconfig))
    state = _Watched(cluster, name)
    state.store_evidence(saw(Gpu(0, processes=0)))
    DeepTests(state, cluster, Level2(root, state), _NoLooks(), Telemetry(), folder, WAITS).attempt()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
