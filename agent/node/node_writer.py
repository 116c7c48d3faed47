"""Write the newest verdict to the Node, with retries.

Before, the memory gets what only the Node has: our lost record, a person's release, results of deep runs.
"""

from __future__ import annotations

import random
import threading
import time

import structlog
import tenacity
from msgspec.structs import replace

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.node.node_update import NodeUpdate
from gpu_healthcheck.agent.node.pod_reporter import PodReporter
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.state.agent_state import AgentState, Judgement
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
    Unreadable,
)
from gpu_healthcheck.healthcheck.deep.deep_record import passed_run, records_to_adopt, void_record
from gpu_healthcheck.healthcheck.memory.findings import Release
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.state import RESULTS, SEVERITY, NodeState
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import read_release
from gpu_healthcheck.healthcheck.verdict.node_events import released_event
from gpu_healthcheck.healthcheck.verdict.record import AgentRecord, RecordError
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict

log = structlog.get_logger()


class NodeInput:
    """Input from the Node for the memory. The node writer's thread uses it."""

    def __init__(self, api: ApiServer, state: AgentState, ledger: Ledger, reporter: Reporter) -> None:
        self._may_write = api.write
        self._state = state
        self._ledger = ledger
        self._reporter = reporter
        self._wants_record = False
        self._released: Release | None = None
        """The release whose Event was queued last."""

    def want_record(self) -> None:
        """Read our record from the Node before it is overwritten, because the memory file was lost."""
        self._wants_record = True

    def take_release(self, node: NodeState) -> tuple[bool, threading.Event | None]:
        """Return whether a person released findings, and an event that is set after the report; None if none is needed.

        The release is processed first, because it covers the results of deep runs so far. Order: disk, Event, Node. A
        restart in between repeats the same steps.
        """
        if self._wants_record:
            self._take_record(node)
        release, _ = read_release(node, by_label=self._state.settings.values.rules.enable_label)
        if release is None:
            return False, None
        self._ledger.release(release)
        if not self._may_write or release == self._released:
            return True, None
        log.info("released", by=release.by, reason=release.reason, findings=len(release.findings))
        self._released = release
        return True, self._reporter.queue(released_event(node, release), first=True)

    def take_deep_runs(self, node: NodeState) -> None:
        """Adopt the findings and passed tests of deep runs."""
        deep = list(records_to_adopt(node, self._state.memory.adopted_records))
        for record in deep:
            if record.void:
                self._reporter.queue(void_record(node, record))
        self._ledger.take_over(deep)
        passed = passed_run(node)
        if passed is not None:
            self._ledger.quarantine_passed(passed)

    def _take_record(self, node: NodeState) -> None:
        text = node.annotations.get(RESULTS)
        if text is not None:
            try:
                record = records.parse(AgentRecord, text)
                if records.is_ours(record):  # a record of the bash suite has no memory
                    self._ledger.adopt(records.remembered(record))
                    log.warning("the node-local memory was lost; rebuilt from the Node's own record")
            except RecordError as error:
                self._reporter.complain((f"annotation {RESULTS}: {error}",))
        self._wants_record = False


_URGENT_CAP_SECONDS, _CAP_SECONDS = 5.0, 60.0
"""Spread of a fleet's writes after an outage: short for an urgent verdict, else long."""
_URGENT_ASKED_SECONDS = (3.0, 5.0)
"""Longest pause that the server can request for an urgent verdict."""
_NODE_GONE_SECONDS = 30.0
_RELEASE_EVENT_SECONDS = 5.0
"""Longest wait of a release's changes for its Event."""
_POLL_SECONDS = 0.02


