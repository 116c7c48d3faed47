"""Claims of a node for a deep run: acquired once, released by the owner, cleared without one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.claim import LONGEST, Claim, RunKind, acquire, claim_on, clear, is_marked, release
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, MODE, RUN, NodeState
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, settings_of
from gpu_healthcheck.quarantine.node_marks import HELD
from gpu_healthcheck.repair.marks import LONGEST as LONGEST_OF_A_RESET


def _bound(name: str) -> int:
    """Return the largest value of this setting."""
    (setting,) = (one for one in settings_of(NodeSettings).values() if one.name == name)
    return int(setting.limits.le or 0)


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SWEEP = Claim(RunKind.SWEEP, "gpu-sweep-n-1", NOW + timedelta(hours=1))
L2 = Claim(RunKind.L2, "agent", NOW + timedelta(hours=1))
SPOT = {"key": "example.com/spot", "effect": "NoSchedule"}
LEFT = {"key": MAINTENANCE, "value": "sweep", "effect": "NoSchedule"}
THEIRS = {"key": MAINTENANCE, "value": "sweep", "effect": "NoExecute"}
FREE = NodeState("n", resource_version="7", labels={"team": "x"}, taints=(SPOT,))


def patched(node: NodeState, patch: Mapping[str, Any] | None) -> NodeState:
    """The Node after a merge patch, as the API server makes it."""
    if patch is None:
        return node
    assert patch["metadata"]["resourceVersion"] == node.resource_version

    def merged(old: Mapping[str, str], key: str) -> dict[str, str]:
        both = {**old, **patch["metadata"][key]}
        return {name: value for name, value in both.items() if value is not None}

    taints = patch.get("spec", {}).get("taints", node.taints)
    labels, annotations = merged(node.labels, "labels"), merged(node.annotations, "annotations")
    return replace(node, labels=labels, annotations=annotations, taints=tuple(taints))


def held(run: Claim = SWEEP, node: NodeState = FREE) -> NodeState:
    return patched(node, acquire(node, run, NOW))


@pytest.mark.parametrize("run", [SWEEP, L2, Claim(RunKind.QUARANTINE, "job", NOW + timedelta(hours=3))])
def test_run_is_acquired_and_released_without_a_trace(run: Claim) -> None:
    node = held(run)

    assert (claim_on(node, NOW), node.labels[MODE]) == (run, run.kind)
    assert patched(node, release(node, run)) == FREE


def test_only_a_run_without_gpu_requests_sets_a_taint() -> None:
    assert held(SWEEP).taints == (SPOT,)
    assert held(L2).taints == (SPOT, {"key": MAINTENANCE, "value": "l2", "effect": "NoSchedule"})


def test_claimed_node_is_not_selected() -> None:
    assert acquire(held(L2), SWEEP, NOW) is None


def test_a_run_past_its_time_is_nobodys() -> None:
    later = SWEEP.until
    assert claim_on(held(), later) is None
    assert claim_on(patched(held(), acquire(held(), replace(L2, until=later + timedelta(1)), later)), later) is not None


def test_a_run_is_given_back_by_its_holder_only() -> None:
    assert release(held(), replace(SWEEP, holder="another")) is None
    assert release(held(), replace(L2, holder=SWEEP.holder)) is None
    assert release(FREE, SWEEP) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        json.dumps({"kind": "sweep", "holder": "x"}),
        json.dumps({"kind": "lunch", "holder": "x", "until": "2026-11-21T13:00:00Z"}),
        json.dumps({"kind": "sweep", "holder": "x", "until": "2026-11-21T13:00:00"}),
        json.dumps({"kind": "sweep", "holder": "x", "until": "9999-01-01T00:00:00Z"}),
        json.dumps({"kind": "reset", "holder": "x", "until": "2026-11-24T12:00:00Z"}),
        json.dumps({"kind": "reset", "holder": "x", "until": "-2026-11-21T13:00:00Z"}),
        json.dumps({"kind": "reset", "holder": "x", "until": "2026-13-45T99:00:00Z"}),
        json.dumps({"kind": ["sweep"], "holder": "x", "until": 7}),
    ],
)
def test_unreadable_run_claims_nothing_and_is_cleared(text: str) -> None:
    node = replace(FREE, annotations={RUN: text}, labels={**FREE.labels, MODE: "sweep"})

    assert claim_on(node, NOW) is None
    assert patched(node, clear(node, NOW)) == FREE


def test_mark_without_a_run_is_cleared_alone() -> None:
    left = replace(FREE, labels={**FREE.labels, MODE: "l2"}, taints=(SPOT, LEFT, THEIRS))

    assert patched(left, clear(left, NOW)) == replace(FREE, taints=(SPOT, THEIRS))
    assert (clear(FREE, NOW), is_marked(FREE), is_marked(left)) == (None, False, True)


def test_active_run_keeps_its_marks_and_loses_those_of_the_scripts() -> None:
    node = held(L2)
    with_left = replace(node, taints=(*node.taints, LEFT))

    assert clear(node, NOW) is None
    assert patched(with_left, clear(with_left, NOW)) == node


@pytest.mark.parametrize("kind", RunKind)
def test_a_claim_lasts_no_longer_than_its_kind(kind: RunKind) -> None:
    longest = replace(SWEEP, kind=kind, until=NOW + LONGEST[kind])
    node = held(longest)
    assert claim_on(node, NOW) == longest

    beyond = NOW - timedelta(seconds=1)
    assert claim_on(node, beyond) is None
    assert acquire(node, L2, beyond) is not None
    assert patched(node, clear(node, beyond)) == FREE


@pytest.mark.parametrize(
    ("kind", "longest"),
    [
        (RunKind.L2, timedelta(seconds=_bound("dcgm_timeout_seconds"))),
        (RunKind.SWEEP, timedelta(seconds=_bound("dcgm_timeout_seconds") + _bound("job_timeout_seconds"))),
        (RunKind.QUARANTINE, HELD),
        (RunKind.RESET, LONGEST_OF_A_RESET),
    ],
)
def test_the_longest_claim_of_a_program_is_accepted_by_a_clock_that_differs(kind: RunKind, longest: timedelta) -> None:
    assert longest + timedelta(minutes=50) <= LONGEST[kind]


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["kind", "holder", "until"]) | st.text(), x)).map(json.dumps))  # fmt: skip
def test_no_annotation_can_make_it_fail_or_hold_a_node_for_ever(text: str) -> None:
    node = replace(FREE, annotations={RUN: text})
    assert claim_on(node, NOW) is None
    assert patched(node, clear(node, NOW)) == FREE
    assert acquire(node, SWEEP, NOW) is not None
