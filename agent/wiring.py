"""The agent's parts, put together. Nothing here judges or decides."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from agent.cycle import Cycle, Expectations, Sources
from agent.deep_runs import WAITS, DeepTests, Doors, Pace, Waits, is_absent
from agent.kernel_log import Follower
from agent.last_failure import forget_failure, read_failure
from agent.ledger import Ledger, event_checks
from agent.marks import OwnNode
from agent.node_watch import Watcher
from agent.node_writer import Plan, Teller, node_event
from agent.own_tests import OwnTests
from agent.runs import Runs
from agent.runtime_classes import RuntimeClasses
from agent.schedule import Schedule
from agent.settings import AgentSettings
from healthcheck.checks.driver import being_changed
from healthcheck.checks.expectation import DeepRun, Expectation
from healthcheck.checks.xid import may_be_of_a_test
from healthcheck.cluster.client import NAMESPACE, Cluster
from healthcheck.deep.idle import Idleness
from healthcheck.host import clock
from healthcheck.memory.exits import begin
from healthcheck.memory.file import MemoryFile, MemoryFileError
from healthcheck.memory.findings import Memory
from healthcheck.model import Host, Probe, ProbeError, Severity
from healthcheck.node.state import RUN, NodeState
from healthcheck.probes import diagnostics
from healthcheck.probes.container_runtime.cri import RuntimeStatus
from healthcheck.probes.dcgm.diag import Dcgm, level_2_patience_seconds
from healthcheck.probes.efa.libfabric import Libfabric
from healthcheck.probes.kernel_log import KERNEL_FACILITY, Record, boot_id
from healthcheck.probes.machine import machine_id
from healthcheck.probes.nvml.driver import Driver
from healthcheck.probes.nvml.gpus import NVML
from healthcheck.probes.pod_resources import holds_gpus, read_pod_resources
from healthcheck.settings import BadValue, UnknownKeys
from healthcheck.telemetry import Telemetry
from healthcheck.verdict.acknowledgement import other_severities
from healthcheck.verdict.events import Event
from healthcheck.verdict.verdict import worst

log = structlog.get_logger()

_MOST_INTERVALS_SILENT = 3
_MOST_FAILURES = 2
_WELL_SECONDS = 3600.0
"""An agent that lived so long was not ended by what it began with."""
_FIRST_SIGHT_SECONDS = 1.0
"""How long the first look waits for the watch; without the API server it looks all the same."""


class Agent:
    """One agent. `write` False: it looks and shows its metrics, and touches neither the Node nor the memory file."""

    def __init__(
        self,
        settings: AgentSettings,
        cluster: Cluster,
        file: MemoryFile | None,
        telemetry: Telemetry,
        *,
        write: bool = True,
        facilities: frozenset[int] = KERNEL_FACILITY,
        waits: Waits = WAITS,
    ) -> None:
        self.settings = settings
        self._began = time.monotonic()
        self._may_have_failed = write and file is not None
        root = settings.host_root
        # Kept where standby, which has no file, comes before.
        aside = _set_aside_after_failures(file, telemetry) if file is not None else ""
        memory, lost, damage = _remember(file, settings, telemetry)
        self.ledger = Ledger(memory, file, telemetry, clock.now, self._hurry)
        self.sources = Sources(Driver(root), Libfabric(root), RuntimeStatus(root))
        self.runtime_classes = RuntimeClasses(cluster, telemetry)
        self.runs = Runs(clock.now)
        self.own_tests = OwnTests(
            partial(diagnostics.find, root, NAMESPACE), self.runs.now, lambda: clock.now().monotonic
        )
        self.expectations = Expectations(
            root,
            settings.imds_endpoint,
            clock.now,
            lambda: self.teller.node,
            lambda: self.ledger.memory.instance_type,
            self.runtime_classes.on,
            deep_run=self._deep_run,
        )
        self.cycle = Cycle(
            self.sources, self.ledger, self.expectations, telemetry, settings.config_dir, self._paused, self._complain
        )
        how = Plan(
            settings.node_name,
            lambda: self.cycle.settings.values.rules,
            lambda: self.expectations.instance_type,
            lambda: self.cycle.settings.values.check_interval_seconds,
            write,
        )
        self.teller = Teller(cluster, self.ledger, telemetry, clock.now, how)
        self.cycle.reload()
        if lost:
            self.teller.adopt_from_node()
        if damage:
            self._say("MemoryUnreadable", damage)
        if aside:
            self._say("MemorySetAside", aside)
        self.watcher = Watcher(cluster, settings.node_name, self._saw)
        self.schedule = Schedule(
            self.look, lambda: self.cycle.settings.values.check_interval_seconds, settings.config_dir
        )
        self.deep = self._deep_tests(cluster, telemetry, waits) if write and file is not None else None
        self.follower = Follower(
            root,
            self.ledger,
            telemetry,
            lambda: event_checks(self.cycle.settings),
            self._expect,
            self._say,
            facilities,
        )

    def start(self) -> None:
        """Begin to follow, look and tell, each in its own thread."""
        # What was imported and wired lives as long as we do. To walk through it holds up all threads for 15 ms or more,
        # and the ring of a flooded log is full in as much.
        gc.freeze()
        self.own_tests.start()
        self.follower.start()
        self.watcher.start()
        self.teller.start()
        self.schedule.start(self._aside, self.deep.attempt if self.deep else None)

    def look(self) -> float | None:
        """One light look and, after it, the heartbeat."""
        if not self.ready():
            # The Node's labels say which type this is, and whether somebody is changing the driver.
            self.teller.seen.wait(_FIRST_SIGHT_SECONDS)
        again_seconds = self.cycle.run()
        if self._may_have_failed and time.monotonic() - self._began > _WELL_SECONDS:
            self._may_have_failed = False
            forget_failure(self.settings.state_dir)
        self.teller.beat()
        return again_seconds

    def _aside(self) -> None:
        """What a look needs of others and never waits for."""
        self.expectations.ask_imds()
        self.runtime_classes.list_when_due()
        if self.deep is not None:
            self.deep.tidy()

    def healthy(self) -> bool:
        """Whether a light look ended within three intervals. The API server has no part in it."""
        longest = _MOST_INTERVALS_SILENT * self.cycle.settings.values.check_interval_seconds
        return clock.now().monotonic - self.cycle.ended_at < longest

    def ready(self) -> bool:
        """Whether a first look has ended."""
        return self.cycle.ended > 0

    def end(self) -> None:
        """Stop. Labels, taints and the condition stay as they are; so does the memory file."""
        self.schedule.end()
        if self.deep is not None:
            self.deep.end()
        self.follower.end()
        self.own_tests.end()
        self.ledger.save()
        self.watcher.end()
        self.teller.end()
        for pid in self.sources.end():
            log.warning("a process stuck in the driver is left behind", pid=pid)

    def _saw(self, node: NodeState | None) -> None:
        seen = self.teller.readable(node) if node is not None else None
        try:
            self.runs.saw(seen)
        except Exception as error:
            if seen is None:
                raise
            self.teller.pass_over(seen, RUN, error)
        self.own_tests.hurry()
        self.teller.saw(node)

    def _deep_tests(self, cluster: Cluster, telemetry: Telemetry, waits: Waits) -> DeepTests:
        settings, host, name = self.settings, Host(self.settings.host_root), self.settings.node_name
        idleness = Idleness(lambda: holds_gpus(read_pod_resources(host)), lambda: self.cycle.last)
        doors = Doors(
            node_name=name,
            node=OwnNode(
                partial(cluster.read_node, name), partial(cluster.update_node, name), lambda: self.teller.node
            ),
            diagnostic=self._diagnostic,
            absent=is_absent,
            idle=idleness.used,
            held=idleness.held,
            severity=self._severity,
            expect=lambda: self.expectations.now(self.ledger.memory),
            whose=lambda: (self.ledger.memory.machine, self.ledger.memory.boot_id),
            look_anew=self.schedule.look_soon,
            looked_at=lambda: self.cycle.last.at if self.cycle.last is not None else 0.0,
            beside=self._nvml,
        )
        return DeepTests(doors, self._pace, telemetry, clock.now, settings.state_dir, waits)

    def _deep_run(self) -> DeepRun | None:
        run = self.runs.now()
        return replace(run, processes=self.own_tests.seen) if run is not None else None

    def _expect(self, records: Sequence[Record]) -> Expectation:
        """What these lines are judged against: whose process one names is looked at before it is gone."""
        run = self.runs.now()
        if run is not None and any(may_be_of_a_test(one) and run.covers(one.at) for one in records):
            self.own_tests.look()
        return self.expectations.now(self.ledger.memory)

    def _nvml(self) -> dict[Probe[Any], Any]:
        last = self.cycle.last
        return {NVML: last[NVML]} if last is not None and last.unread(NVML) is None else {}

    def _diagnostic(self) -> Dcgm:
        values = self.cycle.settings.values
        patience_seconds = level_2_patience_seconds(values.dcgm_host)
        return Dcgm(values.dcgm_host, values.dcgm_timeout_seconds, patience_seconds=patience_seconds)

    def _pace(self) -> Pace:
        values = self.cycle.settings.values
        return Pace(values.dcgm_l2_interval_seconds, values.dcgm_timeout_seconds)

    def _severity(self, node: NodeState) -> Severity:
        """Of all records on the Node, and of what stands here by now."""
        memory = self.ledger.memory
        standing = (one.finding.severity for one in memory.standing)
        return worst((*standing, *other_severities(node, memory.acknowledged, memory.taken)[0]))

    def _hurry(self) -> None:
        self.teller.hurry()

    def _paused(self) -> str:
        node = self.teller.node
        return being_changed(node.labels) if node else ""

    def _complain(self, complaints: tuple[BadValue | UnknownKeys, ...]) -> None:
        for one in complaints:
            if isinstance(one, UnknownKeys):
                log.warning("a key of the configuration is no setting", unknown=str(one))
                self._say("UnknownSetting", str(one))
                continue
            log.error("a setting is not allowed; the last good configuration stays", setting=str(one))
            self._say("BadSetting", str(one))

    def _say(self, reason: str, message: str) -> None:
        event: Event = node_event(self.settings.node_name, reason, message)
        self.teller.say(event)


def _set_aside_after_failures(file: MemoryFile, telemetry: Telemetry) -> str:
    """Begin without a memory that may be what ended the agent twice in the same way. What was done; '' for nothing.

    What stood comes back from the Node's own record and the kernel's log.
    """
    last = read_failure(file.directory)
    if last.times < _MOST_FAILURES:
        return ""
    where = file.set_aside("after-failures")
    forget_failure(file.directory)  # the next start, which may be a rollout's, keeps the new one
    telemetry.set_aside.labels("memory").inc()
    told = f"the agent ended {last.times} times in a row by {last.words}; its memory: {where}"
    log.error("the memory is set aside", failure=last.words, times=last.times, memory=where)
    return told


def _remember(file: MemoryFile | None, settings: AgentSettings, telemetry: Telemetry) -> tuple[Memory, bool, str]:
    """What the node-local file holds, brought to this machine and boot; whether it was lost, and to what damage."""
    root = settings.host_root
    before, lost, damage = None, False, ""
    if file is not None:
        try:
            before = file.read()
        except MemoryFileError as error:
            telemetry.memory_errors.inc()
            damage = str(error)
            log.warning("the memory file can't be read", error=damage)
        lost = before is None
    before = before or Memory()
    try:
        boot = boot_id(root)
    except ProbeError as error:
        # Not having looked ends nothing: what stood stands, and the whole log is judged again.
        before, boot = replace(before, cursor=None), before.boot_id
        log.warning("the boot can't be told from another", error=str(error))
    try:
        machine = machine_id(root)
    except ProbeError as error:
        machine = before.machine
        log.warning("the machine can't be told from another", error=str(error))
    if file is not None and before.machine and machine and before.machine != machine:
        log.warning("the memory is another machine's; nothing of it is inherited", was=file.set_aside("other-machine"))
    memory = begin(before, machine, boot, clock.now())
    log.info("memory", boot_id=boot, cursor=memory.cursor, standing=[one.finding.reason for one in memory.standing])
    return memory, lost, damage
