"""Endpoint of the gate: answers whether a pod of this node may start, from the agent's current verdict.

A pod's UID is a lookup key, not a credential: an answer has verdicts only. Answers need no request to another program,
except for a pod that is not known yet: its GPUs are read from the kubelet and the container runtime, at most once per
second for all clients, and once per 10 s for each client's address.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs

import msgspec
import structlog
from msgspec import Struct

from agent.node.reporter import Reporter
from agent.state.agent_state import AgentState
from agent.telemetry import Telemetry
from healthcheck.host.http_server import Page
from healthcheck.model import Host, ProbeError
from healthcheck.node.state import NodeState
from healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from healthcheck.probes.nvml.gpus import Gpus
from healthcheck.probes.pod_gpus import gpus_of_pod
from healthcheck.probes.pod_resources import PodDevices, read_pod_resources
from healthcheck.probes.pods_by_uid import UID, LocalPod, read_pods
from healthcheck.verdict.gate import (
    Decision,
    GateAnswer,
    GateState,
    concerned,
    decide_gate,
    decide_node,
    tolerates_taint,
)
from healthcheck.verdict.gate_refusals import EVENT, refused_message
from healthcheck.verdict.taint_decision import says_devices

log = structlog.get_logger()

PATH, SOCKET = "/gate/v1", "gate.sock"
"""Path of the endpoint, and name of the socket in the agent's folder where root reads the node's verdict."""
READ_SECONDS, READ_OF_CLIENT_SECONDS = 1.0, 10.0
"""Shortest interval between two reads of the node's pods, for all clients and for one."""
MOST_CLIENTS = 256
"""Most client addresses whose last read is remembered."""
FRESH_SECONDS = 10.0
"""Age of a check cycle from which a request starts another one, which serves all requests of this interval."""
_CYCLE_PATIENCE_SECONDS, _TAINT_PATIENCE_SECONDS = 0.3, 0.5
"""Longest wait for that cycle, and for the taint of a finding that is new."""
_NEW_SECONDS = 2.0
_POLL_SECONDS = 0.01
_EVENT_SECONDS = 3600.0
"""Shortest interval between two Events with the same reason of a finding."""
_MOST_REASONS = 64
_JSON = "application/json"
_TOLERATES = {"true": True, "false": False, "": None}


class Cycles(Protocol):
    """Check cycles: number of those that have ended, and the end of the last one (monotonic)."""

    ended: int
    ended_at: float


class PodOnNode(Struct, frozen=True):
    """A pod of this node, with its devices; None: the kubelet lists none."""

    pod: LocalPod
    devices: PodDevices | None


class LocalPods:
    """Pods of this node by UID. All methods run in the event loop of the HTTP server."""

    def __init__(self, root: Path, runtime_socket: Callable[[], str]) -> None:
        self._root = root
        self._runtime_socket = runtime_socket
        self._pods: dict[str, PodOnNode] = {}
        self._reading: asyncio.Future[dict[str, PodOnNode]] | None = None
        self._read_at = -math.inf
        self._clients: dict[str, float] = {}
        """Time of the last read that each client caused."""

    async def find(self, uid: str, client: str) -> PodOnNode | None:
        """Return the pod; None if it is not on this node, or could not be read."""
        if uid not in self._pods and self._reading is not None:
            await self._read()
        if uid not in self._pods and self._may_read(client):
            await asyncio.sleep(self._read_at + READ_SECONDS - time.monotonic())
            await self._read()
        return self._pods.get(uid)

    def _may_read(self, client: str) -> bool:
        now = time.monotonic()
        if now - self._clients.get(client, -math.inf) < READ_OF_CLIENT_SECONDS:
            return False
        self._clients.pop(client, None)
        self._clients[client] = now
        if len(self._clients) > MOST_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return True

    async def _read(self) -> None:
        """Read the pods, or wait for the read that is running."""
        if self._reading is None:
            self._read_at = time.monotonic()
            loop = asyncio.get_running_loop()
            self._reading = loop.create_future()
            threading.Thread(
                target=self._read_in_thread, args=(loop, self._reading), name="gate-pods", daemon=True
            ).start()
        reading = self._reading
        self._pods = await asyncio.shield(reading)
        if self._reading is reading:
            self._reading = None

    def _read_in_thread(self, loop: asyncio.AbstractEventLoop, reading: asyncio.Future[dict[str, PodOnNode]]) -> None:
        try:
            pods = self._read_all()
        except ProbeError as error:
            log.warning("the pods of this node can't be read for the gate", error=str(error))
            pods = self._pods
        except Exception:  # a defect of ours: without an answer, each later request would wait for this read
            log.exception("a read of the pods for the gate failed")
            pods = self._pods
        loop.call_soon_threadsafe(reading.set_result, pods)

    def _read_all(self) -> dict[str, PodOnNode]:
        """Return all pods with their devices. Raises ProbeError."""
        with ThreadPoolExecutor(1, "gate-devices") as pool:  # each question starts a child
            held = pool.submit(read_pod_resources, Host(self._root))
            pods = read_pods(self._root, self._runtime_socket())
        devices = {(pod.namespace, pod.name): pod for pod in held.result()}
        return {uid: PodOnNode(pod, devices.get((pod.namespace, pod.name))) for uid, pod in pods.items()}


