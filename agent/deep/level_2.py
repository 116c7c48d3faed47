"""Access of the agent's level 2 to this machine: dcgmi, the users of the GPUs, and the processes of deep tests.

The processes are kept with their last observation, to attribute an Xid to a test.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.healthcheck.checks.xid import may_be_of_a_test
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.deep.diagnostic import Diagnostic, Idleness
from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes import diagnostics
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm, level_2_patience_seconds
from gpu_healthcheck.healthcheck.probes.dcgm.engine import Engine, choose_engine
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from gpu_healthcheck.healthcheck.probes.pod_resources import are_claimed, read_gpu_holders


class Level2:
    """dcgmi and GPU users of this machine. `path` is the search path of dcgmi; None: PATH of the environment."""

    def __init__(self, root: Path, state: AgentState, path: str | None = None) -> None:
        self._host = Host(root)
        self._state = state
        self.path = path
        self._idleness = Idleness(self._pods, lambda: state.last_evidence)

    def is_absent(self) -> bool:
        """Whether there is no dcgmi; costs nothing."""
        return shutil.which("dcgmi", path=self.path) is None

    def are_claimed(self) -> bool:
        """Whether DRA allocates this node's GPUs, which the Node does not show. Raises ProbeError."""
        return are_claimed(self._host.root)

    def diagnostic(self) -> Diagnostic:
        """Return a new engine for each run, with the current settings."""
        values, engine, root = self._state.settings.values, self.engine(), self._host.root
        patience_seconds = level_2_patience_seconds(engine.host)
        return Dcgm(engine.host, values.dcgm_timeout_seconds, self.path, patience_seconds, engine, root)

    def engine(self) -> Engine:
        """Return the engine for a run, with the current settings."""
        values = self._state.settings.values
        return choose_engine(self._host.root, values.dcgm_host, second_engine=values.dcgm_second_engine)

    def users(self) -> str:
        """Return the users of the GPUs, by the kubelet and the last cycle; '' without users. Raises ProbeError."""
        return self._idleness.used()

    def pods(self) -> str:
        """Return the pods that own GPUs, '' without any; read while a test uses the GPUs. Raises ProbeError."""
        return self._idleness.held()

    def _pods(self) -> list[tuple[str, str, int]]:
        return read_gpu_holders(self._host)


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
