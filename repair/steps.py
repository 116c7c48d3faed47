"""One reset: choose the GPUs, wait until they are free, reset them, and verify that they work.

Nothing is killed. Until the reset, every step is undone on a failure or SIGTERM; afterwards the run always returns the
node's services before it ends. If a reboot is allowed, it follows a failed reset, once the command has drained the
node. The run in the next boot verifies the GPUs.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks import gpu_load
from gpu_healthcheck.healthcheck.checks.dcgm_diag import LEVEL_2
from gpu_healthcheck.healthcheck.checks.examine import CHECK_FAILED, failure, judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.deep.diagnostic import run_diagnostic
from gpu_healthcheck.healthcheck.deep.reset_plan import ResetScope, Step
from gpu_healthcheck.healthcheck.host.nvidia_report import BugReport
from gpu_healthcheck.healthcheck.host.program import RunRefused
from gpu_healthcheck.healthcheck.model import Check, Host, Outcome, ProbeError, Severity, Status, Unobserved
from gpu_healthcheck.healthcheck.node.state import (
    INSTANCE_TYPE,
    REBOOT_REQUIRED,
    RESET_RESULT,
    NodeState,
    is_our_condition,
)
from gpu_healthcheck.healthcheck.operations.drain import HolderKind
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm
from gpu_healthcheck.healthcheck.probes.dcgm.engine import choose_engine
from gpu_healthcheck.healthcheck.probes.gpu_load.load_run import SHORT_DEADLINE_SECONDS, SHORT_SECONDS, GpuLoad
from gpu_healthcheck.healthcheck.probes.kernel_log import boot_id
from gpu_healthcheck.healthcheck.probes.nvml.driver import read_driver_once
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus
from gpu_healthcheck.healthcheck.probes.nvml.pause import LONGEST_SECONDS, end_pause, start_pause
from gpu_healthcheck.healthcheck.probes.pci import read_functions
from gpu_healthcheck.healthcheck.probes.services import FABRIC_MANAGER, enabled_of, read_services
from gpu_healthcheck.healthcheck.settings.declaration import Folder
from gpu_healthcheck.healthcheck.settings.job_program import JobSettings
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import ResetGpuRow, RunRecord
from gpu_healthcheck.repair.host_programs import (
    FABRIC_MANAGER_UNIT,
    RESET_SECONDS,
    Holder,
    NvidiaSmi,
    ResetOutcome,
    assigned,
    holders,
    link_libraries,
    must_have_systemd,
    open_in,
    request_reboot,
)
from gpu_healthcheck.repair.marks import HANDED_OVER, ResetMarks
from gpu_healthcheck.repair.record import ResetProgress, ResetStart, Selection, after_reset, select, why_not_working

log = structlog.get_logger()

FOREIGN_SECONDS = 10.0
"""Time in which an unknown process may still end by itself: a program may have just opened the GPU to list it."""
WORKS_SECONDS = 60.0
_PAUSED_SECONDS = 60.0
"""Pause of the agent's NVML while the GPUs are not free yet; renewed each second."""
_NVML_SECONDS, _PAUSE_SECONDS, _RENEWED_SECONDS = 60.0, 1.0, 120.0
_MOST_NAMED = 4
SHUTDOWN_SECONDS = 600.0
"""Longest wait for a shutdown that systemd has accepted: services have 90 seconds each to stop."""


class ResetSettings(JobSettings, frozen=True, kw_only=True):
    """Settings of a reset."""

    state_dir: Folder = field(default=Path("/var/lib/gpu-healthcheck"), name="STATE_DIR")
    """Folder of the agent's memory, for the request to close NVML and for the lock, which a running reset holds."""


