"""The verdict against the present Node: the writes, and above all their absence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory, Release, Suspect
from gpu_healthcheck.healthcheck.model import PREFIX, Nature, Severity, Unobserved
from gpu_healthcheck.healthcheck.node.state import (
    CONDITION,
    QUARANTINE_RESULT,
    RELEASE,
    RESULTS,
    SWEEP_RESULT,
    TAINT,
    NodeState,
)
from gpu_healthcheck.healthcheck.verdict.acknowledgement import UNEXPLAINED, dump_release
from gpu_healthcheck.healthcheck.verdict.budget import HELD, SlotGrant
from gpu_healthcheck.healthcheck.verdict.node_events import cut, event_name, released_event
from gpu_healthcheck.healthcheck.verdict.node_patch import NodePatch
from gpu_healthcheck.healthcheck.verdict.taint_decision import Rules
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide
from tests.examples import (
    GPU,
    NODE,
    UNOBSERVED,
    WALL,
    active_finding,
    fault,
    later,
    memory_with,
    node,
    outcome_with,
    planned,
    wants_taint,
)

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
STATUS, SEVERITY, LAST_CHECK = f"{PREFIX}/status", f"{PREFIX}/severity", f"{PREFIX}/last-check"
FOREIGN_TAINTS = [
    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-11-20T00:00:00Z"},
    {"key": "team", "value": "a", "effect": "NoExecute"},
    {"key": f"{PREFIX}/maintenance", "value": "l2", "effect": "NoSchedule"},
]
STARTUP_TAINT = {"key": f"{PREFIX}/startup", "effect": "NoSchedule"}
FULL = SlotGrant(held=False, why="3 of at most 3 nodes are tainted already")
OTHER_EFFECT = {"key": TAINT["key"], "value": "true", "effect": "NoExecute"}
FOREIGN_LABELS = {"team": "a", f"{PREFIX}/enabled": "true", f"{PREFIX}/mode": "sweep", "kubernetes.io/os": "linux"}
RULES = Rules()


def memory_of(severity: Severity) -> Memory:
    return memory_with(active_finding(fault(f"Xid{int(severity)}", severity))) if severity else memory_with()


def plan_for(
    state: NodeState,
    memory: Memory | None = None,
    *,
    blind: Unobserved | None = None,
    rules: Rules = RULES,
    now: datetime = WALL,
    grant: SlotGrant = HELD,
) -> NodePatch:
    memory = memory_with() if memory is None else memory
    verdict = decide(memory, [outcome_with(unobserved=blind)])
    return planned(verdict, memory, state, rules, now, grant)


def patch_of(change: NodePatch) -> Mapping[str, Any]:
    assert change.patch is not None
    return change.patch


def record_of(state: NodeState) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(state.annotations[RESULTS])
    return record


def condition_of(change: NodePatch) -> Mapping[str, Any]:
    assert change.condition is not None
    return change.condition


def written(state: NodeState, change: NodePatch) -> NodeState:
    """The Node after the API server took the change."""
    labels, annotations = dict(state.labels), dict(state.annotations)
    taints: Sequence[Mapping[str, Any]] = state.taints
    conditions = {condition["type"]: dict(condition) for condition in state.conditions}
    if change.patch:
        for key, value in change.patch["metadata"]["labels"].items():
            labels.pop(key, None) if value is None else labels.update({key: value})
        for key, value in change.patch["metadata"]["annotations"].items():
            annotations.pop(key, None) if value is None else annotations.update({key: value})
        taints = change.patch.get("spec", {}).get("taints", taints)
    if change.condition:
        conditions.setdefault(CONDITION, {}).update(change.condition)
    return NodeState(
        state.name, state.uid, "42", state.machine, labels, annotations, taints, tuple(conditions.values())
    )


def settled(memory: Memory | None = None, *, blind: Unobserved | None = None, **state: Any) -> NodeState:
    """A Node on which the verdict already stands."""
    before = node(**state)
    return written(before, plan_for(before, memory, blind=blind))


class TestTaints:
    @pytest.mark.parametrize("limit", [MONITOR, RESET, REBOOT, ISOLATE])
    @pytest.mark.parametrize("severity", Severity)
    @pytest.mark.parametrize("blind", [False, True])
    @pytest.mark.parametrize("before", [False, True])
    def test_taint_is_set_from_its_severity_and_unknown_neither_adds_nor_lifts_one(
        self, limit: Severity, severity: Severity, blind: bool, before: bool
    ) -> None:
        state = node(taints=[*FOREIGN_TAINTS, TAINT] if before else FOREIGN_TAINTS)

        change = plan_for(state, memory_of(severity), blind=UNOBSERVED if blind else None, rules=Rules(limit))

        after = written(state, change)
        assert after.tainted() is (severity >= limit or (before and blind))
        assert ("spec" in patch_of(change)) is (before is not after.tainted())
        assert record_of(after).get("taint") == ("set" if after.tainted() else None)

    @pytest.mark.parametrize("tainted", [False, True])
    def test_foreign_taints_are_kept_as_they_are(self, tainted: bool) -> None:
        state = node(taints=[FOREIGN_TAINTS[0], *([TAINT] if tainted else []), *FOREIGN_TAINTS[1:], OTHER_EFFECT])

        change = plan_for(state, memory_of(PASS if tainted else REBOOT))

        kept = [*FOREIGN_TAINTS, OTHER_EFFECT]
        assert patch_of(change)["spec"]["taints"] == (kept if tainted else [*kept, TAINT])

    def test_a_taint_of_our_key_with_another_effect_is_not_ours_to_lift(self) -> None:
        state = node(taints=[OTHER_EFFECT])

        change = plan_for(state)

        assert "spec" not in patch_of(change)

    def test_taints_that_stay_are_not_in_the_patch(self) -> None:
        change = plan_for(node(taints=[*FOREIGN_TAINTS, TAINT]), memory_of(REBOOT))

        assert "spec" not in patch_of(change)

    def test_no_taint_is_set_while_hyperpod_tests_the_node(self) -> None:
        state = node(labels={"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"})

        change = plan_for(state, memory_of(REBOOT))

        assert "spec" not in patch_of(change)
        assert json.loads(patch_of(change)["metadata"]["annotations"][RESULTS])["taint"] == "withheld"
        assert patch_of(change)["metadata"]["labels"][STATUS] == "fail"

    @pytest.mark.parametrize("word", ["Passed", "Failed", ""])
    def test_hyperpods_other_words_withhold_nothing(self, word: str) -> None:
        state = node(labels={"sagemaker.amazonaws.com/deep-health-check-status": word})

        assert written(state, plan_for(state, memory_of(REBOOT))).tainted() is True

    def test_a_taint_that_stood_before_hyperpods_test_stays(self) -> None:
        state = node(taints=[TAINT], labels={"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"})

        assert written(state, plan_for(state, memory_of(REBOOT))).tainted() is True

    def test_without_enable_taint_none_is_added(self) -> None:
        change = plan_for(node(), memory_of(ISOLATE), rules=Rules(enable_taint=False))

        assert "spec" not in patch_of(change)
        assert json.loads(patch_of(change)["metadata"]["annotations"][RESULTS])["taint"] == "off"
        assert "SwitchedOff" not in [event.reason for event in change.events]

    def test_enable_taint_going_false_removes_ours_once_with_an_event(self) -> None:
        state = settled(memory_of(REBOOT), taints=FOREIGN_TAINTS)
        rules = Rules(enable_taint=False)

        change = plan_for(state, memory_of(REBOOT), rules=rules)
        after = written(state, change)

        assert list(after.taints) == FOREIGN_TAINTS
        assert [event.reason for event in change.events] == ["SwitchedOff"]
        assert plan_for(after, memory_of(REBOOT), rules=rules) == NodePatch()


class TestTheBudget:
    def test_without_a_place_the_verdict_is_written_and_the_taint_withheld(self) -> None:
        after = written(node(), plan_for(node(), memory_of(REBOOT), grant=FULL))

        assert (after.labels[STATUS], after.labels[SEVERITY], after.tainted()) == ("fail", "REBOOT", False)
        assert record_of(after)["taint"] == "withheld"
        condition = after.condition()
        assert condition is not None
        assert condition["status"] == "False"

    def test_a_withheld_taint_is_reported_once_with_the_reason(self) -> None:
        state = settled()
        first = plan_for(state, memory_of(REBOOT), grant=FULL)
        after = written(state, first)

        assert (first.events[0].reason, first.events[0].type) == ("TaintWithheld", "Warning")
        assert FULL.why in first.events[0].message
        assert plan_for(after, memory_of(REBOOT), grant=FULL) == NodePatch()

    def test_a_place_that_was_freed_is_used(self) -> None:
        withheld = written(node(), plan_for(node(), memory_of(REBOOT), grant=FULL))

        after = written(withheld, plan_for(withheld, memory_of(REBOOT)))

        assert after.tainted() is True
        assert record_of(after)["taint"] == "set"

    def test_an_existing_taint_is_never_lifted_for_want_of_a_place(self) -> None:
        state = settled(memory_of(REBOOT))

        assert plan_for(state, memory_of(REBOOT), grant=FULL) == NodePatch()

    @pytest.mark.parametrize(
        ("severity", "blind", "tainted", "rules", "labels", "wants"),
        [
            (REBOOT, False, False, RULES, {}, True),
            (REBOOT, False, True, RULES, {}, True),
            (MONITOR, False, False, RULES, {}, False),
            (MONITOR, False, True, RULES, {}, False),
            (PASS, True, True, RULES, {}, True),
            (PASS, True, False, RULES, {}, False),
            (REBOOT, False, False, Rules(enable_taint=False), {}, False),
            (REBOOT, False, True, Rules(enable_taint=False), {}, False),
            (REBOOT, False, False, RULES, {"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"}, False),
            (REBOOT, False, True, RULES, {"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"}, True),
        ],
    )
    def test_slot_is_requested_where_the_taint_is_wanted(
        self, severity: Severity, blind: bool, tainted: bool, rules: Rules, labels: dict[str, str], wants: bool
    ) -> None:
        state = node(taints=[TAINT] if tainted else [], labels=labels)
        verdict = decide(memory_of(severity), [outcome_with(unobserved=UNOBSERVED if blind else None)])

        assert wants_taint(verdict, state, rules, memory_with()) is wants

    def test_a_deep_verdict_that_was_released_wants_none(self) -> None:
        row = {"reason": "D", "subject": "gpu/0", "severity": "ISOLATE", "last_seen": "2026-11-21T01:00:00Z"}
        state = node(annotations={SWEEP_RESULT: json.dumps({"schema": 1, "severity": "ISOLATE", "findings": [row]})})
        verdict = decide(memory_with(), [outcome_with()])
        acknowledged = Acknowledgement("D", "gpu/0", "", None, WALL)

        assert wants_taint(verdict, state, RULES, memory_with()) is True
        assert wants_taint(verdict, state, RULES, memory_with(acknowledged=(acknowledged,))) is False


class TestATaintLeavesWithItsFinding:
    """A taint stays for an ended finding only while the finding's own check, or its GPU, cannot be observed."""

    OTHER = "gpu/0000:64:00.0"
    GPU_ALONE = Unobserved(UNOBSERVED.cause, UNOBSERVED.detail, GPU)
    OTHER_GPU = Unobserved(UNOBSERVED.cause, UNOBSERVED.detail, OTHER)

    @pytest.mark.parametrize(
        ("check", "unobserved", "subject", "stays"),
        [
            ("xid", UNOBSERVED, GPU, True),
            ("xid", UNOBSERVED, "nvswitch/0000:85:00.0", True),
            ("gpu-count", UNOBSERVED, GPU, True),
            ("gpu-count", GPU_ALONE, GPU, True),
            ("temperature", GPU_ALONE, GPU, True),
            ("temperature", GPU_ALONE, f"{GPU}/gi5", True),
            ("temperature", OTHER_GPU, GPU, False),
            ("gpu-count", OTHER_GPU, GPU, False),
            ("fabric-manager", UNOBSERVED, GPU, False),
            ("gpu-count", UNOBSERVED, "nvswitch/0000:85:00.0", False),
            ("memlock", UNOBSERVED, "node", False),
        ],
    )
    def test_only_its_own_check_or_gpu_keeps_it(
        self, check: str, unobserved: Unobserved, subject: str, *, stays: bool
    ) -> None:
        state = settled(memory_with(active_finding(fault(subject=subject))))
        verdict = decide(memory_with(), [outcome_with(), outcome_with(unobserved=unobserved, check=check)])

        after = written(state, self._planned(verdict, state))
        again = written(after, self._planned(verdict, after))

        assert (after.tainted(), again.tainted()) == (stays, stays)
        assert wants_taint(verdict, after, RULES, memory_with()) is stays
        kept = record_of(again).get("kept", [])
        assert [(entry["reason"], entry["subject"]) for entry in kept] == ([("Xid79", subject)] if stays else [])
        assert ("the taint stays for Xid79" in str(again.conditions)) is stays
        assert not written(again, self._planned(decide(memory_with(), [outcome_with()]), again)).tainted()

    @pytest.mark.parametrize("by_label", [False, True])
    def test_a_release_lifts_it_whatever_cannot_be_observed(self, *, by_label: bool) -> None:
        blind = decide(memory_with(), [outcome_with(unobserved=UNOBSERVED)])
        state = settled(memory_with(active_finding(fault())))
        kept = written(state, self._planned(blind, state))
        word = dump_release(Release("me", "tested", WALL, ()))
        released = replace(
            kept,
            labels={**kept.labels, STATUS: "pass"} if by_label else kept.labels,
            annotations=kept.annotations if by_label else {**kept.annotations, RELEASE: word},
        )

        after = written(released, self._planned(blind, released))

        assert kept.tainted()
        assert not after.tainted()
        assert not written(after, self._planned(blind, after, later(4000).wall)).tainted()

    def test_a_release_lifts_none_that_a_finding_sets(self) -> None:
        memory = memory_with(active_finding(fault("RowRemapFailed", Severity.RESET), Nature.LEVEL))
        state = settled(memory)
        word = dump_release(Release("me", "tested", WALL, ()))
        released = replace(state, annotations={**state.annotations, RELEASE: word})

        assert written(released, plan_for(released, memory)).tainted()

    def test_the_record_of_0_3_0_that_names_no_finding_keeps_none(self) -> None:
        state = settled(memory_with(), blind=UNOBSERVED, taints=[TAINT])
        old = record_of(state)
        old.pop("kept")
        before = replace(state, annotations={**state.annotations, RESULTS: json.dumps(old)})

        assert before.tainted()
        assert not written(before, plan_for(before, blind=UNOBSERVED, now=later(4000).wall)).tainted()

    def _planned(self, verdict: Verdict, state: NodeState, now: datetime = WALL) -> NodePatch:
        return planned(verdict, memory_with(), state, RULES, now)


