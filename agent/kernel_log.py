"""The kernel log, followed live: a line is judged as it comes, not at the next cycle."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import structlog
import tenacity

from agent.deep_processes import DeepProcesses
from agent.ledger import Ledger
from agent.reporter import Reporter
from agent.state import State
from healthcheck.checks import KERNEL_LINES
from healthcheck.checks.examine import CHECK_FAILED, RECORD_SET_ASIDE, failure, judge
from healthcheck.model import Evidence, Outcome, ProbeError, Unobserved
from healthcheck.probes.kernel_log import KERNEL_FACILITY, RING, UNREADABLE, Batch, KernelLog, Record, kmsg_path
from healthcheck.telemetry import Telemetry
from healthcheck.text.printable import printable

log = structlog.get_logger()

_REOPEN_SECONDS = 1.0
_PORTION, _MOST_REST_SECONDS = 100, 0.01
"""After each reading it rests, so that a flood comes in portions of about so many records: a ring of 128 KiB, which
many kernels have, holds some 1,500. The first record of a quiet log waits for nothing."""
_SWITCH_SECONDS = 0.001
"""How long a busy thread may keep the interpreter while another waits; Python's own 5 ms are a third of that ring."""
_SAVE_SECONDS = 1.0
"""So long a log has to be quiet before what it only counted is written down."""
_OVERRUN_AGAIN_SECONDS = 60.0
"""A log that is overrun again and again says so, with a count, no more often than this."""
_MOST_WAITING = 20_000
_BLIND_SECONDS = 3600.0
_LONGEST_LINE = 300


class _LogEnded(ProbeError):
    """A file in the log's place was read to its end; more may come."""