class NodeWriter(threading.Thread):
    """One thread that writes the verdict, woken by changes of the state.

    Events and the heartbeat (`reporter`), the pods of faulty GPUs (`pod-reporter`) and the slot of the fleet budget
    (`slot-requests`) have their own threads, so that none of their requests delays the verdict.
    """

    def __init__(
        self,
        api: ApiServer,
        state: AgentState,
        node_input: NodeInput,
        update: NodeUpdate,
        reporter: Reporter,
        pods: PodReporter,
        telemetry: Telemetry,
    ) -> None:
        super().__init__(name="node-writer", daemon=True)
        self._api = api
        self._state = state
        self._input = node_input
        self._update = update
        self._reporter = reporter
        self._pods = pods
        self._telemetry = telemetry
        self._stopping = threading.Event()
        self._not_before = 0.0
        self._put_off_for = Severity.PASS
        """Severity of the verdict whose write the server delayed."""
        self.verdict_stands = threading.Event()
        """Set when the Node has the verdict, and all requests have ended for which the verdict did not wait."""
        self.is_writing = False
        """Whether a write of the verdict has begun and the API server has not answered it yet."""

    @property
    def is_done(self) -> bool:
        """Whether the Node has the verdict, and its Events and the heartbeat are written."""
        return self.verdict_stands.is_set() and (self._reporter.is_done or not self._api.write)

    def start(self) -> None:
        super().start()
        if self._api.write:
            self._reporter.start()
            self._pods.start()
            self._update.slot.start()

    def cycle_ended(self) -> None:
        """Renew the heartbeat, and write the results of the cycle."""
        self._update.cycle_ended()
        self._reporter.renew_heartbeat()
        self._state.news.set()

    def end(self) -> None:
        self._stopping.set()
        self._state.news.set()
        self._reporter.end()
        self._pods.end()
        self._update.slot.end()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._wait(self._update.put_off_seconds())
            again = tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(Exception),
                wait=self._pause,
                sleep=self._wait,
                stop=tenacity.stop_when_event_set(self._stopping),
                before_sleep=self._account_for,
                retry_error_callback=lambda _: None,
            )
            again(self._write_verdict)

    def _write_verdict(self) -> None:
        """Bring the Node up to the current verdict. After any error, the next try computes everything anew."""
        try:
            self._bring_up_to_date()
        except ClusterError:
            raise
        except Exception:
            # An annotation may have triggered a defect of this program: write a fault without reading any of ours.
            node = self._state.node
            if node is not None and self._is_urgent():
                self._update.apply(self._state.known, replace(node, annotations={}))
            raise

    def _bring_up_to_date(self) -> None:
        node = self._state.node
        released = node is not None and self._take_in(node)
        if self._stopping.is_set():
            return
        self._measure(self._state.judgement.verdict)  # also while the API server is away
        if not self._is_due(self._state.judgement, released=released):
            return
        self._telemetry.pending.set(1)
        self.is_writing = True
        if node is None or self._state.node is not node:
            node = self._state.node or self._update.read()
            self._take_in(node)
            self._measure(self._state.judgement.verdict)
        known = self._state.known
        judgement = known.judgement
        is_written = not (judgement.is_complete or _is_news_to(judgement.verdict, node)) or self._update.apply(
            known, node
        )
        self.is_writing = False
        self._pods.wake()
        self._telemetry.pending.set(not is_written)
        if judgement.is_complete and not judgement.verdict.settling and not self._update.slot.is_owed:
            self.verdict_stands.set()
        self._api.outage.back("nodes")

    @staticmethod
    def _is_due(judgement: Judgement, *, released: bool) -> bool:
        """Whether the Node is written: not before the first cycle has ended, nor while it settles, except for a fault.

        A person who released the node waits for the answer.
        """
        verdict = judgement.verdict
        final = judgement.is_complete and (released or not verdict.settling)
        return final or verdict.severity >= Severity.RESET

    def _take_in(self, node: NodeState) -> bool:
        """Read the facts that only the Node has, and return whether there was a release."""
        released, event = self._input.take_release(node)
        if event is not None:
            self._wait_for_release_events(event)
        self._input.take_deep_runs(node)
        return released

    def _wait_for_release_events(self, event: threading.Event) -> None:
        """Wait for the Events of a release; briefly, and not at all for an urgent verdict."""
        deadline = time.monotonic() + _RELEASE_EVENT_SECONDS
        while not (event.wait(_POLL_SECONDS) or self._is_urgent() or self._stopping.is_set()):
            if time.monotonic() >= deadline:
                break

    def _wait(self, seconds: float | None) -> None:
        """Wait for news or the given time, and at least as long as the server requested.

        A delay that the server requested for a milder verdict does not hold an urgent one.
        """
        news = self._state.news
        news.wait(seconds)
        news.clear()
        while (left := self._not_before - time.monotonic()) > 0 and not self._stopping.is_set():
            if self._is_urgent() and self._state.known.severity > self._put_off_for:
                break
            news.wait(left)
            news.clear()

    def _is_urgent(self) -> bool:
        """Whether the Node still accepts work that must be kept away."""
        node, severity = self._state.node, self._state.known.severity
        tier = Severity.__members__.get(node.labels.get(SEVERITY, ""), Severity.PASS) if node else Severity.PASS
        untainted = node is not None and self._update.waits_for_taint(node)
        return severity >= Severity.RESET and (tier < severity or untainted)

    def _pause(self, retry: tenacity.RetryCallState) -> float:
        """Return the time until the next try, random so that a fleet spreads its writes after an outage."""
        error = retry.outcome.exception() if retry.outcome else None
        if isinstance(error, Conflict):
            return random.uniform(0, 0.1)  # noqa: S311
        if isinstance(error, NotFound):
            return _NODE_GONE_SECONDS
        urgent = self._is_urgent()
        backoff = tenacity.wait_random_exponential(max=_URGENT_CAP_SECONDS if urgent else _CAP_SECONDS)
        asked = (error.retry_after_seconds if isinstance(error, ClusterError) else None) or 0.0
        if urgent:
            asked = min(asked, random.uniform(*_URGENT_ASKED_SECONDS))  # noqa: S311
        self._not_before = time.monotonic() + asked
        self._put_off_for = self._state.known.severity if urgent else Severity.PASS
        return max(asked, backoff(retry))

    def _account_for(self, retry: tenacity.RetryCallState) -> None:
        error = retry.outcome.exception() if retry.outcome else None
        if isinstance(error, Conflict | NotFound):
            self._state.set_node(None)
        if isinstance(error, Forbidden):
            self._api.permissions.forbid(error.verb, error.resource, error)
        if isinstance(error, Unavailable):
            self._api.outage.away("nodes", error)
        elif isinstance(error, NotFound) and retry.attempt_number == 1:
            log.warning("the Node is gone", error=str(error))
        elif isinstance(error, Unreadable):
            self._update.log_unreadable(error)
        elif isinstance(error, Exception) and not isinstance(error, ClusterError):
            self._telemetry.pending.set(1)
            self._reporter.report_defect("verdict", error)

    def _measure(self, verdict: Verdict) -> None:
        unseen = {row.check for row in verdict.unobserved}
        unobserved_groups = {group.check: group.check in unseen for group in verdict.groups}
        self._telemetry.show_verdict(verdict.severity, verdict.status, verdict.active, unobserved_groups)


def _is_news_to(verdict: Verdict, node: NodeState) -> bool:
    """Whether a fault must be written at once. Before its first cycle, a restarted agent writes nothing else.

    A release that was read after the fault leaves nothing to write until then.
    """
    return verdict.severity >= Severity.RESET and node.labels.get(SEVERITY) != verdict.severity.name
