"""Telling: the newest verdict goes onto the Node as soon as the cluster takes it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
import tenacity

from agent.ledger import Ledger
from agent.outage import Outage
from agent.permissions import Access
from agent.places import Places
from agent.reporter import Reporter
from agent.room import Room, without_record
from agent.set_aside import SetAside, hidden, suspects
from agent.slots import Slots
from healthcheck.checks.examine import failure
from healthcheck.cluster.client import Cluster
from healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound, Refused, Unavailable, Unreadable
from healthcheck.deep.claim import why_unread
from healthcheck.deep.record import passed_run, untaken, void_record
from healthcheck.memory.findings import Release
from healthcheck.model import PREFIX, Now, Severity
from healthcheck.node.state import RESULTS, SEVERITY, WATCHED_LABELS, NodeState
from healthcheck.telemetry import Telemetry
from healthcheck.verdict import record as records
from healthcheck.verdict.acknowledgement import read_release
from healthcheck.verdict.budget import HELD
from healthcheck.verdict.change import Rules, plan, wants_place
from healthcheck.verdict.events import Event, cut, event_name, released_event
from healthcheck.verdict.record import Identity, RecordError
from healthcheck.verdict.verdict import Verdict

log = structlog.get_logger()

_URGENT_CAP_SECONDS, _CAP_SECONDS = 5.0, 60.0
"""After an outage a fleet's writes spread over the longer time; an urgent verdict does not wait for it."""
_URGENT_ASKED_SECONDS = (3.0, 5.0)
"""The most that a server which asks for patience gets for an urgent verdict."""
_NODE_GONE_SECONDS = 30.0
_RELEASE_TOLD_SECONDS = 5.0
"""So long what a release changes waits until the release was told."""
_POLL_SECONDS = 0.02
_REWRITE_SECONDS = 3600.0
_REWRITE_JITTER = (0.85, 0.90)
"""At least hourly: the cycle that finds the record this old comes up to 330 s later. Different on each node."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the teller is told to work: `write` False logs what it would do and touches nothing."""

    node_name: str
    rules: Callable[[], Rules]
    instance_type: Callable[[], str]
    heartbeat_seconds: Callable[[], float]
    write: bool = True


