"""Processes of deep tests with their last observation, to attribute an Xid to a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from agent.state.agent_state import AgentState
from healthcheck.checks.xid import may_be_of_a_test
from healthcheck.cluster.names import NAMESPACE
from healthcheck.model import ProbeError
from healthcheck.probes import diagnostics
from healthcheck.probes.kernel_log import Record

_READ_SECONDS = 2.0
"""Pause between two reads during a run: a test that ends by its own error may be gone before its line is judged."""


class DeepProcesses(threading.Thread):
    """Thread that reads the processes during a run, and before a log line is judged that may name one of them."""

    def __init__(self, root: Path, state: AgentState, report_defect: Callable[[str, Exception], None]) -> None:
        super().__init__(name="deep-processes", daemon=True)
        self._root = root
        self._state = state
        self._report_defect = report_defect
        self._stopping = False

    def read(self) -> None:
        """Read the processes of deep diagnostics. If they can't be read, the kernel log lines alone decide."""
        try:
            found = diagnostics.find(self._root, NAMESPACE)
        except (OSError, ProbeError):
            return
        except Exception as error:  # noqa: BLE001 - boundary of this loop, and of the judge's
            self._report_defect("deep-processes", error)
            return
        self._state.see_deep_processes(found)

    def read_for(self, records: Iterable[Record]) -> None:
        """Read the processes before these lines are judged: a process that a line names may end soon."""
        run = self._state.deep_run()
        if run is not None and any(may_be_of_a_test(record) and run.covers(record.at) for record in records):
            self.read()

    def end(self) -> None:
        self._stopping = True
        self._state.node_changed.set()

    def run(self) -> None:
        changed = self._state.node_changed
        while not self._stopping:
            run = self._state.deep_run()
            goes_on = run is not None and run.until is None
            if goes_on:
                self.read()
            changed.wait(_READ_SECONDS if goes_on else None)
            changed.clear()
