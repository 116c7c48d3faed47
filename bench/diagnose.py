"""Cost of a diagnosis of a large cluster in the real API server: time, memory, requests, and correctness.

Some pods of a large fleet are stuck, for some causes; each cause must be reported once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench.large_fleet import PODS_PER_NODE, Writer, fill
from bench.outcome import Outcome, Row, summary
from bench.program import OneRun, run_once
from bench.stage import Stage
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.control_plane import ControlPlane

AIM_SECONDS, AIM_MIB, AIM_ONE_SECONDS = 15.0, 350.0, 2.0
_TIMES = 3
_TEAM = "stuck"
_PODS = f"/api/v1/namespaces/{_TEAM}/pods"
_GPU = "nvidia.com/gpu"
_NOTES = ("diagnose: the API server runs on the same machine; the memory is the peak of the whole process",)
_REFUSED = "0/{0} nodes are available: {0} {1}. preemption: 0/{0} nodes are available: {0} Preemption is not helpful."
_UNSCHEDULED: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "MoreGpusThanAnyNodeHas": ({}, "16", f"Insufficient {_GPU}"),
    "NodeSelectorMatchesNoNode": (
        {"nodeSelector": {"pool": "none"}},
        "1",
        "node(s) didn't match Pod's node affinity/selector",
    ),
}
"""By cause: changes to the spec, number of GPUs, and the scheduler's message."""
_STATES: Mapping[str, dict[str, Any]] = {
    "CudaNewerThanDriver": {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {
            "terminated": {
                "exitCode": 1,
                "reason": "Error",
                "message": "CUDA driver version is insufficient for CUDA runtime version",
            }
        },
        "restartCount": 5,
    },
    "ImageNotFound": {
        "state": {
            "waiting": {
                "reason": "ImagePullBackOff",
                "message": 'Back-off pulling image "registry.example.com/none:1": not found',
            }
        }
    },
}
"""By cause: the state of the container of a pod on a node."""
WANTED = frozenset((*_UNSCHEDULED, *_STATES))
_EACH = 50
"""Number of pods per cause, 200 in all."""
_ALONE = ("CudaNewerThanDriver", "MoreGpusThanAnyNodeHas")
"""Causes that do not depend on other pods: one of a pod on a node, one of a pending pod."""
_CAUSES_FOUND = 1
"""Exit code of `diagnose` with causes."""


def measure(stage: Stage) -> Outcome:
    with stage.separate_plane() as plane:  # as in `sweep_plan`
        return _measure(stage, plane)


def _measure(stage: Stage, plane: ControlPlane) -> Outcome:
    size = stage.length.nodes
    fill(plane, size)
    _stick(plane, size)
    whole = _diagnose(stage, plane)
    ones = {cause: _diagnose(stage, plane, "pod", f"{_TEAM}/{cause.lower()}-0") for cause in _ALONE}
    named = [cause["cause"] for cause in whole.runs[0].figures["causes"]]
    rows = (*_of_all(stage, whole, named), *_of_one(stage, tuple(ones.values())))
    diagnoses = {"whole": whole, **ones}
    raw = {
        "seconds": {what: summary(diagnosis.seconds) for what, diagnosis in diagnoses.items()},
        "peak_mib": summary([run.peak_mib for run in whole.runs]),
        "lists": {what: diagnosis.lists for what, diagnosis in diagnoses.items()},
    }
    return Outcome(rows, raw, _NOTES)


def _of_all(stage: Stage, whole: Diagnosis, named: Sequence[str]) -> Iterator[Row]:
    size, met = stage.length.nodes, stage.length.met
    what = f"diagnosis of {size} nodes and {size * PODS_PER_NODE} pods, {len(WANTED) * _EACH} of them stuck"
    yield stage.at_most(what, AIM_SECONDS, "s", max(whole.seconds), _span(whole.seconds))
    yield stage.at_most("its peak memory", AIM_MIB, "MiB", max(run.peak_mib for run in whole.runs))
    once = sorted(set(named)) == sorted(named) and set(named) >= WANTED
    figure = f"{len(set(named) & WANTED)} of them, {len(named)} in all"
    yield Row("its causes: all of them, each once", f"{len(WANTED)} causes", figure, met(once))
    yield Row(
        "its requests", "pages only", f"{whole.lists} lists, {whole.unpaged} not in pages", met(not whole.unpaged)
    )


