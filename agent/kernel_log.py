"""The kernel log, followed live: a line is judged as it comes, not at the next cycle."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog
import tenacity

from agent.ledger import Ledger
from healthcheck.checks import KERNEL_LINES
from healthcheck.checks.examine import CHECK_FAILED, RECORD_SET_ASIDE, failure, judge
from healthcheck.checks.expectation import Expectation
from healthcheck.model import Check, Evidence, Outcome, ProbeError, Unobserved
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
_ASIDE_STANDS_SECONDS = 3600.0
_LONGEST_ASIDE = 300


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

    Two threads, because the ring of a flooded log holds a few milliseconds: `follow` only reads; `judge` judges,
    remembers, and waits for the disk.
    """

    def __init__(
        self,
        root: Path,
        ledger: Ledger,
        telemetry: Telemetry,
        checks: Callable[[], tuple[Check, ...]],
        expect: Callable[[Sequence[Record]], Expectation],
        say: Callable[[str, str], None],
        facilities: frozenset[int] = KERNEL_FACILITY,
    ) -> None:
        self._path = kmsg_path(root)
        self._ledger = ledger
        self._telemetry = telemetry
        self._checks = checks
        self._expect = expect
        self._say = say
        self._said_unreadable = False
        self._lost_unsaid = 0
        self._said_lost_at = -_OVERRUN_AGAIN_SECONDS
        self._facilities = facilities
        self._aside: dict[str, tuple[Unobserved, float]] = {}
        """By check: which record it could not judge, and how long that makes it blind."""
        self._cursor = ledger.memory.cursor
        self._inbox = _Inbox()
        self._stop_read, self._stop_write = os.pipe()
        self._stopping = threading.Event()
        self._threads = tuple(
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("follow", self._keep_following), ("judge", self._keep_judging))
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
            before_sleep=self._say_blind,
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
            batch = self._inbox.take(_SAVE_SECONDS if self._ledger.unsaved or self._lost_unsaid else None)
            if batch is not None:
                self._judge(batch)
                if not batch.more:
                    self._ledger.log_was_read()
            else:
                self._ledger.save()
            self._say_lost()

    def _judge(self, batch: Batch) -> None:
        telemetry = self._telemetry
        telemetry.records.inc(batch.taken)
        telemetry.refused.inc(batch.refused)
        telemetry.unreadable.inc(batch.unreadable)
        telemetry.lost.inc(batch.lost)
        self._lost_unsaid += batch.lost
        if batch.unreadable and not self._said_unreadable:
            self._said_unreadable = True
            log.warning("lines of the kernel log are no records", unreadable=batch.unreadable)
            self._say("KernelLogUnreadable", f"{batch.unreadable} lines of the kernel log are no records, or cut short")
        outcomes = judge(self._checks(), Evidence({RING: batch.records}), self._expect(batch.records))
        if not any(map(_failure, outcomes)):
            try:
                self._note(outcomes, batch.cursor)
            except Exception as error:  # noqa: BLE001 - which record it was is found out by taking each by itself
                log.debug("a batch can't be taken whole", failure=failure(error))
            else:
                return
        self._judge_each(batch)

    def _judge_each(self, batch: Batch) -> None:
        """One after the other: a record that nobody can judge or remember is set aside, and the others are not."""
        checks, expected = self._checks(), self._expect(batch.records)
        for record in batch.records:
            outcomes = judge(checks, Evidence({RING: (record,)}), expected)
            for outcome in outcomes:
                if said := _failure(outcome):
                    self._set_aside(record, outcome.check, said)
            try:
                self._note(outcomes, record.seq)
            except Exception as error:  # noqa: BLE001 - the boundary of the records: one must not end the watch
                for outcome in outcomes:
                    if outcome.sightings:
                        self._set_aside(record, outcome.check, failure(error))
        self._note([Outcome(check.name, check.group) for check in checks], batch.cursor)

    def _set_aside(self, record: Record, check: str, why: str) -> None:
        said = Unobserved(RECORD_SET_ASIDE, f"record {record.seq} is set aside: {why}")
        self._aside[check] = (said, time.monotonic() + _ASIDE_STANDS_SECONDS)
        self._telemetry.set_aside.labels("kernel-log-record").inc()
        text = printable(record.text, _LONGEST_ASIDE)
        log.error("a kernel log record is set aside", check=check, seq=record.seq, text=text, failure=why)
        self._say("KernelLogRecordSetAside", f"{said.detail}; it says: {text}")

    def _note(self, outcomes: Iterable[Outcome], cursor: int | None) -> None:
        outcomes = [self._with_set_aside(outcome) for outcome in outcomes]
        for one in self._ledger.kernel_log_judged(outcomes, cursor):
            told = one.finding
            log.info("found", reason=told.reason, severity=told.severity.name, subject=told.subject, detail=told.detail)
        for outcome in outcomes:
            for sighting in outcome.sightings:
                self._telemetry.count(sighting)

    def _with_set_aside(self, outcome: Outcome) -> Outcome:
        """A check whose record was set aside stays blind for a while: what comes next does not tell what it said."""
        said, until = self._aside.get(outcome.check, (None, 0.0))
        if said is None or time.monotonic() >= until:
            return outcome
        return replace(outcome, unobserved=(*outcome.unobserved, said))

    def _say_lost(self) -> None:
        lost, now = self._lost_unsaid, time.monotonic()
        if not lost or now - self._said_lost_at < _OVERRUN_AGAIN_SECONDS:
            return
        self._lost_unsaid, self._said_lost_at = 0, now
        log.warning("kernel log records were overwritten before they were read", lost=lost)
        self._say("KernelLogOverrun", f"{lost} kernel log records were overwritten before they were read")

    def _say_blind(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("the kernel log can't be followed", error=str(error))
        if not isinstance(error, _LogEnded):
            for check in self._checks():
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
