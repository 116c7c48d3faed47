"""Turn records of the kernel log into findings, as one batch, or one by one if the batch fails.

After a line about the PCI function of a GPU, or about a port above it, check cycles follow at once. Such a line is no
finding: a GPU can recover. But the driver does not report each lost GPU with an Xid.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog
from msgspec.structs import replace

from gpu_healthcheck.agent.deep.level_2 import DeepProcesses
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks import driver_messages
from gpu_healthcheck.healthcheck.checks.driver import being_changed
from gpu_healthcheck.healthcheck.checks.examine import CHECK_FAILED, RECORD_SET_ASIDE, failure, judge
from gpu_healthcheck.healthcheck.checks.xid import named_pid
from gpu_healthcheck.healthcheck.memory.kernel_events import maybe_reused
from gpu_healthcheck.healthcheck.model import Evidence, Outcome, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, UNREADABLE, Record, RecordBatch, is_packet_filters
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from gpu_healthcheck.healthcheck.text.printable import printable

log = structlog.get_logger()

BEGINS = ("pcieport ", "pciehp ", "nvidia ", "pci ")
"""Drivers of a port and of a GPU in the kernel's prefix; `pci` for a function without a driver."""
WATCH_SECONDS = 30.0
"""Time of the three repeats after the last line. It also bounds a flood: cycles of a watch are 10 s apart."""
_LONGEST_LOGGED_LINE = 200

# Linux, drivers/pci: hotplug/pciehp_ctrl.c and pciehp_hpc.c (before 4.19 the prefix has the port's service, `:pcie004`,
# and before 4.11 the slot is last), pcie/aer.c (from 6.4 on "Uncorrectable"; `aer_uncor_severity` if the firmware reads
# the errors), pcie/dpc.c, and pci.c (pci_power_up, pci_set_low_power_state, pci_dev_wait).
_LINE = re.compile(
    r"(?:pcieport|pciehp|nvidia|pci) (?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?::pcie\d{2,3})?: "
    r"(?:(?:pciehp: )?[Ss]lot\(\S{1,64}\): (?:Link Down|Card not present|Power fault)|Card not present on Slot"
    r"|AER: (?:Multiple )?Uncorrect(?:ed|able) \(|(?:AER: )?PCIe Bus Error: severity=Uncorrect"
    r"|(?:AER: )?aer_uncor_severity: |AER: (?:device recovery failed|subordinate device reset failed|can't recover)"
    r"|AER: \w{4,10} Port link has been reset|DPC: (?:containment event|unmasked uncorrectable error)"
    r"|(?:Unable to|can't|[Rr]efused to) change power state|(?:not )?ready \d{1,7}ms after )"
)


class GpuWatch:
    """Watch of the GPUs' PCI functions. Only the thread `judge` calls it."""

    def __init__(self, state: AgentState, start_cycle_soon: Callable[[], None]) -> None:
        self._state = state
        self._start_cycle_soon = start_cycle_soon

    def read(self, records: Iterable[Record]) -> None:
        """Start a check cycle if a record concerns a GPU. If repeats follow already, only prolong their time.

        A change of the driver or a reset causes such lines itself.
        """
        named = [(found["address"], record) for record in records if (found := _LINE.match(record.text))]
        if not named or self._is_being_changed():
            return
        watched = self._addresses()
        record = next(
            (candidate for address, candidate in named if address in watched and not is_packet_filters(candidate.text)),
            None,
        )
        if record is None or not self._state.watch_gpus(WATCH_SECONDS):
            return
        log.info("the kernel reports a GPU's PCI function", text=printable(record.text, _LONGEST_LOGGED_LINE))
        if not self._state.memory.suspects:  # their next repeat is due within 10 s, and no earlier
            self._start_cycle_soon()

    def _is_being_changed(self) -> bool:
        node = self._state.node
        return self._state.is_reset() or (node is not None and being_changed(node.labels) != "")

    def _addresses(self) -> set[str]:
        """Return the addresses of the GPUs and of the ports above them, by the last check cycle."""
        last = self._state.last_evidence
        functions = last[FUNCTIONS] if last is not None and last.unread(FUNCTIONS) is None else ()
        return {
            address
            for function in functions
            if function.is_gpu_here
            for address in (function.address, *function.bridges)
        }


_OVERRUN_AGAIN_SECONDS = 60.0
"""Shortest interval between reports of lost records."""
_UNOBSERVED_SECONDS = 3600.0
"""Time for which a check is unobserved after a record that it could not judge."""
_LONGEST_LINE = 300