class TestTheStartupTaint:
    @pytest.mark.parametrize(
        ("severity", "blind", "stays"),
        [
            (PASS, False, False),
            (MONITOR, False, False),
            (PASS, True, True),
            (MONITOR, True, True),
            (RESET, False, True),
            (ISOLATE, False, True),
        ],
    )
    @pytest.mark.parametrize("enabled", [True, False])
    def test_startup_taint_is_removed_with_the_first_pass_or_warn(
        self, severity: Severity, blind: bool, stays: bool, enabled: bool
    ) -> None:
        state = node(taints=[FOREIGN_TAINTS[0], STARTUP_TAINT, OTHER_EFFECT])

        change = plan_for(
            state, memory_of(severity), blind=UNOBSERVED if blind else None, rules=Rules(enable_taint=enabled)
        )

        assert (STARTUP_TAINT in written(state, change).taints) is stays
        assert [taint for taint in written(state, change).taints if taint not in (STARTUP_TAINT, TAINT)] == [
            FOREIGN_TAINTS[0],
            OTHER_EFFECT,
        ]

    @pytest.mark.parametrize("taint", [STARTUP_TAINT | {"effect": "NoExecute"}, STARTUP_TAINT | {"value": "x"}])
    def test_leaves_in_every_form(self, taint: dict[str, str]) -> None:
        assert list(written(node(taints=[taint]), plan_for(node(taints=[taint]))).taints) == []

    def test_stays_while_something_settles(self) -> None:
        state = node(taints=[STARTUP_TAINT])
        suspects = {("gpu-count", ("GpuLost", "gpu/0")): Suspect(1)}
        memory = Memory(memory_with().machine, memory_with().boot_id, suspects=suspects)
        verdict = decide(memory, [outcome_with()])

        change = planned(verdict, memory, state, RULES)

        assert written(state, change).taints == [STARTUP_TAINT]

    def test_taint_stays_while_a_deep_record_fails(self) -> None:
        state = node(taints=[STARTUP_TAINT], annotations={SWEEP_RESULT: '{"schema":1,"severity":"RESET"}'})

        assert list(written(state, plan_for(state)).taints) == [STARTUP_TAINT, TAINT]

    def test_startup_taint_set_later_is_removed_too(self) -> None:
        state = settled()
        started = written(state, NodePatch({"metadata": {"labels": {}, "annotations": {}}}))
        again = NodeState(**{**asdict(started), "taints": [STARTUP_TAINT]})

        assert list(written(again, plan_for(again)).taints) == []


