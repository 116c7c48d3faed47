"""Schedule of the agent, the only user of APScheduler. All times are of the monotonic clock, which can't be set."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import structlog
from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.date import DateTrigger

from agent.state.agent_state import AgentState

log = structlog.get_logger()

CONFIG_LOOK_SECONDS = 10
"""Interval of the checks for a changed ConfigMap."""
_JITTER = 0.1
_FAILED_AGAIN_SECONDS = 10.0
"""Retry delay after a light cycle that failed by a defect here: without a cycle, the agent is not ready."""
_DEEP_AGAIN_SECONDS = 600.0
"""Retry delay after a deep run that failed by a defect here."""


class _MonotonicZone(tzinfo):
    """Time zone with the monotonic clock as its `now`.

    APScheduler uses `datetime.now` of its time zone for all plans and waits. With the wall clock, setting it back by an
    hour would stop all cycles for an hour. Do not convert other times to this zone.
    """

    def fromutc(self, _: datetime) -> datetime:
        return datetime(2000, 1, 1, tzinfo=self) + timedelta(seconds=time.monotonic())

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None) -> str:
        return "monotonic"


_MONOTONIC = _MonotonicZone()


class _Every(BaseTrigger):  # type: ignore[misc]
    """Interval trigger. APScheduler's own converts times to this time zone, which does not support that."""

    def __init__(self, seconds: float, jitter_seconds: int = 0) -> None:
        self._interval = timedelta(seconds=seconds)
        self._jitter_seconds = jitter_seconds

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        after: datetime = (previous_fire_time or now) + self._interval
        return after + timedelta(seconds=random.uniform(0, self._jitter_seconds))  # noqa: S311


def _once(at: datetime | None = None) -> DateTrigger:
    """Return a trigger for that time; None: at once."""
    return DateTrigger(at, _MONOTONIC)


class Schedule:
    """Timer of the light cycles: at the interval, earlier if a cycle requests it, and after a configuration change."""

    def __init__(self, state: AgentState, config_dir: Path) -> None:
        self._state = state
        self._config_dir = config_dir
        self._config_seen = _fingerprint(config_dir)
        self._scheduled_seconds = 0
        self._scheduler = BackgroundScheduler(
            timezone=_MONOTONIC,
            # One worker each: no two cycles run at once, and no other job delays a cycle.
            executors={name: ThreadPoolExecutor(1) for name in ("light", "beside", "deep")},
            # A late run is not dropped; several late runs become one.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._scheduler.add_listener(self._log_failed, EVENT_JOB_ERROR)
        self._ended = False

    def start(
        self, look: Callable[[], float | None], report: Callable[[], None], deep: Callable[[], float] | None = None
    ) -> None:
        """Start the cycles. `report` runs at the start and with every cycle, in parallel.

        `look` and `deep` return the seconds until their next call. A change of the configuration calls both earlier.
        """
        self._look = look
        self._report = report
        self._deep = deep
        self._plan_deep(0.0)
        self._scheduler.add_job(self._run, _once(), executor="light", id="first")
        self._scheduler.add_job(self._look_at_config, _Every(CONFIG_LOOK_SECONDS), executor="beside", id="config")
        self._scheduler.start()

    def look_soon(self) -> None:
        """Run a cycle as soon as the current one, if any, has ended."""
        self._scheduler.add_job(self._run, _once(), executor="light", id="asked", replace_existing=True)

    def end(self) -> None:
        """Start no more jobs. A cycle that hangs in its child process is not awaited."""
        self._ended = True
        self._scheduler.shutdown(wait=False)

    def _run(self) -> None:
        self._scheduler.add_job(self._report, _once(), executor="beside", id="beside", replace_existing=True)
        again_seconds: float | None = _FAILED_AGAIN_SECONDS
        try:
            again_seconds = self._look()
        finally:
            self._plan_next(again_seconds)

    def _run_deep(self) -> None:
        again_seconds = _DEEP_AGAIN_SECONDS
        try:
            if self._deep is not None:
                again_seconds = self._deep()
        finally:
            self._plan_deep(again_seconds * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311

    def _plan_deep(self, seconds: float) -> None:
        if self._deep is not None and not self._ended:
            at = datetime.now(_MONOTONIC) + timedelta(seconds=seconds)
            self._scheduler.add_job(self._run_deep, _once(at), executor="deep", id="deep", replace_existing=True)

    def _plan_next(self, again_seconds: float | None) -> None:
        seconds = self._state.settings.values.check_interval_seconds
        sooner = again_seconds is not None and again_seconds <= seconds
        if seconds == self._scheduled_seconds and not sooner:
            return
        self._scheduled_seconds = seconds
        # An earlier cycle replaces the next cycle. An additional cycle could run shortly before the next.
        at = {"next_run_time": datetime.now(_MONOTONIC) + timedelta(seconds=again_seconds or 0)} if sooner else {}
        self._scheduler.add_job(
            self._run,
            _Every(seconds, int(seconds * _JITTER)),  # so that a fleet's cycles are not simultaneous
            executor="light",
            id="look",
            replace_existing=True,
            **at,
        )

    def _look_at_config(self) -> None:
        if self._state.is_reset():  # its pause and its result must not wait for an interval
            self.look_soon()
        seen = _fingerprint(self._config_dir)
        if seen is not None and seen != self._config_seen:
            self._config_seen = seen
            log.info("the configuration changed")
            self._scheduler.add_job(self._run, _once(), executor="light", id="changed", replace_existing=True)
            self._plan_deep(CONFIG_LOOK_SECONDS)

    def _log_failed(self, event: JobExecutionEvent) -> None:
        if not self._ended:  # a job that overlaps with the scheduler's end is not a failure
            log.error(
                "a scheduled job failed", job=event.job_id, error=repr(event.exception), traceback=event.traceback
            )


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
