"""The agent's own level 2 on several nodes at once, again and again: a line `NAME ROOT KUBECONFIG FOLDER` for each.

All of it is the agent's own but how long it waits: it comes again at once, and trusts its taint after two seconds.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from agent.deep_runs import WAITS, DeepTests, Doors, Pace
from agent.marks import OwnNode
from healthcheck.checks.expectation import Expectation
from healthcheck.cluster.client import Cluster
from healthcheck.deep.idle import Idleness
from healthcheck.host import clock
from healthcheck.host.log import log_as_json
from healthcheck.model import Evidence, Host, Severity
from healthcheck.probes.dcgm.diag import Dcgm, level_2_patience_seconds
from healthcheck.probes.nvml.gpus import NVML, DriverLook, Gpu, Gpus
from healthcheck.probes.pod_resources import holds_gpus, read_pod_resources
from healthcheck.telemetry import Telemetry

_PACE = Pace(interval=3.0, timeout=900.0)
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


def _tests(name: str, root: Path, kubeconfig: Path, folder: Path) -> DeepTests:
    cluster = Cluster(partial(_client, kubeconfig))
    read, looked = partial(cluster.read_node, name), Evidence({NVML: DriverLook(Gpus("570", "x", (Gpu(0),)))})
    idleness = Idleness(lambda: holds_gpus(read_pod_resources(Host(root))), lambda: looked)
    doors = Doors(
        node_name=name,
        node=OwnNode(read, partial(cluster.update_node, name), read),
        diagnostic=lambda: Dcgm(path=f"{root}/usr/bin:/usr/bin:/bin", patience_seconds=level_2_patience_seconds("")),
        absent=lambda: False,
        idle=idleness.used,
        held=idleness.held,
        severity=lambda _: Severity.PASS,
        expect=Expectation,
        whose=lambda: ("", ""),
        look_anew=lambda: None,
        looked_at=lambda: math.inf,
        beside=dict,
    )
    return DeepTests(doors, lambda: _PACE, Telemetry(), clock.now, folder, _WAITS)


def _client(kubeconfig: Path) -> ApiClient:
    settings = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    settings.retries = False
    return ApiClient(settings)


if __name__ == "__main__":
    main()
    threading.Event().wait()  # until it is killed
