"""Commands after a quarantine run, on each platform."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.rows import FindingRow
from gpu_healthcheck.healthcheck.node.state import CORDONED_BY, FIELD_MANAGER, TAINT, FieldManager, NodeState
from gpu_healthcheck.healthcheck.operations.next_step import NextStep, Platform, cordon_of_card, next_step, platform_of
from gpu_healthcheck.healthcheck.text.boundary import read_row
from gpu_healthcheck.healthcheck.text.moments import EARLIEST
from gpu_healthcheck.quarantine.recommendation import Recommendation

EC2 = NodeState("n", provider_id="aws:///us-west-2a/i-0123456789abcdef0")
OURS = (FieldManager(FIELD_MANAGER, EARLIEST),)
CORDONED = replace(
    EC2, cordoned=True, annotations={CORDONED_BY: "gpu-quarantine-n"}, cordon_managers=OURS, mark_managers=OURS
)
REGION = {"topology.kubernetes.io/region": "us-west-2"}
NODE_GROUP = replace(EC2, labels={**REGION, "eks.amazonaws.com/nodegroup": "gpus"})
KARPENTER = replace(EC2, labels={**REGION, "karpenter.sh/nodepool": "gpus"})
HYPERPOD = NodeState(
    "hyperpod-i-0123456789abcdef0",
    labels={"sagemaker.amazonaws.com/node-health-status": "Schedulable"},
    provider_id="aws:///usw2-az2/sagemaker/cluster/hyperpod-0123-i-0123456789abcdef0",
)
GKE = NodeState("n", labels={"cloud.google.com/gke-nodepool": "gpus"}, provider_id="gce://project/us-central1-a/gke-n")
ELSEWHERE = NodeState("n", provider_id="baremetal://rack-7")
TERMINATE = "aws autoscaling terminate-instance-in-auto-scaling-group"
AGAIN = "gpu-healthcheck quarantine n"
STATUS = "sagemaker.amazonaws.com/node-health-status"


@pytest.mark.parametrize(
    ("node", "platform"),
    [
        (HYPERPOD, Platform.HYPERPOD),
        (KARPENTER, Platform.KARPENTER),
        (NODE_GROUP, Platform.NODE_GROUP),
        (EC2, Platform.EC2),
        (GKE, Platform.GKE),
        (ELSEWHERE, Platform.OTHER),
    ],
)
def test_who_makes_its_nodes(node: NodeState, platform: Platform) -> None:
    assert platform_of(node) is platform


@pytest.mark.parametrize(
    ("node", "command"),
    [
        (HYPERPOD, f"kubectl label node {HYPERPOD.name} {STATUS}=UnschedulablePendingReplacement --overwrite"),
        (KARPENTER, "kubectl delete node n"),
        (
            NODE_GROUP,
            f"{TERMINATE} --instance-id i-0123456789abcdef0 --no-should-decrement-desired-capacity --region us-west-2",
        ),
        (
            EC2,
            f"{TERMINATE} --instance-id i-0123456789abcdef0 --no-should-decrement-desired-capacity",
        ),
        (ELSEWHERE, "kubectl delete node n"),
        (replace(NODE_GROUP, provider_id=""), "kubectl delete node n"),
    ],
)
def test_how_it_is_replaced(node: NodeState, command: str) -> None:
    assert next_step("replace", node, ()).commands == (command,)


@pytest.mark.parametrize(
    ("findings", "word"),
    [
        ([("Xid79", "REBOOT")], "XID"),
        ([("NcclSlow", "RESET"), ("NcclWrongResults", "ISOLATE")], "SDC"),
        ([("NcclSlow", "RESET")], "PERFORMANCE"),
        ([("RowRemapFailed", "ISOLATE"), ("Xid13", "MONITOR")], "unspecified"),
        ([("$(reboot)", "ISOLATE")], "unspecified"),
        ([("Xid79; reboot", None)], "XID"),
        ([], "unspecified"),
    ],
)
def test_a_fault_is_reported_to_gke_by_its_kind(findings: list[tuple[str, str]], word: str) -> None:
    rows = [read_row(FindingRow, {"reason": reason, "severity": severity}) for reason, severity in findings]

    step = next_step("replace", GKE, rows)

    assert step.commands == (f"kubectl label node n cloud.google.com/fault-behavior={word} --overwrite",)
    assert "of a reservation" in step.note


@pytest.mark.parametrize(
    ("node", "label", "value"),
    [
        (HYPERPOD, STATUS, "UnschedulablePendingReplacement"),
        (GKE, "cloud.google.com/fault-behavior", "unspecified"),
    ],
)
def test_replacement_that_was_requested_is_not_requested_again(node: NodeState, label: str, value: str) -> None:
    step = next_step("replace", replace(node, labels={**node.labels, label: value}), ())

    assert step.commands == ()
    assert step.note.startswith(f"Wait: the node has the label {label}={value}")


@pytest.mark.parametrize(
    ("node", "command"),
    [
        (HYPERPOD, f"kubectl label node {HYPERPOD.name} {STATUS}=UnschedulablePendingReboot --overwrite"),
        *((node, "gpu-healthcheck reset n --reboot") for node in (KARPENTER, NODE_GROUP, EC2, GKE, ELSEWHERE)),
    ],
)
def test_how_it_is_rebooted(node: NodeState, command: str) -> None:
    assert next_step("reboot", node, ()).commands == (command, f"gpu-healthcheck quarantine {node.name}")


@pytest.mark.parametrize(
    ("node", "way"),
    [
        (NODE_GROUP, "run `aws ec2 reboot-instances --instance-ids i-0123456789abcdef0 --region us-west-2`."),
        (GKE, "use another way to reboot the drained machine (gce://project/us-central1-a/gke-n)."),
        (ELSEWHERE, "use another way to reboot the drained machine (baremetal://rack-7)."),
        (NodeState("n"), "use another way to reboot the drained machine."),
    ],
)
def test_the_way_where_a_host_refuses_the_reboot_is_the_machines_own(node: NodeState, way: str) -> None:
    assert next_step("reboot", node, ()).note == f"If its host refuses the reboot, {way}"


@pytest.mark.parametrize(
    ("findings", "is_reset"),
    [
        ([("RESET", "gpu/0000:18:00.0")], True),
        ([("RESET", "gpu/0000:18:00.0"), ("RESET", "gpu/0000:2a:00.0"), ("MONITOR", "node")], True),
        ([("RESET", "gpu/0000:18:00.0"), ("RESET", "nvswitch/0000:85:00.0")], False),
        ([("RESET", "gpu/0000:18:00.0; rm -rf /")], False),
        ([], False),
    ],
)
def test_gpus_are_reset_by_the_command_and_anything_else_by_a_reboot(
    findings: list[tuple[str, str]], is_reset: bool
) -> None:
    rows = [read_row(FindingRow, {"severity": severity, "subject": subject}) for severity, subject in findings]

    step = next_step("reset", ELSEWHERE, rows)

    assert step == (NextStep(("gpu-healthcheck reset n", AGAIN)) if is_reset else next_step("reboot", ELSEWHERE, ()))


@pytest.mark.parametrize(
    ("others", "is_rebooted", "is_reset"),
    [((), False, False), ((("RESET", "gpu/0000:18:00.0"),), False, True), ((("RESET", "driver"),), True, False)],
)
def test_a_fault_of_the_network_reboots_no_node(
    others: tuple[tuple[str, str], ...], is_rebooted: bool, is_reset: bool
) -> None:
    rows = [{"reason": "RdmaFabricDown", "severity": "RESET", "subject": "node"}]
    rows += [{"reason": "Xid62", "severity": severity, "subject": subject} for severity, subject in others]

    step = next_step("reset", ELSEWHERE, [read_row(FindingRow, row) for row in rows])

    assert any("--reboot" in command for command in step.commands) is is_rebooted
    assert ("gpu-healthcheck reset n" in step.commands) is is_reset
    if not others:
        assert step.commands == ("gpu-healthcheck explain RdmaFabricDown",)


def test_a_platform_on_which_resets_fail_is_rebooted() -> None:
    step = next_step("reset", EC2, [read_row(FindingRow, {"severity": "RESET", "subject": "gpu/0000:18:00.0"})])

    assert step.commands == next_step("reboot", EC2, ()).commands
    assert "known to fail" in step.note
    assert "aws ec2 reboot-instances" in step.note


@pytest.mark.parametrize("cordoned", [False, True])
def test_a_node_that_passed_only_has_to_be_uncordoned(cordoned: bool) -> None:
    step = next_step("return-to-service", replace(CORDONED, cordoned=cordoned), ())

    assert (step.commands, step.note) == (("kubectl uncordon n",) if cordoned else (), "")


def test_a_taint_that_still_stands_is_said_to_be_the_agents() -> None:
    step = next_step("return-to-service", replace(EC2, taints=[TAINT]), ())

    assert "the agent removes the taint" in step.note


@pytest.mark.parametrize(
    ("provider_id", "region"),
    [("aws:///us-west-2a/i-0123456789abcdef0;reboot", ""), ("aws:///a/i-$(x)", ""), (EC2.provider_id, "x; reboot")],
)
def test_what_no_platform_wrote_never_reaches_the_line_of_a_shell(provider_id: str, region: str) -> None:
    node = replace(NODE_GROUP, provider_id=provider_id, labels={"topology.kubernetes.io/region": region})

    for word in ("replace", "reboot"):
        step = next_step(word, node, ())
        assert not any(set(";$()") & set(command) for command in (*step.commands, *step.note.split("`")[1::2]))


@pytest.mark.parametrize("word", list(Recommendation))
def test_every_word_of_the_record_has_a_step(word: Recommendation) -> None:
    assert next_step(word.value, CORDONED, ()).commands


def test_a_word_that_nobody_knows_has_none() -> None:
    assert next_step("investigate", EC2, ()).commands == ()


BAD, OTHER = (f"GPU-{digit * 8}-1f2a-4c3b-8d4e-5f6a7b8c9d0e" for digit in "ab")
CORDON, CARDS = "hami.io/device-cordon", "hami.io/node-nvidia-register"
REGISTERED = f'[{{"id":"{BAD}","count":10}},{{"id":"{OTHER}","count":10}}]'


def sharing(cards: str = REGISTERED, before: str = "") -> NodeState:
    return replace(EC2, annotations={CARDS: cards, CORDON: before})


def on_gpu(uuid: str, severity: str = "RESET", subject: str = "gpu/0000:18:00.0") -> FindingRow:
    return read_row(FindingRow, {"severity": severity, "subject": subject, "about": {"uuid": uuid}})


@pytest.mark.parametrize(
    ("node", "findings", "value"),
    [
        (sharing(), [on_gpu(BAD)], BAD),
        (sharing(), [on_gpu(BAD), on_gpu(BAD, "ISOLATE"), on_gpu(OTHER, "MONITOR")], BAD),
        (sharing(before=OTHER), [on_gpu(BAD)], f"{OTHER},{BAD}"),
        (sharing(before=f" {OTHER} ,"), [on_gpu(BAD)], f"{OTHER},{BAD}"),
    ],
)
@pytest.mark.parametrize("recommended", ["reset", "reboot", "replace"])
def test_of_cards_that_hami_shares_a_bad_one_can_be_cordoned_alone(
    recommended: str, node: NodeState, findings: list[FindingRow], value: str
) -> None:
    command = f"kubectl annotate node n {CORDON}={value} --overwrite"

    assert f"run `{command}` (needs HAMi 2.10" in next_step(recommended, node, findings).note


@pytest.mark.parametrize(
    ("node", "findings"),
    [
        (EC2, [on_gpu(BAD)]),
        # HAMi before 2.8, which knows no such cordon.
        (sharing(f"{BAD},10,81920,100,NVIDIA-H100,0,true:"), [on_gpu(BAD)]),
        (sharing(before=BAD), [on_gpu(BAD)]),
        (sharing(), [on_gpu(BAD), on_gpu(OTHER)]),
        (sharing(), [on_gpu(BAD), on_gpu("", subject="nvswitch/0000:85:00.0")]),
        (sharing(), [on_gpu(BAD, "MONITOR")]),
        (sharing(), [on_gpu("")]),
        (sharing(), [on_gpu("GPU-cccccccc-1f2a-4c3b-8d4e-5f6a7b8c9d0e")]),
        (sharing('["$(reboot)"]'), [on_gpu("$(reboot)")]),
        # A person's text there is kept, and never reaches a shell's line.
        (sharing(before="0;reboot"), [on_gpu(BAD)]),
        (sharing(), []),
    ],
)
def test_elsewhere_nothing_is_said_of_it(node: NodeState, findings: list[FindingRow]) -> None:
    assert cordon_of_card(node, findings) == ""


def test_a_node_that_passed_needs_no_cordon() -> None:
    assert CORDON not in next_step("return-to-service", sharing(), [on_gpu(BAD)]).note
