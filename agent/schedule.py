"""When things happen: the one place that knows APScheduler."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

log = structlog.get_logger()

CONFIG_LOOK_SECONDS = 10
"""How soon an edited ConfigMap is seen once the kubelet has brought it to the node."""
_JITTER = 0.1


class Schedule:
    """The light look at its interval, sooner when it asks to, and whenever the configuration changed."""

    def __init__(self, look: Callable[[], float | None], interval_seconds: Callable[[], int], config_dir: Path) -> None:
        self._look = look
        self._interval_seconds = interval_seconds
        self._config_dir = config_dir
        self._config_seen = _fingerprint(config_dir)
        self._scheduled_seconds = 0
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            # One worker each: no two looks at once, and what else there is never delays one.
            executors={"light": ThreadPoolExecutor(1), "aside": ThreadPoolExecutor(1)},
            # A late look is run, not dropped; several late ones are one.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._scheduler.add_listener(self._say_failed, EVENT_JOB_ERROR)
        self._ended = False

    def start(self, aside: Callable[[], None]) -> None:
        """Look now and from then on; `aside` runs once, and again beside every look."""
        self._aside = aside
        self._scheduler.add_job(self._run, "date", executor="light", id="first")
        self._scheduler.add_job(
            self._look_at_config, "interval", seconds=CONFIG_LOOK_SECONDS, executor="aside", id="config"
        )
        self._scheduler.start()

    def end(self) -> None:
        """Start nothing any more. A look that hangs in its child is not waited for."""
        self._ended = True
        self._scheduler.shutdown(wait=False)

    def _run(self) -> None:
        self._scheduler.add_job(self._aside, "date", executor="aside", id="aside", replace_existing=True)
        again_seconds = None
        try:
            again_seconds = self._look()
        finally:
            self._plan_next(again_seconds)

    def _plan_next(self, again_seconds: float | None) -> None:
        seconds = self._interval_seconds()
        sooner = again_seconds is not None and again_seconds <= seconds
        if seconds == self._scheduled_seconds and not sooner:
            return
        self._scheduled_seconds = seconds
        # A sooner look takes the place of the next one: beside it, two looks could come close together.
        at = {"next_run_time": datetime.now(UTC) + timedelta(seconds=again_seconds or 0)} if sooner else {}
        self._scheduler.add_job(
            self._run,
            "interval",
            seconds=seconds,
            jitter=int(seconds * _JITTER),  # so that a fleet does not beat in step
            executor="light",
            id="look",
            replace_existing=True,
            **at,
        )

    def _look_at_config(self) -> None:
        seen = _fingerprint(self._config_dir)
        if seen != self._config_seen:
            self._config_seen = seen
            log.info("the configuration changed")
            self._scheduler.add_job(self._run, "date", executor="light", id="changed", replace_existing=True)

    def _say_failed(self, event: JobExecutionEvent) -> None:
        if not self._ended:  # a job that meets the end of the scheduler has failed at nothing
            log.error(
                "a scheduled job failed", job=event.job_id, error=repr(event.exception), traceback=event.traceback
            )


def _fingerprint(directory: Path) -> tuple[object, ...]:
    """Changes when the kubelet swaps the ConfigMap's `..data` link, or a file of a plain directory is written."""
    try:
        return tuple(
            (entry.name, entry.stat().st_mtime_ns, entry.stat().st_ino) for entry in sorted(directory.iterdir())
        )
    except OSError:
        return ()
