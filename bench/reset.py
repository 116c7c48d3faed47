"""Reset of a GPU: from the finding until a pod runs on that GPU again, without the time of DCGM."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from bench.node_watch import is_tainted
from bench.outcome import ROOT, CouldNotMeasure, Outcome, percentile, summary
from bench.stage import Stage
from gpu_healthcheck.sim.control_plane import ControlPlane
from gpu_healthcheck.sim.device_plugin import DEPLOY, DevicePlugin
from gpu_healthcheck.sim.kubelet import Kubelets
from gpu_healthcheck.sim.node import SimulatedNode

AIM_SECONDS = 60.0
"""NVSentinel's objective for one GPU is 120 s."""
_GIVE_UP_SECONDS = 120.0
_NODE = "reset"
_PODS = "/api/v1/namespaces/default/pods"
_NOTES = (
    "reset: real agent, command and Job, without DCGM; nvidia-smi, device plugin and kubelet are stand-ins, which need",
    "       no time",
)


def measure(stage: Stage) -> Outcome:
    folder = stage.folder / "reset"
    programs = folder / "programs"
    programs.mkdir(parents=True)
    (programs / "gpu-healthcheck").write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    (programs / "gpu-healthcheck").chmod(0o755)
    (folder / "ESCALATE_AFTER").write_text("0")
    host = stage.make_node()
    host.install_nvidia_smi()
    environment = {
        "PYTHONPATH": str(ROOT),
        "METRICS_PORT": "0",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        "CONFIG_DIR": str(folder),
        "STATE_DIR": str(folder / "state"),
        "REPORT_DIR": str(folder / "reports"),
    }
    with (
        stage.separate_plane(complete=True) as plane,
        Kubelets(plane, folder, {_NODE: host.root}, environment, programs),
    ):
        labels = {"nvidia.com/gpu.present": "true", DEPLOY: "true"}
        plane.create_node(_NODE, labels=labels, provider_id="metal://reset")
        with DevicePlugin(plane, host, _NODE) as plugin:
            plugin.install(operator=True)
            seconds = [_reset(plane, host, plugin) for _ in range(stage.length.resets)]
    figure = f"p50 {percentile(seconds, 0.5):.1f}, max {max(seconds):.1f} s"
    what = f"RESET finding on the Node → a pod runs on all GPUs again, {len(seconds)} times"
    row = stage.at_most(what, AIM_SECONDS, "s", max(seconds), figure)
    return Outcome((row,), {"seconds": summary(seconds)}, _NOTES)


def _reset(plane: ControlPlane, host: SimulatedNode, plugin: DevicePlugin) -> float:
    _wait(lambda: _allocatable(plane) == len(host.gpus))
    host.xid(2, 62, "Internal micro-controller halt")
    plugin.lost = 1
    _wait(lambda: is_tainted(plane.request("GET", f"/api/v1/nodes/{_NODE}").body))
    began = time.monotonic()
    amounts = {"nvidia.com/gpu": str(len(host.gpus))}
    container = {"name": "work", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    plane.request("POST", _PODS, {"metadata": {"name": "work"}, "spec": spec})
    command = [sys.executable, "-m", "cli", "reset", _NODE, "--kubeconfig", str(plane.kubeconfig)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CouldNotMeasure(f"the reset ended with exit code {done.returncode}: {done.stdout[-500:]}{done.stderr}")
    _wait(lambda: plane.request("GET", f"{_PODS}/work").body["status"].get("phase") == "Running")
    seconds = time.monotonic() - began
    plane.request("DELETE", f"{_PODS}/work")
    _wait(lambda: plane.request("GET", f"{_PODS}/work").status != 200)
    return seconds


def _allocatable(plane: ControlPlane) -> int:
    status = plane.request("GET", f"/api/v1/nodes/{_NODE}").body["status"]
    return int(status.get("allocatable", {}).get("nvidia.com/gpu", 0))


def _wait(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while not is_done():
        if time.monotonic() > deadline:
            raise CouldNotMeasure(f"not done within {_GIVE_UP_SECONDS:g} s")
        time.sleep(0.05)
