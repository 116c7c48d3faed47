"""One quarantine run: tests on one thread, the Node and signals on the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import structlog
from msgspec import Struct
from msgspec.structs import replace

from healthcheck.catalog.profiles import find_profile
from healthcheck.checks.expectation import Expectation
from healthcheck.host.nvidia_report import BugReport
from healthcheck.model import ProbeError, Severity
from healthcheck.node.state import INSTANCE_TYPE, NodeState
from healthcheck.probes.dcgm.diag import Dcgm
from healthcheck.probes.dcgm.engine import choose_engine
from healthcheck.probes.efa.loopback_run import EfaLoopback
from healthcheck.probes.gpu_load.load_run import GpuLoad
from healthcheck.probes.ib_loopback_run import RdmaLoopback
from healthcheck.probes.kernel_log import boot_id
from healthcheck.probes.nccl import AllReduce
from healthcheck.settings.job_program import JobSettings
from healthcheck.settings.reading import Settings
from healthcheck.verdict.record import RunRecord
from quarantine.history import history_of
from quarantine.node_marks import QuarantineMarks
from quarantine.quarantine_record import QuarantineProgress, RunStart, carried_by
from quarantine.suite import Suite

log = structlog.get_logger()

_HOLD_SECONDS = 180.0
"""Interval of the renewals, well below the duration of a claim, to survive an outage of some minutes."""
_UNHEARD_SECONDS = 10.0
"""Retry interval while the Node can't be written. After an outage longer than a claim, the agent may clear the expired
marks first; this run then sets them again within this time."""
_WATCH_SECONDS = 0.5
_TAKEN_SECONDS = 30.0
_STOPPED = "the run was stopped before its end (SIGTERM): its pod was deleted, or its time was over"


class QuarantineRun(Struct, frozen=True):
    """Quarantine run of this node. A signal sets `stopping`; `holder` is the name of the run on the Node."""

    own: JobSettings
    settings: Settings
    marks: QuarantineMarks
    holder: str
    stopping: threading.Event

    def run(self, *, force: bool) -> RunRecord:
        """Execute the run and return its last record. Raises RunRefused, ClusterError."""
        node = self.marks.take(force=force)
        begun = self._begun(node)
        suite = self._suite(node, lambda progress: self.marks.tell(begun, progress))
        report = BugReport(self.own.host_root, self.own.report_dir)
        reports: list[str] = []

        def work() -> None:
            suite.run()
            if _is_at_fault(suite.progress):
                self.marks.tell(begun, suite.progress)
                reports.append(report.collect(datetime.now(UTC)))

        failed = self._watched(work, suite, report)
        progress = replace(suite.progress, running="", stopped=suite.stopped, bug_report="".join(reports))
        if _is_at_fault(progress):
            self.marks.wait_until_taken(_TAKEN_SECONDS)
        record = self.marks.finish(begun, progress)
        if failed:
            raise failed[0]
        return record

    def _watched(self, work: Callable[[], None], suite: Suite, report: BugReport) -> list[BaseException]:
        """Run the work until it ends or is stopped. Returns the exceptions of this program."""
        failed: list[BaseException] = []

        def on_its_thread() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - raised again after the release of the node
                failed.append(error)
                suite.stop(f"the run itself failed: {type(error).__name__}")

        worker = threading.Thread(target=on_its_thread, name="tests", daemon=True)
        worker.start()
        for why in self._watch(worker):
            log.warning("stopped", why=why)
            suite.stop(why)
            report.stop()
        return failed

    def _watch(self, worker: threading.Thread) -> Iterator[str]:
        """Renew the claim until the worker has ended. Sets the reason once if the worker must end early."""
        waited, is_stopped = 0.0, False
        while worker.is_alive():
            worker.join(_WATCH_SECONDS)
            waited += _WATCH_SECONDS
            why = _STOPPED if self.stopping.is_set() else ""
            if waited >= (_HOLD_SECONDS if self.marks.is_heard else _UNHEARD_SECONDS):
                waited = 0.0
                why = why or ("" if self.marks.hold() else "another run has claimed the node")
            if why and not is_stopped:
                is_stopped = True
                yield why

    def _begun(self, node: NodeState) -> RunStart:
        try:
            boot = boot_id(self.own.host_root)
        except ProbeError:
            boot = ""
        started = self._next_second()
        return RunStart(
            node=node.name,
            holder=self.holder,
            started=started,
            machine=node.machine,
            boot_id=boot,
            carried=carried_by(node, node.machine, boot),
            history=history_of(node, started),
        )

    def _next_second(self) -> datetime:
        """Wait for the next full second, and return it as the start of the run.

        Records have whole seconds, and earlier findings must have an earlier time.
        """
        now = datetime.now(UTC)
        following = now.replace(microsecond=0) + timedelta(seconds=1)
        self.stopping.wait((following - now).total_seconds())
        return following

    def _suite(self, node: NodeState, tell: Callable[[QuarantineProgress], None]) -> Suite:
        values, root = self.settings.values, self.own.host_root
        instance_type = node.labels.get(INSTANCE_TYPE, "")
        expected = Expectation(
            find_profile(self.settings.profiles, instance_type),
            instance_type,
            policy=values.policy,
            efa_min_bandwidth=values.efa_min_bandwidth,
            nccl_min_bus_bandwidth=values.nccl_min_bus_bandwidth,
        )
        engine = choose_engine(root, values.dcgm_host, second_engine=values.dcgm_second_engine)
        return Suite(
            root,
            Dcgm(engine.host, values.dcgm_l4_timeout_seconds, engine=engine, root=root),
            EfaLoopback(root, values.efa_test_timeout_seconds),
            RdmaLoopback(root, values.efa_test_timeout_seconds, profile=expected.profile),
            AllReduce(root, values.nccl_timeout_seconds),
            GpuLoad(root),
            expected,
            tell,
        )


def _is_at_fault(progress: QuarantineProgress) -> bool:
    return any(finding.severity >= Severity.RESET for finding in progress.found)