class TestARelease:
    def test_leaves_the_node_with_the_record_that_tells_of_it(self) -> None:
        before = settled(memory_of(REBOOT))
        word = Release("mia", "swapped", WALL, ())
        state = NodeState(**{**asdict(before), "annotations": {**before.annotations, RELEASE: "{}"}})
        memory = Memory(memory_with().machine, memory_with().boot_id, released=word)

        change = plan_for(state, memory)
        after = written(state, change)

        assert patch_of(change)["metadata"]["annotations"][RELEASE] is None
        assert record_of(after)["released"]["by"] == "mia"
        assert (after.labels[STATUS], after.tainted()) == ("pass", False)
        assert plan_for(after, memory) == NodePatch()

    def test_that_changes_nothing_is_taken_off_all_the_same(self) -> None:
        before = settled()
        state = NodeState(**{**asdict(before), "annotations": {**before.annotations, RELEASE: "garbage"}})

        assert RELEASE not in written(state, plan_for(state)).annotations

    def test_repetitions_are_one_event(self) -> None:
        finding = Acknowledgement("Xid79", "gpu/0", "boot", 7, WALL)
        word = Release("mia", "swapped", WALL, (finding,))

        event = released_event(node(), word)

        assert (event.type, event.reason, event.message) == (
            "Normal",
            "Released",
            "mia released Xid79 on gpu/0: swapped",
        )
        assert event == released_event(node(), word)
        assert event.name != released_event(node(), Release("mia", "swapped", WALL, ())).name

    def test_of_a_deep_record_lets_the_node_pass(self) -> None:
        row = {"reason": "D", "subject": "gpu/0", "severity": "ISOLATE", "last_seen": "2026-11-21T01:00:00Z"}
        deep = {SWEEP_RESULT: json.dumps({"schema": 1, "severity": "ISOLATE", "findings": [row]})}
        released = memory_with(acknowledged=(Acknowledgement("D", "gpu/0", "", None, WALL),))

        after = written(node(annotations=deep), plan_for(node(annotations=deep), released))

        assert (after.labels[STATUS], after.annotations[SWEEP_RESULT]) == ("pass", deep[SWEEP_RESULT])


