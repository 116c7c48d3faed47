"""Current state of the agent: the Node, the settings, the judgement and the last deep run on the node.

All parts share one `AgentState` and ask it for each value when they need it. Its lock is held only to replace one
`AgentKnowledge` with another, never during a request, a disk access or a call of a child process. An `AgentKnowledge`
is immutable: read values that belong together from one object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks.examine import NOT_LOOKED_YET
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, claim_on
from gpu_healthcheck.healthcheck.host import clock
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Check, Evidence, Nature, Now, Outcome, Severity, Unobserved
from gpu_healthcheck.healthcheck.model.node_facts import SEEN_SECONDS, DeepDiagnostic
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE, NodeState, SelectiveClass, runtime_classes
from gpu_healthcheck.healthcheck.probes.dcgm.engine import ENGINE, NO_ENGINE, accept_second_engine
from gpu_healthcheck.healthcheck.probes.hami import HAMI
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading
from gpu_healthcheck.healthcheck.settings.reading import Settings
from gpu_healthcheck.healthcheck.verdict.acknowledgement import other_severities
from gpu_healthcheck.healthcheck.verdict.inventory import Inventory
from gpu_healthcheck.healthcheck.verdict.inventory_seen import seen_in
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide, worst
from gpu_healthcheck.healthcheck.verdict.work import WorkRow

_NOT_YET = Unobserved(NOT_LOOKED_YET, "the first check cycle has not ended")


class Judgement(Struct, frozen=True, dict=True):
    """Memory and last outcome of each selected check. The verdict is computed once, when it is first read."""

    memory: Memory = field(default_factory=Memory)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every selected check has an outcome."""
        return all(check.name in self.outcomes for check in self.checks)

    @cached_property
    def verdict(self) -> Verdict:
        return decide(
            self.memory,
            [
                self.outcomes.get(check.name, Outcome(check.name, check.group, unobserved=(_NOT_YET,)))
                for check in self.checks
            ],
        )

    def after(self, memory: Memory, outcomes: Iterable[Outcome] = ()) -> Judgement:
        """Return the judgement with this memory and these outcomes."""
        return Judgement(memory, {**self.outcomes, **{outcome.check: outcome for outcome in outcomes}}, self.checks)

    def among(self, checks: tuple[Check, ...], memory: Memory) -> Judgement:
        """Return the judgement by these checks alone."""
        names = {check.name for check in checks}
        outcomes = {name: outcome for name, outcome in self.outcomes.items() if name in names}
        return Judgement(memory, outcomes, checks)


class RunOnNode(Struct, frozen=True):
    """Deep run on the node, from the changes of the Node so far."""

    held: Claim | None = None
    deep_run: DeepDiagnostic | None = None
    node_was_seen: bool = False

    def seen(self, node: NodeState | None, now: Now) -> RunOnNode:
        """Return the state after one more change of the Node; None: it is deleted."""
        held, deep_run = claim_on(node, now.wall) if node is not None else None, self.deep_run
        if held is not None and not (self.held is not None and held.is_same_run(self.held)):
            # A claim that existed before this agent: its start is unknown.
            deep_run = DeepDiagnostic(held.kind.value, now.monotonic if self.node_was_seen else 0.0)
        elif held is None:
            deep_run = _ended(deep_run, now.monotonic)
        return RunOnNode(held, deep_run, self.node_was_seen or node is not None)

    def at(self, now: Now) -> DeepDiagnostic | None:
        """Return the current run or the last one.

        A run has ended at its `until`, even if the Node still has its claim.
        """
        if self.held is None or now.wall < self.held.until:
            return self.deep_run
        return _ended(self.deep_run, now.monotonic - (now.wall - self.held.until).total_seconds())


def _ended(run: DeepDiagnostic | None, at: float) -> DeepDiagnostic | None:
    return replace(run, until=at) if run is not None and run.until is None else run


