"""Kubelet of a simulated node with one pod for each GPU in use.

`python -m sim.local_pods ROOT UID=GPU...` serves its sockets in a process of its own, which a test can stop.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from gpu_healthcheck.healthcheck.probes.kubelet_pods import PODS_API
from gpu_healthcheck.sim.pod_resources import SocketAnswer, serving_pod_resources


def serving_local_pods(root: Path, gpus: Mapping[str, str]) -> AbstractContextManager[None]:
    """Serve one pod with one GPU for each pair of pod UID and GPU UUID. The pods have no tolerations.

    Each pod has the folder that a kubelet creates before its first container.
    """
    for uid in gpus:
        (root / "var/lib/kubelet/pods" / uid).mkdir(parents=True, exist_ok=True)
    pods = {"pods": [{"metadata": {"uid": uid, "namespace": "team", "name": uid}} for uid in gpus]}
    held = [("team", uid, [gpu]) for uid, gpu in gpus.items()]
    return serving_pod_resources(root, lambda: held, {PODS_API: SocketAnswer("pods", lambda: pods)})


def main() -> None:
    root, *pairs = sys.argv[1:]
    with serving_local_pods(Path(root), dict(pair.split("=", 1) for pair in pairs)):
        print("ready", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