class Teller(threading.Thread):
    """One thread that writes the verdict. It is woken by news and holds nothing but the Node as it was last seen.

    Events and the heartbeat (`report`) and the place in the fleet budget (`place`) have threads of their own, so that
    no request for them ever stands before the verdict.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, telemetry: Telemetry, clock: Callable[[], Now], how: Plan
    ) -> None:
        super().__init__(name="tell", daemon=True)
        self._cluster = cluster
        self._ledger = ledger
        self._telemetry = telemetry
        self._access = Access(telemetry)
        self._clock = clock
        self._how = how
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._node: NodeState | None = None
        self._outage = Outage()
        slots = Slots(cluster)
        self._places = Places(slots, self._access, self._outage, self.hurry)
        self._reporter = Reporter(cluster, self._access, self._outage, self._node_now, clock, how.heartbeat_seconds)
        self._room = Room()
        self._aside = SetAside(telemetry, lambda reason, told: self.say(node_event(how.node_name, reason, told)))
        self._adopt = False
        self._released: Release | None = None
        self._complaints: tuple[str, ...] = ()
        self._look_ended = False
        self._unreadable = ""
        """What was said of a Node that nobody can read."""
        self._not_before = 0.0
        self._asked_for = Severity.PASS
        """The verdict whose write the server put off till then."""
        self._rewrite_seconds = _REWRITE_SECONDS * random.uniform(*_REWRITE_JITTER)  # noqa: S311
        self.seen = threading.Event()
        """Set once the watch has shown the Node, or that it is gone."""
        self.told = threading.Event()
        """Set once the verdict stands on the Node, and nothing is asked that it went on without."""

    @property
    def node(self) -> NodeState | None:
        return self._node

    @property
    def is_all_told(self) -> bool:
        """Whether the verdict stands on the Node, its Events and the heartbeat beside it."""
        return self.told.is_set() and (self._reporter.is_done or not self._how.write)

    def start(self) -> None:
        super().start()
        if self._how.write:
            self._reporter.start()
            self._places.start()

    def adopt_from_node(self) -> None:
        """The memory file was lost: take what the Node's own record still says before writing over it."""
        self._adopt = True

    def readable(self, node: NodeState) -> NodeState:
        """Without what was set aside."""
        return self._aside.without(node)

    def pass_over(self, node: NodeState, key: str, error: Exception) -> None:
        """Set this annotation aside: reading it failed."""
        self._aside.put(node, {key}, error)

    def saw(self, node: NodeState | None) -> None:
        """The watch showed the Node as it is now; None: it is gone."""
        before, self._unreadable = self._node, ""
        node = self.readable(node) if node is not None else None
        if node is not None and before is not None and _older(node, before):
            return
        self._node = node
        self.seen.set()
        if node is not None and (before is None or _differs(before, node)):
            self._wake.set()
            if before is None:
                self._reporter.hurry()

    def hurry(self) -> None:
        """There is news."""
        self._wake.set()

    def beat(self) -> None:
        """A look ended: renew the heartbeat, and tell what it found."""
        self._places.look_ended()
        self._look_ended = True
        self._room.look_ended()
        self._reporter.beat()
        self._wake.set()

    def say(self, event: Event) -> None:
        """Tell an Event that belongs to no verdict."""
        self._reporter.say(event)

    def end(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._reporter.end()
        self._places.end()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._wait(None)
            again = tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(ClusterError),
                wait=self._pause,
                sleep=self._wait,
                stop=tenacity.stop_when_event_set(self._stopping),
                before_sleep=self._account_for,
                retry_error_callback=lambda _: None,
            )
            again(self._tell_somehow)

    def tell(self) -> None:
        """Bring the Node up to the verdict of now. Raises ClusterError; the next try computes everything anew."""
        seen = self._node
        released = seen is not None and self._heed(seen)
        snapshot = self._ledger.snapshot()
        settled = snapshot.complete and not snapshot.verdict.settling
        if self._stopping.is_set():
            return
        # A person who released the node waits for the answer; still, a restart says nothing before its first look.
        if settled or (released and snapshot.complete) or snapshot.verdict.severity >= Severity.RESET:
            self._telemetry.pending.set(1)
            node = self._node or self._read()
            stands = not (snapshot.complete or _is_news_to(snapshot.verdict, node)) or self._apply(node)
            self._telemetry.pending.set(not stands)
        if settled and not self._places.is_owed:
            self.told.set()
            self._look_around()
        self._outage.back("nodes")

    def _look_around(self) -> None:
        """After each look once."""
        node = self._node
        if self._look_ended and node is not None:
            self._look_ended = False
            self._places.look_around(node)

    def _tell_somehow(self) -> None:
        """Tell, and find out which annotation is to blame where that fails for a fault of ours."""
        try:
            self.tell()
        except ClusterError:
            raise
        except Exception as error:
            if not self._pass_over(error):
                raise

    def _pass_over(self, error: Exception) -> bool:
        """Whether it can be told without one annotation, which is set aside then; else none of them is to blame.

        Nor is any where it can be told now with all of them.
        """
        node = self._node
        if node is None:
            return False
        for keys in (set[str](), *suspects(node)):
            self._node = hidden(node, keys)
            try:
                self.tell()
            except ClusterError:
                pass  # it has come as far as the cluster
            except Exception as again:  # noqa: BLE001 - the next suspect
                log.debug("not this annotation alone", keys=sorted(keys), failure=failure(again))
                continue
            if not keys:
                log.error("telling failed, and went well when it was tried again", failure=failure(error))
            self._aside.put(node, keys, error)
            return True
        self._node = node
        return False

    def _read(self) -> NodeState:
        self._node = self.readable(self._cluster.read_node(self._how.node_name))
        self._unreadable = ""
        self._access.allow("get", "nodes")
        return self._node

    def _node_now(self) -> NodeState:
        return self._node or self._cluster.read_node(self._how.node_name)

    def _apply(self, node: NodeState) -> bool:
        """Whether the verdict stands on the Node now."""
        self._heed(node)
        verdict, memory = (snapshot := self._ledger.snapshot()).verdict, snapshot.memory
        now = self._clock().wall
        identity = Identity(node.name, self._how.instance_type(), node.uid)
        rules = replace(self._how.rules(), rewrite_after_seconds=self._rewrite_seconds)
        wanted = wants_place(verdict, node, rules, memory)
        place = self._places.hold(node, rules.max_unhealthy_percent) if wanted and self._how.write else HELD
        record = records.render(verdict, memory, identity, now)
        whole = self._room.as_if_there(node)
        change = plan(verdict, record, whole, rules, now, memory.acknowledged, place)
        self._complain((*read_release(node, gestures=False)[1], *why_unread(node), *change.complaints))
        if not self._how.write:
            log.info(
                "dry run", patch=change.patch, condition=change.condition, events=[e.reason for e in change.events]
            )
            return True
        stands = True
        # The taint first: it is what keeps work away. Each answer is the Node as it is after the write.
        if change.patch is not None:
            patch = change.patch
            stands = self._access.write("nodes", partial(self._write_node, node, patch))
            if stands:
                for event in change.events:
                    self._reporter.say(event)
                log.info("told the node", status=verdict.status.value, severity=verdict.severity.name)
            elif not node.tainted():
                self._places.free(node)  # a place that no taint can be had for is another's
        elif self._room.is_worth_a_try:
            at_once = replace(rules, rewrite_after_seconds=0.0)
            again = plan(verdict, record, whole, at_once, now, memory.acknowledged, place)
            self._try_record(node, again.patch)
        if change.condition is not None:
            condition = self._room.noted(change.condition)
            write = partial(self._cluster.patch_condition, node.name, condition)
            stands = self._access.write("nodes/status", partial(self._keep, write)) and stands
        self._telemetry.withheld.set(not place.held and not node.tainted())
        after = self._node
        if not wanted and after is not None and not after.tainted():
            self._places.free(after)
        return stands

    def _write_node(self, node: NodeState, patch: Mapping[str, Any]) -> None:
        """All of it; where the Node has no room for that, labels and taint without the record."""
        try:
            self._keep(partial(self._cluster.patch_node, node.name, patch))
        except Refused as error:
            self._keep(partial(self._cluster.patch_node, node.name, without_record(patch, node)))
            if self._room.left_out(patch):
                log.warning("the Node takes no record; its labels and taint stand without it", answer=str(error))
                self.say(node_event(node.name, "RecordLeftOut", f"labels and taint stand without the record: {error}"))
        else:
            self._room.found()
        self._telemetry.record_left_out.set(self._room.is_full)

    def _try_record(self, node: NodeState, patch: Mapping[str, Any] | None) -> None:
        """Whether there is room again. All but the record stands already."""
        if patch is None:
            return
        self._room.tried()
        try:
            self._keep(partial(self._cluster.patch_node, node.name, patch))
        except (Refused, Forbidden):
            return
        log.info("the Node takes the record again")
        self._room.found()
        self._telemetry.record_left_out.set(0)

    def _heed(self, node: NodeState) -> bool:
        """Take in what only the Node knows: our own lost record, a person's release, what deep runs found or passed.

        Whether there was a release. It comes first: it speaks of what deep runs had told by then.
        """
        if self._adopt:
            self._adopt_record(node)
        release, _ = read_release(node, gestures=self._how.rules().enable_label)
        if release is not None:
            self._take_release(node, release)
        deep = list(untaken(node, self._ledger.memory.taken))
        for one in deep:
            if one.void:
                self.say(void_record(node, one))
        for new in self._ledger.take_over(deep):
            told = new.finding
            log.info("found", reason=told.reason, severity=told.severity.name, subject=told.subject, detail=told.detail)
        passed = passed_run(node)
        if passed is not None:
            self._ledger.passed(passed)
        return release is not None

    def _take_release(self, node: NodeState, release: Release) -> None:
        # On the disk first, then told, then off the Node: whoever dies in between does the same again. But Events that
        # nobody takes for now hold up no verdict for long, and an urgent one not at all.
        self._ledger.released(release)
        if self._how.write and release != self._released:
            log.info("released", by=release.by, reason=release.reason, findings=len(release.findings))
            self._released = release
            told = self._reporter.say(released_event(node, release), first=True)
            deadline = time.monotonic() + _RELEASE_TOLD_SECONDS
            while not (told.wait(_POLL_SECONDS) or self._is_urgent() or self._stopping.is_set()):
                if time.monotonic() >= deadline:
                    break

    def _keep(self, write: Callable[[], NodeState]) -> None:
        """The answer to our write, unless the watch has already shown what came after it.

        One that nobody can read is passed over: it is written all the same.
        """
        try:
            node = write()
        except Unreadable as error:
            self._say_unreadable(error)
            self._node = None
            return
        if self._node is None or not _older(node, self._node):
            self._node = self.readable(node)

    def _adopt_record(self, node: NodeState) -> None:
        text = node.annotations.get(RESULTS)
        if text is not None:
            try:
                record = records.load(text)
                if records.has_schema(record):  # the bash suite's remembers nothing
                    self._ledger.adopt(records.remembered(record))
                    log.warning("the node-local memory was lost; rebuilt from the Node's own record")
            except RecordError as error:
                self._complain((f"annotation {RESULTS}: {error}",))
        self._adopt = False

    def _complain(self, complaints: tuple[str, ...]) -> None:
        if complaints and complaints != self._complaints:
            self._telemetry.bad_annotations.inc()
            for complaint in complaints:
                log.warning("an annotation on the node is no record", complaint=complaint)
                self.say(node_event(self._how.node_name, "BadAnnotation", complaint))
        self._complaints = complaints or self._complaints

    def _wait(self, seconds: float | None) -> None:
        """Until there is news or the seconds passed, and never less than the server asked for.

        What it asked for on behalf of a lesser verdict does not hold an urgent one.
        """
        self._wake.wait(seconds)
        self._wake.clear()
        while (left := self._not_before - time.monotonic()) > 0 and not self._stopping.is_set():
            if self._is_urgent() and self._ledger.severity > self._asked_for:
                break
            self._wake.wait(left)
            self._wake.clear()

    def _is_urgent(self) -> bool:
        """Whether the Node does not say yet that work has to stay away."""
        node, severity = self._node, self._ledger.severity
        told = Severity.__members__.get(node.labels.get(SEVERITY, ""), Severity.PASS) if node else Severity.PASS
        untainted = self._places.is_held and node is not None and not node.tainted()
        return severity >= Severity.RESET and (told < severity or untainted)

    def _pause(self, state: tenacity.RetryCallState) -> float:
        """How long until the next try. A fleet that lost its API server must not come back all at once."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Conflict):
            return random.uniform(0, 0.1)  # noqa: S311
        if isinstance(error, NotFound):
            return _NODE_GONE_SECONDS
        urgent = self._is_urgent()
        backoff = tenacity.wait_random_exponential(max=_URGENT_CAP_SECONDS if urgent else _CAP_SECONDS)
        asked = (error.retry_after_seconds if isinstance(error, Unavailable) else None) or 0.0
        if urgent:
            asked = min(asked, random.uniform(*_URGENT_ASKED_SECONDS))  # noqa: S311
        self._not_before = time.monotonic() + asked
        self._asked_for = self._ledger.severity if urgent else Severity.PASS
        return max(asked, backoff(state))

    def _account_for(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Conflict | NotFound):
            self._node = None
        if isinstance(error, Forbidden):
            self._access.forbid(error.verb, error.resource, error)
        if isinstance(error, Unavailable):
            self._outage.away("nodes", error)
        elif isinstance(error, NotFound) and state.attempt_number == 1:
            log.warning("the Node is gone", error=str(error))
        elif isinstance(error, Unreadable):
            self._say_unreadable(error)

    def _say_unreadable(self, error: Unreadable) -> None:
        """Once for the same, until it can be read."""
        if str(error) != self._unreadable:
            self._unreadable = str(error)
            log.warning("the Node can't be read; the newest verdict is kept", error=str(error))


def node_event(node_name: str, reason: str, message: str) -> Event:
    """A warning about the node that belongs to no finding."""
    return Event(event_name(node_name, reason, message, f"{random.getrandbits(32)}"), "Warning", reason, cut(message))


def _is_news_to(verdict: Verdict, node: NodeState) -> bool:
    """Whether the Node does not say so yet. Before the first look ended, a restart writes nothing but that."""
    return node.labels.get(SEVERITY) != verdict.severity.name


def _differs(before: NodeState, after: NodeState) -> bool:
    """Whether somebody changed what is ours to keep; the kubelet's own writes are not."""
    return _ours(before) != _ours(after)


def _ours(node: NodeState) -> tuple[object, ...]:
    labels = {key: value for key, value in node.labels.items() if key.startswith(PREFIX) or key in WATCHED_LABELS}
    annotations = {key: value for key, value in node.annotations.items() if key.startswith(PREFIX)}
    return (node.uid, labels, annotations, node.tainted(), node.condition())


def _older(node: NodeState, than: NodeState) -> bool:
    """The watch may still bring what our own last write has overtaken."""
    versions = (node.resource_version, than.resource_version)
    return node.uid == than.uid and all(v.isdigit() for v in versions) and int(versions[0]) < int(versions[1])
