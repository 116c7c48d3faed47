"""Observe which GPUs wait or idle under a pod, for the record and the metrics.

Each check cycle has the driver's samples. The pods are read only while a GPU has waited or idled for minutes: when such
a GPU or a pod of the node is new or gone, and hourly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

import structlog
from msgspec.structs import replace

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.node.pod_reporter import RETRY_SECONDS, pods_with_gpus, runtime_socket
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound
from gpu_healthcheck.healthcheck.model import Now, ProbeError
from gpu_healthcheck.healthcheck.probes.kubelet_pods import EXPECTED, WAITING, known_pods
from gpu_healthcheck.healthcheck.verdict.work import Work
from gpu_healthcheck.healthcheck.verdict.work_seen import (
    MOST_NAMED,
    GpuPod,
    GpuWork,
    named_works,
    waiting_pods,
    work_seen,
)

log = structlog.get_logger()

_NAMED_SECONDS, _HOUR_SECONDS = 600.0, 3600.0
"""Longest time between two reads of the pods: while the record names a GPU, whose pod may end, and otherwise."""


class WorkObserver:
    """Judge of the GPUs' work, in a thread of its own: it waits for the kubelet and for namespaces."""

    def __init__(self, api: ApiServer, state: AgentState, telemetry: Telemetry, root: Path) -> None:
        self._api = api
        self._state = state
        self._telemetry = telemetry
        self._root = root
        self._works: Mapping[str, GpuWork] = {}
        self._pods: tuple[GpuPod, ...] | None = None
        """Pods with GPUs at the last read; None before it."""
        self._read_for: frozenset[object] = frozenset()
        """GPUs that were due at that read, and all pods of the node."""
        self._read_at = self._not_before = -math.inf
        self._expects_waiting = lru_cache(self._read_namespace)

    def update(self) -> None:
        """Judge the last check cycle."""
        known, now = self._state.known, self._state.now()
        reading = known.driver_reading
        self._works = work_seen(self._works, reading, now) if reading is not None else {}
        due = [work for work in self._works.values() if work.is_due]
        if due:
            self._read_pods_when_due(due, _NAMED_SECONDS if known.work else _HOUR_SECONDS, now)
        named = named_works(due, self._pods, now.wall) if self._pods is not None else {}
        waiting = [entry for entry in named.values() if entry.row.state is Work.WAITING]
        self._telemetry.show_waiting({entry.labels: entry.work.seconds for entry in waiting}, waiting_pods(waiting))
        self._state.set_work({uuid: entry.row for uuid, entry in islice(named.items(), MOST_NAMED)})

    def _read_pods_when_due(self, due: list[GpuWork], longest_seconds: float, now: Now) -> None:
        present: frozenset[object] = frozenset((work.gpu.uuid, work.since_at) for work in due)
        with suppress(OSError):
            present |= known_pods(self._root).keys()
        is_due = present != self._read_for or now.monotonic - self._read_at >= longest_seconds
        if not is_due or now.monotonic < self._not_before:
            return
        self._not_before = now.monotonic + RETRY_SECONDS
        try:
            self._pods = tuple(self._read_pods({work.gpu.subject for work in due}, now))
        except (ProbeError, ClusterError) as error:
            # A GPU waits without a known pod too; a namespace that could not be read may expect it.
            self._pods = self._pods or (() if isinstance(error, ProbeError) else None)
            log.debug("pods of GPUs that wait", error=str(error))
        else:
            self._read_for, self._read_at = present, now.monotonic

    def _read_pods(self, subjects: set[str], now: Now) -> Iterator[GpuPod]:
        """Yield the pods that hold one of these GPUs. Raises ProbeError and ClusterError."""
        gpus = [work.gpu for work in self._works.values()]
        for uid, pod, held in pods_with_gpus(self._root, runtime_socket(self._state), gpus, {}):
            if held is not None and held & subjects:
                expects = pod.expects_waiting or self._expects_waiting(pod.namespace, now.monotonic // _HOUR_SECONDS)
                yield GpuPod(replace(pod, expects_waiting=expects), uid, held)

    def _read_namespace(self, namespace: str, _hour: float) -> bool:
        """Whether the namespace's annotation declares that GPUs may wait. Raises ClusterError."""
        try:
            return self._api.cluster.pods.read_namespace_annotations(namespace).get(WAITING) == EXPECTED
        except (Forbidden, NotFound):
            return False