def _of_one(stage: Stage, ones: Sequence[Diagnosis]) -> Iterator[Row]:
    seconds = [second for diagnosis in ones for second in diagnosis.seconds]
    yield stage.at_most("diagnosis of one pod in it", AIM_ONE_SECONDS, "s", max(seconds), _span(seconds))
    everywhere = sum(diagnosis.of_all_pods for diagnosis in ones)
    yield stage.at_most("its listings of the pods of all namespaces", 0, "", everywhere)


def _span(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f} s"


@dataclass(frozen=True)
class Diagnosis:
    """Several runs of the same command, with their requests."""

    runs: tuple[OneRun, ...]
    lists: int
    unpaged: int
    of_all_pods: int
    """Number of lists of the pods of all namespaces and nodes."""

    @property
    def seconds(self) -> list[float]:
        return [run.seconds for run in self.runs]


def _diagnose(stage: Stage, plane: ControlPlane, *words: str) -> Diagnosis:
    environment = {**stage.bare_environment, "KUBECONFIG": str(plane.kubeconfig)}
    since = datetime.now(UTC)
    runs = tuple(run_once(("cli", "diagnose", *words, "--json"), environment, (_CAUSES_FOUND,)) for _ in range(_TIMES))
    asked = [
        urlsplit(event["requestURI"])
        for event in plane.audit(since)
        if event["verb"] == "list" and event.get("userAgent") == COMPONENT
    ]
    queries = [(entry.path, parse_qs(entry.query)) for entry in asked]
    return Diagnosis(
        runs,
        len(queries) // _TIMES,
        sum("limit" not in query for _, query in queries),
        sum(path == "/api/v1/pods" and "fieldSelector" not in query for path, query in queries) // _TIMES,
    )


# --- stuck pods


def _stick(plane: ControlPlane, size: int) -> None:
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": _TEAM}})
    plane.request("POST", f"/api/v1/namespaces/{_TEAM}/serviceaccounts", {"metadata": {"name": "default"}})
    writer = Writer(plane)
    stuck = list(_stuck(size))
    writer.create(_PODS, (pod for pod, _ in stuck))
    writer.patch((f"{_PODS}/{pod['metadata']['name']}/status", {"status": status}) for pod, status in stuck if status)


def _stuck(size: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield stuck pods with their status."""
    since = timestamp(datetime.now(UTC) - timedelta(minutes=30))
    scheduled = {"type": "PodScheduled", "lastTransitionTime": since}
    # One of the nodes with unused GPUs.
    node = {"nodeName": f"fleet-node-{8 % size:05d}.us-west-2.compute.internal"}
    for number in range(_EACH):
        for cause, (spec, gpus, reason) in _UNSCHEDULED.items():
            refusal = {"status": "False", "reason": "Unschedulable", "message": _REFUSED.format(size, reason)}
            yield _pod(cause, number, spec, gpus), {"conditions": [scheduled | refusal]}
        for cause, state in _STATES.items():
            entry = {"name": "work", "image": "x", "imageID": "", "ready": False, "restartCount": 0, **state}
            conditions = [scheduled | {"status": "True"}]
            status = {"phase": "Pending", "startTime": since, "conditions": conditions, "containerStatuses": [entry]}
            yield _pod(cause, number, node, "1"), status


def _pod(cause: str, number: int, spec: Mapping[str, Any], gpus: str) -> dict[str, Any]:
    amounts = {"requests": {_GPU: gpus}, "limits": {_GPU: gpus}}
    container = {"name": "work", "image": "registry.example.com/none:1", "resources": amounts}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": cause.lower(), "uid": cause.lower(), "controller": True}
    metadata = {"name": f"{cause.lower()}-{number}", "namespace": _TEAM, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}