class TestLabels:
    @pytest.mark.parametrize(
        ("severity", "blind", "status"),
        [
            (PASS, False, "pass"),
            (PASS, True, "unknown"),
            (MONITOR, False, "warn"),
            (MONITOR, True, "unknown"),
            (RESET, False, "fail"),
            (RESET, True, "fail"),
            (REBOOT, False, "fail"),
            (ISOLATE, True, "fail"),
        ],
    )
    def test_the_three_labels(self, severity: Severity, blind: bool, status: str) -> None:
        change = plan_for(node(), memory_of(severity), blind=UNOBSERVED if blind else None)

        assert patch_of(change)["metadata"]["labels"] == {
            STATUS: status,
            SEVERITY: severity.name,
            LAST_CHECK: "2026-11-21T010203Z",
        }

    def test_foreign_labels_and_annotations_are_not_in_the_patch(self) -> None:
        state = node(labels=FOREIGN_LABELS, annotations={"team": "a", f"{PREFIX}/run": "{}"})

        change = plan_for(state, memory_of(REBOOT))

        assert set(patch_of(change)) == {"metadata", "spec"}
        assert set(patch_of(change)["metadata"]) == {"resourceVersion", "labels", "annotations"}
        assert set(patch_of(change)["metadata"]["labels"]) == {STATUS, SEVERITY, LAST_CHECK}
        assert set(patch_of(change)["metadata"]["annotations"]) == {RESULTS}
        assert patch_of(change)["metadata"]["resourceVersion"] == "41"

    def test_without_enable_label_none_is_written(self) -> None:
        change = plan_for(node(labels=FOREIGN_LABELS), memory_of(REBOOT), rules=Rules(enable_label=False))

        assert patch_of(change)["metadata"]["labels"] == {}
        assert patch_of(change)["spec"]["taints"] == [TAINT]

    def test_enable_label_going_false_removes_ours_once_with_an_event(self) -> None:
        state = settled(labels=FOREIGN_LABELS)
        rules = Rules(enable_label=False)

        change = plan_for(state, rules=rules)
        after = written(state, change)

        assert after.labels == FOREIGN_LABELS
        assert [event.reason for event in change.events] == ["SwitchedOff"]
        assert plan_for(after, rules=rules) == NodePatch()

    def test_disabling_both_is_reported_in_one_event(self) -> None:
        state = settled(memory_of(REBOOT))

        change = plan_for(state, memory_of(REBOOT), rules=Rules(enable_taint=False, enable_label=False))

        assert [event.message for event in change.events] == [
            "removed this program's taint and labels: the settings disable them"
        ]


