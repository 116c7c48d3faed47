"""Tests of a quarantine run, in sequence; each result is reported at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from healthcheck.checks import dcgm_diag, efa_loopback, gpu_load, nccl_allreduce, rdma_loopback
from healthcheck.checks.examine import judge, read_probes
from healthcheck.checks.expectation import Expectation
from healthcheck.deep.diagnostic import Diagnostic, run_diagnostic
from healthcheck.model import Check, Evidence, Host, Outcome, Probe, ProbeError, Unobserved
from healthcheck.probes.efa.loopback import EFA_LOOPBACK
from healthcheck.probes.efa.loopback_run import EfaLoopback
from healthcheck.probes.gpu_load.load_run import GpuLoad
from healthcheck.probes.gpu_load.speeds import LoadReading
from healthcheck.probes.ib_loopback import RDMA_LOOPBACK
from healthcheck.probes.ib_loopback_run import RdmaLoopback
from healthcheck.probes.loopback_result import Broken, Loopback, LoopbackReading, LoopbackResult
from healthcheck.probes.nccl import AllReduce, AllReduceReading
from healthcheck.probes.nvml.driver import read_driver_once
from healthcheck.probes.nvml.gpus import NVML, DriverReading
from quarantine.quarantine_record import TESTS, QuarantineProgress, QuarantineTestResult, finding_lines, outcome_status

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
