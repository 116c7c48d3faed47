"""Write a verdict to the Node: labels, taint and record in one request, the condition in another.

A Node without room for our record gets a reduced write. Our conditions are restored after another client's change, at a
limited rate.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.agent.node.api_server import ApiServer
from gpu_healthcheck.agent.node.node_watch import marks_of
from gpu_healthcheck.agent.node.reporter import Reporter
from gpu_healthcheck.agent.node.wanted_taint import WantedTaint
from gpu_healthcheck.agent.state.agent_state import AgentKnowledge, AgentState
from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden, Refused, Unreadable
from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, claim_on, why_unread
from gpu_healthcheck.healthcheck.deep.reset_plan import awaits_reboot
from gpu_healthcheck.healthcheck.node.hami import CORDON
from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON, RESET_RESULT, RESULTS, NodeState
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import read_release
from gpu_healthcheck.healthcheck.verdict.budget import HELD
from gpu_healthcheck.healthcheck.verdict.node_events import NodeEvent, cut
from gpu_healthcheck.healthcheck.verdict.node_patch import NodePatch, plan
from gpu_healthcheck.healthcheck.verdict.record import Identity, RunRecord
from gpu_healthcheck.healthcheck.verdict.taint_decision import AgentView
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict

_PUT_BACK_SECONDS = 10.0
"""Pause between two restorations. The EKS node monitoring agent writes the whole list every 15 s."""


class WrittenConditions:
    """Conditions as last written to the Node. The node writer's thread uses them."""

    def __init__(self) -> None:
        self._written: dict[str, Mapping[str, Any]] = {}
        self._put_back_at = -math.inf
        self._put_off_until: float | None = None

    def with_time(self, condition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Restore the transition times too: a repair program that measures by them must not start again."""
        before = self._written.get(condition["type"], {})
        if "lastTransitionTime" not in before or before.get("status") != condition.get("status"):
            return condition
        at = before["lastTransitionTime"]
        return {**condition, "lastTransitionTime": at, "lastHeartbeatTime": at}

    def may_go(self, conditions: Sequence[Mapping[str, Any]], now: float) -> bool:
        """Whether the conditions may be written now. Changes are written at once; a repeated restoration waits."""
        due = self._put_back_at + _PUT_BACK_SECONDS
        waits = bool(conditions) and now < due and all(map(self._is_put_back, conditions))
        self._put_off_until = due if waits else None
        return not waits

    def went(self, conditions: Sequence[Mapping[str, Any]], now: float) -> None:
        if any(map(self._is_put_back, conditions)):
            self._put_back_at = now
        self._written.update((condition["type"], condition) for condition in conditions)

    def put_off_seconds(self, now: float) -> float | None:
        """Return the time until a delayed write is due, in seconds; None without one. The due time is returned once.

        Nothing is written while a cycle settles, so a caller that polled would never rest.
        """
        until = self._put_off_until
        if until is not None and now >= until:
            self._put_off_until = None
        return None if until is None else max(0.0, until - now)

    def _is_put_back(self, condition: Mapping[str, Any]) -> bool:
        before = self._written.get(condition["type"])
        return before is not None and _words(before) == _words(condition)


def _words(condition: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(condition.get(key) for key in ("status", "reason", "message"))


_NOTE = "no room on the Node for the record"


class RecordLeftOut(Struct):
    """Record that the Node did not accept; '' if it did.

    The missing record is then no change, or it would be written again at each change of the Node.
    """

    text: str = ""
    may_try: bool = False
    """A cycle has ended since the record was last tried."""

    def with_rejected_record(self, node: NodeState) -> NodeState:
        """Return the Node with the record that it rejected, for comparison. A record on the Node takes precedence."""
        if not self.text or RESULTS in node.annotations:
            return node
        return replace(node, annotations={**node.annotations, RESULTS: self.text})

    def noted_in(self, condition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the note to the condition, the only other place for it on the Node."""
        return {**condition, "message": cut(f"{_NOTE}; {condition['message']}")} if self.text else condition


def without_record(patch: Mapping[str, Any], node: NodeState) -> dict[str, Any]:
    """Return the write without the record, and remove an older record, which would contradict the new labels.

    A label `pass` with a worse record would even count as a person's release.
    """
    metadata = patch["metadata"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key != RESULTS}
    if RESULTS in node.annotations:
        annotations[RESULTS] = None
    return {**patch, "metadata": {**metadata, "annotations": annotations}}


log = structlog.get_logger()

Patch = Mapping[str, Any]
_REWRITE_SECONDS = 3600.0
_REWRITE_JITTER = (0.85, 0.90)
"""Largest age of the record, so that it is written at least hourly: the next cycle is up to 330 s later. Random per
node.
"""

_WITHOUT_WORK = (RunKind.L2, RunKind.SWEEP)
"""Runs that may be repeated: a repair need not wait for them."""


class NodeUpdate:
    """Writes to the Node, on the node writer's thread. The answer to each write is the resulting Node."""

    def __init__(self, api: ApiServer, state: AgentState, reporter: Reporter, telemetry: Telemetry) -> None:
        self._api = api
        self._state = state
        self._reporter = reporter
        self._telemetry = telemetry
        self._taint = WantedTaint(api, state, reporter, telemetry)
        self.slot = self._taint.slot
        self._record = RecordLeftOut()
        self._conditions = WrittenConditions()
        self._reported: set[str] = set()
        """Names of Events about repair conditions that still apply."""
        self._rewrite_seconds = _REWRITE_SECONDS * random.uniform(*_REWRITE_JITTER)  # noqa: S311

    def cycle_ended(self) -> None:
        self._taint.cycle_ended()
        self._record.may_try = True

    def put_off_seconds(self) -> float | None:
        """Time until the conditions may be restored; None: they are in place, or wait for another event."""
        return self._conditions.put_off_seconds(time.monotonic())

    def waits_for_taint(self, node: NodeState) -> bool:
        """Whether the budget has a slot for a taint that is not set yet."""
        return self.slot.is_held and not self._taint.is_set(node)

    def read(self) -> NodeState:
        """Read the Node. Raises ClusterError."""
        node = self._api.cluster.nodes.read(self._state.node_name)
        self._state.set_node(node)
        self._state.note_unreadable("")
        self._api.permissions.allow("get", "nodes")
        return node

    def apply(self, known: AgentKnowledge, node: NodeState) -> bool:
        """Write the verdict, and return whether the Node carries it now. Raises ClusterError."""
        view, whole = self._view(known, node), self._record.with_rejected_record(node)
        decision, grant = self._taint.decide(view, whole)
        change = plan(view, decision, whole, grant)
        self._reporter.complain((*read_release(node, by_label=False)[1], *why_unread(node), *change.complaints))
        if not self._api.write:
            events = [event.reason for event in (*change.events, *change.repair.events)]
            conditions = [condition for condition in (change.condition, *change.repair.conditions) if condition]
            log.info("dry run", patch=change.patch, conditions=conditions, events=events)
            return True
        if change.patch is None and self._record.text and self._record.may_try:
            at_once = replace(view, rules=replace(view.rules, rewrite_after_seconds=0.0))
            self._try_record(node, plan(at_once, decision, whole, grant).patch)
        without_cordons = partial(plan, view, decision, whole, HELD if grant.cordons else grant, may_cordon=False)
        is_written = self._write(node, change, view.verdict, lambda: without_cordons().patch)
        self._telemetry.withheld.set(not grant.held and not node.tainted())
        if (after := self._state.node) is not None:
            self._taint.settle(after)
            self._measure_taint(view, was_tainted=node.tainted(), node=after)
        return is_written

    def _measure_taint(self, view: AgentView, *, was_tainted: bool, node: NodeState) -> None:
        slots = self.slot.usage(view.rules.max_unhealthy_percent)
        self._telemetry.show_taint(tainted=self._taint.is_set(node), slots=slots)
        faults = [active for active in view.verdict.active if active.finding.severity >= view.rules.taint_severity]
        if faults and node.tainted() and not was_tainted:
            first = min(active.first_seen for active in faults)
            self._telemetry.fault_to_taint.observe(max((self._state.now().wall - first).total_seconds(), 0.0))

    def _view(self, known: AgentKnowledge, node: NodeState) -> AgentView:
        rules = replace(known.settings.values.rules, rewrite_after_seconds=self._rewrite_seconds)
        identity = Identity(node.name, known.instance_type, node.uid, known.inventory, known.work)
        now = self._state.now().wall
        claim = claim_on(node, now)
        is_reset = claim is not None and claim.kind is RunKind.RESET
        is_drained = is_reset and awaits_reboot(records.on_node(RunRecord, node, RESET_RESULT), known.memory.boot_id)
        return AgentView(
            known.judgement.verdict, known.memory, identity, rules, now, _work(claim), is_drained, known.hami_runs
        )

    def _write(
        self, node: NodeState, change: NodePatch, verdict: Verdict, without_cordons: Callable[[], Patch | None]
    ) -> bool:
        """Write the Node's changes: the taint first, because it keeps work away."""
        is_written = True
        if change.patch is not None:
            write = partial(self._write_node, node, change.patch, without_cordons)
            is_written = self._api.permissions.write("nodes", write)
            if is_written:
                for event in change.events:
                    self._reporter.queue(event)
                log.info("wrote the Node", status=verdict.status.value, severity=verdict.severity.name)
            else:
                self._taint.release_slot(node)  # a slot without a possible taint is free for another node
        # No repair is requested for a node that still accepts work.
        repairs = change.repair.conditions if is_written else ()
        verdicts = [] if change.condition is None else [self._record.noted_in(change.condition)]
        if not self._write_conditions(node, [*verdicts, *map(self._conditions.with_time, repairs)]):
            return False
        self._tell(change.repair.events)
        return is_written

    def _write_conditions(self, node: NodeState, conditions: Sequence[Mapping[str, Any]]) -> bool:
        """Write the conditions in one request, and return whether they are in place."""
        if not self._conditions.may_go(conditions, time.monotonic()):
            return False
        if not conditions:
            return True
        request = partial(self._api.cluster.nodes.patch_conditions, node.name, conditions)
        before = self._state.node
        is_written = self._api.permissions.write("nodes/status", partial(self._keep, request))
        if is_written:
            self._conditions.went(conditions, time.monotonic())
        after = self._state.node
        if before is not None and after is not None and marks_of(before) != marks_of(after):
            self._state.news.set()  # the answer contains a change of another client, which the watch then skips
        return is_written

    def _tell(self, events: Sequence[NodeEvent]) -> None:
        """Report each conflict once while it lasts."""
        for event in events:
            if event.name not in self._reported:
                self._reporter.queue(event)
        self._reported = {event.name for event in events}

    def _write_node(self, node: NodeState, patch: Patch, without_cordons: Callable[[], Patch | None]) -> None:
        """Write everything; if a change of HAMi's list is refused, the taint of the Node instead."""
        write: Patch | None = patch
        if patch["metadata"]["annotations"].keys() & {CORDON, DEVICE_CORDON}:
            try:
                self._write_labels_and_record(node, patch)
            except (Forbidden, Refused) as error:
                log.warning("a change of HAMi's list of cordoned cards is refused", answer=str(error))
                self._taint.forbid_cordons(str(error))
                write = without_cordons()
            else:
                return
        if write is not None:
            self._write_labels_and_record(node, write)

    def _write_labels_and_record(self, node: NodeState, patch: Patch) -> None:
        """Write the patch; if the Node has no room for the record, the patch without it."""
        try:
            self._keep(partial(self._api.cluster.nodes.patch, node.name, patch))
        except Refused as error:
            self._keep(partial(self._api.cluster.nodes.patch, node.name, without_record(patch, node)))
            is_new = not self._record.text
            self._record = RecordLeftOut(patch["metadata"]["annotations"][RESULTS])
            if is_new:
                log.warning(
                    "the Node has no room for the record; its labels and taint are set without it", answer=str(error)
                )
                self._reporter.warn("RecordLeftOut", f"labels and taint are set without the record: {error}")
        else:
            self._record.text = ""
        self._telemetry.record_left_out.set(bool(self._record.text))

    def _try_record(self, node: NodeState, patch: Mapping[str, Any] | None) -> None:
        """Try the record again. Everything else is written already."""
        if patch is None:
            return
        self._record.may_try = False
        try:
            self._keep(partial(self._api.cluster.nodes.patch, node.name, patch))
        except (Refused, Forbidden):
            return
        log.info("the Node accepts the record again")
        self._record.text = ""
        self._telemetry.record_left_out.set(0)

    def _keep(self, write: Callable[[], NodeState]) -> None:
        """Keep the answer to our write, unless the watch has already delivered a newer state.

        An answer that can't be read is ignored: the write has succeeded.
        """
        try:
            node = write()
        except Unreadable as error:
            self.log_unreadable(error)
            self._state.set_node(None)
        else:
            self._state.keep_newer(node)

    def log_unreadable(self, error: Unreadable) -> None:
        """Log an unreadable Node once, until it can be read."""
        if self._state.note_unreadable(str(error)):
            log.warning("the Node can't be read; the newest verdict is kept", error=str(error))


def _work(claim: Claim | None) -> str:
    """Return the quarantine or reset that has claimed the node, which a repair would destroy; '' without one."""
    return "" if claim is None or claim.kind in _WITHOUT_WORK else f"a {claim.kind.value} uses the node"
