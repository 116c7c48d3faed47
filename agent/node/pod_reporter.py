"""Write an Event about each pod that uses a faulty GPU, so that its owners learn of the fault in their own namespace.

The pods are read from the kubelet and the container runtime only while a finding of RESET or worse is active: at once
for a new finding, then once per check interval, because a pod may start later. Each pod gets one Event per finding.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from msgspec import Struct

from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentKnowledge, AgentState
from gpu_healthcheck.healthcheck.host.grpc_socket import want_greeting
from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.node.state import GPU_UNHEALTHY
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.gpu_pods import gpus_of_pod
from gpu_healthcheck.healthcheck.probes.kubelet_pods import LocalPod, read_pods
from gpu_healthcheck.healthcheck.probes.nvml.gpus import SUCCESS, Gpu, Gpus
from gpu_healthcheck.healthcheck.probes.pod_resources import PodDevices, holds_gpus, kubelet_socket, read_pod_resources
from gpu_healthcheck.healthcheck.verdict.node_events import InvolvedPod, NodeEvent
from gpu_healthcheck.healthcheck.verdict.pod_events import pod_events, reported

GREETING_SECONDS = 0.5
"""Longest wait for the first byte of the kubelet."""


class PodOnNode(Struct, frozen=True):
    """A pod of this node, with its devices; None: the kubelet lists none."""

    pod: LocalPod
    devices: PodDevices | None


def read_pods_on_node(root: Path, runtime_socket: str) -> dict[str, PodOnNode]:
    """Return all pods with their devices by UID. Raises ProbeError."""
    want_greeting(root, kubelet_socket(root), GREETING_SECONDS)
    with ThreadPoolExecutor(1, "pod-devices") as pool:  # each question starts a child
        held = pool.submit(read_pod_resources, Host(root))
        pods = read_pods(root, runtime_socket)
    devices = {(pod.namespace, pod.name): pod for pod in held.result()}
    return {uid: PodOnNode(pod, devices.get((pod.namespace, pod.name))) for uid, pod in pods.items()}


def pods_with_gpus(
    root: Path, runtime_socket: str, gpus: Collection[Gpu], former: Mapping[str, str]
) -> Iterator[tuple[str, LocalPod, frozenset[str] | None]]:
    """Yield UID, pod and subjects of the GPUs, as `gpus_of_pod`, of each running pod with GPUs. Raises ProbeError."""
    for uid, found in read_pods_on_node(root, runtime_socket).items():
        pod, devices = found.pod, found.devices
        if devices is not None and holds_gpus((devices,)) and not pod.has_ended and _is_valid(pod):
            yield uid, pod, gpus_of_pod(devices, gpus, former, pod.hami_gpus)


def runtime_socket(state: AgentState) -> str:
    """Return the socket of the container runtime that the last check cycle found; '' if it found none."""
    last = state.last_evidence
    return last[CONTAINER_RUNTIME].socket if last is not None and last.unread(CONTAINER_RUNTIME) is None else ""


log = structlog.get_logger()

REREAD_SECONDS, RETRY_SECONDS = 10.0, 60.0
"""Shortest time from a read of the pods to one for a new finding, and to one after a failure."""
_NAMESPACE = re.compile(r"[a-z0-9-]{1,63}\Z", re.ASCII)
_NAME = re.compile(r"[a-z0-9.-]{1,253}\Z", re.ASCII)


class PodReporter(threading.Thread):
    """One thread that waits for the kubelet, so that nothing else does. `reporter` writes the Events."""

    def __init__(self, state: AgentState, reporter: Reporter, root: Path) -> None:
        super().__init__(name="pod-reporter", daemon=True)
        self._state = state
        self._reporter = reporter
        self._root = root
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._gpus: dict[str, Gpu] = {}
        """Last reading of each GPU that answered, by subject: a faulty GPU may not answer any more."""
        self._read_for: frozenset[str] = frozenset()
        """Identities of the findings for which the pods were read last."""
        self._read_at = self._not_before = -math.inf
        """Time of that read, and the earliest time of the next one (monotonic)."""
        self._queued: frozenset[str] = frozenset()
        """Names of the Events that were queued for the present pods and findings."""
        self._failure = ""

    def wake(self) -> None:
        """Report what is new. Called after each write of the verdict."""
        self._wake.set()

    def end(self) -> None:
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        seconds = None
        while not self._stopping.is_set():
            self._wake.wait(seconds)
            self._wake.clear()
            seconds = None
            try:
                seconds = self._report(self._state.known)
            except ProbeError as error:
                seconds = self._put_off(RETRY_SECONDS)
                self._note_failure(str(error))
            except Exception as error:  # noqa: BLE001 - a defect of ours: the agent works without these Events
                self._reporter.report_defect("pods", error)

    def _report(self, known: AgentKnowledge) -> float | None:
        """Report what is due, and return the seconds until a new finding may be reported; None: nothing waits.

        Raises ProbeError.
        """
        reading = known.driver_reading
        if reading is not None and isinstance(reading.answer, Gpus):
            self._gpus |= {gpu.subject: gpu for gpu in reading.answer.gpus if gpu.error == SUCCESS}
        found = reported(known.judgement.verdict.active)
        identities = frozenset(f"{active.key} {active.first_seen}" for active in found)
        is_new = not identities <= self._read_for
        if not found:
            self._read_for = self._queued = frozenset()
        if not is_new and (
            not found or time.monotonic() - self._read_at < known.settings.values.check_interval_seconds
        ):
            return None
        if (left := self._not_before - time.monotonic()) > 0:
            return left if is_new else None
        self._put_off(REREAD_SECONDS)
        pods = self._pods(known)
        self._read_for, self._read_at = identities, time.monotonic()
        self._note_failure("")
        is_tainted = known.node is not None and known.node.tainted()
        self._queue(pod_events(self._state.node_name, found, pods, is_tainted=is_tainted))
        return None

    def _put_off(self, seconds: float) -> float:
        self._not_before = time.monotonic() + seconds
        return seconds

    def _queue(self, events: Sequence[NodeEvent]) -> None:
        """Queue what was not queued yet, as far as the limit of the hour permits."""
        queued = self._queued & {event.name for event in events}
        for event in events:
            if event.name not in queued and self._reporter.may_queue(GPU_UNHEALTHY):
                self._reporter.queue(event)
                queued |= {event.name}
        self._queued = queued

    def _pods(self, known: AgentKnowledge) -> dict[InvolvedPod, frozenset[str] | None]:
        """Return the running pods with GPUs, and the subjects of these. Raises ProbeError."""
        former = {about["uuid"]: f"gpu/{address}" for address, about in known.memory.gpus.items() if "uuid" in about}
        pods = pods_with_gpus(self._root, runtime_socket(self._state), self._gpus.values(), former)
        return {InvolvedPod(pod.namespace, pod.name, uid): gpus for uid, pod, gpus in pods}

    def _note_failure(self, why: str) -> None:
        """Log a failure once while it lasts."""
        if why and not self._failure:
            log.warning("the pods of the faulty GPUs can't be read, so they get no Event", error=why)
        self._failure = why


def _is_valid(pod: LocalPod) -> bool:
    """Whether the names can be those of a pod in the API."""
    return bool(_NAMESPACE.match(pod.namespace) and _NAME.match(pod.name))
