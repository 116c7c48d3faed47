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
"""How soon an edited ConfigMap is seen once the kubelet has brought it to the node."""
_JITTER = 0.1
_FAILED_AGAIN_SECONDS = 10.0
"""After a light look that failed by a fault of ours: without a look there is no verdict, and the agent is not ready."""
_DEEP_AGAIN_SECONDS = 600.0
"""After a deep look that failed by a fault of ours."""


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
    """APScheduler's own interval takes its times into the zone anew, which is none for that."""

    def __init__(self, seconds: float, jitter_seconds: int = 0) -> None:
        self._interval = timedelta(seconds=seconds)
        self._jitter_seconds = jitter_seconds

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        after: datetime = (previous_fire_time or now) + self._interval
        return after + timedelta(seconds=random.uniform(0, self._jitter_seconds))  # noqa: S311


def _once(at: datetime | None = None) -> DateTrigger:
    """At that time; None: at once."""
    return DateTrigger(at, _MONOTONIC)


class Schedule:
    """The light look at its interval, sooner when it asks to, and whenever the configuration changed."""

    def __init__(self, state: AgentState, config_dir: Path) -> None:
        self._state = state
        self._config_dir = config_dir
        self._config_seen = _fingerprint(config_dir)
        self._scheduled_seconds = 0
        self._scheduler = BackgroundScheduler(
            timezone=_MONOTONIC,
            # One worker each: no two cycles run at once, and no other job delays one.
            executors={name: ThreadPoolExecutor(1) for name in ("light", "beside", "deep")},
            # A late look is run, not dropped; several late ones are one.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._scheduler.add_listener(self._log_failed, EVENT_JOB_ERROR)
        self._ended = False

    def start(
        self, look: Callable[[], float | None], report: Callable[[], None], deep: Callable[[], float] | None = None
    ) -> None:
        """Look now and from then on; `beside` runs once, and again with every look, which does not wait for it.

        `look` and `deep` return in how many seconds they want to come again. A change of the configuration wakes both
        sooner.
        """
        self._look = look
        self._report = report
        self._deep = deep
        self._plan_deep(0.0)
        self._scheduler.add_job(self._run, _once(), executor="light", id="first")
        self._scheduler.add_job(self._look_at_config, _Every(CONFIG_LOOK_SECONDS), executor="beside", id="config")
        self._scheduler.start()

    def look_soon(self) -> None:
        """Look as soon as the look that goes on, if any, has ended."""
        self._scheduler.add_job(self._run, _once(), executor="light", id="asked", replace_existing=True)

    def end(self) -> None:
        """Start nothing any more. A look that hangs in its child is not waited for."""
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
        # An earlier cycle replaces the next one. As an additional one, it could come close to the next.
        at = {"next_run_time": datetime.now(_MONOTONIC) + timedelta(seconds=again_seconds or 0)} if sooner else {}
        self._scheduler.add_job(
            self._run,
            _Every(seconds, int(seconds * _JITTER)),  # so that a fleet does not beat in step
            executor="light",
            id="look",
            replace_existing=True,
            **at,
        )

    def _look_at_config(self) -> None:
        seen = _fingerprint(self._config_dir)
        if seen is not None and seen != self._config_seen:
            self._config_seen = seen
            log.info("the configuration changed")
            self._scheduler.add_job(self._run, _once(), executor="light", id="changed", replace_existing=True)
            self._plan_deep(CONFIG_LOOK_SECONDS)

    def _log_failed(self, event: JobExecutionEvent) -> None:
        if not self._ended:  # a job that meets the end of the scheduler has failed at nothing
            log.error(
                "a scheduled job failed", job=event.job_id, error=repr(event.exception), traceback=event.traceback
            )


def _fingerprint(directory: Path) -> tuple[object, ...] | None:
    """Changes when the kubelet swaps the ConfigMap's `..data` link, or a file of a plain directory is written.

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
