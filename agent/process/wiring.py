"""Construct and connect the agent's parts. Nothing here judges or decides.

The memory of a starting agent is the content of the node-local file, adapted to this machine and boot.
"""

from __future__ import annotations

import gc
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.agent.check_cycle import Cycle, InstanceMetadata, RuntimeClasses, Sources
from gpu_healthcheck.agent.deep.deep_runs import WAITS, DeepIntervals, DeepTests
from gpu_healthcheck.agent.deep.level_2 import DeepProcesses, Level2
from gpu_healthcheck.agent.events.kernel_log_follower import Follower
from gpu_healthcheck.agent.events.record_judge import GpuWatch, RecordJudge
from gpu_healthcheck.agent.node.api_server import ApiServer, Outage, Permissions
from gpu_healthcheck.agent.node.gate import Gate
from gpu_healthcheck.agent.node.node_update import NodeUpdate
from gpu_healthcheck.agent.node.node_watch import NodeWatch
from gpu_healthcheck.agent.node.node_writer import NodeInput, NodeWriter
from gpu_healthcheck.agent.node.pod_reporter import PodReporter
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.node.reset_watch import ResetWatch
from gpu_healthcheck.agent.node.work_observer import WorkObserver
from gpu_healthcheck.agent.process.schedule import Schedule
from gpu_healthcheck.agent.process.settings import LABELS, AgentSettings, MountedConfiguration, load
from gpu_healthcheck.agent.state.agent_state import AgentState
from gpu_healthcheck.agent.state.ledger import Ledger
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks.examine import failure
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.memory.exits import begin
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import ProbeError, Shortage
from gpu_healthcheck.healthcheck.probes.kernel_log import KERNEL_FACILITY, boot_id
from gpu_healthcheck.healthcheck.probes.machine import machine_id

log = structlog.get_logger()


class StartState(Struct, frozen=True):
    """Memory at the start of the agent, with the reasons for a lost or partial one."""

    memory: Memory
    was_lost: bool = False
    """The file can't be read; the Node's record may have more findings."""
    unreadable: str = ""
    """Reason and message of the damage."""


def start_from(file: MemoryFile | None, root: Path, telemetry: Telemetry) -> StartState:
    """Load the memory. `file` None: a dry run or a standby, which starts without one.

    This is the boundary of the file: whatever it contains, an agent starts, and the file is kept under another name.
    """
    if file is None:
        return StartState(_begun(Memory(), None, root))
    try:
        before = file.read()
        return StartState(_begun(before or Memory(), file, root), before is None, file.unlocked)
    except Shortage:
        raise
    except MemoryFileError as error:
        unreadable = str(error)
    except Exception as error:  # noqa: BLE001 - boundary of the memory file
        unreadable = f"{file.path}: {failure(error)}; {file.set_aside()}"
    telemetry.memory_errors.inc()
    log.warning("the memory file can't be read", error=unreadable)
    return StartState(_begun(Memory(), file, root), was_lost=True, unreadable=unreadable)


def _begun(before: Memory, file: MemoryFile | None, root: Path) -> Memory:
    """Return the memory for this boot of this machine."""
    try:
        boot = boot_id(root)
    except ProbeError as error:
        # A failed read ends nothing: active findings stay, and the whole log is judged again.
        before, boot = replace(before, cursor=None), before.boot_id
        log.warning("the boot can't be identified", error=str(error))
    try:
        machine = machine_id(root)
    except ProbeError as error:
        machine = before.machine
        log.warning("the machine can't be identified", error=str(error))
    if file is not None and before.machine and machine and before.machine != machine:
        log.warning("the memory belongs to another machine and is not used", was=file.set_aside("other-machine"))
    memory = begin(before, machine, boot, clock.now())
    log.info("memory", boot_id=boot, cursor=memory.cursor, active=[finding.finding.reason for finding in memory.active])
    return memory


_MOST_INTERVALS_SILENT = 3
_FIRST_SIGHT_SECONDS = 1.0
"""Longest wait of the first cycle for the watch; without the API server it runs anyway."""


class ClusterSide:
    """The parts that talk to the API server."""

    def __init__(self, api: ApiServer, state: AgentState, ledger: Ledger, telemetry: Telemetry, root: Path) -> None:
        self.reporter = Reporter(api, state, telemetry)
        self.node_input = NodeInput(api, state, ledger, self.reporter)
        update = NodeUpdate(api, state, self.reporter, telemetry)
        pods = PodReporter(state, self.reporter, root)
        self.node_writer = NodeWriter(api, state, self.node_input, update, self.reporter, pods, telemetry)
        self.work = WorkObserver(api, state, telemetry, root)
        self.node_watch = NodeWatch(api.cluster, state, self.reporter)
        self.runtime_classes = RuntimeClasses(api, state)


