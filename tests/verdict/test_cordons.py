"""Cordons of GPUs that HAMi shares, in place of their node's taint: the decision, and the write of a Node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.model import Finding, Severity
from gpu_healthcheck.healthcheck.node.hami import CARDS, CORDON
from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON, RESULTS, TAINT, NodeState
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.budget import HELD, SlotGrant
from gpu_healthcheck.healthcheck.verdict.device_taints import CordonPlan, gpus_to_taint, plan_cordons
from gpu_healthcheck.healthcheck.verdict.node_patch import NodePatch, plan
from gpu_healthcheck.healthcheck.verdict.taint_decision import AgentView, Rules, decide_taint
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import IDENTITY, UNOBSERVED, WALL, active_finding, fault, memory_with, node, outcome_with

ON = Rules(device_taints=True)
A, B = "0000:53:00.0", "0000:64:00.0"
UUID_A, UUID_B, OLD = (f"GPU-00000000-51e0-4000-8000-00000000000{end}" for end in "abc")
GPUS = {A: {"uuid": UUID_A}, B: {"uuid": UUID_B}}


def on(address: str = A, severity: Severity = Severity.REBOOT, **about: str) -> Finding:
    subject = f"gpu/{address}" if address else "node"
    return fault("Xid79", severity, subject, about=about)


def memory_of(*findings: Finding, gpus: Mapping[str, Mapping[str, str]] = GPUS) -> Memory:
    return memory_with(*map(active_finding, findings), gpus=gpus)


def cards(*uuids: str) -> str:
    return json.dumps([{"id": uuid, "count": 10, "health": True} for uuid in uuids])


def shared(annotations: Mapping[str, str] | None = None, registered: str = "", **more: Any) -> NodeState:
    about: dict[str, Any] = {"has_device_plugin": True, "gpus": {"nvidia.com/gpu": 20}, **more}
    return node(annotations={CARDS: registered or cards(UUID_A, UUID_B), **(annotations or {})}, **about)


def cordons(
    memory: Memory,
    state: NodeState | None = None,
    rules: Rules = ON,
    *,
    blind: bool = False,
    hami_runs: bool | None = True,
) -> CordonPlan | None:
    state = state or shared()
    verdict = decide(memory, [outcome_with(unobserved=UNOBSERVED if blind else None)])
    view = AgentView(verdict, memory, IDENTITY, rules, WALL, hami_runs=hami_runs)
    decision = decide_taint(view, state)
    gpus = gpus_to_taint(view, decision, state)
    return plan_cordons(gpus, view, decision, state) if gpus else None


@pytest.mark.parametrize(
    ("findings", "uuids"),
    [
        ([on()], {UUID_A}),
        ([on(), on(severity=Severity.ISOLATE)], {UUID_A}),
        ([on(), on(B)], {UUID_A, UUID_B}),
        ([on(f"{A}/gi5")], {UUID_A}),
        ([on(f"{A}/gi5", uuid=f"MIG-{UUID_A[4:]}")], {UUID_A}),
        ([on(A, Severity.MONITOR), on(B)], {UUID_B}),
        ([on(A, uuid=UUID_A)], {UUID_A}),
        ([on(A, Severity.MONITOR)], None),
        ([on(), on("", Severity.RESET)], None),
        ([on("")], None),
    ],
)
def test_each_faulty_gpu_is_cordoned_by_the_uuid_of_its_card(findings: list[Finding], uuids: set[str] | None) -> None:
    plan = cordons(memory_of(*findings))
    assert (None if plan is None else plan) == (None if uuids is None else CordonPlan(frozenset(uuids)))


def test_without_the_setting_the_node_is_tainted() -> None:
    assert cordons(memory_of(on()), rules=Rules()) is None


@pytest.mark.parametrize(
    ("state", "gpus", "why"),
    [
        (shared(registered=cards(UUID_B)), GPUS, ""),  # HAMi drops a card that it can't open
        (shared(registered="[]"), GPUS, ""),
        (shared(registered=f"{UUID_A},10,1,100,A100,0,true:"), GPUS, "can't be read"),
        (shared(registered="{}"), GPUS, "it is not a list of cards"),
        (shared(), {B: GPUS[B]}, f"the UUID of {A} is unknown"),
        (shared(), {A: {}, B: GPUS[B]}, f"the UUID of {A} is unknown"),
        (shared(), {A: {"uuid": "GPU-x"}, B: GPUS[B]}, f"the UUID of {A} is unknown"),
        (shared(registered=cards(UUID_A, OLD)), GPUS, f"HAMi registered {OLD}, which is no known GPU"),
        (shared(registered=cards(UUID_A, f"MIG-{UUID_B[4:]}")), GPUS, "which is no known GPU"),
        (shared(gpus={"nvidia.com/gpu": 2, "nvidia.com/gpu.shared": 8}), GPUS, "several resources"),
    ],
)
def test_cordon_that_cannot_cover_a_gpu_taints_the_node_with_the_reason(
    state: NodeState, gpus: Mapping[str, Mapping[str, str]], why: str
) -> None:
    plan = cordons(memory_of(on(), gpus=gpus), state)
    assert plan is not None
    assert why in plan.why if why else plan == CordonPlan(frozenset({UUID_A}))
    assert bool(plan.uuids) is not bool(why)


@pytest.mark.parametrize(
    ("ours", "hami_runs", "why"),
    [
        ({}, True, ""),
        ({}, False, "HAMi does not run on the node"),
        ({CORDON: UUID_A, DEVICE_CORDON: UUID_A}, False, "HAMi does not run on the node"),
        ({}, None, "could not be read yet"),
        ({CORDON: UUID_A, DEVICE_CORDON: UUID_A}, None, ""),
        ({CORDON: UUID_A}, None, "could not be read yet"),
    ],
)
def test_a_registration_that_hami_left_behind_proves_nothing(
    ours: Mapping[str, str], hami_runs: bool | None, why: str
) -> None:
    plan = cordons(memory_of(on()), shared(ours), hami_runs=hami_runs)
    assert plan is not None
    assert why in plan.why if why else plan == CordonPlan(frozenset({UUID_A}))


def test_a_gpu_that_cannot_be_checked_stays_cordoned_beside_a_faulty_one() -> None:
    before = records.render_text(
        decide(memory_of(on()), [outcome_with()]),
        memory_of(on()),
        IDENTITY,
        WALL,
        "devices",
        (FindingRow(reason="RowRemapFailed", severity=Severity.ISOLATE, subject=f"gpu/{B}", check="gpu-count"),),
    ).text
    ours = {RESULTS: before, CORDON: f"{UUID_A},{UUID_B}", DEVICE_CORDON: f"{UUID_A},{UUID_B}"}
    both = CordonPlan(frozenset({UUID_A, UUID_B}))
    assert cordons(memory_of(on()), shared(ours), blind=True) == both
    assert cordons(memory_of(on()), shared(ours)) == CordonPlan(frozenset({UUID_A}))

    kept = records.parse(
        records.AgentRecord, str(written(memory_of(on()), shared(ours), both.uuids, blind=True)[RESULTS])
    )
    assert [row.subject for row in kept.kept or ()] == [f"gpu/{B}"]


def written(
    memory: Memory, state: NodeState, uuids: frozenset[str], *, blind: bool = False
) -> Mapping[str, str | None]:
    patch = planned(memory, state, SlotGrant(held=True, by_devices=True, cordons=uuids), blind=blind).patch
    assert patch is not None
    annotations: Mapping[str, str | None] = patch["metadata"]["annotations"]
    return annotations


def planned(memory: Memory, state: NodeState, grant: SlotGrant, *, blind: bool = False, **more: Any) -> NodePatch:
    verdict = decide(memory, [outcome_with(unobserved=UNOBSERVED if blind else None)])
    view = AgentView(verdict, memory, IDENTITY, ON, WALL)
    return plan(view, decide_taint(view, state, by_devices=grant.by_devices), state, grant, **more)


BY_CORDON = SlotGrant(held=True, by_devices=True, cordons=frozenset({UUID_A}))
FULL = SlotGrant(held=False, why="full")


@pytest.mark.parametrize(
    ("state", "memory", "grant", "expected"),
    [
        (shared(), memory_of(on()), BY_CORDON, ("devices", UUID_A, UUID_A, None)),
        (shared({CORDON: OLD}), memory_of(on()), BY_CORDON, ("devices", f"{OLD},{UUID_A}", UUID_A, None)),
        (shared(taints=[TAINT]), memory_of(on()), BY_CORDON, ("devices", UUID_A, UUID_A, [])),
        # One write exchanges a cordon for the taint, and lifts the last cordon.
        (shared({CORDON: UUID_A, DEVICE_CORDON: UUID_A}), memory_of(on()), HELD, ("set", None, None, [TAINT])),
        (shared({CORDON: UUID_A, DEVICE_CORDON: UUID_A}), memory_of(), HELD, (None, None, None, None)),
        (shared({CORDON: f"{OLD},{UUID_A}", DEVICE_CORDON: UUID_A}), memory_of(), HELD, (None, OLD, None, None)),
        (shared({CORDON: UUID_A}), memory_of(on()), HELD, ("set", "", "", [TAINT])),
        (shared({CORDON: UUID_A}), memory_of(), HELD, (None, "", "", None)),
        (shared(), memory_of(on()), FULL, ("withheld", "", "", None)),
    ],
)
def test_one_write_has_verdict_cordon_and_taint(
    state: NodeState, memory: Memory, grant: SlotGrant, expected: tuple[Any, ...]
) -> None:
    patch = planned(memory, state, grant).patch
    assert patch is not None
    annotations = patch["metadata"]["annotations"]
    word = records.parse(records.AgentRecord, annotations[RESULTS]).taint
    assert (word, annotations.get(CORDON, ""), annotations.get(DEVICE_CORDON, "")) == expected[:3]
    assert patch.get("spec", {}).get("taints") == expected[3]
    assert patch["metadata"]["resourceVersion"] == "41"


def test_a_removed_cordon_is_written_again_and_an_unchanged_one_is_not() -> None:
    first = written(memory_of(on()), shared(), frozenset({UUID_A}))
    state = shared({key: str(text) for key, text in first.items()})
    labels = planned(memory_of(on()), shared(), BY_CORDON).patch["metadata"]["labels"]  # type: ignore[index]
    state = replace(state, labels=labels)
    assert planned(memory_of(on()), state, BY_CORDON).patch is None

    removed = {key: text for key, text in state.annotations.items() if key != CORDON}
    assert written(memory_of(on()), replace(state, annotations=removed), frozenset({UUID_A}))[CORDON] == UUID_A


def test_without_permission_for_cordons_the_list_stays_and_the_node_is_tainted() -> None:
    patch = planned(memory_of(on()), shared({CORDON: OLD}), HELD, may_cordon=False).patch
    assert patch is not None
    assert patch["metadata"]["annotations"].keys() == {RESULTS}
    assert patch["spec"]["taints"] == [TAINT]
