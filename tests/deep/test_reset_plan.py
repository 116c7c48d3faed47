"""Plan of a reset: its GPUs, reasons against it, and the Job."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.deep.attempts import is_rebooted_at_once
from gpu_healthcheck.healthcheck.deep.reset_plan import (
    KNOWN_FAILURES,
    SCOPES,
    ResetScope,
    Step,
    awaits_reboot,
    drained,
    may_have_begun,
    needs_reboot,
    reset_targets,
    scope_of,
    step_events,
    why_not_offered,
    why_not_reboot,
    why_not_reset,
)
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND, RESET_RESULT, TAINT, NodeState
from gpu_healthcheck.healthcheck.operations.drain import HolderKind, holder_kind
from gpu_healthcheck.healthcheck.operations.reset_job import job_name, reset_job
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict.record import RunRecord

P = "gpu-healthcheck.aws-samples.io"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
ADDRESS, UUID = "0000:18:00.0", "GPU-00000000-51e0-4000-8000-000000000003"
JOB = job_name("n")
DRA = {"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}
"""Of the kubelet plugin, and of the controller, which is no DaemonSet."""


def row(reason: str = "Xid62", severity: str = "RESET", subject: str = f"gpu/{ADDRESS}") -> dict[str, Any]:
    about = {"index": "3", "uuid": UUID}
    return {"reason": reason, "severity": severity, "subject": subject, "about": about, "nature": "event"}


def node(*rows: dict[str, Any], run: object = None, result: object = None, **more: Any) -> NodeState:
    texts = {"results": {"schema": 1, "findings": rows}, "run": run, "reset-result": result}
    annotations = {f"{P}/{key}": json.dumps(value) for key, value in texts.items() if value is not None}
    return NodeState(name="n", annotations=annotations, **more)


def held(kind: str, holder: str) -> dict[str, str]:
    return {"kind": kind, "holder": holder, "until": timestamp(NOW + timedelta(minutes=5))}


def whys(state: NodeState, *asked: str, force: bool = False) -> str:
    return "; ".join(why_not_reset(state, reset_targets(state, asked), JOB, NOW, force=force))


@pytest.mark.parametrize(
    ("rows", "asked", "targets"),
    [
        ([row()], [], [(ADDRESS, ("Xid62",))]),
        ([row(), row("RowRemapPending")], [], [(ADDRESS, ("Xid62", "RowRemapPending"))]),
        ([row(subject=f"gpu/{ADDRESS}/gi5")], [], [(ADDRESS, ("Xid62",))]),
        ([row()], ["3"], [(ADDRESS, ("Xid62",))]),
        ([row()], [UUID, ADDRESS, "3"], [(ADDRESS, ("Xid62",))]),
        ([row()], ["4"], [("4", ())]),
        ([row(severity="REBOOT")], [], []),
        ([row(severity="MONITOR")], [], []),
        ([row(subject="nvswitch/0000:85:00.0")], [], []),
        ([row(subject="gpu/$(reboot)")], [], []),
        ([row(subject="gpu/0000:18:00.0\n--all")], [], []),
        ([], [], []),
    ],
)
def test_the_gpus_with_a_finding_that_a_reset_ends(
    rows: list[dict[str, Any]], asked: list[str], targets: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert [(target.name, target.reasons) for target in reset_targets(node(*rows), asked)] == targets


@pytest.mark.parametrize(
    ("state", "asked", "message"),
    [
        (node(row()), [], ""),
        (node(row(), run=held("reset", JOB)), [], ""),
        (node(row(), run=held("quarantine", "x")), [], "quarantine x uses it until 2026-11-21T00:05:00Z"),
        (node(row(), run=held("reset", "another")), [], "reset another uses it until"),
        (node(), [], "no finding on it ends with the reset of a GPU"),
        (node(row()), ["7"], "no finding on GPU 7 ends with a reset"),
        (node(row(), labels={"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}), [], "is being changed"),
        (node(row(), labels={"nvidia.com/mig.config.state": "pending"}), [], "is being changed"),
        (node(row(), labels={"nvidia.com/gpu.workload.config": "vm-passthrough"}), [], "belong to virtual machines"),
        (node(row(), labels={"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"}), [], "HyperPod"),
        (node(row(), provider_id="aws:///us-west-2a/i-0123"), [], "add --reboot to reboot it"),
        (node(row(), provider_id="gce://p/z/n"), [], ""),
    ],
)
def test_reasons_against_a_reset(state: NodeState, asked: list[str], message: str) -> None:
    assert message in whys(state, *asked)
    assert bool(whys(state, *asked)) == bool(message)


def test_force_overrules_judgement_and_not_another_run() -> None:
    assert whys(node(provider_id="aws:///us-west-2a/i-0123"), "7", force=True) == ""
    assert "quarantine x" in whys(node(run=held("quarantine", "x")), "7", force=True)


BOOT, LOST = "b0074d00-0000-4000-8000-000000000001", row("Xid79", "REBOOT")
SWITCH = row("SXid11004", "RESET", "nvswitch/0000:85:00.0")
NETWORK = row("RdmaFabricDown", "RESET", "node")
EC2 = "aws:///us-west-2a/i-0123"


@pytest.mark.parametrize(
    ("rows", "about", "asked", "force", "at_once"),
    [
        ([row()], {}, [], False, False),
        ([row()], {"provider_id": EC2}, [], False, True),
        ([row()], {"provider_id": EC2}, [], True, False),
        ([LOST], {}, [], False, True),
        ([row(), LOST], {}, [], False, True),
        ([SWITCH], {}, [], False, True),
        ([row(), NETWORK], {}, [], False, False),
        ([], {}, [], True, True),
        ([], {}, ["3"], True, False),
    ],
)
def test_which_nodes_are_rebooted_without_a_reset(
    rows: list[dict[str, Any]], about: dict[str, str], asked: list[str], force: bool, at_once: bool
) -> None:
    state = node(*rows, **about)
    assert is_rebooted_at_once(state, reset_targets(state, asked), force=force) is at_once


@pytest.mark.parametrize(
    ("rows", "boot_id", "run", "force", "message"),
    [
        ([row()], BOOT, None, False, ""),
        ([LOST], BOOT, None, False, ""),
        ([SWITCH], BOOT, None, False, ""),
        ([row("RowRemapFailed", "ISOLATE")], BOOT, None, False, "no finding on it ends with a reset or a reboot"),
        ([NETWORK], BOOT, None, False, "no finding on it ends with a reset or a reboot"),
        ([NETWORK], BOOT, None, True, ""),
        ([], BOOT, None, False, "no finding on it ends with a reset or a reboot"),
        ([], BOOT, None, True, ""),
        ([LOST], "", None, False, "reports no boot id"),
        ([LOST], "$(reboot)", None, True, "reports no boot id"),
        ([LOST], BOOT, held("quarantine", "x"), True, "quarantine x uses it"),
    ],
)
def test_reasons_against_a_reboot(
    rows: list[dict[str, Any]], boot_id: str, run: object, force: bool, message: str
) -> None:
    state = node(*rows, run=run, boot_id=boot_id)
    why = "; ".join(why_not_reboot(state, reset_targets(state, []), JOB, NOW, force=force))
    assert message in why
    assert bool(why) == bool(message)


def test_a_refusal_names_the_reboot() -> None:
    assert needs_reboot(node(LOST)) == (f"Xid79 on gpu/{ADDRESS}",)
    assert "add --reboot" in whys(node(LOST))
    assert whys(node(row(), LOST)) == ""
    assert "--reboot" not in whys(node(NETWORK))


def test_data_about_resets_has_sources() -> None:
    assert all(row.source for row in (*SCOPES, *KNOWN_FAILURES))


@pytest.mark.parametrize(
    ("versions", "has_nvswitch", "scope"),
    [
        ((), False, ResetScope.ONE),
        ((), True, ResetScope.ONE),
        ((2, 2), True, ResetScope.LINKED),
        ((3,), False, ResetScope.LINKED),
        ((4, 4), True, ResetScope.ALL),
        ((5,), False, ResetScope.ONE),
        ((6,), True, ResetScope.ONE),
        ((7, None), True, ResetScope.ONE),
        ((None, None), True, ResetScope.ALL),
    ],
)
def test_which_gpus_must_be_reset_together(
    versions: tuple[int | None, ...], has_nvswitch: bool, scope: ResetScope
) -> None:
    assert scope_of(versions, has_nvswitch=has_nvswitch).scope is scope


@pytest.mark.parametrize(
    ("running", "reset_at", "begun"),
    [
        (None, None, False),
        (Step.CLAIM, None, False),
        (Step.PLAN, None, False),
        (Step.FREE, None, False),
        (Step.RESET, None, True),
        (Step.DRAIN, None, False),
        (Step.REBOOT, None, True),
        (Step.VERIFY, None, True),
        (Step.LEVEL_2, 5.0, True),
        (None, 5.0, True),
        ("a later step", None, True),
    ],
)
def test_from_the_reset_on_it_is_not_undone(running: str | None, reset_at: float | None, begun: bool) -> None:
    assert may_have_begun(RunRecord(running=running, reset_at=reset_at)) is begun


@pytest.mark.parametrize(("status", "begun"), [("pass", True), ("fail", True), ("unknown", False)])
def test_a_result_is_not_undone(status: str, begun: bool) -> None:
    assert may_have_begun(RunRecord(status=status)) is begun


def test_a_reboot_is_awaited_in_its_own_boot_only() -> None:
    requested = RunRecord(running="reboot", boot_id=BOOT)
    assert [awaits_reboot(requested, boot_id) for boot_id in (BOOT, "another", "")] == [True, False, False]
    assert not awaits_reboot(RunRecord(running="drain the node", boot_id=BOOT), BOOT)
    assert drained(RunRecord()) == ""


def offering(gpus: int, *, tainted: bool = False) -> NodeState:
    amounts = {"nvidia.com/gpu": gpus} if gpus else {}
    return NodeState("n", gpus=amounts, gpu_capacity={"nvidia.com/gpu": 8}, taints=(TAINT,) if tainted else ())


WITHOUT_TOLERATION = (
    "without a toleration, a device plugin starts only when the taint gpu-healthcheck.aws-samples.io/unhealthy"
)


@pytest.mark.parametrize(
    ("before", "now", "is_reset", "why"),
    [
        (offering(8), offering(8, tainted=True), False, ""),
        (offering(8), offering(7, tainted=True), False, ""),  # the plugin keeps the faulty GPU back
        (
            offering(7),
            offering(0, tainted=True),
            False,
            f"pods can request no GPU of 8 nvidia.com/gpu: {WITHOUT_TOLERATION}",
        ),
        (
            offering(0),
            offering(0, tainted=True),
            False,
            f"pods can request no GPU of 8 nvidia.com/gpu: {WITHOUT_TOLERATION}",
        ),
        (
            offering(7),
            offering(7),
            True,
            "pods can request 7 nvidia.com/gpu of 8 nvidia.com/gpu; gpu-healthcheck reset n",
        ),
        (offering(7), offering(8), True, ""),
        (NodeState("n"), NodeState("n"), True, ""),  # its GPUs are allocated by DRA
    ],
)
def test_gpus_that_a_run_has_left_unavailable(before: NodeState, now: NodeState, is_reset: bool, why: str) -> None:
    found = why_not_offered(now, before, is_reset=is_reset)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def recorded(*, returned: bool = True, **more: Any) -> NodeState:
    at = timestamp(NOW - timedelta(minutes=2))
    steps = [{"step": "claim", "at": at, "detail": "x"}, {"step": "reset", "at": at, "detail": "\x1b[31mred"}]
    record = {"holder": JOB, "started": at, "timestamp": at, "steps": steps, **more}
    annotations = {RESET_RESULT: json.dumps(record)} | ({} if returned else {RESET_COMMAND: "{}"})
    return NodeState("n", annotations=annotations)


class TestEvents:
    def test_each_step_has_one_and_always_the_same(self) -> None:
        first = list(step_events(recorded(running="reset", returned=False), NOW))
        assert [(event.reason, event.message) for event in first] == [
            ("GpuResetStep", "claim: x"),
            ("GpuResetStep", "reset: \\x1b[31mred"),
        ]
        again = list(
            step_events(recorded(status="pass", started=timestamp(NOW)), NOW)
        )  # the Job began after the command
        assert [event.name for event in again[:2]] == [event.name for event in first]
        assert len({event.name for event in again}) == 3

    @pytest.mark.parametrize(
        ("record", "reason", "message"),
        [
            ({"status": "pass"}, "GpuResetDone", "the GPUs work again"),
            ({"status": "pass", "reasons": ["no GPU of 8"]}, "GpuResetFailed", "no GPU of 8"),
            ({"status": "fail", "reasons": ["a", "b"]}, "GpuResetFailed", "a; b"),
            ({"status": "fail"}, "GpuResetFailed", "a GPU does not work"),
            ({"status": "unknown"}, "GpuResetFailed", "no GPU was reset"),
        ],
    )
    def test_the_end_has_one_once_the_node_is_returned(self, record: dict[str, Any], reason: str, message: str) -> None:
        *_, end = step_events(recorded(**record), NOW)
        assert (end.reason, end.message) == (reason, message)
        assert [event.reason for event in step_events(recorded(returned=False, **record), NOW)] == ["GpuResetStep"] * 2

    def test_steps_of_an_hour_ago_and_unknown_ones_have_none(self) -> None:
        assert list(step_events(recorded(status="pass"), NOW + timedelta(hours=1))) == []
        steps = [{"step": "evil", "at": timestamp(NOW)}, {"step": "reset"}, {}]
        assert list(step_events(recorded(running="reset", steps=steps), NOW)) == []

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"steps":7}', '{"steps":[{"step":"reset","at":"x"}]}'])
    def test_an_unreadable_record_has_none(self, text: str) -> None:
        assert list(step_events(NodeState("n", annotations={RESET_RESULT: text}), NOW)) == []


@pytest.mark.parametrize(
    ("pod", "kind"),
    [
        ({"metadata": {"labels": {"app": "nvidia-dcgm-exporter"}}}, HolderKind.OPERAND),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "dcgm-exporter"}}}, HolderKind.OPERAND),
        ({"metadata": {"labels": {"app.kubernetes.io/component": "hami-device-plugin"}}}, HolderKind.OPERAND),
        ({"metadata": {"labels": DRA, "ownerReferences": [{"kind": "DaemonSet"}]}}, HolderKind.OPERAND),
        ({"metadata": {"labels": DRA, "ownerReferences": [{"kind": "ReplicaSet"}]}}, HolderKind.FOREIGN),
        ({"metadata": {"labels": {"app": "x"}}}, HolderKind.FOREIGN),
        ({"metadata": {"namespace": "a", "labels": {"app.kubernetes.io/name": "gpu-healthcheck"}}}, HolderKind.FOREIGN),
        (
            {"metadata": {"namespace": "gpu-healthcheck", "labels": {"app.kubernetes.io/name": "gpu-healthcheck"}}},
            HolderKind.OURS,
        ),
        (
            {"metadata": {"name": "a"}, "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}},
            HolderKind.WORKLOAD,
        ),
    ],
)
def test_kinds_of_holders(pod: dict[str, Any], kind: HolderKind) -> None:
    assert holder_kind(pod) is kind


def template() -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "reset", "command": ["x"]}]}}}}


def test_the_job_names_its_gpus() -> None:
    job = reset_job(template(), NodeState("n", "uid"), "gpu-healthcheck", [ADDRESS, UUID, "3"], 90)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [f"--gpu={ADDRESS}", f"--gpu={UUID}", "--gpu=3", "--wait=90"]
    assert job["metadata"]["name"] == "gpu-reset-n"


def test_the_job_names_the_boot_that_it_may_end() -> None:
    job = reset_job(template(), NodeState("n", "uid"), "gpu-healthcheck", [], 90, BOOT)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--wait=90", f"--reboot={BOOT}"]
    with pytest.raises(ValueError, match="named by its id"):
        reset_job(template(), NodeState("n", "uid"), "gpu-healthcheck", [], 90, "now")


@pytest.mark.parametrize("gpu", ["", "all", "--all", "0000:18:00.0 --x", "1;reboot", "GPU-1", "9999"])
def test_a_job_takes_no_other_words(gpu: str) -> None:
    with pytest.raises(ValueError, match="named by its UUID"):
        reset_job(template(), NodeState("n", "uid"), "gpu-healthcheck", [gpu], 90)
