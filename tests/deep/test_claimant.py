"""Acquiring, renewing and releasing a Node: each write and its content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.claim import (
    Claim,
    Claimant,
    GivesWay,
    RunKind,
    acquire,
    claim_on,
    never_gives_way,
)
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, MODE, SWEEP_RESULT, NodeState, PatchFor
from tests.deep.test_claim import FREE, NOW, patched

SOON, LATER = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
OURS = Claim(RunKind.L2, "agent", SOON)
THEIRS = Claim(RunKind.SWEEP, "job-1", SOON)
RESULT = {SWEEP_RESULT: "{}"}


@dataclass
class Api:
    """`update_node` of one Node: reads, patches, and keeps the patches."""

    node: NodeState = FREE
    patches: list[Mapping[str, Any]] = field(default_factory=list)

    def update(self, change: PatchFor) -> NodeState | None:
        patch = change(self.node)
        if patch is None:
            return None
        self.patches.append(patch)
        self.node = patched(self.node, {**patch, "metadata": {"labels": {}, **patch["metadata"]}})
        return self.node

    @property
    def claim(self) -> Claim | None:
        return claim_on(self.node, NOW)


def under(claim: Claim | None) -> Api:
    return Api(FREE if claim is None else patched(FREE, acquire(FREE, claim, NOW)))


def agent_on(api: Api, gives_way: GivesWay = never_gives_way) -> Claimant:
    return Claimant(OURS.kind, OURS.holder, api.update, lambda: NOW, gives_way)


def nothing(_: NodeState) -> str:
    return ""


@pytest.mark.parametrize(
    ("standing", "why_not", "claim", "writes"),
    [
        (None, nothing, OURS, 1),
        (None, lambda _: "it is cordoned", None, 0),
        (THEIRS, nothing, THEIRS, 0),
        (replace(THEIRS, until=NOW), nothing, OURS, 1),
        (replace(OURS, until=LATER), nothing, replace(OURS, until=LATER), 0),
        (OURS, lambda _: "a deep run uses it", OURS, 0),
    ],
    ids=["free", "hindered", "another's", "over its time", "of an earlier run of ours", "its answer was lost"],
)
def test_node_is_acquired_once_and_from_no_other_run(
    standing: Claim | None, why_not: Callable[[NodeState], str], claim: Claim | None, writes: int
) -> None:
    api = under(standing)
    taken = agent_on(api).acquire(SOON, why_not)

    assert (api.claim, len(api.patches), taken) == (claim, writes, api.node if claim == OURS else None)


@pytest.mark.parametrize("standing", [None, OURS, replace(OURS, until=NOW), replace(OURS, holder="before")], ids=str)
def test_a_node_is_held_for_longer_with_a_record_in_the_same_write(standing: Claim | None) -> None:
    api = under(standing)
    held = agent_on(api, lambda claim: claim.kind is RunKind.L2).acquire_or_renew(LATER, lambda _: RESULT)

    assert (api.claim, held, len(api.patches)) == (replace(OURS, until=LATER), api.node, 1)
    assert api.node.annotations[SWEEP_RESULT] == "{}"


def test_claim_of_another_run_is_neither_renewed_nor_written() -> None:
    api = under(THEIRS)
    assert (agent_on(api).acquire_or_renew(LATER, lambda _: RESULT), api.claim, api.patches) == (None, THEIRS, [])


@pytest.mark.parametrize(
    ("standing", "left"), [(OURS, None), (replace(OURS, until=NOW), None), (THEIRS, THEIRS), (None, None)], ids=str
)
def test_a_node_is_given_back_by_its_holder_and_the_record_written_in_any_case(
    standing: Claim | None, left: Claim | None
) -> None:
    api = under(standing)
    agent_on(api).release(lambda _: RESULT)

    assert (api.claim, len(api.patches), api.node.annotations[SWEEP_RESULT]) == (left, 1, "{}")
    assert (MODE in api.node.labels, api.node.taints) == (left is not None, FREE.taints)


def test_without_a_record_nothing_is_written_on_a_node_of_anothers() -> None:
    api = under(THEIRS)
    assert (agent_on(api).release(), api.patches) == (None, [])


@pytest.mark.parametrize(
    ("standing", "knows", "stays"),
    [
        (OURS, True, False),
        (OURS, False, True),
        (replace(OURS, until=NOW), False, False),
        (THEIRS, True, True),
        (None, True, True),
    ],
    ids=str,
)
def test_claim_without_a_living_run_is_removed(standing: Claim | None, knows: bool, stays: bool) -> None:
    api = under(standing)
    agent = agent_on(api, lambda claim: knows and claim.kind is RunKind.L2)
    assert agent.is_to_clear(api.node) is not stays
    before = api.node
    agent.clear()

    assert api.node == (before if stays else FREE)
    assert not agent.is_to_clear(api.node)


def test_taint_of_the_scripts_is_removed_under_an_active_run() -> None:
    left = {"key": MAINTENANCE, "value": "sweep", "effect": "NoSchedule"}
    api = under(OURS)
    held = api.node
    api.node = replace(held, taints=(*held.taints, left))
    agent_on(api).clear()

    assert api.node == held


def test_the_owner_of_a_node_is_shown_by_kind_and_name() -> None:
    agent = agent_on(Api())
    assert [agent.has(under(claim).node) for claim in (OURS, replace(OURS, until=LATER))] == [True, True]
    others = (None, THEIRS, replace(OURS, holder="another"), replace(OURS, until=NOW))
    assert not any(agent.has(under(claim).node) for claim in others)
