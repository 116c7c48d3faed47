"""One light check cycle: read the settings, probe, judge, store.

Facts from other systems are read beside it: the instance type from the metadata service, until the first answer, and
the cluster's RuntimeClasses, at the start and about hourly.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import structlog
from msgspec import Struct

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks import driver_reasons
from gpu_healthcheck.healthcheck.checks.driver import being_changed
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.per_gpu import FABRIC_COMING_UP
from gpu_healthcheck.healthcheck.checks.temperature import slowdown_celsius
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden
from gpu_healthcheck.healthcheck.memory.cycles import JudgedCycle
from gpu_healthcheck.healthcheck.memory.rdma_ports import MOST_PORTS
from gpu_healthcheck.healthcheck.model import Evidence, Host, Nature, Probe, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes import machine
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.cri import NOT_YET, RuntimeStatus
from gpu_healthcheck.healthcheck.probes.dcgm.engine import ENGINE
from gpu_healthcheck.healthcheck.probes.efa.infiniband import ERROR_COUNTERS, RDMA
from gpu_healthcheck.healthcheck.probes.efa.libfabric import Libfabric
from gpu_healthcheck.healthcheck.probes.gpu_pods import GpuPods, GpuPodsReader
from gpu_healthcheck.healthcheck.probes.hami import HAMI
from gpu_healthcheck.healthcheck.probes.mlx5 import MLX5
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NO_GPUS, NVML, DriverReading, Gpus
from gpu_healthcheck.healthcheck.probes.nvml.pause import is_paused

log = structlog.get_logger()


class InstanceMetadata:
    """Reader of the instance type in a thread of its own, because it may take seconds."""

    def __init__(self, root: Path, endpoint: str, state: AgentState) -> None:
        self._root = root
        self._endpoint = endpoint
        self._state = state

    def ask(self) -> None:
        if self._state.known.metadata_type:
            return
        try:
            instance_type = machine.instance_type(self._root, self._endpoint)
        except ProbeError as error:
            log.debug("instance metadata", error=str(error))
            return
        self._state.set_metadata_type(instance_type)
        log.info("instance type", instance_type=instance_type, source="instance metadata")


LISTED_AGAIN_SECONDS = 3600.0
_JITTER = 0.1
"""Random share of the interval, so that agents that started together do not list at the same time."""


class RuntimeClasses:
    """Thread that lists the RuntimeClasses into the state."""

    def __init__(self, api: ApiServer, state: AgentState) -> None:
        self._api = api
        self._state = state
        self._due_at = state.now().monotonic

    def list_when_due(self) -> None:
        """List the RuntimeClasses once an hour, whatever the result.

        A request without an answer is repeated the next time.
        """
        if self._state.now().monotonic < self._due_at:
            return
        try:
            self._state.set_runtime_classes(self._api.cluster.settings.list_runtime_classes())
        except Forbidden as error:
            self._api.permissions.forbid(error.verb, error.resource, error)
        except ClusterError as error:
            log.debug("RuntimeClasses", error=str(error))
            return
        else:
            self._api.permissions.allow("list", "runtimeclasses")
        spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
        self._due_at = self._state.now().monotonic + LISTED_AGAIN_SECONDS * spread


AGAIN_SECONDS = 10.0
"""Interval after a cycle with a finding that can flicker (docs/rules.md 3)."""
_NO_DRIVER = frozenset({error_causes.DRIVER_BEING_CHANGED, error_causes.DRIVER_NOT_LOADED})
_PASSING = frozenset({error_causes.DRIVER_BEING_CHANGED, error_causes.DRIVER_JUST_LOADED, FABRIC_COMING_UP})
"""Causes that end without action: a starting node must not wait an interval for its verdict."""
THROTTLED = ("software_thermal", "hardware_thermal", "power_brake")
"""Reasons of throttled time that are exported: power capping is normal under load, and DCGM exports it."""
MISSED_AGAIN_SECONDS = 30.0
"""Pause after a missed deadline: the second probe must be at least this much later (rule 10)."""


class Sources(Struct, frozen=True):
    """Child processes of the probes, and the root of the machine's files."""

    root: Path
    driver: Driver
    libfabric: Libfabric
    runtime: RuntimeStatus
    state_dir: Path | None = None
    """Folder in which a reset of a GPU requests a pause of NVML."""

    @classmethod
    def of(cls, root: Path, state_dir: Path) -> Self:
        return cls(root, Driver(root), Libfabric(root), RuntimeStatus(root), state_dir)

    def end(self) -> list[int]:
        """End the children; return the pids of those that can't be ended."""
        ended = (self.driver.end(), self.libfabric.end(), self.runtime.end())
        return [pid for pid in ended if pid is not None]


