"""Events about the pods of a faulty GPU: which pod gets one, and its text."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.listed import CHECKS, DEEP_CHECKS
from gpu_healthcheck.healthcheck.model import Finding, Severity
from gpu_healthcheck.healthcheck.verdict.node_events import InvolvedPod, NodeEvent
from gpu_healthcheck.healthcheck.verdict.pod_events import LEAST, pod_events, reported
from tests.examples import active_finding

THIRD, FIFTH = "gpu/0000:03:00.0", "gpu/0000:05:00.0"
ABOUT = {"index": "3", "uuid": "GPU-3", "serial": "1"}
LOST = Finding("Xid79", Severity.REBOOT, THIRD, "FELL_OFF_BUS: secret (process 12 their-job)", ABOUT)
POD, TWIN = InvolvedPod("team", "train", "uid-3"), InvolvedPod("team", "serve", "uid-5")


def events(
    *findings: Finding, gpus: frozenset[str] | None = frozenset({THIRD}), tainted: bool = True
) -> list[NodeEvent]:
    found = reported(map(active_finding, findings))
    return pod_events("node-1", found, {POD: gpus, TWIN: frozenset({FIFTH})}, is_tainted=tainted)


def test_pod_on_the_faulty_gpu_gets_one_plain_event() -> None:
    (event,) = events(LOST)

    assert (event.pod, event.type, event.reason) == (POD, "Warning", "GpuUnhealthy")
    for part in (
        "GPU 3 of the node (GPU-3), which this pod uses, is faulty since ",
        "The GPU fell off the bus: the driver can't reach it over PCIe any more (Xid79, REBOOT).",
        "Ask an administrator of the cluster to drain and reboot the node, and name the node, node-1. Until",
        "no new pod starts on the node. `kubectl gpu-healthcheck diagnose pod team/train` shows",
    ):
        assert part in event.message
    assert "their-job" not in event.message
    assert "no new pod" not in events(LOST, tainted=False)[0].message


@pytest.mark.parametrize(
    ("subject", "gpus", "is_told"),
    [
        (THIRD, {THIRD}, True),
        (THIRD, {THIRD, FIFTH}, True),
        (THIRD, {f"{THIRD}/gi5"}, True),
        (f"{THIRD}/gi5", {f"{THIRD}/gi5"}, True),
        (f"{THIRD}/gi5", {f"{THIRD}/gi7"}, False),
        (f"{THIRD}/gi5", {f"{THIRD}/gi55"}, False),
        (f"{THIRD}/gi5", {THIRD}, True),
        (THIRD, {FIFTH}, False),
        (THIRD, None, False),
        ("nvswitch/0000:85:00.0", {FIFTH}, True),
        ("driver", None, True),
        ("node", {THIRD}, True),
    ],
)
def test_a_finding_concerns_the_pods_with_that_device(subject: str, gpus: set[str] | None, is_told: bool) -> None:
    found = events(replace(LOST, subject=subject), gpus=None if gpus is None else frozenset(gpus))

    assert (POD in [event.pod for event in found]) == is_told


@pytest.mark.parametrize("severity", list(Severity))
def test_only_findings_of_reset_or_worse_are_reported(severity: Severity) -> None:
    assert [event.pod for event in events(replace(LOST, severity=severity))] == ([POD] if severity >= LEAST else [])


def test_the_worst_finding_of_each_pod_is_first_and_its_name_does_not_change() -> None:
    second = replace(LOST, reason="RowRemapFailed", severity=Severity.ISOLATE)
    switch = replace(LOST, reason="SXid11004", severity=Severity.RESET, subject="nvswitch/0000:85:00.0")
    found = events(LOST, second, switch)

    assert [(event.pod, event.message.partition("(Xid79")[1]) for event in found[:2]] == [(POD, ""), (TWIN, "")]
    assert len({event.name for event in found}) == len(found) == 4
    assert {event.name for event in events(LOST, tainted=False)} < {event.name for event in found}


@pytest.mark.parametrize("reason", [reason.name for check in (*CHECKS, *DEEP_CHECKS) for reason in check.reasons])
def test_each_reason_has_a_meaning_and_every_text_is_whole(reason: str) -> None:
    (event,) = events(replace(LOST, reason=reason), tainted=True)

    assert "a check of the node failed" not in event.message
    assert event.message.endswith("shows how to move the job.")
    assert len(event.message.encode()) <= 1024
