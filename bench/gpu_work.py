"""Healthy GPU nodes, pods that request their GPUs, and the sweeper: for measures on the real scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.outcome import CouldNotMeasure
from bench.stage import INSTANCE_TYPE
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.names import NAMESPACE
from healthcheck.node.state import CONDITION, MAINTENANCE, MODE, RUN, STATUS, SWEEP_RESULT
from sim.control_plane import ControlPlane

GIVE_UP_SECONDS = 120.0
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
SWEEPS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_NODES, _WORK = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
_GPU = "nvidia.com/gpu"


def wait(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise CouldNotMeasure(f"not done within {GIVE_UP_SECONDS:g} s")
        time.sleep(0.05)


@dataclass(frozen=True)
class GpuNodes:
    """Nodes of one measure, each with one GPU and an agent that has reported `pass`."""

    plane: ControlPlane

    def add(self, names: Iterable[str]) -> None:
        wait(lambda: self.plane.request("GET", "/api/v1/namespaces/default/serviceaccounts/default").status == 200)
        cluster = Cluster(self.plane.api)
        for name in names:
            self.plane.create_node(name, labels={STATUS: "pass"}, instance_type=INSTANCE_TYPE, devices={_GPU: "1"})
            condition = {"type": CONDITION, "status": "True", "reason": "x", "message": "x"}
            cluster.leases.renew_heartbeat(cluster.nodes.patch_conditions(name, [condition]), datetime.now(UTC), 7200)

    def want(self, node: str, tolerations: Iterable[Mapping[str, str]] = ()) -> None:
        """Create another workload's pod for the GPU of this node."""
        container = {"name": "work", "image": "work", "resources": {"limits": {_GPU: "1"}}}
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [container],
            "tolerations": list(tolerations),
        }
        answer = self.plane.request("POST", _WORK, {"metadata": {"name": f"work-{node}"}, "spec": spec})
        if answer.status >= 400:
            raise CouldNotMeasure(answer.message)

    def runs(self, node: str) -> bool:
        """Whether that pod has got the GPU."""
        found: bool = self.plane.request("GET", f"{_WORK}/work-{node}").body["status"].get("phase") == "Running"
        return found

    def leave(self, node: str) -> None:
        """Delete that pod."""
        path = f"{_WORK}/work-{node}"
        self.plane.request("DELETE", f"{path}?gracePeriodSeconds=1")
        wait(lambda: self.plane.request("GET", path).status == 404)

    def forget(self, names: Iterable[str]) -> None:
        """Delete the results of these nodes, as if they had never been tested."""
        self.plane.request("DELETE", f"{JOBS}?propagationPolicy=Background")
        wait(lambda: not self.plane.request("GET", JOBS).body["items"])
        for name in names:
            self.plane.request("PATCH", f"{_NODES}/{name}", {"metadata": {"annotations": {SWEEP_RESULT: None}}})

    def marked(self, names: Iterable[str]) -> int:
        """Return the number of nodes with a mark of a deep diagnostic."""
        nodes = [self.plane.request("GET", f"{_NODES}/{name}").body for name in names]
        return sum(
            RUN in node["metadata"].get("annotations", {})
            or MODE in node["metadata"]["labels"]
            or any(taint["key"] == MAINTENANCE for taint in node["spec"].get("taints", []))
            for node in nodes
        )

    @contextmanager
    def sweep(self, folder: Path, nodes: int) -> Iterator[None]:
        """Run one sweeper process in parallel to the caller. `folder` contains the ConfigMap and receives the log."""
        (folder / "MAX_NODES_PER_SWEEP").write_text(str(nodes))
        (folder / "MAX_SWEEP_PERCENT").write_text("100")
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(self.plane.account_kubeconfig(f"{NAMESPACE}-sweeper")),
            "CONFIG_DIR": str(folder),
        }
        log = folder / "sweeper.log"
        with log.open("ab") as file:
            sweeper = subprocess.Popen(
                [sys.executable, "-m", "sweeper"], cwd=Path(__file__).parents[1], env=environment, stderr=file
            )
        try:
            yield
            if code := sweeper.wait(GIVE_UP_SECONDS):
                raise CouldNotMeasure(f"a sweep ended with {code}:\n{log.read_text()[-2000:]}")
        finally:
            sweeper.kill()
            sweeper.wait()
