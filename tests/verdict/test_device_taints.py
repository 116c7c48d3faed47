"""Verdicts that a GPU can carry instead of its node, their rules, and the reports on the Node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Finding, Severity, Unobserved
from gpu_healthcheck.healthcheck.node.device_rules import DeviceRule, RuleTaint, rule_name
from gpu_healthcheck.healthcheck.node.devices import Device
from gpu_healthcheck.healthcheck.node.state import (
    HARDWARE_READY,
    REBOOT_REQUIRED,
    REPAIR_CONDITIONS,
    REPLACEMENT_REQUIRED,
    RESULTS,
    TAINT,
    NodeState,
)
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.budget import BY_DEVICES, HELD, SlotGrant
from gpu_healthcheck.healthcheck.verdict.device_taints import BadGpu, gpus_to_taint, plan_rules
from gpu_healthcheck.healthcheck.verdict.node_patch import NodePatch
from gpu_healthcheck.healthcheck.verdict.repair_conditions import RepairPolicy
from gpu_healthcheck.healthcheck.verdict.taint_decision import AgentView, Rules, decide_taint, says_devices
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import (
    IDENTITY,
    NODE,
    UNOBSERVED,
    WALL,
    active_finding,
    fault,
    memory_with,
    node,
    outcome_with,
    planned,
    wants_taint,
)

ON = Rules(device_taints=True)
A, B = "0000:53:00.0", "0000:64:00.0"
MIG = f"gpu/{A}/gi5"
RESET, REBOOT, ISOLATE = Severity.RESET, Severity.REBOOT, Severity.ISOLATE
GPU_0, GPU_1 = Device(NODE, "gpu-0", A, frozenset({"GPU-a"})), Device(NODE, "gpu-1", B, frozenset({"GPU-b"}))
BAD = BadGpu(A, RESET)
DEAD = BadGpu(A, REBOOT, evicts=True)


def on(subject: str, severity: Severity = REBOOT, reason: str = "Xid79", **about: str) -> Finding:
    return fault(reason, severity, subject, about=about)


def memory_of(*findings: Finding) -> Memory:
    return memory_with(*map(active_finding, findings))


def tainted_gpus(
    memory: Memory, state: NodeState | None = None, rules: Rules = ON, blind: Unobserved | None = None
) -> list[tuple[str, Severity]] | None:
    state = state or node()
    view = AgentView(decide(memory, [outcome_with(unobserved=blind)]), memory, IDENTITY, rules, WALL)
    found = gpus_to_taint(view, decide_taint(view, state), state)
    return None if found is None else [(gpu.address, gpu.severity) for gpu in found]


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([on(f"gpu/{A}")], [(A, REBOOT)]),
        ([on(f"gpu/{A}", RESET), on(f"gpu/{A}", ISOLATE, "RowRemapFailed")], [(A, ISOLATE)]),
        ([on(f"gpu/{B}"), on(f"gpu/{A}", RESET)], [(A, RESET), (B, REBOOT)]),
        ([on(MIG)], [(A, REBOOT)]),
        ([on(f"gpu/{A}"), on("node", Severity.MONITOR, "EfaCountLow")], [(A, REBOOT)]),
        ([on(f"gpu/{A}"), on("node", RESET, "GpuCountLow")], None),
        ([on(f"gpu/{A}"), on("driver", REBOOT, "DriverUnresponsive")], None),
        ([on("nvswitch/0000:85:00.0", RESET, "SXid11004")], None),
        ([on("gpu/evil")], None),
        ([on("gpu/")], None),
    ],
)
def test_findings_about_gpus_alone_taint_the_gpus(
    findings: list[Finding], expected: list[tuple[str, Severity]] | None
) -> None:
    assert tainted_gpus(memory_of(*findings)) == expected


def test_findings_below_the_taint_severity_do_not_count() -> None:
    memory = memory_of(on(f"gpu/{A}"), on("node", RESET, "GpuCountLow"))
    assert tainted_gpus(memory, rules=replace(ON, taint_severity=REBOOT)) == [(A, REBOOT)]


@pytest.mark.parametrize(
    ("evict_severity", "evicting"),
    [(None, []), (REBOOT, [A]), (ISOLATE, []), (RESET, [A, B])],
)
def test_gpu_from_the_evict_severity_on_evicts_its_pods(evict_severity: Severity | None, evicting: list[str]) -> None:
    memory = memory_of(on(f"gpu/{A}"), on(f"gpu/{B}", RESET))
    rules = replace(ON, evict_severity=evict_severity)
    view = AgentView(decide(memory, [outcome_with()]), memory, IDENTITY, rules, WALL)
    gpus = gpus_to_taint(view, decide_taint(view, node()), node()) or ()
    assert [gpu.address for gpu in gpus if gpu.evicts] == evicting


@pytest.mark.parametrize(
    ("state", "rules"),
    [
        (node(), Rules()),
        (node(has_device_plugin=True), ON),
        (node(annotations={"gpu-healthcheck.aws-samples.io/quarantine-result": '{"status":"fail"}'}), ON),
    ],
    ids=["not asked for", "a device plugin gives them out too", "a deep record that names no GPU"],
)
def test_findings_taint_the_node_without_usable_device_taints(state: NodeState, rules: Rules) -> None:
    record = '{"schema":1,"timestamp":"2026-11-21T01:02:03Z","status":"fail","severity":"ISOLATE"}'
    annotations = dict.fromkeys(state.annotations, record)
    assert tainted_gpus(memory_of(on(f"gpu/{A}")), replace(state, annotations=annotations), rules) is None


def test_unobserved_cycle_keeps_the_present_taints() -> None:
    bad = memory_of(on(f"gpu/{A}"))
    assert tainted_gpus(bad, node(taints=[TAINT]), blind=UNOBSERVED) is None
    assert tainted_gpus(bad, node(taints=[TAINT])) == [(A, REBOOT)]
    assert tainted_gpus(bad, blind=UNOBSERVED) == [(A, REBOOT)]

    verdict = decide(memory_with(), [outcome_with(unobserved=UNOBSERVED)])
    assert wants_taint(verdict, node(), ON, memory_with(), by_devices=True)
    assert not wants_taint(verdict, node(), ON, memory_with())
    assert tainted_gpus(memory_with(), blind=UNOBSERVED) == []


def rule(device: str = "gpu-0", tier: str = "RESET", *, evicts: bool = False, **more: object) -> DeviceRule:
    name, taint = rule_name(NODE, device), RuleTaint(tier, evicts)
    known = DeviceRule(name, "u", "7", "0d4f5a5e-uid", device, taint, is_ours=True, is_processed=True)
    return replace(known, **more)


@pytest.mark.parametrize(
    ("gpus", "rules", "made", "changed", "gone"),
    [
        ([BAD], [], ["gpu-0"], [], []),
        ([BAD], [rule()], [], [], []),
        ([BAD], [rule(tier="REBOOT")], [], ["gpu-0"], []),
        ([DEAD], [rule(tier="REBOOT")], [], ["gpu-0"], []),
        ([DEAD], [rule(tier="REBOOT", evicts=True)], [], [], []),
        ([replace(DEAD, evicts=False)], [rule(tier="REBOOT", evicts=True)], [], ["gpu-0"], []),
        ([BAD], [rule(), rule("gpu-1")], [], [], ["gpu-1"]),
        ([BAD], [rule(node_uid="of a Node before")], ["gpu-0"], [], ["gpu-0"]),
        ([BAD], [rule("gpu-1", is_ours=False)], ["gpu-0"], [], []),
        ([BAD, BadGpu(B, ISOLATE)], [rule()], ["gpu-1"], [], []),
    ],
)
def test_rules_follow_the_faulty_gpus(
    gpus: list[BadGpu], rules: list[DeviceRule], made: list[str], changed: list[str], gone: list[str]
) -> None:
    change = plan_rules(gpus, [GPU_0, GPU_1], rules, node())
    assert [missing_rule.device for missing_rule in change.made] == made
    assert [device_rule.device for device_rule, _ in change.changed] == changed
    assert [device_rule.device for device_rule in change.gone] == gone
    assert change.why == ""
    assert change.names >= {rule_name(NODE, "gpu-0")}


@pytest.mark.parametrize("known", [{"GPU-a"}, set()], ids=["its UUID is known", "only its address is"])
def test_rules_cover_each_part_of_a_gpu(known: set[str]) -> None:
    parts = [Device(NODE, f"gpu-0-mig-1g-{n}", "", frozenset({"GPU-a"})) for n in range(3)]
    change = plan_rules([BadGpu(A, RESET, frozenset(known))], [GPU_0, *parts, GPU_1], [], node())
    assert [rule.device for rule in change.made] == ["gpu-0", *(part.name for part in parts)]
    assert [rule.name for rule in change.made] == [rule_name(NODE, text) for text in ("gpu-0", "0", "1", "2")]


def test_rule_of_a_part_has_a_free_number() -> None:
    parts = [Device(NODE, f"gpu-0-mig-1g-{n}", A) for n in range(3)]
    numbered = rule(parts[1].name, name=rule_name(NODE, "1"))
    by_device = rule(parts[2].name)  # of an agent of 0.2.0
    somebodys = rule("gpu-7", name=rule_name(NODE, "0"), is_ours=False)
    change = plan_rules([BAD], parts, [numbered, by_device, somebodys], node())

    assert [(missing_rule.name, missing_rule.device) for missing_rule in change.made] == [
        (rule_name(NODE, "2"), parts[0].name)
    ]
    assert (change.unchanged, change.gone) == ((numbered, by_device), ())


@pytest.mark.parametrize(("length", "why"), [(231, ""), (232, "their names are too long")])
def test_rule_name_has_253_characters_at_most(length: int, why: str) -> None:
    name = "n" * length
    assert why in plan_rules([BAD], [Device(name, "gpu-0", A)], [], NodeState(name, "1")).why


def test_second_rule_of_a_device_is_deleted() -> None:
    twice = [rule(), rule(name=rule_name(NODE, "0"))]
    change = plan_rules([BAD], [GPU_0], twice, node())

    assert (len(change.unchanged), len(change.gone), change.made) == (1, 1, ())


@pytest.mark.parametrize(
    ("devices", "rules", "why"),
    [
        ([], [], f"no ResourceSlice of this node contains {A}"),
        ([GPU_1], [], f"no ResourceSlice of this node contains {A}"),
        ([GPU_0, Device(NODE, "gpu-9")], [], "the driver does not report the GPU of gpu-9"),
        ([GPU_0, replace(GPU_0, pool="rack", name="r")], [], "r is published in a pool that does not have the node's"),
        ([GPU_0], [rule(is_ours=False)], "belongs to another program, or was changed"),
        ([replace(GPU_0, name=f"part-{n}") for n in range(65)], [], "65 rules are too many"),
        (
            [replace(GPU_0, name=f"part-{n}") for n in range(64)],
            [rule("x", name=rule_name(NODE, "63"), is_ours=False)],
            "64 rules are too many (at most 63)",
        ),
    ],
)
def test_rules_that_cannot_cover_a_gpu_are_not_created(
    devices: list[Device], rules: list[DeviceRule], why: str
) -> None:
    change = plan_rules([BAD], devices, [*rules, rule("gpu-1")], node())
    assert why in change.why
    assert (change.made, change.changed) == ((), ())
    assert [device_rule.device for device_rule in change.gone] == ["gpu-1"]


def plan_for(state: NodeState, memory: Memory, grant: SlotGrant) -> NodePatch:
    verdict = decide(memory, [outcome_with()])
    return planned(verdict, memory, state, ON, WALL, grant)


@pytest.mark.parametrize(
    ("state", "grant", "word", "taints"),
    [
        (node(), HELD, "set", [TAINT]),
        (node(), BY_DEVICES, "devices", None),
        (node(taints=[TAINT]), BY_DEVICES, "devices", []),
        (node(), SlotGrant(held=False, why="full"), "withheld", None),
    ],
)
def test_node_has_no_taint_while_its_gpus_have(
    state: NodeState, grant: SlotGrant, word: str, taints: list[object] | None
) -> None:
    patch = plan_for(state, memory_of(on(f"gpu/{A}")), grant).patch
    assert patch is not None
    text = patch["metadata"]["annotations"][RESULTS]
    assert records.parse(records.AgentRecord, text).taint == word
    assert patch.get("spec", {}).get("taints") == taints
    assert {"fail", "REBOOT"} <= set(patch["metadata"]["labels"].values())
    assert says_devices(node(annotations={RESULTS: text})) is (word == "devices")


def test_repair_is_not_requested_for_a_node_with_working_gpus() -> None:
    memory = memory_of(on(f"gpu/{A}", ISOLATE))
    verdict = decide(memory, [outcome_with()])
    rules = replace(ON, repair=RepairPolicy(REPAIR_CONDITIONS))
    conditions = planned(verdict, memory, node(), rules, WALL, BY_DEVICES).repair.conditions
    assert {entry["type"]: (entry["status"], entry["reason"]) for entry in conditions} == {
        REBOOT_REQUIRED: ("False", "NotRequired"),
        REPLACEMENT_REQUIRED: ("True", "Xid79"),
        HARDWARE_READY: ("Unknown", "RepairWithheld"),
    }
