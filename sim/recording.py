"""`python -m sim.recording`: record docs/images/terminal.cast in a real terminal of 80 columns, in two minutes.

It runs COMMANDS one after the other: the demo, then the commands of a cluster with the same simulated node, whose GPU 3
has fallen off the bus under a job's pod, and on the node's kernel log. The typing is the script's. The output is the
commands' own, at the time at which it came, but pauses are shortened to `cast.LONGEST_PAUSE_SECONDS`. `make docs` draws
docs/images/terminal.svg from the recording.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from gpu_healthcheck.sim.api_objects import CONFIG_MAPS, JOBS, PODS
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sim.cluster_objects import NAMESPACE
from gpu_healthcheck.sim.demo import NODE, Stage, becomes_healthy, falls_off_the_bus
from gpu_healthcheck.sim.imds import SimulatedImds
from gpu_healthcheck.sim.node import SimulatedNode
from tools import cast

ROOT = Path(__file__).resolve().parents[1]
DEMO = "gpu-healthcheck demo"
ON_THE_CLUSTER = (
    "gpu-healthcheck status",
    "gpu-healthcheck diagnose",
    "gpu-healthcheck explain Xid79",
    "gpu-healthcheck replay dmesg.txt",
)
COMMANDS = (DEMO, *ON_THE_CLUSTER)
LONGEST_SECONDS = 60.0

_GPUS = {"containers": [{"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
_JOB = {
    "metadata": {"name": "trainer", "namespace": "team"},
    "spec": {"backoffLimit": 6, "template": {"spec": {**_GPUS, "restartPolicy": "Never"}}},
    "status": {"active": 1},
}


@contextmanager
def faulty_cluster(folder: Path) -> Iterator[None]:
    """Provide a cluster for `folder/kubeconfig`, and the node's kernel log as `folder/dmesg.txt`."""
    with (
        SimulatedNode.create(folder / NODE) as node,
        ApiStandIn(NODE) as api,
        SimulatedImds("p5.48xlarge") as imds,
    ):
        api.kubeconfig(folder / "kubeconfig")
        api.store.create(CONFIG_MAPS, NAMESPACE, {"metadata": {"name": "gpu-healthcheck-config"}, "data": {}})
        owner = api.store.create(JOBS, "team", _JOB)
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "trainer", "uid": owner["metadata"]["uid"]}
        pod = {"name": "trainer-x4k2z", "namespace": "team", "ownerReferences": [{**reference, "controller": True}]}
        api.store.create(
            PODS, "team", {"metadata": pod, "spec": {**_GPUS, "nodeName": NODE}, "status": {"phase": "Running"}}
        )
        stage = Stage(folder, node, api, imds, Console(quiet=True))
        try:
            becomes_healthy(stage)
            falls_off_the_bus(stage)
            lines = (f"[{record.timestamp_us / 1e6:12.6f}] {record.text.decode()}\n" for record in node.kernel_log.ring)
            (folder / "dmesg.txt").write_text("".join(lines))
            yield
        finally:
            stage.stop_agent()


def environment_in(folder: Path) -> dict[str, str]:
    """Return the variables of the commands, without those of the shell that started the script."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "TERM": "xterm",  # 16 colours
        "KUBECONFIG": str(folder / "kubeconfig"),
    }


def record_the_cluster(recorder: cast.Recorder, folder: Path) -> None:
    with faulty_cluster(folder):
        for command in ON_THE_CLUSTER:
            recorder.run(command, folder, environment_in(folder))


def main() -> int:
    recorder = cast.Recorder()
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-recording-") as name:
        folder = Path(name)
        if recorder.run(DEMO, folder, environment_in(folder)):
            raise RuntimeError(f"{DEMO} failed")
        record_the_cluster(recorder, folder)
    recorded = recorder.cast()
    cast.svg(recorded)  # refuses what it cannot draw
    if recorded.events[-1].at > LONGEST_SECONDS:
        raise RuntimeError(f"{recorded.events[-1].at} s, and not at most {LONGEST_SECONDS} s")
    (ROOT / "docs/images/terminal.cast").write_text(recorded.lines())
    return 0


if __name__ == "__main__":
    sys.exit(main())