class TestWhenToWrite:
    @pytest.mark.parametrize("severity", Severity)
    @pytest.mark.parametrize("blind", [None, UNOBSERVED])
    def test_nothing_is_written_when_nothing_changed(self, severity: Severity, blind: Unobserved | None) -> None:
        memory = memory_of(severity)
        state = settled(memory, blind=blind, taints=FOREIGN_TAINTS, labels=FOREIGN_LABELS)

        assert plan_for(state, memory, blind=blind, now=WALL + timedelta(minutes=59)) == NodePatch()

    def test_repeated_finding_is_no_news(self) -> None:
        level = active_finding(fault("GpuLost"), Nature.LEVEL, check="gpu-count")
        state = settled(memory_with(level))
        seen_again = active_finding(fault("GpuLost"), Nature.LEVEL, check="gpu-count", at=99_999.0)

        assert plan_for(state, memory_with(seen_again, cursor=4000)) == NodePatch()

    @pytest.mark.parametrize(("age", "writes"), [(0, False), (29, False), (30, True), (3600, True)])
    def test_an_event_that_comes_again_is_written_no_more_often_than_each_half_minute(
        self, age: int, writes: bool
    ) -> None:
        once = active_finding(fault())
        again = replace(once, finding=replace(once.finding, detail="and again"), count=2)

        change = plan_for(settled(memory_with(once)), memory_with(again), now=WALL + timedelta(seconds=age))

        assert (change.patch is not None, change.condition is not None) == (writes, writes)
        assert change.events == ()

    @pytest.mark.parametrize(("age", "writes"), [(3599, False), (3600, True), (7200, True), (-59, False), (-61, True)])
    def test_the_node_is_written_at_least_hourly_and_after_a_clock_jump(self, age: int, writes: bool) -> None:
        now = WALL + timedelta(seconds=age)
        change = plan_for(settled(), now=now)

        assert (change.patch is not None) is writes
        assert (change.condition, change.events) == (None, ())
        if change.patch:
            assert change.patch["metadata"]["labels"] == {LAST_CHECK: f"{now:%Y-%m-%dT%H%M%SZ}"}

    @pytest.mark.parametrize(
        ("labels", "writes"),
        [
            ({STATUS: "pass"}, True),
            ({SEVERITY: "PASS"}, True),
            ({STATUS: "fail", SEVERITY: "REBOOT"}, False),
            ({LAST_CHECK: "never"}, False),
        ],
    )
    def test_changed_label_is_restored(self, labels: dict[str, str], writes: bool) -> None:
        memory = memory_of(REBOOT)
        state = settled(memory)
        changed = NodeState(NODE, labels={**state.labels, **labels}, annotations=state.annotations, taints=[TAINT])

        change = plan_for(changed, memory)

        assert (change.patch is not None) is writes
        if change.patch:
            assert change.patch["metadata"]["labels"].keys() - {LAST_CHECK} == labels.keys()

    def test_removed_taint_is_set_again(self) -> None:
        memory = memory_of(REBOOT)
        state = settled(memory)
        bare = NodeState(NODE, state.uid, labels=state.labels, annotations=state.annotations, taints=[])

        assert written(bare, plan_for(bare, memory)).tainted() is True

    def test_a_removed_record_is_written_again(self) -> None:
        state = settled()
        bare = NodeState(NODE, state.uid, labels=state.labels, conditions=state.conditions)

        assert plan_for(bare).patch is not None

    @pytest.mark.parametrize("change", [{"of another": 1}, {"taken": {"other": "x"}}, {"checks": ["x"]}, {"cut": 7}])
    def test_foreign_content_of_the_record_is_removed(self, change: dict[str, Any]) -> None:
        state = settled()
        forged = json.dumps(record_of(state) | change)

        patched = plan_for(replace(state, annotations={**state.annotations, RESULTS: forged})).patch

        assert patched is not None
        record = json.loads(patched["metadata"]["annotations"][RESULTS])
        assert not any(record.get(key) == value for key, value in change.items())

    def test_another_boot_is_news(self) -> None:
        state = settled()

        assert plan_for(state, Memory(memory_with().machine, "another boot")).patch is not None


