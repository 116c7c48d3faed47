"""What a diagnosis of a large cluster costs in the real API server: time, memory, requests, and whether it is right.

Among the pods of a large fleet some are stuck, for a dozen causes; each cause has to be named, once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.large_fleet import PODS_PER_NODE, Writer, fill
from bench.outcome import CouldNotMeasure, Outcome, Row, summary
from bench.stage import Stage
from healthcheck.text.moments import timestamp
from sim.control_plane import ControlPlane, ControlPlaneError, install

AIM_SECONDS, AIM_MIB, AIM_ONE_SECONDS = 15.0, 350.0, 2.0
_TIMES = 3
_TEAM = "stuck"
_PODS = f"/api/v1/namespaces/{_TEAM}/pods"
_GPU = "nvidia.com/gpu"
_NOTES = ("diagnose: the API server runs on the same machine; the memory is the whole process's at its peak",)
_REFUSED = (
    "0/{0} nodes are available: {0} {1}. "
    "preemption: 0/{0} nodes are available: {0} Preemption is not helpful for scheduling."
)
_UNSCHEDULED: Mapping[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "MoreGpusThanAnyNodeHas": ({}, {_GPU: "16"}, f"Insufficient {_GPU}"),
    "NodeSelectorMatchesNoNode": (
        {"nodeSelector": {"pool": "none"}},
        {},
        "node(s) didn't match Pod's node affinity/selector",
    ),
    "ResourceNameUnknown": ({}, {_GPU: "", "nvidia.com/gpus": "1"}, "Insufficient nvidia.com/gpus"),
    "MigProfileAbsent": ({}, {_GPU: "", "nvidia.com/mig-1g.10gb": "1"}, "Insufficient nvidia.com/mig-1g.10gb"),
    "MoreCpuOrMemoryThanAnyGpuNodeHas": ({}, {"cpu": "5000"}, "Insufficient cpu"),
    "PodAffinityUnmet": ({}, {}, "node(s) didn't match pod anti-affinity rules"),
}
"""By cause: what differs in the spec, in the resources ('' takes one away), and what the scheduler says."""
_CRASHES = {
    "CudaNewerThanDriver": (1, "CUDA driver version is insufficient for CUDA runtime version"),
    "GpuMemoryExhausted": (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    "FabricNotReady": (1, "CUDA error 802: system not yet initialized"),
}
_WAITING = {
    "ImageNotFound": ("ImagePullBackOff", 'Back-off pulling image "registry.example.com/none:1": not found'),
    "ToolkitProgramMissing": (
        "RunContainerError",
        'exec: "nvidia-container-runtime-hook": executable file not found in $PATH',
    ),
}
_REJECTED = {
    "GpusUnavailableAtAdmission": (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 1, Available: 0, which is unexpected"
    ),
}
WANTED = frozenset((*_UNSCHEDULED, *_CRASHES, *_WAITING, *_REJECTED))
_EACH = 17
"""Pods of each cause: some 200."""


def measure(stage: Stage) -> Outcome:
    try:
        with ControlPlane() as plane:  # of its own, as the sweep's plan
            install(plane)
            return _measure(stage, plane)
    except ControlPlaneError as error:
        raise CouldNotMeasure(str(error)) from error


def _measure(stage: Stage, plane: ControlPlane) -> Outcome:
    size = stage.length.sweep_nodes
    fill(plane, size)
    _stick(plane, size)
    whole = [_run(stage, plane, "diagnose", "--json") for _ in range(_TIMES)]
    one = [_run(stage, plane, "diagnose", "pod", f"{_TEAM}/cudanewerthandriver-0", "--json") for _ in range(_TIMES)]
    waiting = [
        _run(stage, plane, "diagnose", "pod", f"{_TEAM}/moregpusthananynodehas-0", "--json") for _ in range(_TIMES)
    ]
    named = [cause["cause"] for cause in whole[0]["told"]["causes"]]
    once = sorted(set(named)) == sorted(named) and set(named) >= WANTED
    seconds, peaks = [run["seconds"] for run in whole], [run["peak_mib"] for run in whole]
    ones = [run["seconds"] for run in (*one, *waiting)]
    rows = (
        Row(
            f"diagnosis of {size} nodes and {size * PODS_PER_NODE} pods, {len(WANTED) * _EACH} of them stuck",
            f"≤ {AIM_SECONDS:g} s",
            f"{min(seconds):.1f} to {max(seconds):.1f} s",
            stage.length.met(max(seconds) <= AIM_SECONDS),
        ),
        Row(
            "its memory at the peak",
            f"≤ {AIM_MIB:g} MiB",
            f"{max(peaks):.0f} MiB",
            stage.length.met(max(peaks) <= AIM_MIB),
        ),
        Row(
            "its causes: every one, and each once",
            f"{len(WANTED)} causes",
            f"{len(set(named) & WANTED)} of them, {len(named)} in all",
            stage.length.met(once),
        ),
        Row(
            "diagnosis of one pod in it",
            f"≤ {AIM_ONE_SECONDS:g} s",
            f"{min(ones):.1f} to {max(ones):.1f} s",
            stage.length.met(max(ones) <= AIM_ONE_SECONDS),
        ),
    )
    raw = {
        "seconds": summary(seconds),
        "one_pod_seconds": summary(ones),
        "peak_mib": summary(peaks),
        "lacking": sorted(WANTED - set(named)),
        "more": sorted(set(named) - WANTED),
    }
    return Outcome(rows, raw, _NOTES)


def _run(stage: Stage, plane: ControlPlane, *words: str) -> dict[str, Any]:
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", *words],
        cwd=Path(__file__).parents[1],
        env={**stage.bare_environment, "KUBECONFIG": str(plane.kubeconfig)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 1:
        raise CouldNotMeasure(f"{' '.join(words)} ended with {process.returncode}")
    return {"told": json.loads(said), "seconds": time.monotonic() - began, "peak_mib": used.ru_maxrss / 1024}


# --- what is stuck


def _stick(plane: ControlPlane, size: int) -> None:
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": _TEAM}})
    plane.request("POST", f"/api/v1/namespaces/{_TEAM}/serviceaccounts", {"metadata": {"name": "default"}})
    writer = Writer(plane)
    stuck = list(_stuck(size))
    writer.create(_PODS, (pod for pod, _ in stuck))
    writer.patch((f"{_PODS}/{pod['metadata']['name']}/status", {"status": status}) for pod, status in stuck if status)


def _stuck(size: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    since = timestamp(datetime.now(UTC) - timedelta(minutes=30))
    for number in range(_EACH):
        for cause, (spec, resources, reason) in _UNSCHEDULED.items():
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "lastTransitionTime": since,
            }
            told = condition | {"message": _REFUSED.format(size, reason)}
            yield _pod(cause, number, spec, resources), {"conditions": [told]} if reason else {}
        for cause, (code, message) in _CRASHES.items():
            ended = {"exitCode": code, "reason": "Error", "message": message, "finishedAt": since, "startedAt": since}
            state = {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": ended},
                "restartCount": 5,
            }
            yield _on_node(cause, number, size), _started(state, since)
        for cause, (reason, message) in _WAITING.items():
            yield (
                _on_node(cause, number, size),
                _started({"state": {"waiting": {"reason": reason, "message": message}}}, since),
            )
        for cause, message in _REJECTED.items():
            told = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message, "startTime": since}
            yield _on_node(cause, number, size), told


def _started(state: dict[str, Any], since: str) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]
    one = {"name": "work", "image": "x", "imageID": "", "ready": False, "restartCount": 0, **state}
    return {"phase": "Pending", "startTime": since, "conditions": conditions, "containerStatuses": [one]}


def _on_node(cause: str, number: int, size: int) -> dict[str, Any]:
    # One of the nodes whose GPUs nobody has.
    name = f"fleet-node-{8 % size:05d}.us-west-2.compute.internal"
    return _pod(cause, number, {"nodeName": name}, {})


def _pod(cause: str, number: int, spec: Mapping[str, Any], resources: Mapping[str, str]) -> dict[str, Any]:
    amounts = {name: value for name, value in {_GPU: "1", **resources}.items() if value}
    container = {
        "name": "work",
        "image": "registry.example.com/none:1",
        "resources": {"requests": amounts, "limits": amounts},
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": cause.lower(), "uid": cause.lower(), "controller": True}
    metadata = {"name": f"{cause.lower()}-{number}", "namespace": _TEAM, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}