class Cycle:
    """Check cycle of the light worker; cycles never overlap."""

    def __init__(
        self,
        sources: Sources,
        state: AgentState,
        ledger: Ledger,
        reload_settings: Callable[[], None],
        telemetry: Telemetry,
    ) -> None:
        self._driver = sources.driver
        self._state_dir = sources.state_dir
        self._state = state
        self._ledger = ledger
        self._reload_settings = reload_settings
        self._telemetry = telemetry
        self._library = ""
        self._gpu_pods = GpuPodsReader(sources.root)
        self._reading: DriverReading | None = None
        self._host = Host(
            sources.root,
            self._ask_driver,
            sources.libfabric.read,
            sources.runtime.read,
            ask_gpu_pods=self._ask_gpu_pods,
        )
        self.ended_at = time.monotonic()
        self.ended = 0

    def run(self) -> float | None:
        """Run one cycle, and return the seconds until the next cycle; None: the usual interval."""
        began = time.monotonic()
        self._reload_settings()
        checks = self._state.known.level_checks
        evidence = read_probes(self._host, checks, self._state.last_evidence, also=self._also_read())
        reading = evidence[NVML] if evidence.unread(NVML) is None else None
        answer = reading.answer if reading is not None else None
        has_no_driver = answer == NO_GPUS or (isinstance(answer, Unobserved) and answer.cause in _NO_DRIVER)
        self._state.store_evidence(evidence, no_driver=has_no_driver)
        before = {finding.key for finding in self._state.memory.active}
        expected = self._state.expectation()
        outcomes = judge(checks, evidence, expected)
        self._show_sources(evidence)
        self._telemetry.show_node(expected.instance_type)
        if self._state.settings.values.metrics_timings:
            self._telemetry.show_times(evidence.seconds, {outcome.check: outcome.seconds for outcome in outcomes})
        else:
            self._telemetry.show_times({}, {})
        gpus = answer.gpus if isinstance(answer, Gpus) else ()
        after = self._ledger.cycle_ended(JudgedCycle(outcomes, gpus, began, evidence, expected.instance_type))
        self._account(began)
        if reading is not None and reading.missed:
            return MISSED_AGAIN_SECONDS
        if reading is not None and (left := _until_mismatch_counts(reading)) > 0:
            return max(left, AGAIN_SECONDS)
        changing = any(cause.cause in _PASSING for outcome in outcomes for cause in outcome.unobserved)
        changing = changing or _waits_for_the_runtime(evidence)
        # A GPU is lost for some seconds during a reset: one such observation must not stay active for a whole interval.
        new = any(finding.nature is Nature.LEVEL and finding.key not in before for finding in after.active)
        return AGAIN_SECONDS if after.suspects or changing or new or self._state.is_watching_gpus else None

    def _also_read(self) -> tuple[Probe[Any], ...]:
        """Return the probes that are read for the Node, whatever the checks need."""
        return (ENGINE, HAMI) if self._state.settings.values.device_taints else (ENGINE,)

    def _ask_driver(self) -> DriverReading:
        paused = self._why_paused()
        if paused:
            self._driver.pause()
            self._telemetry.show_no_driver()
            self._reading = None
            return DriverReading(Unobserved(error_causes.DRIVER_BEING_CHANGED, paused))
        answer = self._reading = self._driver.read()
        if answer.missed:
            self._telemetry.missed.inc()
            log.warning("the driver did not answer", detail=str(answer.answer), stuck_pid=answer.stuck_pid)
        self._telemetry.stuck.set(answer.stuck_pid is not None)
        if isinstance(answer.answer, Gpus):
            self._show_driver(answer.answer)
        else:
            self._telemetry.show_no_driver()
        return answer

    def _ask_gpu_pods(self) -> tuple[GpuPods, ...]:
        return self._gpu_pods.read(self._reading) if self._reading is not None else ()

    def _why_paused(self) -> str:
        """Return why NVML must not be opened now, or an empty string.

        The request of a reset counts only while its claim is on the Node: the file alone does not stop the checks.
        """
        node, root = self._state.node, self._host.root
        if self._state.is_reset() and self._state_dir is not None and is_paused(self._state_dir, root):
            return "a GPU is being reset"
        return being_changed(node.labels) if node else ""

    def _show_sources(self, evidence: Evidence) -> None:
        """Update the metrics of sources that the cycle read, and remove those of a source that it no longer reads."""
        if evidence.unread(NVML) is not None:
            self._telemetry.show_no_driver()
        devices = evidence[RDMA].efa if evidence.unread(RDMA) is None else ()
        counts = ((device, name) for device in devices for name in ERROR_COUNTERS if name in device.counters)
        self._telemetry.show_efa_errors({(device.name, name): device.counters[name] for device, name in counts})
        ports = evidence[MLX5].fabric if evidence.unread(MLX5) is None else ()
        counters = ((port.name, *counter) for port in ports[:MOST_PORTS] for counter in port.counters.items())
        self._telemetry.show_rdma_errors({(device, name): count for device, name, count in counters})

    def _show_driver(self, gpus: Gpus) -> None:
        if gpus.library != self._library:
            self._library = gpus.library
            log.info("driver", library=gpus.library, driver_version=gpus.driver_version, gpus=len(gpus.gpus))
        limits = {
            (str(gpu.index), gpu.uuid): limit
            for gpu in gpus.gpus
            if gpu.temperature is not None and (limit := slowdown_celsius(gpu.temperature)) is not None
        }
        throttled = {
            (reason, str(gpu.index), gpu.uuid): nanoseconds / 1e9
            for gpu in gpus.gpus
            for reason in THROTTLED
            if gpu.throttled is not None and (nanoseconds := getattr(gpu.throttled, reason)) is not None
        }
        corrected = {
            (str(gpu.index), gpu.uuid): gpu.memory_errors.dram_corrected or 0
            for gpu in gpus.gpus
            if gpu.memory_errors is not None
        }
        self._telemetry.show_driver(gpus.driver_version, gpus.library, limits, throttled, corrected)

    def _account(self, began: float) -> None:
        self.ended_at = time.monotonic()
        self.ended += 1
        self._telemetry.cycles.inc()
        self._telemetry.cycle_seconds.set(self.ended_at - began)
        self._telemetry.cycle_time.set_to_current_time()


def _until_mismatch_counts(reading: DriverReading) -> float:
    """Return the seconds until a mismatched driver library becomes a finding; 0 without one, or if it already is."""
    return 0.0 if reading.mismatch_seconds is None else driver_reasons.MISMATCH_SECONDS - reading.mismatch_seconds


def _waits_for_the_runtime(evidence: Evidence) -> bool:
    """Whether a container runtime has just started and is not ready yet.

    The next cycle then comes soon, so that an ended fault does not stay active for a whole interval.
    """
    return evidence.unread(CONTAINER_RUNTIME) is None and evidence[CONTAINER_RUNTIME].why_not_live == NOT_YET
