"""One light look: read the settings, look, judge, remember."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from agent.ledger import Ledger, level_checks
from healthcheck import settings as configuration
from healthcheck.catalog.profiles import find_profile
from healthcheck.checks.examine import judge, look
from healthcheck.checks.expectation import DeepRun, Expectation, RuntimeClass
from healthcheck.checks.fabric import COMING_UP as FABRIC_COMING_UP
from healthcheck.memory.findings import Memory
from healthcheck.memory.looks import JudgedLook
from healthcheck.model import Evidence, Host, Nature, Now, ProbeError, Shortage, Unobserved
from healthcheck.node.state import INSTANCE_TYPE, NodeState
from healthcheck.probes import machine
from healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from healthcheck.probes.container_runtime.cri import NOT_YET, RuntimeStatus
from healthcheck.probes.efa.libfabric import Libfabric
from healthcheck.probes.nvml import causes
from healthcheck.probes.nvml.driver import Driver
from healthcheck.probes.nvml.gpus import NVML, DriverLook, Gpus
from healthcheck.settings import BadValue, Settings, SettingsError, UnknownKeys
from healthcheck.telemetry import Telemetry

log = structlog.get_logger()

AGAIN_SECONDS = 10.0
"""After a look that showed something that can flicker (docs/rules.md 3)."""
_NO_DRIVER = frozenset({causes.DRIVER_BEING_CHANGED, causes.DRIVER_NOT_LOADED})
_PASSING = frozenset({causes.DRIVER_BEING_CHANGED, causes.DRIVER_JUST_LOADED, FABRIC_COMING_UP})
"""Causes that pass by themselves: a node that comes up must not wait an interval for its verdict."""
MISSED_AGAIN_SECONDS = 30.0
"""After a missed deadline: the second must be at least this much later (rule 10)."""


@dataclass
class Expectations:
    """What this node is expected to have: its type, asked once until known, and the settings of now."""

    root: Path
    imds_endpoint: str
    clock: Callable[[], Now]
    node: Callable[[], NodeState | None]
    """The own Node, None while it was not read: its label states the type where nobody else does."""
    remembered: Callable[[], str] = lambda: ""
    """What the last look took it for: who can't ask anybody for a moment must not take it for an unknown type."""
    runtime_classes: Callable[[Mapping[str, str]], tuple[RuntimeClass, ...] | None] = lambda _: None
    """Those of a node with these labels; None: nobody has listed them."""
    deep_run: Callable[[], DeepRun | None] = lambda: None
    """The deep run that has the node, or had it last."""
    settings: Settings = field(default_factory=Settings)
    no_driver_at: float = 0.0
    """When a look last met none (monotonic): it was loaded after that, also where the log is not read."""
    _from_imds: str = ""
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def ask_imds(self) -> None:
        """Ask the metadata service unless it has answered; takes seconds at worst, so never inside a look."""
        if self._from_imds or not self._asking.acquire(blocking=False):
            return
        try:
            self._from_imds = machine.instance_type(self.root, self.imds_endpoint)
            log.info("instance type", instance_type=self._from_imds, source="instance metadata")
        except ProbeError as error:
            log.debug("instance metadata", error=str(error))
        finally:
            self._asking.release()

    @property
    def instance_type(self) -> str:
        node = self.node()
        return self._from_imds or (node.labels.get(INSTANCE_TYPE, "") if node else self.remembered())

    def now(self, memory: Memory) -> Expectation:
        instance_type, node = self.instance_type, self.node()
        return Expectation(
            find_profile(self.settings.profiles, instance_type),
            instance_type,
            self.clock().monotonic - max(memory.driver_loaded_at or 0.0, self.no_driver_at),
            self.settings.values.policy,
            max_retired_pages_sbe=self.settings.values.max_retired_pages_sbe,
            first=memory.first,
            efa_allocatable=node.efa_allocatable if node else None,
            runtime_classes=self.runtime_classes(node.labels) if node else None,
            deep_run=self.deep_run(),
        )


@dataclass(frozen=True)
class Sources:
    """Whom a look asks through child processes."""

    driver: Driver
    libfabric: Libfabric
    runtime: RuntimeStatus

    def end(self) -> list[int]:
        """End the children; the pids of those that can't be ended."""
        ended = (self.driver.end(), self.libfabric.end(), self.runtime.end())
        return [pid for pid in ended if pid is not None]


