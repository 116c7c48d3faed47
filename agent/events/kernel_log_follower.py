"""Follow the kernel log live: a line is judged on arrival, not at the next cycle."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from pathlib import Path

import structlog
import tenacity
from msgspec.structs import replace

from gpu_healthcheck.agent.events import record_judge
from gpu_healthcheck.agent.events.record_judge import RecordJudge
from gpu_healthcheck.healthcheck.checks import KERNEL_LINES
from gpu_healthcheck.healthcheck.checks.examine import failure
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.kernel_log import KERNEL_FACILITY, KernelLog, Record, RecordBatch, kmsg_path

log = structlog.get_logger()

_REOPEN_SECONDS = 1.0
_PORTION, _MOST_REST_SECONDS = 100, 0.01
"""Pause after each read, so that one read of a flood returns about this many records. A ring of 128 KiB, common in
kernels, holds about 1,500. The first record of a quiet log is read at once."""
_SWITCH_SECONDS = 0.001
"""Switch interval of the interpreter: in Python's default of 5 ms, a flood fills a third of that ring."""
_SAVE_SECONDS = 1.0
"""Quiet time of the log before mere counts are saved."""
_MOST_WAITING = 20_000


class _LogEnded(ProbeError):
    """A regular file in place of the log was read to its end; more may follow."""


class _Inbox:
    """Records that were read and not yet judged, as one batch of bounded size.

    While the batch is full, further records stay in the kernel log.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._records: list[Record] = []
        self._waiting: RecordBatch | None = None
        self._closed = False

    def put(self, batch: RecordBatch) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._records) < _MOST_WAITING)
            self._records += batch.records
            self._waiting = batch if self._waiting is None else _joined(self._waiting, batch)
            self._changed.notify_all()

    def take(self, seconds: float | None) -> RecordBatch | None:
        """Return all waiting records; None if none arrived in this time, or none will."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting is not None, seconds)
            if self._closed or self._waiting is None:
                return None
            batch = replace(self._waiting, records=tuple(self._records))
            self._records, self._waiting = [], None
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Follower:
    """Follower of the kernel log. A log that can't be opened or ends is opened again; no record is judged twice.

    Two threads, because the ring of a flooded log holds a few milliseconds: `kernel-log` only reads; `judge` judges,
    remembers, and waits for the disk.
    """

    def __init__(
        self, root: Path, cursor: int | None, judge: RecordJudge, facilities: frozenset[int] = KERNEL_FACILITY
    ) -> None:
        self._path = kmsg_path(root)
        self._cursor = cursor
        self._judge = judge
        self._facilities = facilities
        self._inbox = _Inbox()
        self._stop_read, self._stop_write = os.pipe()
        self._stopping = threading.Event()
        self._threads = tuple(
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("kernel-log", self._keep_following), ("judge", self._keep_judging))
        )

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._inbox.close()
        os.write(self._stop_write, b"x")

    def _keep_following(self) -> None:
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Exception),
            wait=tenacity.wait_fixed(_REOPEN_SECONDS),
            sleep=tenacity.sleep_using_event(self._stopping),
            stop=tenacity.stop_when_event_set(self._stopping),
            before_sleep=self._log_failure,
            retry_error_callback=lambda _: None,
        )
        again(self._follow)

    def _follow(self) -> None:
        with KernelLog(self._path, self._facilities, self._cursor, (*KERNEL_LINES, *record_judge.BEGINS)) as kernel_log:
            poll = select.poll()
            poll.register(kernel_log.fileno(), select.POLLIN)
            poll.register(self._stop_read, select.POLLIN)
            read_at = time.monotonic()
            while not self._stopping.is_set():
                batch, earlier_read = kernel_log.read(), read_at
                read_at = time.monotonic()
                self._cursor = batch.cursor
                self._inbox.put(batch)
                if batch.ended:
                    raise _LogEnded(f"{self._path}: it ended")
                if not batch.more:
                    seconds_a_record = (read_at - earlier_read) / max(batch.accepted + batch.refused, 1)
                    self._stopping.wait(min(_PORTION * seconds_a_record, _MOST_REST_SECONDS))
                    if not poll.poll(0):
                        poll.poll()
                        read_at = time.monotonic()  # a quiet past does not predict the rate now

    def _keep_judging(self) -> None:
        while not self._stopping.is_set():
            self._judge.take(self._inbox.take(_SAVE_SECONDS if self._judge.has_more_to_do else None))

    def _log_failure(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        why = failure(error) if isinstance(error, Exception) and not isinstance(error, ProbeError) else str(error)
        if state.attempt_number == 1:
            log.warning("the kernel log can't be followed", error=why)
        if not isinstance(error, _LogEnded):
            self._judge.log_unreadable(why)


def _joined(first: RecordBatch, then: RecordBatch) -> RecordBatch:
    """Return both batches as one, without records."""
    return RecordBatch(
        (),
        first.accepted + then.accepted,
        first.lost + then.lost,
        first.unreadable + then.unreadable,
        first.refused + then.refused,
        more=then.more,
        cursor=then.cursor,
    )