class ResetRun(Struct):
    """Reset of these GPUs, named by UUID, address or index. A signal sets `stopping`.

    `reboot` is the id of the boot that the run may end; without GPUs, no reset is tried.
    """

    own: ResetSettings
    settings: Settings
    marks: ResetMarks
    holder: str
    gpus: Sequence[str]
    wait_seconds: float
    stopping: threading.Event
    reboot: str = ""
    begun: ResetStart = ResetStart("", "", datetime.min.replace(tzinfo=UTC))
    progress: ResetProgress = ResetProgress()
    touched: bool = False
    """Whether the GPUs were touched: a failure is then a result."""

    def run(self) -> ResetProgress:
        """Execute the run and return its last state, which is `running` if the node is about to reboot.

        Raises RunRefused and ClusterError if it can't start, and ClusterError if it can't write its end.
        """
        node = self.marks.take()
        self.begun = self._begun(node)
        is_rebooted = self.reboot not in ("", self.begun.boot_id) and bool(self.begun.boot_id)
        if is_rebooted:
            self._continue(node)
        try:
            self.marks.tell(self.begun, self.progress)
            selection = self._after_boot(node) if is_rebooted else self._end_fault(node)
            if selection is None:
                return self.progress
            self._ended(
                Step.VERIFY, "the GPUs answer, and the driver requests no further reset or reboot", Step.LEVEL_2
            )
            self._level_2(node, selection)
            self._load(node)
        except (ProbeError, RunRefused, ClusterError) as error:
            self._failed(str(error))
        except Exception as error:  # the node must be returned whatever happens
            log.exception("the run itself failed")
            self._failed(f"the run itself failed: {type(error).__name__}")
        self.marks.finish(self.begun, self.progress)
        self.progress = self.marks.hand_over(self.begun, self.progress, node, self.stopping)
        return self.progress

    def _end_fault(self, node: NodeState) -> Selection | None:
        """Reset the GPUs and return them; None if the node is about to reboot instead."""
        if self.gpus:
            try:
                return self._reset_gpus(node)
            except ProbeError as error:
                if not self.reboot:
                    raise
                self._note_failure(str(error))
                self._step(self.progress.running or Step.RESET, f"failed: {error}")
        self._reboot(node)
        return None

    def _reset_gpus(self, node: NodeState) -> Selection:
        smi = NvidiaSmi.find(self.own.host_root)
        selection = self._choose(node)
        with ExitStack() as undo:
            self._enter(Step.RESET, self._free(smi, selection, undo))
            self.touched = True
            at, message = self._reset(smi, selection)
            self._ended(Step.RESET, message, Step.VERIFY)
            gpus = after_reset(selection, self._verify(selection))
            self.progress = replace(self.progress, gpus=gpus, reset_at=at)
        return selection

    def _begun(self, node: NodeState) -> ResetStart:
        boot = ""
        with suppress(ProbeError):
            boot = boot_id(self.own.host_root)
        return ResetStart(node.name, self.holder, datetime.now(UTC), node.machine, boot)

    # --- the steps

    def _choose(self, node: NodeState) -> Selection:
        before = records.on_node(RunRecord, node, RESET_RESULT)
        is_unfinished = before.holder == self.holder and before.running is not None
        left_off = [gpu.uuid or "" for gpu in before.gpus or () if gpu.persistence and is_unfinished]
        functions = read_functions(Host(self.own.host_root))
        selection = select(self.gpus, self._nvml().gpus, functions, left_off)
        if selection.missing:
            raise RunRefused(f"the node has no GPU {', '.join(selection.missing)}")
        if selection.handed_away:
            raise RunRefused(f"GPU {', '.join(selection.handed_away)} belongs to a virtual machine")
        names = ", ".join(gpu.address or "" for gpu in selection.gpus)
        self.progress = replace(self.progress, gpus=selection.gpus, scope=selection.row.scope.value)
        self._ended(Step.PLAN, f"GPU {names}: {selection.row.source}", Step.FREE)
        self.marks.tell(self.begun, self.progress)
        return selection

    def _free(self, smi: NvidiaSmi, selection: Selection, undo: ExitStack) -> str:
        """Wait until nothing uses the GPUs, and return the message. Raises RunRefused if a foreign process does.

        The operator's operands are switched off last: after an earlier end, a tainted node may not get the device
        plugin's pod back.
        """
        undo.callback(self._attempt, "agent's NVML", partial(end_pause, self.own.state_dir))
        for uuid in [gpu.uuid for gpu in selection.gpus if gpu.persistence and gpu.uuid]:
            undo.callback(self._attempt, "persistence mode", partial(smi.set_persistence, uuid, on=True))
            self._attempt("persistence mode", partial(smi.set_persistence, uuid, on=False))
        # An earlier run may have stopped it and died.
        if selection.row.scope is ResetScope.ALL and (
            read_services(Host(self.own.host_root)).find(FABRIC_MANAGER)
            or enabled_of(self.own.host_root, (f"{FABRIC_MANAGER_UNIT}.service",))
        ):
            undo.callback(self._attempt, "fabric manager", partial(smi.set_fabric_manager, on=True))
            self._attempt("fabric manager", partial(smi.set_fabric_manager, on=False))
        minors = selection.minors or frozenset(range(256))
        uuids = [gpu.uuid or "GPU-" for gpu in selection.gpus]
        ends = time.monotonic() + self.wait_seconds
        unknown_since, reported, reported_at = None, None, 0.0
        while True:
            self._pause(_PAUSED_SECONDS)
            found = holders(open_in(self.own.host_root, minors), assigned(self.own.host_root, uuids), self.marks.pods())
            is_used = any(holder.kind in (HolderKind.WORKLOAD, HolderKind.FOREIGN) for holder in found)
            on, off = ((), ()) if is_used else self.marks.operands()
            if not (found or on):
                return f"the GPUs are free; switched off: {', '.join(off)}" if off else "the GPUs are free"
            now = time.monotonic()
            unknown = [holder for holder in found if holder.kind is HolderKind.FOREIGN]
            unknown_since = (unknown_since or now) if unknown else None
            if unknown_since is not None and now - unknown_since >= FOREIGN_SECONDS:
                raise RunRefused(f"in use by {_listed(unknown)}: end that yourself, then run this again")
            users = _listed(found) if found else f"pods of the GPU operator that are switched on: {', '.join(on)}"
            self.marks.must_have_command(f"the GPUs are in use by {users}")
            if now >= ends:
                raise RunRefused(f"still in use after {self.wait_seconds:.0f} s: {users}")
            state = (bool(on or off), found)
            if state != reported or now - reported_at >= _RENEWED_SECONDS:
                log.info("waiting until the GPUs are free", users=users)
                self._name_users(found, is_operated=bool(on or off))
                reported, reported_at = state, now
            if self.stopping.wait(_PAUSE_SECONDS):
                raise RunRefused("stopped before the reset")

    def _name_users(self, found: Sequence[Holder], *, is_operated: bool) -> None:
        """Record the pods that the command is to evict: workloads first. `is_operated`: it switches operands off."""
        for kind in (HolderKind.WORKLOAD, HolderKind.OPERAND):
            if pods := tuple(dict.fromkeys(holder.pod for holder in found if holder.kind is kind)):
                break
        self.progress = replace(self.progress, pods=pods)
        if is_operated and self.progress.running is not Step.OPERANDS:
            self._step(Step.FREE, "no pod with these GPUs is left")
        self.progress = replace(self.progress, running=Step.OPERANDS if is_operated else Step.FREE)
        self.marks.tell(self.begun, self.progress)

    def _reset(self, smi: NvidiaSmi, selection: Selection) -> tuple[float, str]:
        self._pause(RESET_SECONDS + WORKS_SECONDS)
        answer = smi.reset(selection.names)
        if answer.outcome is not ResetOutcome.DONE:
            raise ProbeError(f"nvidia-smi --gpu-reset: {answer.outcome.value}: {answer.message}")
        return time.monotonic(), answer.message

    # --- a reboot

    def _reboot(self, node: NodeState) -> None:
        """Wait until the command has drained the node, and request the reboot, or let a repair program do it.

        Returns when this program is to end. Raises ProbeError if the reboot is not accepted or does not happen.
        """
        if self.begun.boot_id != self.reboot:
            raise ProbeError("the id of this boot can't be read, so a reboot could not be recognised")
        awaits_program = (condition := node.condition(REBOOT_REQUIRED)) is not None and is_our_condition(condition)
        if not awaits_program:
            must_have_systemd(self.own.host_root)
        found = [function for function in read_functions(Host(self.own.host_root)) if function.is_gpu_here]
        rows = tuple(ResetGpuRow(address=function.address, uuid="", index="") for function in found)
        self.progress = replace(self.progress, running=Step.DRAIN, gpus=rows, scope=ResetScope.ALL.value, pods=())
        self._step(Step.DRAIN, self._drained())
        self.touched = True
        self.progress = replace(self.progress, running=Step.REBOOT)
        self.marks.tell(self.begun, self.progress, timedelta(seconds=self.wait_seconds) + HANDED_OVER)
        if awaits_program:
            log.info("waiting for a program that reboots nodes with the condition", condition=REBOOT_REQUIRED)
            return
        with ExitStack() as undo:
            undo.callback(self._attempt, "agent's NVML", partial(end_pause, self.own.state_dir))
            self._attempt("agent's NVML", partial(self._pause, LONGEST_SECONDS))
            request_reboot(self.own.host_root)
            log.info("systemd has accepted the reboot")
            if not self.stopping.wait(SHUTDOWN_SECONDS):
                raise ProbeError(f"the host has not shut down within {SHUTDOWN_SECONDS:.0f} s")
            undo.pop_all()

    def _drained(self) -> str:
        """Wait until the command has drained the node, and return its message. Raises RunRefused."""
        ends, renewed_at = time.monotonic() + self.wait_seconds, -_RENEWED_SECONDS
        while not (detail := self.marks.drained()):
            now = time.monotonic()
            if now >= ends:
                raise RunRefused(f"the node was not drained within {self.wait_seconds:.0f} s")
            if now - renewed_at >= _RENEWED_SECONDS:
                self.marks.tell(self.begun, self.progress)
                renewed_at = now
            if self.stopping.wait(_PAUSE_SECONDS):
                raise RunRefused("stopped before the reboot")
        return detail

    def _continue(self, node: NodeState) -> None:
        """Continue the record of the earlier boot."""
        before = records.on_node(RunRecord, node, RESET_RESULT)
        ours = before if before.holder == self.holder else RunRecord()
        known = {step.value: step for step in Step}
        steps = [
            (known[row.step or ""], row.at or self.begun.started, row.detail or "")
            for row in ours.steps or ()
            if row.step in known and row.step != Step.CLAIM.value
        ]
        self.begun = replace(self.begun, started=ours.started or self.begun.started)
        self.progress = ResetProgress(
            Step.VERIFY,
            steps=tuple(steps),
            gpus=ours.gpus or (),
            scope=ResetScope.ALL.value,
            bug_report=ours.bug_report or "",
        )
        self._step(Step.REBOOT, f"boot {self.begun.boot_id} follows boot {self.reboot}")
        self.touched = True

    def _after_boot(self, node: NodeState) -> Selection:
        """Return all GPUs of the node once they work: the driver may load minutes after the boot. Raises ProbeError."""
        profile = find_profile(self.settings.profiles, node.labels.get(INSTANCE_TYPE, ""))
        least = profile.gpus if profile else 0
        asked = {gpu.address or "" for gpu in self.progress.gpus}
        ends, renewed_at = time.monotonic() + self.wait_seconds, time.monotonic()
        while True:
            functions = read_functions(Host(self.own.host_root))
            there = {function.address for function in functions if function.is_gpu_here}
            try:
                gpus = self._nvml().gpus
                selection = select(sorted(asked | there), gpus, functions)
                missing = [f"the node has no GPU {name}" for name in selection.missing]
                few = [f"the node has {len(there)} of {least} GPUs"] if len(there) < least else []
                why = "; ".join((*few, *missing, *why_not_working(selection, gpus)))
            except ProbeError as error:
                why = str(error)
            now = time.monotonic()
            if not why:
                self.progress = replace(self.progress, gpus=after_reset(selection, gpus))
                return selection
            if now >= ends or self.stopping.wait(_PAUSE_SECONDS):
                raise ProbeError(f"after the reboot: {why}")
            if now - renewed_at >= _RENEWED_SECONDS:
                self.marks.note(self.begun, self.progress)
                renewed_at = now

    def _verify(self, selection: Selection) -> tuple[Gpu, ...]:
        """Return NVML's answer once the GPUs work. Raises ProbeError if they do not in time."""
        ends = time.monotonic() + WORKS_SECONDS
        while True:
            try:
                reading = self._nvml()
                why = "; ".join(why_not_working(selection, reading.gpus))
            except ProbeError as error:
                why = str(error)
            if not why:
                return reading.gpus
            if time.monotonic() >= ends:
                raise ProbeError(f"after the reset: {why}")
            time.sleep(_PAUSE_SECONDS)

    def _level_2(self, node: NodeState, selection: Selection) -> None:
        """Run DCGM's level 2 on these GPUs if DCGM is here. A run that is stopped has reset the GPUs nevertheless."""
        values, root = self.settings.values, self.own.host_root
        everything = selection.row.scope is ResetScope.ALL
        indices = () if everything else tuple(gpu.index or "" for gpu in self.progress.gpus)
        self.marks.note(self.begun, self.progress, timedelta(seconds=values.dcgm_timeout_seconds) + HANDED_OVER)
        instance_type = node.labels.get(INSTANCE_TYPE, "")
        expected = Expectation(find_profile(self.settings.profiles, instance_type), instance_type, policy=values.policy)

        def test(libraries: Path) -> Outcome:
            engine = choose_engine(root, values.dcgm_host, second_engine=values.dcgm_second_engine)
            dcgm = Dcgm(
                engine.host,
                values.dcgm_timeout_seconds,
                engine=engine,
                root=root,
                gpus=indices,
                libraries=libraries,
            )
            threading.Thread(target=self._stop_at_signal, args=(dcgm,), daemon=True).start()
            return run_diagnostic(dcgm, expected, {NVML: DriverReading(self._nvml())})

        outcome = self._outcome(LEVEL_2, test)
        faulty = any(finding.severity >= Severity.RESET for finding in outcome.findings)
        self.progress = replace(
            self.progress,
            running=None,
            status=Status.FAIL if faulty else Status.PASS,
            found=outcome.findings,
            passed=outcome.passed,
            unobserved=tuple((LEVEL_2.group, cause) for cause in outcome.unobserved),
            reasons=tuple(f"level 2 found {finding.reason} on {finding.subject}" for finding in outcome.findings),
        )
        why = "; ".join(cause.detail for cause in outcome.unobserved)
        words = "failed" if outcome.findings else why or ("passed" if outcome.configured else "no DCGM here")
        self._step(Step.LEVEL_2, words)

    def _load(self, node: NodeState) -> None:
        """Load these GPUs for seconds, with checked results. A test that can't run is recorded, and is no failure."""
        if self.progress.status is not Status.PASS or self.stopping.is_set():
            return
        before = self.progress
        self.progress = replace(before, running=Step.LOAD, status=Status.UNKNOWN)
        self.marks.note(self.begun, self.progress, timedelta(seconds=SHORT_DEADLINE_SECONDS) + HANDED_OVER)
        addresses = tuple(gpu.address or "" for gpu in before.gpus)
        expected = Expectation(None, node.labels.get(INSTANCE_TYPE, ""), policy=self.settings.values.policy)

        def test(libraries: Path) -> Outcome:
            load = GpuLoad(self.own.host_root, addresses, 0.0, SHORT_SECONDS, SHORT_DEADLINE_SECONDS, libraries)
            threading.Thread(target=self._stop_at_signal, args=(load,), daemon=True).start()
            evidence = read_probes(Host(self.own.host_root, ask_gpu_load=load.run), (gpu_load.CHECK,))
            return judge((gpu_load.CHECK,), evidence, expected)[0]

        outcome = self._outcome(gpu_load.CHECK, test)
        # Speeds are not judged: seconds are too short, and GPUs that work for pods are no siblings.
        failed = tuple(finding for finding in outcome.findings if finding.reason == gpu_load.FAILED.name)
        self.progress = replace(
            before,
            status=Status.FAIL if failed else before.status,
            found=(*before.found, *failed),
            unobserved=(*before.unobserved, *((gpu_load.CHECK.group, cause) for cause in outcome.unobserved)),
            reasons=(*before.reasons, *(f"{finding.subject} fails under load: {finding.detail}" for finding in failed)),
        )
        why = "; ".join(cause.detail for cause in outcome.unobserved)
        self._step(Step.LOAD, "failed" if failed else why or " ".join(observation.what for observation in outcome.seen))

    def _outcome(self, check: Check, test: Callable[[Path], Outcome]) -> Outcome:
        """Run a test with a folder of the driver's libraries. It can't fail the run: the GPUs were reset before it."""
        try:
            with tempfile.TemporaryDirectory(prefix="driver-", ignore_cleanup_errors=True) as folder:
                link_libraries(self.own.host_root, Path(folder))
                return test(Path(folder))
        except ProbeError as error:
            cause = Unobserved(error.cause, str(error))
        except Exception as error:
            log.exception("a test of the GPUs failed", test=check.name)
            cause = Unobserved(CHECK_FAILED, failure(error))
        return Outcome(check.name, check.group, unobserved=(cause,))

    def _stop_at_signal(self, test: Dcgm | GpuLoad) -> None:
        self.stopping.wait()
        test.stop()

    # --- the record

    def _failed(self, why: str) -> None:
        is_reset = self.progress.reset_at is not None
        status = Status.PASS if is_reset else Status.FAIL if self.touched else self.progress.status
        self._note_failure(why)
        self.progress = replace(self.progress, running=None, status=status)

    def _note_failure(self, why: str) -> None:
        """Record the reason, and keep NVIDIA's report of GPUs that were touched and do not work."""
        log.error("not reset" if not self.touched else "the reset failed", step=str(self.progress.running), why=why)
        step = f"step '{self.progress.running}': " if self.progress.running else ""
        reasons, report = (*self.progress.reasons, f"{step}{why}"), self.progress.bug_report
        if self.touched and self.progress.reset_at is None and not report:
            report = BugReport(self.own.host_root, self.own.report_dir).collect(datetime.now(UTC))
        self.progress = replace(self.progress, reasons=reasons, bug_report=report, pods=())

    def _enter(self, step: Step, detail: str) -> None:
        """Record that a step begins from which the run can't be undone. Raises RunRefused, ClusterError."""
        if self.stopping.is_set():
            raise RunRefused("stopped before the reset")
        self.progress = replace(self.progress, pods=())
        self._step(self.progress.running or Step.FREE, detail)
        self.progress = replace(self.progress, running=step)
        self.marks.tell(self.begun, self.progress)

    def _ended(self, step: Step, detail: str, following: Step) -> None:
        self._step(step, detail)
        self.progress = replace(self.progress, running=following)
        if step in (Step.RESET, Step.VERIFY):
            self.marks.note(self.begun, self.progress)

    def _step(self, step: Step, detail: str) -> None:
        log.info("step: done", step=step.value, detail=detail)
        self.progress = replace(self.progress, steps=(*self.progress.steps, (step, datetime.now(UTC), detail)))

    def _attempt(self, name: str, change: Callable[[], None]) -> None:
        """Change a service of the node. If that fails, nvidia-smi reports that the GPU is in use."""
        try:
            change()
        except (OSError, ProbeError) as error:
            log.warning("a service of the node could not be changed", service=name, error=str(error))

    def _pause(self, seconds: float) -> None:
        try:
            start_pause(self.own.state_dir, self.own.host_root, seconds)
        except OSError as error:
            raise ProbeError(f"{self.own.state_dir}: {error.strerror}") from error

    def _nvml(self) -> Gpus:
        """Read NVML once, and close it. Raises ProbeError."""
        look = read_driver_once(self.own.host_root, _NVML_SECONDS)
        if look.stuck_pid is not None:
            raise ProbeError(f"process {look.stuck_pid} is stuck in the driver and can't be killed")
        if not isinstance(look.answer, Gpus):
            raise ProbeError(f"NVML: {look.answer.cause.name}: {look.answer.detail}")
        return look.answer


def _listed(found: Sequence[Holder]) -> str:
    more = len(found) - _MOST_NAMED
    return ", ".join(map(str, found[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