class TestOtherRecords:
    @pytest.mark.parametrize("key", [SWEEP_RESULT, QUARANTINE_RESULT])
    @pytest.mark.parametrize(
        ("own", "other", "status", "severity", "tainted"),
        [
            (PASS, PASS, "pass", "PASS", False),
            (PASS, MONITOR, "warn", "MONITOR", False),
            (PASS, RESET, "fail", "RESET", True),
            (MONITOR, ISOLATE, "fail", "ISOLATE", True),
            (REBOOT, PASS, "fail", "REBOOT", True),
            (REBOOT, MONITOR, "fail", "REBOOT", True),
        ],
    )
    def test_the_node_shows_the_worst_of_all_records_and_the_record_only_its_own(
        self, key: str, own: Severity, other: Severity, status: str, severity: str, tainted: bool
    ) -> None:
        state = node(annotations={key: json.dumps({"schema": 1, "severity": other.name})})

        after = written(state, plan_for(state, memory_of(own)))

        assert (after.labels[STATUS], after.labels[SEVERITY], after.tainted()) == (status, severity, tainted)
        assert record_of(after)["severity"] == own.name
        assert after.annotations[key] == state.annotations[key]

    # seed-defects.md 1: a light pass removed the taint of a failed deep test.
    def test_a_light_pass_never_clears_a_deep_verdict(self) -> None:
        state = node(annotations={SWEEP_RESULT: '{"schema":1,"severity":"ISOLATE"}'}, taints=[TAINT])

        after = written(state, plan_for(state))

        assert after.tainted() is True
        condition = after.condition()
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "DeepDiagnosticFailed")

    @pytest.mark.parametrize(
        ("time", "shown"), [("2026-11-21T01:02:03Z", "2026-11-21T01:02:03Z"), (7, "an unknown time")]
    )
    def test_a_deep_fault_without_a_finding_names_its_record_and_time(self, time: object, shown: str) -> None:
        text = json.dumps({"schema": 1, "severity": "ISOLATE", "timestamp": time})
        change = plan_for(node(annotations={SWEEP_RESULT: text}))

        assert change.condition is not None
        assert change.condition["message"] == f"sweep-result of {shown} has severity ISOLATE"
        assert [event.message for event in change.events] == [change.condition["message"]]

    def test_finding_that_stops_gpu_pods_comes_first_among_equals(self) -> None:
        findings = [fault("Xid13", MONITOR), fault("NvidiaRuntimeMissing", MONITOR, "runtime/containerd")]
        condition = plan_for(node(), memory_with(*map(active_finding, findings))).condition

        missing = "The container runtime can't give pods a GPU"
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("True", "NvidiaRuntimeMissing")
        assert condition["message"].startswith(
            f"GPU pods can't start. {missing} (NvidiaRuntimeMissing on runtime/containerd): "
        )
        assert "; GPU 0000:53:00.0: a program's kernel did something illegal (Xid13 on gpu/" in condition["message"]

    def test_a_deep_fault_is_reported_once_without_labels(self) -> None:
        rules = Rules(enable_label=False)
        deep = node(annotations={SWEEP_RESULT: '{"schema":1,"severity":"ISOLATE"}'})
        change = plan_for(deep, rules=rules)

        again = plan_for(written(deep, change), rules=rules, now=WALL + timedelta(hours=2))

        assert [event.reason for event in change.events] == ["GpuHealthFail"]
        assert (again.patch is not None, again.events) == (True, ())

    def test_the_end_of_a_deep_fault_is_reported_as_a_transition(self) -> None:
        deep = node(annotations={SWEEP_RESULT: '{"schema":1,"severity":"ISOLATE"}'})
        failed = written(deep, plan_for(deep))
        passed = NodeState(
            NODE,
            failed.uid,
            labels=failed.labels,
            taints=[TAINT],
            annotations={**failed.annotations, SWEEP_RESULT: '{"schema":1,"severity":"PASS"}'},
        )

        assert [event.reason for event in plan_for(passed).events] == ["GpuHealthPass"]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "pass:SKIP",
            "[]",
            '"x"',
            "null",
            "[" * 50_000,
            "x" * 300_000,
            '{"schema":1,"severity":"SKIP"}',
            '{"schema":1,"severity":[]}',
        ],
    )
    @pytest.mark.parametrize("key", [SWEEP_RESULT, QUARANTINE_RESULT])
    def test_an_unreadable_record_is_skipped_and_reported(self, key: str, text: str) -> None:
        state = node(annotations={key: text})

        change = plan_for(state)

        assert [complaint.startswith(f"annotation {key}: ") for complaint in change.complaints] == [True]
        assert written(state, change).labels[STATUS] == "pass"

    @pytest.mark.parametrize("text", ["", "pass:SKIP", "[]", "null", "[" * 50_000, "x" * 300_000])
    def test_our_malformed_annotation_is_rewritten_and_reported(self, text: str) -> None:
        settled_node = settled(memory_of(REBOOT))
        state = NodeState(NODE, labels=settled_node.labels, annotations={RESULTS: text}, taints=[TAINT])

        change = plan_for(state, memory_of(REBOOT))

        assert [complaint.startswith(f"annotation {RESULTS}: ") for complaint in change.complaints] == [True]
        assert json.loads(written(state, change).annotations[RESULTS])["severity"] == "REBOOT"

    @pytest.mark.parametrize(
        "record",
        [
            {},
            {"timestamp": 7, "findings": 7},
            {"timestamp": "2026-11-21T01:02:03", "findings": [[], {}, None]},
            {"timestamp": {}, "findings": [{"reason": [], "subject": {}, "first_seen": None}], "status": []},
        ],
    )
    def test_our_own_annotation_of_another_shape_is_written_anew(self, record: dict[str, Any]) -> None:
        state = node(annotations={RESULTS: json.dumps(record)})

        change = plan_for(state)

        assert change.complaints == ()
        assert json.loads(written(state, change).annotations[RESULTS])["status"] == "pass"