class _Inbox:
    """What was read and waits to be judged, as one batch. Bounded: when it is full, the log itself has to hold it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._records: list[Record] = []
        self._waiting: Batch | None = None
        self._closed = False

    def put(self, batch: Batch) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._records) < _MOST_WAITING)
            self._records += batch.records
            self._waiting = batch if self._waiting is None else _joined(self._waiting, batch)
            self._changed.notify_all()

    def take(self, seconds: float | None) -> Batch | None:
        """All that waits; None when nothing came in this time, or nothing will any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting is not None, seconds)
            if self._closed or self._waiting is None:
                return None
            taken = replace(self._waiting, records=tuple(self._records))
            self._records, self._waiting = [], None
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Follower:
    """Follows until it is ended. A log that can't be opened or ends is opened again, and nothing is judged twice.

    Two threads, because the ring of a flooded log holds a few milliseconds: `kernel-log` only reads; `judge` judges,
    remembers, and waits for the disk.
    """

    def __init__(
        self,
        root: Path,
        state: State,
        ledger: Ledger,
        reporter: Reporter,
        processes: DeepProcesses,
        telemetry: Telemetry,
        facilities: frozenset[int] = KERNEL_FACILITY,
    ) -> None:
        self._path = kmsg_path(root)
        self._state = state
        self._ledger = ledger
        self._reporter = reporter
        self._processes = processes
        self._telemetry = telemetry
        self._unreadable_reported = False
        self._lost_unreported = 0
        self._lost_reported_at = -_OVERRUN_AGAIN_SECONDS
        self._facilities = facilities
        self._set_aside: dict[str, tuple[Unobserved, float]] = {}
        """By check: which record it could not judge, and how long that makes it blind."""
        self._cursor = state.memory.cursor
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
            retry=tenacity.retry_if_exception_type(ProbeError),
            wait=tenacity.wait_fixed(_REOPEN_SECONDS),
            sleep=tenacity.sleep_using_event(self._stopping),
            stop=tenacity.stop_when_event_set(self._stopping),
            before_sleep=self._blind,
            retry_error_callback=lambda _: None,
        )
        again(self._follow)

    def _follow(self) -> None:
        with KernelLog(self._path, self._facilities, self._cursor, KERNEL_LINES) as kernel_log:
            poll = select.poll()
            poll.register(kernel_log.fileno(), select.POLLIN)
            poll.register(self._stop_read, select.POLLIN)
            read_at = time.monotonic()
            while not self._stopping.is_set():
                batch, before = kernel_log.read(), read_at
                read_at = time.monotonic()
                self._cursor = batch.cursor
                self._inbox.put(batch)
                if batch.ended:
                    raise _LogEnded(f"{self._path}: it ended")
                if not batch.more:
                    seconds_a_record = (read_at - before) / max(batch.taken + batch.refused, 1)
                    self._stopping.wait(min(_PORTION * seconds_a_record, _MOST_REST_SECONDS))
                    if not poll.poll(0):
                        poll.poll()
                        read_at = time.monotonic()  # that it was quiet says nothing of how fast it comes now

    def _keep_judging(self) -> None:
        while not self._stopping.is_set():
            batch = self._inbox.take(_SAVE_SECONDS if self._ledger.unsaved or self._lost_unreported else None)
            if batch is not None:
                self._judge(batch)
                if not batch.more:
                    self._ledger.log_was_read()
            else:
                self._ledger.save()
            self._report_lost()

    def _judge(self, batch: Batch) -> None:
        telemetry = self._telemetry
        telemetry.records.inc(batch.taken)
        telemetry.refused.inc(batch.refused)
        telemetry.unreadable.inc(batch.unreadable)
        telemetry.lost.inc(batch.lost)
        self._lost_unreported += batch.lost
        if batch.unreadable and not self._unreadable_reported:
            self._unreadable_reported = True
            log.warning("lines of the kernel log are no records", unreadable=batch.unreadable)
            words = f"{batch.unreadable} lines of the kernel log are no records, or cut short"
            self._reporter.warn("KernelLogUnreadable", words)
        self._processes.look_for(batch.records)
        outcomes = judge(self._state.known.event_checks, Evidence({RING: batch.records}), self._state.expectation())
        if not any(map(_failure, outcomes)):
            try:
                self._remember(outcomes, batch.cursor)
            except Exception as error:  # noqa: BLE001 - which record it was is found out by taking each by itself
                log.debug("a batch can't be taken whole", failure=failure(error))
            else:
                return
        self._judge_each(batch)

    def _judge_each(self, batch: Batch) -> None:
        """One after the other: a record that nobody can judge or remember is set aside, and the others are not."""
        self._processes.look_for(batch.records)
        checks, expected = self._state.known.event_checks, self._state.expectation()
        for record in batch.records:
            outcomes = judge(checks, Evidence({RING: (record,)}), expected)
            for outcome in outcomes:
                if why := _failure(outcome):
                    self._put_aside(record, outcome.check, why)
            try:
                self._remember(outcomes, record.seq)
            except Exception as error:  # noqa: BLE001 - the boundary of the records: one must not end the watch
                for outcome in outcomes:
                    if outcome.sightings:
                        self._put_aside(record, outcome.check, failure(error))
        self._remember([Outcome(check.name, check.group) for check in checks], batch.cursor)

    def _put_aside(self, record: Record, check: str, why: str) -> None:
        cause = Unobserved(RECORD_SET_ASIDE, f"record {record.seq} is set aside: {why}")
        self._set_aside[check] = (cause, time.monotonic() + _BLIND_SECONDS)
        self._telemetry.set_aside.labels("kernel-log-record").inc()
        text = printable(record.text, _LONGEST_LINE)
        log.error("a kernel log record is set aside", check=check, seq=record.seq, text=text, failure=why)
        self._reporter.warn("KernelLogRecordSetAside", f"{cause.detail}; it says: {text}")

    def _remember(self, outcomes: Iterable[Outcome], cursor: int | None) -> None:
        outcomes = [self._with_set_aside(outcome) for outcome in outcomes]
        for one in self._ledger.kernel_log_judged(outcomes, cursor):
            found = one.finding
            log.info(
                "found", reason=found.reason, severity=found.severity.name, subject=found.subject, detail=found.detail
            )
        for outcome in outcomes:
            for sighting in outcome.sightings:
                self._telemetry.count(sighting)

    def _with_set_aside(self, outcome: Outcome) -> Outcome:
        """A check whose record was set aside stays blind for a while: what comes next does not tell what it said."""
        cause, until = self._set_aside.get(outcome.check, (None, 0.0))
        if cause is None or time.monotonic() >= until:
            return outcome
        return replace(outcome, unobserved=(*outcome.unobserved, cause))

    def _report_lost(self) -> None:
        lost, now = self._lost_unreported, time.monotonic()
        if not lost or now - self._lost_reported_at < _OVERRUN_AGAIN_SECONDS:
            return
        self._lost_unreported, self._lost_reported_at = 0, now
        log.warning("kernel log records were overwritten before they were read", lost=lost)
        self._reporter.warn("KernelLogOverrun", f"{lost} kernel log records were overwritten before they were read")

    def _blind(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("the kernel log can't be followed", error=str(error))
        if not isinstance(error, _LogEnded):
            for check in self._state.known.event_checks:
                self._ledger.blind(check, Unobserved(UNREADABLE, str(error)))


def _failure(outcome: Outcome) -> str:
    """What its judge failed of; '' where it did not."""
    return next((one.detail for one in outcome.unobserved if one.cause == CHECK_FAILED), "")


def _joined(first: Batch, then: Batch) -> Batch:
    """One after the other; the inbox keeps the records by itself."""
    return Batch(
        (),
        first.taken + then.taken,
        first.lost + then.lost,
        first.unreadable + then.unreadable,
        first.refused + then.refused,
        more=then.more,
        cursor=then.cursor,
    )
