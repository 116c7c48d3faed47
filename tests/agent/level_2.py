"""One attempt at a level 2 in a process of its own, for tests that kill it: ROOT KUBECONFIG NODE FOLDER.

With KILL_AT it kills itself at one of its own writes, as tests/sweeper/dying has it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agent.deep_runs import DeepTests, Doors, is_absent
from agent.marks import OwnNode
from healthcheck.checks.expectation import Expectation
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError
from healthcheck.deep.idle import Idleness
from healthcheck.host import clock
from healthcheck.model import Host, Severity
from healthcheck.node.state import NodeState
from healthcheck.probes.dcgm.diag import Dcgm
from healthcheck.probes.nvml.gpus import Gpu
from healthcheck.probes.pod_resources import holds_gpus, read_pod_resources
from healthcheck.telemetry import Telemetry
from tests.agent.test_deep import PACE, QUICK, client, saw
from tests.sweeper.dying import Dying

WAITS = replace(QUICK, told=2.0)


@dataclass
class _Seen:
    """The Node as it was last seen: an agent's watch goes on with that while the API server is away."""

    read: Callable[[], NodeState]
    last: NodeState | None = None

    def __call__(self) -> NodeState | None:
        with suppress(ClusterError):
            self.last = self.read()
        return self.last


def main(root: Path, kubeconfig: Path, name: str, folder: Path) -> None:
    cluster = (Dying if os.environ.get("KILL_AT") else Cluster)(partial(client, kubeconfig))
    idleness = Idleness(lambda: holds_gpus(read_pod_resources(Host(root))), lambda: saw(Gpu(0, processes=0)))
    read = partial(cluster.read_node, name)
    doors = Doors(
        name,
        OwnNode(read, partial(cluster.update_node, name), _Seen(read)),
        Dcgm,
        is_absent,
        idleness.used,
        idleness.held,
        lambda _: Severity.PASS,
        Expectation,
        lambda: ("", ""),
        lambda: None,
        lambda: math.inf,
        dict,
    )
    DeepTests(doors, lambda: PACE, Telemetry(), clock.now, folder, WAITS).attempt()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