class AgentKnowledge(Struct, frozen=True):
    """State of the agent at one moment, and the values derived from it."""

    judgement: Judgement = field(default_factory=Judgement)
    cluster_settings: Settings = field(default_factory=Settings)
    settings: Settings = field(default_factory=Settings)
    """Settings in force: those of the cluster, with the values of `node-overrides` for these labels."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Node; without a Node, its last known ones."""
    node: NodeState | None = None
    """The Node as last observed; None before the first read, after its deletion, and when it must be read again."""
    last_evidence: Evidence | None = None
    inventory: Inventory | None = None
    """GPUs and container runtime of that cycle, for the record."""
    work: Mapping[str, WorkRow] = MappingProxyType({})
    """GPUs that wait or idle, for the record."""
    watched_until: float = 0.0
    """Time until which check cycles are repeated soon (monotonic): the kernel reported a GPU's PCI function."""
    no_driver_at: float = 0.0
    """Last cycle without a driver (monotonic): the driver was loaded later, also if the log is not read."""
    metadata_type: str = ""
    """The instance type by the metadata service, '' until it has answered."""
    runtime_classes: tuple[SelectiveClass, ...] | None = None
    """RuntimeClasses of the cluster; None: not listed yet."""
    run: RunOnNode = field(default_factory=RunOnNode)
    deep_processes: Mapping[int, float] = field(default_factory=dict)
    """Processes of deep tests, by pid, with the last observation (monotonic)."""

    def after(self, **changes: Any) -> AgentKnowledge:
        """Return the state with these changes, and with the settings that follow from them."""
        known = replace(self, **changes)
        is_same = known.cluster_settings is self.cluster_settings
        if is_same and known.node is self.node:
            return known
        labels = known.node.labels if known.node is not None else known.labels
        values = known.cluster_settings.values.for_labels(labels)
        is_same = is_same and values == self.settings.values
        settings = self.settings if is_same else replace(known.cluster_settings, values=values)
        return replace(known, labels=labels, settings=settings)

    @property
    def memory(self) -> Memory:
        return self.judgement.memory

    @property
    def instance_type(self) -> str:
        """If neither the Node nor the metadata service answers, return the instance type of the last cycle."""
        return self.metadata_type or (
            self.node.labels.get(INSTANCE_TYPE, "") if self.node else self.memory.instance_type
        )

    @property
    def level_checks(self) -> tuple[Check, ...]:
        """Return the checks of a light cycle; the others follow their source."""
        return tuple(check for check in self.settings.values.checks if check.nature is Nature.LEVEL)

    @property
    def event_checks(self) -> tuple[Check, ...]:
        """Return the checks that follow the kernel log."""
        return tuple(check for check in self.settings.values.checks if check.nature is Nature.EVENT)

    @property
    def driver_reading(self) -> DriverReading | None:
        """Return the NVML reading of the last cycle."""
        last = self.last_evidence
        return last[NVML] if last is not None and last.unread(NVML) is None else None

    @property
    def hami_runs(self) -> bool | None:
        """Whether HAMi's processes ran on the node in the last cycle; None if they were not read."""
        last = self.last_evidence
        return last[HAMI].runs if last is not None and last.unread(HAMI) is None else None

    @property
    def severity(self) -> Severity:
        """Return the worst severity of all active findings."""
        return worst(finding.finding.severity for finding in self.memory.active)

    def severity_on(self, node: NodeState) -> Severity:
        """Return the worst severity of the Node's records and of this agent's active findings."""
        return worst((self.severity, *other_severities(node, self.memory.acknowledged, self.memory.adopted_records)[0]))

    def deep_run(self, now: Now) -> DeepDiagnostic | None:
        """Return the current deep run on the node, or the last run."""
        run = self.run.at(now)
        return replace(run, processes=self.deep_processes) if run is not None else None

    def expectation(self, now: Now) -> Expectation:
        """Return the expectation that a cycle is judged against."""
        values, memory, node = self.settings.values, self.memory, self.node
        classes = self.runtime_classes
        return Expectation(
            find_profile(self.settings.profiles, self.instance_type),
            self.instance_type,
            now.monotonic - max(memory.driver_loaded_at or 0.0, self.no_driver_at),
            values.policy,
            max_retired_pages_sbe=values.max_retired_pages_sbe,
            first=memory.first,
            efa_allocatable=node.efa_allocatable if node else None,
            runtime_classes=runtime_classes(classes, node.labels) if node and classes is not None else None,
            deep_run=self.deep_run(now),
        )


