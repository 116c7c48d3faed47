"""The kernel log, followed live: a line is judged as it comes, not at the next cycle."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

import structlog
import tenacity

from agent.ledger import Ledger
from healthcheck.examine import judge
from healthcheck.expectation import Expectation
from healthcheck.model import Check, Evidence, ProbeError, Unobserved
from healthcheck.probes.kernel_log import KERNEL_FACILITY, RING, Batch, KernelLog, kmsg_path
from healthcheck.telemetry import Telemetry

log = structlog.get_logger()

_REOPEN_SECONDS = 1.0


class _LogEnded(ProbeError):
    """A file in the log's place was read to its end; more may come."""


class Follower(threading.Thread):
    """Reads until stopped. A log that can't be opened or ends is opened again, and nothing is judged twice."""

    def __init__(
        self,
        root: Path,
        ledger: Ledger,
        telemetry: Telemetry,
        checks: Callable[[], tuple[Check, ...]],
        expect: Callable[[], Expectation],
        say: Callable[[str, str], None],
        facilities: frozenset[int] = KERNEL_FACILITY,
    ) -> None:
        super().__init__(name="follow", daemon=True)
        self._path = kmsg_path(root)
        self._ledger = ledger
        self._telemetry = telemetry
        self._checks = checks
        self._expect = expect
        self._say = say
        self._said_unreadable = False
        self._facilities = facilities
        self._stop_read, self._stop_write = os.pipe()
        self._stopping = threading.Event()

    def run(self) -> None:
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ProbeError),
            wait=tenacity.wait_fixed(_REOPEN_SECONDS),
            sleep=tenacity.sleep_using_event(self._stopping),
            stop=tenacity.stop_when_event_set(self._stopping),
            before_sleep=self._say_blind,
            retry_error_callback=lambda _: None,
        )
        again(self._follow)

    def end(self) -> None:
        self._stopping.set()
        os.write(self._stop_write, b"x")

    def _follow(self) -> None:
        with KernelLog(self._path, self._facilities, after=self._ledger.memory.cursor) as kernel_log:
            poll = select.poll()
            poll.register(kernel_log.fileno(), select.POLLIN)
            poll.register(self._stop_read, select.POLLIN)
            while not self._stopping.is_set():
                batch = kernel_log.read()
                self._judge(batch)
                if batch.ended:
                    raise _LogEnded(f"{self._path}: it ended")
                if not batch.more:
                    poll.poll()

    def _judge(self, batch: Batch) -> None:
        telemetry = self._telemetry
        telemetry.records.inc(len(batch.records))
        telemetry.refused.inc(batch.refused)
        telemetry.unreadable.inc(batch.unreadable)
        if batch.lost:
            telemetry.lost.inc(batch.lost)
            log.warning("kernel log records were overwritten before they were read", lost=batch.lost)
            self._say("KernelLogOverrun", f"{batch.lost} kernel log records were overwritten before they were read")
        if batch.unreadable and not self._said_unreadable:
            self._said_unreadable = True
            log.warning("lines of the kernel log are no records", unreadable=batch.unreadable)
            self._say("KernelLogUnreadable", f"{batch.unreadable} lines of the kernel log are no records, or cut short")
        outcomes = judge(self._checks(), Evidence({RING: batch.records}), self._expect())
        for one in self._ledger.noticed(outcomes, batch.cursor):
            told = one.finding
            log.info("found", reason=told.reason, severity=told.severity.name, subject=told.subject, detail=told.detail)
        for outcome in outcomes:
            for sighting in outcome.sightings:
                telemetry.count(sighting)

    def _say_blind(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("the kernel log can't be followed", error=str(error))
        if not isinstance(error, _LogEnded):
            for check in self._checks():
                self._ledger.blind(check, Unobserved("KernelLogUnreadable", str(error)))