class Cycle:
    """Runs on the light worker, one at a time."""

    def __init__(
        self,
        sources: Sources,
        ledger: Ledger,
        expectations: Expectations,
        telemetry: Telemetry,
        config_dir: Path,
        driver_paused: Callable[[], str],
        complain: Callable[[tuple[BadValue | UnknownKeys, ...]], None],
    ) -> None:
        self._driver = sources.driver
        self._ledger = ledger
        self._expectations = expectations
        self._telemetry = telemetry
        self._config_dir = config_dir
        self._driver_paused = driver_paused
        self._complain = complain
        self._bad: tuple[BadValue, ...] = ()
        self._unknown: UnknownKeys | None = None
        self._said_ignored = False
        self._library = ""
        self._host = Host(expectations.root, self._ask_driver, sources.libfabric.look, sources.runtime.look)
        self._before: Evidence | None = None
        self.ended_at = time.monotonic()
        self.ended = 0

    @property
    def settings(self) -> Settings:
        return self._expectations.settings

    @property
    def last(self) -> Evidence | None:
        """The last look; None before the first."""
        return self._before

    def run(self) -> float | None:
        """Look once. Returns in how many seconds to look again, None: at the next interval."""
        began = time.monotonic()
        self.reload()
        checks = level_checks(self.settings)
        evidence = self._before = look(self._host, checks, self._before)
        driver_look = evidence[NVML] if evidence.unread(NVML) is None else None
        answer = driver_look.answer if driver_look is not None else None
        if isinstance(answer, Unobserved) and answer.cause in _NO_DRIVER:
            self._expectations.no_driver_at = evidence.at
        before = {one.key for one in self._ledger.memory.standing}
        expected = self._expectations.now(self._ledger.memory)
        outcomes = judge(checks, evidence, expected)
        self._telemetry.show_times(evidence.seconds, {one.check: one.seconds for one in outcomes})
        gpus = answer.gpus if isinstance(answer, Gpus) else ()
        judged = JudgedLook(outcomes, gpus, began, evidence, expected.instance_type)
        after = self._ledger.look_ended(judged)
        self._account(began)
        if driver_look is not None and driver_look.missed:
            return MISSED_AGAIN_SECONDS
        changing = any(cause.cause in _PASSING for one in outcomes for cause in one.unobserved)
        changing = changing or _waits_for_the_runtime(evidence)
        # A GPU that somebody resets is lost for some seconds: what one look saw of it must not stand for an interval.
        new = any(one.nature is Nature.LEVEL and one.key not in before for one in after.standing)
        return AGAIN_SECONDS if after.suspects or changing or new else None

    def reload(self) -> None:
        """Take over the configuration as it is now; a bad one leaves the last good and is complained of once."""
        try:
            self._reload()
        except Shortage as error:
            log.warning("the configuration can't be read now", error=str(error))

    def _reload(self) -> None:
        try:
            settings = configuration.read_settings(self._config_dir)
        except SettingsError as error:
            settings = replace(self.settings, bad=error.bad)
            if not self.settings.profiles:
                settings = configuration.settings_despite(error.bad, self._config_dir)
        if settings.bad != self._bad:
            for one in (*self._bad, *settings.bad):
                self._telemetry.bad_settings.labels(one.key).set(one in settings.bad)
            self._bad = settings.bad
            if settings.bad:
                self._complain(settings.bad)
        self._tell_unknown(configuration.unknown_keys(self._config_dir))
        if settings.values.kernel_log_lines and not self._said_ignored:
            self._said_ignored = True
            log.warning("KERNEL_LOG_LINES has no effect: a cursor took its place")
        self._expectations.settings = settings
        self._ledger.configure(settings)

    def _tell_unknown(self, unknown: UnknownKeys | None) -> None:
        """Once for the same keys."""
        self._telemetry.unknown_settings.set(len(unknown.keys) if unknown else 0)
        if unknown is not None and unknown != self._unknown:
            self._complain((unknown,))
        self._unknown = unknown

    def _ask_driver(self) -> DriverLook:
        paused = self._driver_paused()
        if paused:
            return DriverLook(Unobserved(causes.DRIVER_BEING_CHANGED, paused))
        self._driver.deadline_seconds = self.settings.values.probe_seconds
        answer = self._driver.look()
        if answer.missed:
            self._telemetry.missed.inc()
            log.warning("the driver did not answer", detail=str(answer.answer), stuck_pid=answer.stuck_pid)
        self._telemetry.stuck.set(answer.stuck_pid is not None)
        if isinstance(answer.answer, Gpus):
            self._say_library(answer.answer)
        return answer

    def _say_library(self, gpus: Gpus) -> None:
        if gpus.library != self._library:
            self._library = gpus.library
            log.info("driver", library=gpus.library, driver_version=gpus.driver_version, gpus=len(gpus.gpus))
        self._telemetry.show_driver(gpus.driver_version, gpus.library)

    def _account(self, began: float) -> None:
        self.ended_at = time.monotonic()
        self.ended += 1
        self._telemetry.looks.inc()
        self._telemetry.look_seconds.set(self.ended_at - began)
        self._telemetry.look_time.set_to_current_time()


def _waits_for_the_runtime(evidence: Evidence) -> bool:
    """Whether a container runtime that was just started is still asked: what ended with it must not stand till then."""
    return evidence.unread(CONTAINER_RUNTIME) is None and evidence[CONTAINER_RUNTIME].why_not_live == NOT_YET