class AgentState:
    """Shared state of the agent's parts. Thread-safe. `now` is the clock of all parts."""

    def __init__(
        self,
        node_name: str,
        memory: Memory | None = None,
        now: Callable[[], Now] = clock.now,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.node_name = node_name
        self.now = now
        self.news = threading.Event()
        """Set when the Node may need a write; the node writer clears it."""
        self.node_changed = threading.Event()
        """Set when the watch delivered the Node; the reader of deep-test processes clears it."""
        self.node_shown = threading.Event()
        """Set when the watch has delivered the Node or its deletion."""
        self._lock = threading.Lock()
        self._unreadable = ""
        judgement = Judgement(memory or Memory(), checks=Settings().values.checks)
        self._known = AgentKnowledge(judgement, labels=labels)

    @property
    def known(self) -> AgentKnowledge:
        return self._known

    @property
    def judgement(self) -> Judgement:
        return self._known.judgement

    @property
    def memory(self) -> Memory:
        return self._known.memory

    @property
    def settings(self) -> Settings:
        return self._known.settings

    @property
    def node(self) -> NodeState | None:
        return self._known.node

    @property
    def last_evidence(self) -> Evidence | None:
        return self._known.last_evidence

    def deep_run(self) -> DeepDiagnostic | None:
        return self._known.deep_run(self.now())

    def expectation(self) -> Expectation:
        return self._known.expectation(self.now())

    def remember(self, judgement: Judgement) -> None:
        """Set the judgement. Only the ledger calls this, after the write to the disk."""
        self._put(judgement=judgement)

    def configure(self, settings: Settings, memory: Memory, outcomes: Iterable[Outcome] = ()) -> None:
        """Set the settings of the cluster, the outcomes of new checks, and the memory without findings of removed ones.

        Only the ledger calls this.
        """
        checks = settings.values.for_labels(self.known.labels).checks
        self._put(cluster_settings=settings, judgement=self.judgement.among(checks, memory).after(memory, outcomes))

    def keep_newer(self, node: NodeState) -> bool:
        """Keep the Node if it is newer, and return whether it is.

        The watch may deliver a state from before our last write.
        """
        with self._lock:
            before = self._known.node
            if before is not None and _is_older(node, before):
                return False
            self._change(node=node)
            return True

    def set_node(self, node: NodeState | None) -> None:
        """Replace the Node; None: it is deleted, or must be read again."""
        self._put(node=node)

    def note_unreadable(self, why: str) -> bool:
        """Set the reason why the Node can't be read ('' if it can), and return whether the reason is new."""
        with self._lock:
            is_new, self._unreadable = why != self._unreadable, why
            return is_new

    def see_run(self, node: NodeState | None) -> None:
        """Update the deep diagnostic or quarantine that owns the node. Only the thread of the watch calls this."""
        self._put(run=self._known.run.seen(node, self.now()))

    def is_reset(self) -> bool:
        """Whether a reset owns the node."""
        run = self._known.run.held
        return run is not None and run.kind is RunKind.RESET and self.now().wall < run.until

    def see_deep_processes(self, pids: Iterable[int]) -> None:
        """Set the processes of running deep tests."""
        now = self.now().monotonic
        with self._lock:
            kept = {pid: at for pid, at in self._known.deep_processes.items() if now - at <= SEEN_SECONDS}
            seen = {**kept, **dict.fromkeys(pids, now)}
            self._known = replace(self._known, deep_processes=seen)

    def store_evidence(self, evidence: Evidence, *, no_driver: bool = False) -> None:
        """Set the last light cycle."""
        values = self._known.settings.values
        engine = evidence[ENGINE] if evidence.unread(ENGINE) is None and not values.dcgm_host else NO_ENGINE
        inventory = seen_in(evidence, accept_second_engine(engine, second_engine=values.dcgm_second_engine))
        self._put(last_evidence=evidence, inventory=inventory, **({"no_driver_at": evidence.at} if no_driver else {}))

    def set_work(self, work: Mapping[str, WorkRow]) -> None:
        """Set the GPUs that wait or idle. Others than before are news for the Node."""
        if work != self._known.work:
            self._put(work=work)
            self.news.set()

    def watch_gpus(self, seconds: float) -> bool:
        """Repeat check cycles soon for this time. Return whether none are repeated already."""
        now = self.now().monotonic
        with self._lock:
            is_new = now >= self._known.watched_until
            self._known = replace(self._known, watched_until=now + seconds)
            return is_new

    @property
    def is_watching_gpus(self) -> bool:
        return self.now().monotonic < self._known.watched_until

    def set_metadata_type(self, instance_type: str) -> None:
        self._put(metadata_type=instance_type)

    def set_runtime_classes(self, classes: Iterable[SelectiveClass]) -> None:
        self._put(runtime_classes=tuple(classes))

    def _put(self, **changes: Any) -> None:
        with self._lock:
            self._change(**changes)

    def _change(self, **changes: Any) -> None:
        """Set these values. Other settings in force are news, whoever delivered the labels or the ConfigMap."""
        before, self._known = self._known, self._known.after(**changes)
        if self._known.settings is not before.settings:
            self.news.set()


def _is_older(node: NodeState, than: NodeState) -> bool:
    versions = (node.resource_version, than.resource_version)
    return (
        node.uid == than.uid and all(version.isdigit() for version in versions) and int(versions[0]) < int(versions[1])
    )
