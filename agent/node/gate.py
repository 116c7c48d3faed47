"""Endpoint of the gate: answers whether a pod of this node may start, from the agent's current verdict.

A pod's UID is a lookup key, not a credential: an answer has verdicts only. Answers need no request to another program,
except for a pod that is not known yet: its GPUs are read from the kubelet and the container runtime, by one read at a
time for all pods. A read is started only for a pod of which the kubelet has a folder. If the kubelet gives no sign of
life within half a second, or no answer within one, all GPUs of the node count. Only pods of the kubelet are counted.
In metrics and Events, each pod counts once for each decision and finding.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.agent.node.pod_reporter import PodOnNode, read_pods_on_node, runtime_socket
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.host.http_server import Page
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.probes.gpu_pods import gpus_of_pod
from gpu_healthcheck.healthcheck.probes.kubelet_pods import MOST_PODS, UID, has_pod
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpus
from gpu_healthcheck.healthcheck.verdict.gate import (
    EVENT,
    Decision,
    GateAnswer,
    GateState,
    concerned,
    decide_gate,
    decide_node,
    refused_message,
    tolerates_taint,
)
from gpu_healthcheck.healthcheck.verdict.taint_decision import says_devices

MOST_EVENTS, HOUR_SECONDS = 16, 3600.0
"""Events within one hour, one for each refused pod. Further pods share one Event per finding when the hour has passed.
"""
_MOST_COUNTED = 2048
"""Most pods, with decision and finding, that are remembered: more than a kubelet runs."""


class GateCounts:
    """Counts pods that the kubelet of this node has. Runs in the event loop of the HTTP server."""

    def __init__(self, reporter: Reporter, telemetry: Telemetry) -> None:
        self._reporter = reporter
        self._telemetry = telemetry
        self._counted: dict[tuple[str, str, str], None] = {}
        """UID, decision and reason, oldest first."""
        self._refused: dict[str, tuple[int, str]] = {}
        """Number of refused pods without an Event, and the last answer, by reason."""
        self._events_at: deque[float] = deque(maxlen=MOST_EVENTS)
        self._timer: asyncio.TimerHandle | None = None

    def count(self, uid: str, answer: GateAnswer) -> None:
        key = (uid, answer.decision, answer.reason)
        if key in self._counted:
            return
        self._counted[key] = None
        if len(self._counted) > _MOST_COUNTED:
            del self._counted[next(iter(self._counted))]
        self._telemetry.gate_answers.labels(answer.decision).inc()
        if answer.decision == Decision.OPEN:
            self._telemetry.gate_failed_open.inc()
        if answer.decision == Decision.REFUSE:
            self._refused[answer.reason] = (self._refused.get(answer.reason, (0, ""))[0] + 1, answer.message)
            self._report()

    def _report(self) -> None:
        """Write the Events that the hour allows, and the others later."""
        while self._refused and not self._wait_seconds():
            reason, (pods, message) = self._refused.popitem()
            self._events_at.append(time.monotonic())
            self._reporter.warn(EVENT, refused_message(pods, reason, message))
        if self._refused and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_seconds(), self._report_later)

    def _report_later(self) -> None:
        self._timer = None
        self._report()

    def _wait_seconds(self) -> float:
        """Return the time until the next Event is allowed."""
        if len(self._events_at) < MOST_EVENTS:
            return 0.0
        return max(self._events_at[0] + HOUR_SECONDS - time.monotonic(), 0.0)


log = structlog.get_logger()

PATH, SOCKET = "/gate/v1", "gate.sock"
"""Path of the endpoint, and name of the socket in the agent's folder where root reads the node's verdict."""
PATIENCE_SECONDS = 1.0
"""Longest wait for the answers of the kubelet and the container runtime.

The gate itself waits 2 s. The processes that ask need half a second on a busy node.
"""
MOST_READS, READ_SECONDS, READ_OF_POD_SECONDS = 8, 1.0, 300.0
"""Reads of the node's pods in a row, the interval in which one more is allowed, and the shortest one for a pod.