class HostSide:
    """The parts that read this machine."""

    def __init__(
        self,
        settings: AgentSettings,
        state: AgentState,
        ledger: Ledger,
        reporter: Reporter,
        telemetry: Telemetry,
        facilities: frozenset[int],
        schedule: Schedule,
    ) -> None:
        root = settings.host_root
        self.sources = Sources.of(root, settings.state_dir)
        self.configuration = MountedConfiguration(settings, state, ledger, reporter, telemetry)
        self.cycle = Cycle(self.sources, state, ledger, self.configuration.reload, telemetry)
        self.instance_metadata = InstanceMetadata(root, settings.imds_endpoint, state)
        self.deep_processes = DeepProcesses(root, state, reporter.report_defect)
        gpu_watch = GpuWatch(state, schedule.start_cycle_soon)
        judge = RecordJudge(root, state, ledger, reporter, self.deep_processes, telemetry, gpu_watch)
        self.kernel_log = Follower(root, state.memory.cursor, judge, facilities)


class Agent:
    """One agent. `write` False: it checks and serves metrics, but changes neither the Node nor the memory file."""

    def __init__(
        self,
        settings: AgentSettings,
        cluster: Cluster,
        file: MemoryFile | None,
        telemetry: Telemetry,
        *,
        write: bool = True,
        facilities: frozenset[int] = KERNEL_FACILITY,
        waits: DeepIntervals = WAITS,
    ) -> None:
        self.settings = settings
        start = start_from(file, settings.host_root, telemetry)
        labels = load(settings.state_dir, LABELS)
        self.state = state = AgentState(settings.node_name, start.memory, labels=labels)
        self.ledger = ledger = Ledger(state, file, telemetry)
        api = ApiServer(cluster, Permissions(telemetry), Outage(), write)
        self.cluster = ClusterSide(api, state, ledger, telemetry, settings.host_root)
        self.schedule = Schedule(state, settings.config_dir)
        self.host = HostSide(settings, state, ledger, self.cluster.reporter, telemetry, facilities, self.schedule)
        self.gate = Gate(
            state,
            self.cluster.reporter,
            telemetry,
            settings.host_root,
            self.host.cycle,
            self.schedule.start_cycle_soon,
            lambda: self.cluster.node_writer.is_writing,
        )
        level_2 = Level2(settings.host_root, state)
        deep = DeepTests(state, cluster, level_2, self.schedule, telemetry, settings.state_dir, waits)
        self.deep = deep if write and file is not None else None
        self.reset_watch = ResetWatch(state, cluster, settings.state_dir, self.cluster.reporter) if write else None
        self._begin_with(start)

    def _begin_with(self, start: StartState) -> None:
        self.host.configuration.reload()
        if start.was_lost:
            self.cluster.node_input.want_record()
        if start.unreadable:
            self.cluster.reporter.warn("MemoryUnreadable", start.unreadable)

    def start(self) -> None:
        """Start the threads that follow the log, run cycles and write."""
        # Imported and wired objects live as long as the process. Collecting them would stop all threads for 15 ms or
        # more, and a flooded log overruns its ring buffer in that time.
        gc.freeze()
        self.host.deep_processes.start()
        self.cluster.node_watch.start()
        if self.state.settings.values.node_overrides:
            # The log is judged once, by the checks of the Node's group, and its findings are written before any cycle.
            self.state.node_shown.wait(_FIRST_SIGHT_SECONDS)
        self.host.kernel_log.start()
        self.cluster.node_writer.start()
        if self.reset_watch is not None:
            self.reset_watch.start()
        deep = self.deep.attempt if self.deep else None
        self.schedule.start(self.run_cycle, self._ask_others, deep, self.cluster.work.update)

    def run_cycle(self) -> float | None:
        """Run one light cycle, then write the heartbeat."""
        if not self.ready():
            # The Node's labels give the instance type, and show a change of the driver.
            self.state.node_shown.wait(_FIRST_SIGHT_SECONDS)
        again_seconds = self.host.cycle.run()
        self.cluster.node_writer.cycle_ended()
        return again_seconds

    def _ask_others(self) -> None:
        """Start the requests to other systems that a cycle needs and never waits for."""
        self.host.instance_metadata.ask()
        self.cluster.runtime_classes.list_when_due()
        if self.deep is not None:
            self.deep.tidy()

    def healthy(self) -> bool:
        """Whether a light cycle ended within three intervals, or three deadlines of an NVML probe if those are longer.

        An unreachable API server does not change the answer.
        """
        interval_seconds = self.state.settings.values.check_interval_seconds
        longest = _MOST_INTERVALS_SILENT * max(interval_seconds, self.host.sources.driver.deadline_seconds)
        return self.state.now().monotonic - self.host.cycle.ended_at < longest

    def ready(self) -> bool:
        """Whether a first cycle has ended."""
        return self.host.cycle.ended > 0

    def end(self) -> None:
        """Stop. Labels, taints and the condition stay as they are; so does the memory file."""
        self.schedule.end()
        if self.deep is not None:
            self.deep.end()
        if self.reset_watch is not None:
            self.reset_watch.end()
        self.host.kernel_log.end()
        self.host.deep_processes.end()
        self.ledger.save()
        self.cluster.node_watch.end()
        self.cluster.node_writer.end()
        for pid in filter(None, self.host.sources.end()):
            log.warning("a process is stuck in the driver and remains", pid=pid)