class TestCondition:
    @pytest.mark.parametrize(
        ("severity", "blind", "state", "reason"),
        [
            (PASS, None, "True", "NoFault"),
            (MONITOR, None, "True", "Xid1"),
            (RESET, None, "False", "Xid2"),
            (REBOOT, UNOBSERVED, "False", "Xid3"),
            (PASS, UNOBSERVED, "Unknown", "DriverNotLoaded"),
            (MONITOR, UNOBSERVED, "Unknown", "DriverNotLoaded"),
        ],
    )
    def test_a_first_condition(self, severity: Severity, blind: Unobserved | None, state: str, reason: str) -> None:
        condition = condition_of(plan_for(node(), memory_of(severity), blind=blind))

        assert {key: condition[key] for key in condition.keys() - {"message"}} == {
            "type": "GpuHealthy",
            "status": state,
            "reason": reason,
            "lastTransitionTime": "2026-11-21T01:02:03Z",
            "lastHeartbeatTime": "2026-11-21T01:02:03Z",
        }

    @pytest.mark.parametrize(
        ("before", "after", "moves"),
        [(PASS, MONITOR, False), (RESET, REBOOT, False), (PASS, RESET, True), (REBOOT, PASS, True)],
    )
    def test_its_times_move_only_on_a_transition(self, before: Severity, after: Severity, moves: bool) -> None:
        state = settled(memory_of(before))

        condition = condition_of(plan_for(state, memory_of(after), now=WALL + timedelta(seconds=300)))

        times = {key: value for key, value in condition.items() if key.endswith("Time")}
        expected = dict.fromkeys(("lastTransitionTime", "lastHeartbeatTime"), "2026-11-21T01:07:03Z")
        assert times == (expected if moves else {})

    def test_other_conditions_are_none_of_our_business(self) -> None:
        ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "x"}

        condition = condition_of(plan_for(node(conditions=[ready])))

        assert condition["type"] == "GpuHealthy"

    def test_the_worst_finding_is_listed_first_and_unobserved_checks_last(self) -> None:
        memory = memory_with(
            active_finding(fault("Xid54", ISOLATE, detail="power")),
            active_finding(fault("Xid13", MONITOR, detail="warp")),
        )

        condition = condition_of(plan_for(node(), memory, blind=UNOBSERVED))

        assert condition["message"] == (
            "GPU 0000:53:00.0's extra power connector does not deliver (Xid54 on gpu/0000:53:00.0): power; "
            "GPU 0000:53:00.0: a program's kernel did something illegal (Xid13 on gpu/0000:53:00.0): warp; "
            "0-nvidia-smi could not check: NVML: Driver Not Loaded (/usr/lib64/libnvidia-ml.so.1)"
        )

    @pytest.mark.parametrize("letter", ["x", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{EURO SIGN}", "\N{FIRE}"])
    @pytest.mark.parametrize("shift", range(4))
    def test_a_message_has_at_most_1024_bytes_and_is_whole_text(self, letter: str, shift: int) -> None:
        memory = memory_with(active_finding(fault(detail="-" * shift + letter * 1500)))

        change = plan_for(node(), memory)

        messages = [condition_of(change)["message"], *(event.message for event in change.events)]
        assert [1020 < len(message.encode()) <= 1024 for message in messages] == [True] * 3
        assert [message.endswith("...") for message in messages] == [True] * 3
        assert [message.rstrip(".-")[-1] for message in messages] == [letter] * 3

    @pytest.mark.parametrize("length", [0, 1, 1023, 1024])
    def test_a_message_that_fits_is_not_cut(self, length: int) -> None:
        assert cut("x" * length) == "x" * length


class TestEvents:
    def test_a_new_finding_and_its_transition_are_reported_once(self) -> None:
        memory = memory_of(REBOOT)
        state = settled()

        change = plan_for(state, memory)

        words = "GPU 0000:53:00.0 reported Xid3"
        assert [(event.type, event.reason, event.message) for event in change.events] == [
            ("Warning", "GpuHealthFail", f"{words} (Xid3 on gpu/0000:53:00.0): GPU has fallen off the bus."),
            ("Warning", "Xid3", f"{words} (REBOOT, gpu/0000:53:00.0): GPU has fallen off the bus."),
        ]
        assert plan_for(written(state, change), memory).events == ()

    def test_a_second_finding_is_reported_without_a_transition(self) -> None:
        first = active_finding(fault("Xid79", REBOOT))
        second = active_finding(fault("Xid48", RESET))

        change = plan_for(settled(memory_with(first)), memory_with(first, second))

        assert [event.reason for event in change.events] == ["Xid48"]

    @pytest.mark.parametrize(
        ("before", "after", "reason", "kind"),
        [
            (PASS, MONITOR, "GpuHealthWarn", "Normal"),
            (PASS, RESET, "GpuHealthFail", "Warning"),
            (REBOOT, PASS, "GpuHealthPass", "Normal"),
            (REBOOT, MONITOR, "GpuHealthWarn", "Normal"),
        ],
    )
    def test_each_transition_has_its_reason(self, before: Severity, after: Severity, reason: str, kind: str) -> None:
        events = plan_for(settled(memory_of(before)), memory_of(after)).events

        assert [(event.reason, event.type) for event in events if event.reason.startswith("Gpu")] == [(reason, kind)]

    def test_transition_to_unobserved_is_reported(self) -> None:
        assert [(event.reason, event.type) for event in plan_for(settled(), blind=UNOBSERVED).events] == [
            ("GpuHealthUnknown", "Warning")
        ]

    def test_a_flood_of_findings_makes_at_most_32_events_and_the_transition_is_among_them(self) -> None:
        memory = memory_with(*(active_finding(fault("Xid48", RESET, f"gpu/{number}")) for number in range(300)))

        events = plan_for(settled(), memory).events

        assert len(events) == 32
        assert events[0].reason == "GpuHealthFail"

    def test_the_same_news_has_the_same_names_and_other_news_others(self) -> None:
        state, memory = settled(), memory_of(REBOOT)
        moved = memory_with(active_finding(fault("Xid3", REBOOT, "gpu/0000:64:00.0")))

        names = [event.name for event in plan_for(state, memory).events]

        assert names == [event.name for event in plan_for(state, memory).events]
        assert len({*names, *(event.name for event in plan_for(state, moved).events)}) == 3

    @pytest.mark.parametrize("reason", ["", "it broke", "[/x]", "X" * 64, "xid79", "Xid79\n", "\x1b[31m"])
    def test_invented_reason_is_none_of_the_apis(self, reason: str) -> None:
        """As the admission policy has it; the record still says the word."""
        change = plan_for(node(), memory_with(active_finding(fault(reason, REBOOT))))

        assert condition_of(change)["reason"] == UNEXPLAINED
        assert [event.reason for event in change.events] == ["GpuHealthFail", UNEXPLAINED]

    @pytest.mark.parametrize("name", ["n", NODE, "n" * 253])
    def test_event_name_is_valid_in_kubernetes(self, name: str) -> None:
        made = event_name(name, "Xid79", "gpu/\ud83d")

        assert made.startswith(f"{name[:200]}.")
        assert len(made) <= 253
        assert made.rpartition(".")[2].isalnum()


def test_planning_changes_neither_the_node_nor_the_record() -> None:
    verdict: Verdict = decide(memory_of(REBOOT), [outcome_with()])
    state = node(taints=FOREIGN_TAINTS, labels=FOREIGN_LABELS)
    before = (repr(verdict), list(state.taints), dict(state.labels))

    planned(verdict, memory_of(REBOOT), state, RULES)

    assert (repr(verdict), list(state.taints), dict(state.labels)) == before