class RecordJudge:
    """Judge of kernel log records. The thread `judge` makes all calls except `log_unreadable`."""

    def __init__(
        self,
        root: Path,
        state: AgentState,
        ledger: Ledger,
        reporter: Reporter,
        processes: DeepProcesses,
        telemetry: Telemetry,
        gpu_watch: GpuWatch,
    ) -> None:
        self._root = root
        self._state = state
        self._ledger = ledger
        self._reporter = reporter
        self._processes = processes
        self._telemetry = telemetry
        self._gpu_watch = gpu_watch
        self._unreadable_reported = False
        self._lost_unreported = 0
        self._lost_reported_at = -_OVERRUN_AGAIN_SECONDS
        self._set_aside: dict[str, tuple[Unobserved, float]] = {}
        """Cause and end of the unobserved time, by check."""

    @property
    def has_more_to_do(self) -> bool:
        """Whether counts or reports wait for a quiet log."""
        return self._ledger.unsaved or self._lost_unreported > 0

    def take(self, batch: RecordBatch | None) -> None:
        """Judge and store the batch; at the end of the log, also record that position.

        None: the log is quiet; save and report what waited for that. No error ends the loop that calls this.
        """
        try:
            if batch is None:
                self._ledger.save()
            else:
                self._count(batch)
                self._judge(batch.records, batch.cursor)
                self._gpu_watch.read(batch.records)
                if not batch.more:
                    self._ledger.log_was_read()
        except Exception as error:  # noqa: BLE001 - boundary of this loop
            self._reporter.report_defect("judge", error)
        self._report_lost()

    def log_unreadable(self, why: str) -> None:
        """Record that the log can't be read."""
        for check in self._state.known.event_checks:
            self._ledger.mark_unobserved(check, Unobserved(UNREADABLE, why))

    def _count(self, batch: RecordBatch) -> None:
        telemetry = self._telemetry
        telemetry.records.inc(batch.accepted)
        telemetry.refused.inc(batch.refused)
        telemetry.unreadable.inc(batch.unreadable)
        telemetry.lost.inc(batch.lost)
        self._lost_unreported += batch.lost
        if batch.unreadable and not self._unreadable_reported:
            self._unreadable_reported = True
            log.warning("lines of the kernel log are malformed", unreadable=batch.unreadable)
            words = f"{batch.unreadable} lines of the kernel log are malformed or truncated"
            self._reporter.warn("KernelLogUnreadable", words)

    def _judge(self, records: Sequence[Record], cursor: int | None) -> None:
        """Judge and store the records as one batch, or one by one if that fails: only the failing record is set aside.

        This is the boundary of the kernel log: a record that fails a check or the memory ends nothing.
        """
        self._processes.read_for(records)
        checks, expected = self._state.known.event_checks, self._state.expectation()
        if ages := self._ages(records):
            expected = replace(expected, ages=ages)
        outcomes = judge(checks, Evidence({RING: tuple(records)}), expected)
        failures = {outcome.check: why for outcome in outcomes if (why := _failure(outcome))}
        if failures and len(records) > 1:
            self._judge_each(records, cursor)
            return
        for record in records:
            for check, why in failures.items():
                self._put_aside(record, check, why)
        if not failures:
            self._put_unread_aside(records, outcomes)
        try:
            self._remember(outcomes, cursor)
        except Exception as error:
            if not records:
                raise
            if len(records) > 1:
                self._judge_each(records, cursor)
                return
            for outcome in outcomes:
                if outcome.events:
                    self._put_aside(records[0], outcome.check, failure(error))
            self._judge((), cursor)

    def _ages(self, records: Sequence[Record]) -> dict[str, float]:
        """Return the ages of the processes that the records name, by pid, if earlier records name the pid too.

        A process that is younger than its first record is another one, which got the pid later.
        """
        named: dict[str, float] = {}
        for record in records:
            if pid := named_pid(record):
                named.setdefault(pid, record.at)
        reused = maybe_reused(self._state.memory, named, records[-1].at) if named else ()
        try:
            ages = processes.ages(self._root, reused) if reused else {}
        except (OSError, ProbeError):
            return {}
        now = self._state.now().monotonic
        return {pid: age for pid, age in ages.items() if age >= now - named[pid]}

    def _judge_each(self, records: Sequence[Record], cursor: int | None) -> None:
        for record in records:
            self._judge((record,), record.seq)
        self._judge((), cursor)

    def _put_unread_aside(self, records: Iterable[Record], outcomes: Iterable[Outcome]) -> None:
        """Set a record in an unknown format aside: a newer driver may report a fault in another form."""
        faults, errors = driver_messages.unread(records, outcomes)
        if faults:
            why = "it mentions an Xid or a GPU off the bus, in an unknown format"
            self._put_aside(faults[0], driver_messages.CHECK.name, why)
        self._telemetry.unread_driver_lines.inc(len(errors))

    def _put_aside(self, record: Record, check: str, why: str) -> None:
        cause = Unobserved(RECORD_SET_ASIDE, f"record {record.seq} is skipped: {why}")
        self._set_aside[check] = (cause, time.monotonic() + _UNOBSERVED_SECONDS)
        self._telemetry.set_aside.labels("kernel-log-record").inc()
        text = printable(record.text, _LONGEST_LINE)
        log.error("a kernel log record is skipped", check=check, seq=record.seq, text=text, failure=why)
        self._reporter.warn("KernelLogRecordSetAside", f"{cause.detail}; its text: {text}")

    def _remember(self, outcomes: Iterable[Outcome], cursor: int | None) -> None:
        outcomes = [self._with_set_aside(outcome) for outcome in outcomes]
        self._ledger.kernel_log_judged(outcomes, cursor)
        gpus = self._state.memory.gpus
        for outcome in outcomes:
            for event in outcome.events:
                self._telemetry.count(event, gpus)

    def _with_set_aside(self, outcome: Outcome) -> Outcome:
        """Keep a check unobserved for a while after its record was set aside: later records do not replace it."""
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


def _failure(outcome: Outcome) -> str:
    """Return the error of the check's judge; '' without one."""
    return next((unobserved.detail for unobserved in outcome.unobserved if unobserved.cause == CHECK_FAILED), "")
