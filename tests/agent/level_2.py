"""One attempt at a level 2 in a process of its own, for tests that kill it: ROOT KUBECONFIG NODE FOLDER."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from agent.deep import DeepTests, Doors, is_absent
from agent.idle import Idleness
from agent.marks import OwnNode
from healthcheck import clock
from healthcheck.cluster import Cluster
from healthcheck.expectation import Expectation
from healthcheck.model import Host, Severity
from healthcheck.probes.dcgm import Dcgm
from healthcheck.probes.nvml import Gpu
from healthcheck.probes.pod_resources import holds_gpus, read_pod_resources
from healthcheck.telemetry import Telemetry
from tests.agent.test_deep import PACE, QUICK, client, saw

WAITS = replace(QUICK, told=2.0)


def main(root: Path, kubeconfig: Path, name: str, folder: Path) -> None:
    cluster = Cluster(partial(client, kubeconfig))
    idleness = Idleness(lambda: holds_gpus(read_pod_resources(Host(root))), lambda: saw(Gpu(0, processes=0)))
    read = partial(cluster.read_node, name)
    doors = Doors(
        name,
        OwnNode(read, partial(cluster.patch_node, name), read),
        Dcgm,
        is_absent,
        idleness.used,
        idleness.held,
        lambda _: Severity.PASS,
        Expectation,
        lambda: ("", ""),
    )
    DeepTests(doors, lambda: PACE, Telemetry(), clock.now, folder, WAITS).attempt()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
