"""Annotation of a reset's command: labels to restore, its sign of life, and when the node is returned without it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.deep.reset_command import (
    OPERANDS,
    SILENT_SECONDS,
    ResetCommand,
    Silence,
    command_in,
    is_abandoned,
    new_command,
    operands_before,
    render,
    renewal,
    restored,
    returned,
    sign_of_life,
    switch_off,
    switched_off,
)
from gpu_healthcheck.healthcheck.node.state import MAINTENANCE, MODE, RESET_COMMAND, RESET_RESULT, RUN, NodeState
from gpu_healthcheck.healthcheck.text.moments import timestamp

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DCGM, PLUGIN, DRIVER = (f"nvidia.com/gpu.deploy.{name}" for name in ("dcgm", "device-plugin", "driver"))
BOOT, JOB = "b0074d00-0000-4000-8000-000000000001", "gpu-reset-n"


def text(operands: object = None, renewed: object = "2026-11-21T00:00:00.000Z") -> str:
    return json.dumps({"holder": JOB, "operands": {} if operands is None else operands, "renewed": renewed})


def node(command: str | None = None, **more: Any) -> NodeState:
    annotations = more.pop("annotations", {}) | ({} if command is None else {RESET_COMMAND: command})
    return NodeState("n", annotations=annotations, **more)


def claimed(minutes: float, holder: str = JOB) -> dict[str, str]:
    claim = {"kind": "reset", "holder": holder, "until": timestamp(NOW + timedelta(minutes=minutes))}
    return {RUN: json.dumps(claim)}


def test_the_annotation_survives_a_write_and_a_read() -> None:
    command = ResetCommand(JOB, {DCGM: "true"}, sign_of_life(NOW))
    assert command_in({RESET_COMMAND: render(command)}) == command
    assert (
        render(command) == f'{{"holder":"{JOB}","operands":{{"{DCGM}":"true"}},"renewed":"2026-11-21T00:00:00.000Z"}}'
    )


class TestRenewal:
    LATER = NOW + timedelta(hours=1)

    def renewed(self, state: NodeState, *, extends: bool) -> ResetCommand | None:
        patch = renewal(state, self.LATER, extends=extends)
        return command_in(patch["metadata"]["annotations"]) if patch is not None else None

    def test_only_a_persons_extends_the_permissions(self) -> None:
        state = node(render(new_command(JOB, {DCGM: "true"}, NOW)), labels={DCGM: "false"})
        after = [self.renewed(state, extends=extends) for extends in (True, False)]
        assert after == [
            ResetCommand(JOB, {DCGM: "true"}, sign_of_life(self.LATER), until)
            for until in ("2026-11-21T04:00:00Z", "2026-11-21T03:00:00Z")
        ]

    def test_one_of_an_earlier_version_has_no_end(self) -> None:
        after = [self.renewed(node(text()), extends=extends) for extends in (True, False)]
        assert [command.until for command in after if command is not None] == ["2026-11-21T04:00:00Z", ""]

    def test_a_label_that_was_switched_on_meanwhile_is_no_longer_restored(self) -> None:
        state = node(text({DCGM: "true", PLUGIN: "true"}), labels={DCGM: "true", PLUGIN: "false"})
        after = self.renewed(state, extends=True)
        assert after is not None
        assert after.operands == {PLUGIN: "true"}

    @pytest.mark.parametrize("state", [node(), node("{}")])
    def test_without_a_readable_annotation_there_is_none(self, state: NodeState) -> None:
        assert renewal(state, NOW, extends=True) is None


@pytest.mark.parametrize("annotation", ["", "{}", "[]", "null", '{"holder":"x"}', text(renewed=None), "x" * 999_999])
def test_an_unreadable_annotation_lists_no_label(annotation: str) -> None:
    assert command_in({RESET_COMMAND: annotation}) is None
    assert switched_off({DCGM: "false"}, {RESET_COMMAND: annotation}) == ()


class TestOperands:
    def test_those_that_run_are_switched_off_and_on_again(self) -> None:
        patch = switch_off(node(text(), labels={DCGM: "true", PLUGIN: "false", DRIVER: "true"}))
        assert patch is not None
        annotation = patch["metadata"]["annotations"][RESET_COMMAND]
        command = command_in({RESET_COMMAND: annotation})
        assert command is not None
        assert (command.operands, command.renewed, patch["metadata"]["labels"]) == (
            {DCGM: "true"},
            "2026-11-21T00:00:00.000Z",
            {DCGM: "false"},
        )

        after = node(annotation, labels={DCGM: "false", PLUGIN: "false"})
        assert switch_off(after) is None
        patch = restored(after)
        assert operands_before(after) == {DCGM: "true"}
        assert patch is not None
        assert patch["metadata"]["labels"] == {DCGM: "true"}

    def test_operands_of_an_earlier_run_stay_listed(self) -> None:
        patch = switch_off(node(text({PLUGIN: "true"}), labels={DCGM: "true", PLUGIN: "false"}))
        assert patch is not None
        after = command_in(patch["metadata"]["annotations"])
        assert after is not None
        assert after.operands == {PLUGIN: "true", DCGM: "true"}

    @pytest.mark.parametrize("annotation", [None, "{}"])
    def test_without_a_command_none_is_switched_off(self, annotation: str | None) -> None:
        assert switch_off(node(annotation, labels={DCGM: "true"})) is None

    def test_they_are_restored_once(self) -> None:
        patch = restored(node(text({DCGM: "true"}), labels={DCGM: "false"}))
        assert patch is not None
        emptied = node(patch["metadata"]["annotations"][RESET_COMMAND], labels={DCGM: "false"})
        command = command_in(emptied.annotations)
        assert command is not None
        assert (command.operands, command.renewed) == ({}, "2026-11-21T00:00:00.000Z")
        assert restored(emptied) is None

    def test_a_value_that_another_client_has_set_meanwhile_stays(self) -> None:
        patch = restored(node(text({DCGM: "true"}), labels={DCGM: "paused-for-driver-upgrade"}))
        assert patch is not None
        assert patch["metadata"]["labels"] == {}

    @pytest.mark.parametrize(
        "operands", [{"node-role.kubernetes.io/control-plane": "true"}, {PLUGIN: "x"}, {DRIVER: "true"}, 7]
    )
    def test_other_labels_and_values_are_not_restored(self, operands: object) -> None:
        assert switched_off({PLUGIN: "false", DRIVER: "false"}, {RESET_COMMAND: text(operands)}) == ()
        assert switched_off({}, {RESET_COMMAND: text(dict.fromkeys(OPERANDS, "true"))}) == ()

    def test_the_record_of_the_job_restores_nothing(self) -> None:
        record = json.dumps({"holder": JOB, "running": "reset", "operands": {DCGM: "true"}})
        state = node(annotations={RESET_RESULT: record}, labels={DCGM: "false"})
        assert (restored(state), operands_before(state), switched_off(state.labels, state.annotations)) == (
            None,
            {},
            (),
        )


def test_a_node_is_returned_in_one_write() -> None:
    taints = [{"key": MAINTENANCE, "value": "reset", "effect": "NoSchedule"}]
    labels = {DCGM: "false", MODE: "reset"}
    patch = returned(node(text({DCGM: "true"}), annotations=claimed(5), labels=labels, taints=taints), JOB, NOW)
    assert patch is not None
    metadata = patch["metadata"]
    assert (metadata["labels"], patch["spec"]["taints"]) == ({MODE: None, DCGM: "true"}, [])
    assert metadata["annotations"] == {RUN: None, RESET_COMMAND: None}


def test_the_claim_of_another_run_stays() -> None:
    patch = returned(node(text({DCGM: "true"}), annotations=claimed(5, "another"), labels={DCGM: "false"}), JOB, NOW)
    assert patch is not None
    assert (patch["metadata"]["annotations"], patch["metadata"]["labels"]) == ({RESET_COMMAND: None}, {DCGM: "true"})
    assert returned(node(), JOB, NOW) is None


READS = {
    "alive": ([(0, "a"), (9, "b"), (18, "c"), (27, "d")], 0),
    "dead": ([(0, "a"), (5, "a"), (10, "a"), (15, "a")], 15),
    "slow": ([(0, "a"), (5, "a"), (10, "a"), (15, "b"), (20, "b")], 5),
    "the API server is away for 40 s": ([(0, "a"), (40, "a")], 10),
    "away for an hour": ([(0, "a"), (5, "a"), (3605, "a")], 15),
    "another clock": ([(0, "2031"), (5, "1999"), (10, "2031")], 0),
    "gone": ([(0, "a"), (5, "a"), (10, None)], 0),
}


@pytest.mark.parametrize(("reads", "seconds"), READS.values(), ids=READS)
def test_silence_is_time_in_which_the_node_was_read_and_did_not_change(
    reads: list[tuple[float, str | None]], seconds: float
) -> None:
    silence = Silence()
    for at, renewed in reads:
        observed = silence.observe({} if renewed is None else {RESET_COMMAND: text(renewed=renewed)}, 1000.0 + at)
    assert observed == seconds


def test_restored_labels_and_garbage_are_no_sign_of_life() -> None:
    silence = Silence()
    silence.observe({RESET_COMMAND: text({DCGM: "true"})}, 0.0)
    assert silence.observe({RESET_COMMAND: text()}, 7.0) == 7.0
    silence.observe({RESET_COMMAND: "garbage"}, 8.0)
    assert silence.observe({RESET_COMMAND: "garbage"}, 13.0) == 5.0


STEPS = ("claim", "plan", "free the GPUs", "reset", "drain the node", "verify", "level 2", "load", None)


@pytest.mark.parametrize(
    ("running", "boot_id", "minutes", "seconds", "abandoned"),
    [
        *((step, BOOT, 5.0, SILENT_SECONDS, True) for step in STEPS),
        *((step, BOOT, 5.0, SILENT_SECONDS - 1, False) for step in STEPS),
        ("reboot", BOOT, 5.0, 900.0, False),
        ("reboot", BOOT, -5.0, SILENT_SECONDS, True),
        ("reboot", "another", 5.0, SILENT_SECONDS, True),
    ],
)
def test_a_reset_without_its_job_is_abandoned(
    running: str | None, boot_id: str, minutes: float, seconds: float, abandoned: bool
) -> None:
    record = json.dumps({"holder": JOB, "running": running, "boot_id": boot_id})
    state = node(text({DCGM: "true"}), annotations=claimed(minutes) | {RESET_RESULT: record})
    assert is_abandoned(state, seconds, BOOT, NOW) is abandoned


def test_a_node_without_the_annotation_is_left_alone() -> None:
    assert not is_abandoned(node(annotations=claimed(5)), 900.0, BOOT, NOW)
