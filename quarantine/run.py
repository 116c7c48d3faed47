"""One quarantine run: its tests in sequence on one thread, the Node and signals on the other.

Each result is reported at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks import dcgm_diag, efa_loopback, gpu_load, nccl_allreduce, rdma_loopback
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.deep.diagnostic import Diagnostic, run_diagnostic
from gpu_healthcheck.healthcheck.host.nvidia_report import BugReport
from gpu_healthcheck.healthcheck.model import Check, Evidence, Host, Outcome, Probe, ProbeError, Severity, Unobserved
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE, NodeState
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm
from gpu_healthcheck.healthcheck.probes.dcgm.engine import choose_engine
from gpu_healthcheck.healthcheck.probes.efa.loopback import EFA_LOOPBACK, EfaLoopback
from gpu_healthcheck.healthcheck.probes.gpu_load.load_run import GpuLoad
from gpu_healthcheck.healthcheck.probes.gpu_load.speeds import LoadReading
from gpu_healthcheck.healthcheck.probes.ib_loopback import RDMA_LOOPBACK, RdmaLoopback
from gpu_healthcheck.healthcheck.probes.kernel_log import boot_id
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackReading, LoopbackResult
from gpu_healthcheck.healthcheck.probes.nccl import AllReduce, AllReduceReading
from gpu_healthcheck.healthcheck.probes.nvml.driver import read_driver_once
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading
from gpu_healthcheck.healthcheck.settings.job_program import JobSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.healthcheck.verdict.record import RunRecord
from gpu_healthcheck.quarantine.node_marks import QuarantineMarks
from gpu_healthcheck.quarantine.quarantine_record import (
    TESTS,
    QuarantineProgress,
    QuarantineTestResult,
    RunStart,
    carried_by,
    finding_lines,
    history_of,
    outcome_status,
)

log = structlog.get_logger()

_NVML_SECONDS = 30.0


@dataclass
class Suite:
    """Tests of a quarantine run.

    `tell` is called with the progress on the tests' thread; another thread calls `stop`.
    """

    root: Path
    diagnostic: Diagnostic
    loopback: EfaLoopback
    rdma: RdmaLoopback
    all_reduce: AllReduce
    load: GpuLoad
    expected: Expectation
    tell: Callable[[QuarantineProgress], None]
    progress: QuarantineProgress = field(default_factory=QuarantineProgress, init=False)
    """Written only by the thread that runs the tests."""
    stopped: str = field(default="", init=False)
    """Reason of the stop; '' if the run was not stopped."""
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _devices: dict[str, tuple[Loopback, ...]] = field(default_factory=dict, init=False)
    """Results of the loopback tests so far, by group."""

    def run(self) -> None:
        """Run all tests, even after a finding, so that all faults of the node are reported together."""
        self.loopback.tell = lambda result: self._tell_device(efa_loopback.CHECK, EFA_LOOPBACK, result)
        self.rdma.tell = lambda result: self._tell_device(rdma_loopback.CHECK, RDMA_LOOPBACK, result)
        tests = {
            dcgm_diag.LEVEL_4: lambda: run_diagnostic(self.diagnostic, self.expected, {NVML: self._names()}, level=4),
            efa_loopback.CHECK: lambda: self._look(
                efa_loopback.CHECK, Host(self.root, ask_efa_loopback=self.loopback.run)
            ),
            rdma_loopback.CHECK: lambda: self._look(
                rdma_loopback.CHECK, Host(self.root, ask_rdma_loopback=self.rdma.run)
            ),
            gpu_load.CHECK: lambda: self._look(gpu_load.CHECK, Host(self.root, ask_gpu_load=self._load)),
            nccl_allreduce.CHECK: lambda: self._look(
                nccl_allreduce.CHECK, Host(self.root, ask_all_reduce=self._reduce)
            ),
        }
        for check in TESTS:
            if self._stopping.is_set():
                break
            self.progress = replace(self.progress, running=check.group)
            log.info("test: started", test=check.group)
            self.tell(self.progress)
            outcome = tests[check]()
            # A stopped test has not ended, whatever its outcome.
            self._keep(check, outcome, ended=not self._stopping.is_set())
        self.progress = replace(self.progress, running="", stopped=self.stopped)

    def stop(self, why: str) -> None:
        """End the running test, and start no other."""
        self.stopped = why
        self._stopping.set()
        for test in (self.diagnostic, self.loopback, self.rdma, self.load, self.all_reduce):
            test.stop()

    def _keep(self, check: Check, outcome: Outcome, *, ended: bool) -> None:
        results = {**self.progress.results, check.group: QuarantineTestResult(outcome, ended)}
        running = "" if ended else check.group
        self.progress = replace(self.progress, results=results, running=running, stopped=self.stopped)
        log.info(
            "test: ended" if ended else "test: intermediate result",
            test=check.group,
            status=outcome_status(outcome).value,
            findings=finding_lines(outcome.findings),
            unobserved=[f"{unobserved.cause.name}: {unobserved.detail}" for unobserved in outcome.unobserved],
            seen=[observation.what for observation in outcome.seen],
        )
        self.tell(self.progress)

    def _names(self) -> DriverReading:
        """Return NVML's names of the GPUs, read before DCGM uses them: all other parts use these names."""
        look = read_driver_once(self.root, _NVML_SECONDS)
        if look.stuck_pid is not None:
            log.warning("a process is stuck in the driver and remains", pid=look.stuck_pid)
        return look

    def _look(self, check: Check, host: Host) -> Outcome:
        (outcome,) = judge((check,), read_probes(host, (check,)), self.expected)
        return outcome

    def _load(self) -> LoadReading:
        self._refuse_if_stuck()
        return self.load.run()

    def _reduce(self) -> AllReduceReading:
        self._refuse_if_stuck()
        return self.all_reduce.run()

    def _refuse_if_stuck(self) -> None:
        if (pid := self.diagnostic.stuck_pid) is not None:
            raise ProbeError(f"process {pid} of DCGM's diagnostic is stuck in the driver and can't be killed")

    def _tell_device(self, check: Check, probe: Probe[LoopbackReading], loopback: Loopback) -> None:
        """Report a failed device at once, and the others together with the last one."""
        self._devices[check.group] = (*self._devices.get(check.group, ()), loopback)
        evidence = Evidence({probe: LoopbackReading(self._devices[check.group])})
        (so_far,) = judge((check,), evidence, self.expected)
        log.info("test: device", test=check.group, device=loopback.device, answer=_in_words(loopback.answer))
        known = self.progress.results.get(check.group)
        if so_far.findings != (known.outcome.findings if known else ()):
            self._keep(check, so_far, ended=False)


def _in_words(answer: LoopbackResult) -> str:
    match answer:
        case Unobserved(cause, detail):
            return f"{cause.name}: {detail}"
        case Broken(message):
            return message
    return f"{answer.bandwidth:.0f} MB/s"


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
