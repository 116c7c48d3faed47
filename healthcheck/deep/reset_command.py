"""Annotation of the command of a reset: labels of the GPU operator that it switched off, and its sign of life. Pure.

Only the command writes it, with a person's permissions or as an automatic reset. The reset's Job and the agent restore
exactly the labels that it lists, and may only remove it or empty its list. The permissions of the reset's accounts end
at its `until` (kubernetes/manifests/11-admission-policies-reset.yaml).
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, claim_on, release
from gpu_healthcheck.healthcheck.deep.reset_plan import awaits_reboot
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND, RESET_RESULT, NodeState, annotated
from gpu_healthcheck.healthcheck.text.boundary import JsonObject, read_row
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import RecordError, RunRecord

SILENT_SECONDS = 60.0
"""Time without a sign of life after which the command counts as dead."""
RENEWED_SECONDS = 5.0
"""Pause between two signs of life: after a lost connection of 40 s, the next one is in time."""
_LONGEST_GAP_SECONDS = 10.0
"""Longest part of a pause between two reads that counts: no sign of life arrives in an outage of the API server."""

LONGEST = timedelta(hours=3)
"""Time that a reset may take: its Job has two hours. For a person's, it begins anew with each sign of life."""

LOCK = "reset.lock"
"""File in the agent's state folder that the Job of a reset locks while it runs."""
_DEPLOY, _ON, _OFF = "nvidia.com/gpu.deploy.", "true", "false"
OPERANDS = tuple(
    f"{_DEPLOY}{name}" for name in ("device-plugin", "dcgm", "dcgm-exporter", "gpu-feature-discovery", "nvsm")
)
"""Labels of the GPU operator for the operands that open every GPU."""


class ResetCommand(Struct, frozen=True):
    """The annotation. `operands` are labels with their values before; `renewed` changes with each sign of life.

    `until` is the end of the permissions that it gives, which only admission judges; '' in one of an earlier version.
    """

    holder: str
    operands: Mapping[str, str]
    renewed: str
    until: str = ""


class _CommandRow(JsonObject, frozen=True):
    holder: str | None = None
    operands: Mapping[str, str] | None = None
    renewed: str | None = None
    until: str | None = None


class Silence(Struct):
    """Seconds without a sign of life, as observed here: times of another machine's clock are not compared."""

    seconds: float = 0.0
    renewed: str | None = None
    observed_at: float = 0.0

    def observe(self, annotations: Mapping[str, str], monotonic: float) -> float:
        """Add one read of the Node. An annotation that can't be read is silent while it does not change."""
        command = command_in(annotations)
        renewed = command.renewed if command is not None else annotations.get(RESET_COMMAND)
        if renewed is None or renewed != self.renewed:
            self.seconds = 0.0
        else:
            self.seconds += min(monotonic - self.observed_at, _LONGEST_GAP_SECONDS)
        self.renewed, self.observed_at = renewed, monotonic
        return self.seconds


def command_in(annotations: Mapping[str, str]) -> ResetCommand | None:
    """Return the command's annotation; None if it is missing or unreadable."""
    try:
        row = read_row(_CommandRow, records.load(annotations.get(RESET_COMMAND, "")))
        row.must_have("holder", "renewed")
    except (RecordError, ValueError):
        return None
    return ResetCommand(row.holder or "", row.operands or {}, row.renewed or "", row.until or "")


def render(command: ResetCommand) -> str:
    row = {"holder": command.holder, "operands": dict(command.operands), "renewed": command.renewed}
    if command.until:
        row["until"] = command.until
    return json.dumps(row, separators=(",", ":"))


def sign_of_life(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_command(holder: str, operands: Mapping[str, str], now: datetime) -> ResetCommand:
    return ResetCommand(holder, operands, sign_of_life(now), timestamp(now + LONGEST))


def renewal(node: NodeState, now: datetime, *, extends: bool) -> dict[str, Any] | None:
    """Return the patch with a sign of life; None if the Node has no readable annotation.

    A label that another client has switched on meanwhile is not restored any more. `extends`: the permissions last
    longer, which an automatic reset may not request.
    """
    command = command_in(node.annotations)
    if command is None:
        return None
    still_off = dict.fromkeys(switched_off(node.labels, node.annotations), _ON)
    new = new_command(command.holder, still_off, now)
    return annotated(node, {RESET_COMMAND: render(new if extends else replace(new, until=command.until))})


def operands_before(node: NodeState) -> dict[str, str]:
    """Return the operator's labels to switch off, with their values before: also those that an earlier run switched."""
    off = switched_off(node.labels, node.annotations)
    return {label: _ON for label in OPERANDS if node.labels.get(label) == _ON or label in off}


def switched_off(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the operator's labels of a Node that the command of a reset has switched off, and that are still off."""
    command = command_in(annotations)
    operands = command.operands if command is not None else {}
    return tuple(label for label in OPERANDS if operands.get(label) == _ON and labels.get(label) == _OFF)


def switched_on(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the operator's labels of a Node whose operands run."""
    return tuple(label for label in OPERANDS if labels.get(label) == _ON)


def switch_off(node: NodeState) -> dict[str, Any] | None:
    """Return the patch that switches the operands off and lists their labels; None if none is switched on."""
    command = command_in(node.annotations)
    if command is None or not switched_on(node.labels):
        return None
    operands = operands_before(node)
    listed = render(replace(command, operands=operands))
    return with_labels(annotated(node, {RESET_COMMAND: listed}), dict.fromkeys(operands, _OFF))


def with_labels(patch: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the patch with these labels added."""
    metadata = patch["metadata"]
    return {**patch, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}}}


def restored(node: NodeState, patch: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the patch that also restores the operator's labels and empties the list of them.

    Restoring them once uses the list up: a label that an administrator switches off later stays off. Return the patch
    itself if the list is empty already.
    """
    command = command_in(node.annotations)
    if command is None or not command.operands:
        return None if patch is None else dict(patch)
    emptied = render(replace(command, operands={}))
    on = dict.fromkeys(switched_off(node.labels, node.annotations), _ON)
    return with_labels(annotated(node, {RESET_COMMAND: emptied}, patch), on)


def returned(node: NodeState, holder: str, now: datetime) -> dict[str, Any] | None:
    """Return the patch that releases the claim of the reset and restores its labels; None if the Node has neither."""
    patch = release(node, Claim(RunKind.RESET, holder, now))
    if RESET_COMMAND not in node.annotations:
        return patch
    return annotated(node, {RESET_COMMAND: None}, restored(node, patch) or patch)


def is_abandoned(node: NodeState, silent_seconds: float, boot_id: str, now: datetime) -> bool:
    """Whether the command of a reset is dead. The caller knows that its Job does not run.

    While a reboot is awaited, the claim keeps the drained node for any later command.
    """
    if RESET_COMMAND not in node.annotations or silent_seconds < SILENT_SECONDS:
        return False
    record = records.on_node(RunRecord, node, RESET_RESULT)
    return not (awaits_reboot(record, boot_id) and claim_on(node, now) is not None)