class Gate:
    """Answers the requests of pods. `cycle_soon` starts a check cycle. Runs in the event loop of the HTTP server."""

    def __init__(
        self,
        state: AgentState,
        reporter: Reporter,
        telemetry: Telemetry,
        root: Path,
        cycles: Cycles,
        cycle_soon: Callable[[], None],
    ) -> None:
        self._state = state
        self._reporter = reporter
        self._telemetry = telemetry
        self._cycles = cycles
        self._cycle_soon = cycle_soon
        self._pods = LocalPods(root, self._runtime_socket)
        self._cycle_wanted_at = -math.inf
        self._refused: dict[str, _Refusals] = {}

    async def page(self, query: str, client: str) -> Page:
        """Return the answer to `pod=UID&tolerates=true|false`, or the node's verdict for an empty query, as JSON."""
        try:
            fields = parse_qs(query, max_num_fields=8)
        except ValueError:  # more fields
            fields = {}
        uid, tolerates = (fields.get(key, [""])[-1] for key in ("pod", "tolerates"))
        if query and not (UID.match(uid) and tolerates in _TOLERATES):
            return Page(HTTPStatus.BAD_REQUEST, _JSON, b'{"error": "allowed is pod=UID&tolerates=true|false"}')
        if query:
            found, _ = await asyncio.gather(self._pods.find(uid, client), self._wait_for_cycle())
            answer = await self._answer(found, _TOLERATES[tolerates])
            self._count(answer)
        else:
            await self._wait_for_cycle()
            answer = decide_node(self._view(None, None))
        return Page(HTTPStatus.OK, _JSON, msgspec.json.encode(answer))

    async def _answer(self, found: PodOnNode | None, tolerates: bool | None) -> GateAnswer:
        if found is not None and found.pod.tolerations is not None:
            tolerates = tolerates_taint(found.pod.tolerations)
        gpus = self._gpus(found)
        state = self._view(gpus, tolerates)
        until = time.monotonic() + _TAINT_PATIENCE_SECONDS
        while self._taint_is_coming(state) and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)
            state = self._view(gpus, tolerates)
        return decide_gate(state)

    def _view(self, gpus: frozenset[str] | None, tolerates: bool | None) -> GateState:
        known = self._state.known
        standing = known.judgement.verdict.standing
        node = known.node or NodeState(self._state.node_name)
        return GateState(
            self._state.node_name,
            standing,
            known.settings.values.gate_severity,
            time.monotonic() - self._cycles.ended_at if self._cycles.ended else None,
            gpus,
            node.tainted(),
            bool(standing) and says_devices(node),
            tolerates,
        )

    def _taint_is_coming(self, state: GateState) -> bool:
        """Whether a finding is so new that the Node's taint may still be written."""
        rules = self._state.settings.values.rules
        if state.is_tainted or state.are_gpus_tainted or not rules.enable_taint:
            return False
        now = self._state.now().monotonic
        return any(
            active.finding.severity >= rules.taint_severity and now - active.last_at < _NEW_SECONDS
            for active in concerned(state)
        )

    def _gpus(self, found: PodOnNode | None) -> frozenset[str] | None:
        reading = self._state.known.driver_look
        if found is None or found.devices is None or reading is None or not isinstance(reading.answer, Gpus):
            return None
        return gpus_of_pod(found.devices, reading.answer.gpus)

    async def _wait_for_cycle(self) -> None:
        """Start a check cycle if the last one is old, and wait a short time for its end."""
        began = time.monotonic()
        ended = self._cycles.ended
        if ended and began - self._cycles.ended_at < FRESH_SECONDS:
            return
        if began - self._cycle_wanted_at >= FRESH_SECONDS:
            self._cycle_wanted_at = began
            self._cycle_soon()
        # The cycle ends in another thread.
        while self._cycles.ended == ended and time.monotonic() - began < _CYCLE_PATIENCE_SECONDS:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    def _runtime_socket(self) -> str:
        last = self._state.last_look
        return last[CONTAINER_RUNTIME].socket if last is not None and last.unread(CONTAINER_RUNTIME) is None else ""

    def _count(self, answer: GateAnswer) -> None:
        self._telemetry.gate_answers.labels(answer.decision).inc()
        if answer.decision == Decision.OPEN:
            self._telemetry.gate_failed_open.inc()
        if answer.decision != Decision.REFUSE:
            return
        if answer.reason not in self._refused and len(self._refused) >= _MOST_REASONS:
            return
        refusals = self._refused.setdefault(answer.reason, _Refusals())
        refusals.count += 1
        if (now := time.monotonic()) - refusals.reported_at >= _EVENT_SECONDS:
            refusals.reported_at = now
            self._reporter.warn(EVENT, refused_message(refusals.count, answer.reason, answer.message))
            refusals.count = 0


class _Refusals:
    """Pods refused for one reason since the last Event."""

    def __init__(self) -> None:
        self.count = 0
        self.reported_at = -math.inf
