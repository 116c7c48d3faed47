"""Add to the memory what only the Node has: our lost record, a person's release, results of deep runs."""

from __future__ import annotations

import threading

import structlog

from agent.node.api_server import ApiServer
from agent.node.reporter import Reporter
from agent.state.agent_state import AgentState
from agent.state.ledger import Ledger
from healthcheck.deep.deep_record import passed_run, records_to_adopt, void_record
from healthcheck.memory.findings import Release
from healthcheck.node.state import RESULTS, NodeState
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import read_release
from healthcheck.verdict.node_events import released_event
from healthcheck.verdict.record import AgentRecord, RecordError

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