A pod that asks is listed already: one that a read does not list has ended, and its folder remains for a time.
"""
FRESH_SECONDS = 10.0
"""Age of a check cycle from which a request starts another one, which serves all requests of this interval."""
_CYCLE_PATIENCE_SECONDS, _TAINT_PATIENCE_SECONDS = 0.3, 0.5
"""Longest wait for that cycle, and for the taint of a finding that is new."""
_NEW_SECONDS = 2.0
_POLL_SECONDS = 0.01
_JSON = "application/json"
_TOLERATES = {"true": True, "false": False, "": None}


class Cycles(Protocol):
    """Check cycles: number of those that have ended, and the end of the last one (monotonic)."""

    ended: int
    ended_at: float


class Lookup(Struct, frozen=True):
    """Result of a search for a pod by its UID."""

    pod: PodOnNode | None = None
    is_local: bool = False
    """Whether the kubelet of this node has the pod."""
    in_time: bool = True
    """False: it is unknown which GPUs the pod has, because the kubelet or the runtime did not answer in time."""


class LocalPods:
    """Pods of this node by UID. All methods run in the event loop of the HTTP server."""

    def __init__(self, root: Path, runtime_socket: Callable[[], str]) -> None:
        self._root = root
        self._runtime_socket = runtime_socket
        self._pods: dict[str, PodOnNode] = {}
        self._reading: asyncio.Future[None] | None = None
        self._has_failed = False
        """Whether the last read gave no answer."""
        self._reads_at = -math.inf
        """Time at which the reads so far would have ended at one per READ_SECONDS (monotonic)."""
        self._asked: dict[str, float] = {}
        """Time of the last read for each UID."""

    async def find(self, uid: str) -> Lookup:
        """Return the pod within PATIENCE_SECONDS; no read is started for a pod that the kubelet does not have."""
        if (pod := self._pods.get(uid)) is not None:
            return Lookup(pod, is_local=True)
        has_folder = self._has_folder(uid)
        if has_folder is False:
            return Lookup()
        in_time = True
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._search(uid)
        except TimeoutError:
            in_time = False
        pod = self._pods.get(uid)
        return Lookup(pod, pod is not None or bool(has_folder), pod is not None or (in_time and not self._has_failed))

    def _has_folder(self, uid: str) -> bool | None:
        try:
            return has_pod(self._root, uid)
        except ProbeError:
            return None

    async def _search(self, uid: str) -> None:
        """Wait for the read that is running, and for another one if that began before the kubelet had the pod."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
            if self._has_failed:
                return
        now = time.monotonic()
        if uid in self._pods or now - self._asked.get(uid, -math.inf) < READ_OF_POD_SECONDS:
            return
        await asyncio.sleep(self._reads_at - (MOST_READS - 1) * READ_SECONDS - now)
        self._note_read(uid)
        await asyncio.shield(self._read())

    def _note_read(self, uid: str) -> None:
        self._asked.pop(uid, None)
        self._asked[uid] = time.monotonic()
        if len(self._asked) > MOST_PODS:
            del self._asked[next(iter(self._asked))]

    def _read(self) -> asyncio.Future[None]:
        """Return the end of the read that is running, or start one."""
        if self._reading is None:
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read_in_thread, args=(loop,), name="gate-pods", daemon=True).start()
            self._reading = loop.create_future()
            self._reads_at = max(self._reads_at, time.monotonic()) + READ_SECONDS
        return self._reading

    def _finish(self, pods: dict[str, PodOnNode] | None) -> None:
        """End the read. After a failure, each pod may cause another read."""
        assert self._reading is not None
        self._has_failed = pods is None
        if pods is None:
            self._asked.clear()
        else:
            self._pods = pods
        self._reading.set_result(None)
        self._reading = None

    def _read_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        pods = None
        try:
            pods = read_pods_on_node(self._root, self._runtime_socket())
        except ProbeError as error:
            if not self._has_failed:
                log.warning("the pods of this node can't be read for the gate", error=str(error))
        except Exception:  # a defect of ours: without an answer, each later request would wait for this read
            log.exception("a read of the pods for the gate failed")
        loop.call_soon_threadsafe(self._finish, pods)


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
        is_writing: Callable[[], bool],
    ) -> None:
        self._state = state
        self._cycles = cycles
        self._cycle_soon = cycle_soon
        self._is_writing = is_writing
        self._counts = GateCounts(reporter, telemetry)
        self._pods = LocalPods(root, partial(runtime_socket, state))
        self._cycle_wanted_at = -math.inf

    async def page(self, query: str) -> Page:
        """Return the answer to `pod=UID&tolerates=true|false`, or the node's verdict for an empty query, as JSON."""
        try:
            parameters = parse_qs(query, max_num_fields=8)
        except ValueError:  # more fields
            parameters = {}
        uid, tolerates = (parameters.get(key, [""])[-1] for key in ("pod", "tolerates"))
        if query and not (UID.match(uid) and tolerates in _TOLERATES):
            return Page(HTTPStatus.BAD_REQUEST, _JSON, b'{"error": "allowed is pod=UID&tolerates=true|false"}')
        if query:
            found, _ = await asyncio.gather(self._pods.find(uid), self._wait_for_cycle())
            answer = await self._answer(found, _TOLERATES[tolerates])
            if found.is_local:
                self._counts.count(uid, answer)
        else:
            await self._wait_for_cycle()
            answer = decide_node(self._view(Lookup(), None))
        return Page(HTTPStatus.OK, _JSON, msgspec.json.encode(answer))

    async def _answer(self, found: Lookup, tolerates: bool | None) -> GateAnswer:
        if found.pod is not None and found.pod.pod.tolerations is not None:
            tolerates = tolerates_taint(found.pod.pod.tolerations)
        state = self._view(found, tolerates)
        until = time.monotonic() + _TAINT_PATIENCE_SECONDS
        while self._taint_is_coming(state) and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)
            state = self._view(found, tolerates)
        return decide_gate(replace(state, is_taint_delayed=self._is_taint_wanted(state) and self._is_writing()))

    def _view(self, found: Lookup, tolerates: bool | None) -> GateState:
        known = self._state.known
        active = known.judgement.verdict.active
        node = known.node or NodeState(self._state.node_name)
        return GateState(
            self._state.node_name,
            active,
            known.settings.values.gate_severity,
            time.monotonic() - self._cycles.ended_at if self._cycles.ended else None,
            self._gpus(found.pod),
            found.in_time,
            node.tainted(),
            bool(active) and says_devices(node),
            tolerates,
        )

    def _taint_is_coming(self, state: GateState) -> bool:
        """Whether a finding is so new that the Node's taint may still be written."""
        return self._is_taint_wanted(state, self._state.now().monotonic - _NEW_SECONDS)

    def _is_taint_wanted(self, state: GateState, since: float = -math.inf) -> bool:
        """Whether a finding since this time (monotonic) requires a taint that is not set."""
        rules = self._state.settings.values.rules
        if state.is_tainted or state.are_gpus_tainted or not rules.enable_taint:
            return False
        return any(
            active.finding.severity >= rules.taint_severity and active.last_at > since for active in concerned(state)
        )

    def _gpus(self, found: PodOnNode | None) -> frozenset[str] | None:
        reading = self._state.known.driver_reading
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
