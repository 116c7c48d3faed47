"""Schedule of the agent: one thread for each job. All times are of the monotonic clock, which can't be set."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from gpu_healthcheck.agent.state.agent_state import AgentState

log = structlog.get_logger()

CONFIG_CHECK_SECONDS = 10.0
"""Interval of the checks for a changed ConfigMap."""
_JITTER = 0.1
_FAILED_AGAIN_SECONDS = 10.0
"""Retry delay after a light cycle that failed by a defect here: without a cycle, the agent is not ready."""
_DEEP_AGAIN_SECONDS = 600.0
"""Retry delay after a deep run that failed by a defect here."""


class _Job(threading.Thread):
    """Thread that runs `work` at its planned time, never twice at once. `work` returns the seconds until the next run.

    After a failure it runs again after `retry_seconds`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.work: Callable[[], float] = lambda: math.inf
        self.retry_seconds = math.inf
        self._planned = threading.Condition()
        self._at = time.monotonic()
        self._ended = False

    def run_in(self, seconds: float) -> None:
        """Run after this time, unless the next run is planned earlier. A present run ends first."""
        with self._planned:
            self._at = min(self._at, time.monotonic() + seconds)
            self._planned.notify()

    def end(self) -> None:
        """Start no more runs."""
        with self._planned:
            self._ended = True
            self._planned.notify()

    def run(self) -> None:
        while self._wait_until_due():
            seconds = self.retry_seconds
            try:
                seconds = self.work()
            except Exception as error:
                log.exception("a scheduled job failed", job=self.name, error=repr(error))
            self.run_in(seconds)

    def _wait_until_due(self) -> bool:
        """Wait for the planned time. False if the schedule has ended."""
        with self._planned:
            while not self._ended and (seconds := self._at - time.monotonic()) > 0:
                self._planned.wait(min(seconds, threading.TIMEOUT_MAX))
            self._at = math.inf
            return not self._ended


class Schedule:
    """Timer of the light cycles: at the interval, earlier if a cycle requests it, and after a configuration change."""

    def __init__(self, state: AgentState, config_dir: Path) -> None:
        self._state = state
        self._config_dir = config_dir
        self._config_seen = _fingerprint(config_dir)
        names = ("light", "requests", "work-observer", "config", "deep")
        self._light, self._requests, self._observer, self._config, self._deep = map(_Job, names)

    def start(
        self,
        cycle: Callable[[], float | None],
        requests: Callable[[], None],
        deep: Callable[[], float] | None = None,
        observe: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the cycles. `requests` runs at the start and with every cycle, in parallel; `observe` after a cycle.

        `cycle` and `deep` return the seconds until their next call. A change of the configuration calls both earlier.
        """

        def run_cycle() -> float:
            self._requests.run_in(0.0)
            began = time.monotonic()
            again_seconds = cycle()
            self._observer.run_in(0.0)
            return self._seconds_to_next(again_seconds, time.monotonic() - began)

        self._light.work, self._light.retry_seconds = run_cycle, _FAILED_AGAIN_SECONDS
        self._requests.work, self._observer.work = _when_planned(requests), _when_planned(observe)
        self._config.work, self._config.retry_seconds = self._check_config, CONFIG_CHECK_SECONDS
        jobs = [self._light, self._requests, self._observer, self._config]
        if deep is not None:
            self._deep.work, self._deep.retry_seconds = lambda: _with_jitter(deep()), _DEEP_AGAIN_SECONDS
            jobs.append(self._deep)
        for job in jobs:
            job.start()

    def start_cycle_soon(self) -> None:
        """Run a cycle as soon as the current one, if any, has ended."""
        self._light.run_in(0.0)

    def end(self) -> None:
        """Start no more jobs. A cycle that hangs in its child process is not awaited."""
        for job in (self._light, self._requests, self._observer, self._config, self._deep):
            job.end()

    def _seconds_to_next(self, again_seconds: float | None, elapsed_seconds: float) -> float:
        """Return the delay after a cycle: what it requested, at most the rest of the interval."""
        seconds = self._state.settings.values.check_interval_seconds
        if again_seconds is not None and again_seconds <= seconds:
            return again_seconds
        # A fleet's cycles must not be simultaneous.
        return max(_with_jitter(seconds) - elapsed_seconds, 0.0)

    def _check_config(self) -> float:
        known = self._state.known
        has_other_checks = known.judgement.checks != known.settings.values.checks  # the Node has other labels
        if has_other_checks or self._state.is_reset():  # its pause and its result must not wait for an interval
            self.start_cycle_soon()
        seen = _fingerprint(self._config_dir)
        if seen is not None and seen != self._config_seen:
            self._config_seen = seen
            log.info("the configuration changed")
            self.start_cycle_soon()
            self._deep.run_in(CONFIG_CHECK_SECONDS)
        return CONFIG_CHECK_SECONDS


def _when_planned(work: Callable[[], None]) -> Callable[[], float]:
    """Return the work of a job that runs only when another job plans it."""

    def run() -> float:
        work()
        return math.inf

    return run


def _with_jitter(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.0 + _JITTER)  # noqa: S311 - no secret


def _fingerprint(directory: Path) -> tuple[object, ...] | None:
    """Return a value that changes when the kubelet swaps the `..data` link, or a file of a plain directory is written.

    None if the directory can't be read.
    """
    try:
        return tuple(
            (entry.name, entry.stat().st_mtime_ns, entry.stat().st_ino) for entry in sorted(directory.iterdir())
        )
    except FileNotFoundError:
        return ()
    except OSError:
        return None
