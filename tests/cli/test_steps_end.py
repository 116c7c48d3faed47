"""The next steps of a node, typed as printed, end: in a healthy node that accepts work, a replacement, or a person."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.cli.node_step import node_step
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.verdict.record import StandingRecord
from tests.cli.steps_world import BEGIN, HEALTHY, PERSON, REPLACED, Fault, Walk

EC2: dict[str, Any] = {"provider": "aws:///us-west-2a/i-0123456789abcdef0"}
HYPERPOD_STATUS = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
HYPERPOD: dict[str, Any] = {"provider": "aws:///x/sagemaker/cluster/a", "labels": HYPERPOD_STATUS}
GKE: dict[str, Any] = {"provider": "gce://p/z/n", "labels": {"cloud.google.com/gke-nodepool": "gpus"}}
RESET, REBOOT, ISOLATE, MONITOR = Severity.RESET, Severity.REBOOT, Severity.ISOLATE, Severity.MONITOR
BY_RESET, BY_REBOOT = ("reset", "reboot", "quarantine"), ("reboot", "quarantine")


def xid62() -> Fault:
    return Fault("Xid62", RESET, BY_RESET)


def xid79() -> Fault:
    return Fault("Xid79", REBOOT, BY_REBOOT)


def level(reason: str, severity: Severity, *ends: str, subject: str = "gpu/0000:18:00.0") -> Fault:
    return Fault(reason, severity, ends, subject, "level")


def slow(count: int = 1) -> Fault:
    return Fault("GpuComputeSlow", MONITOR, count=count, is_deep=count == 0)


def xid92() -> Fault:
    return Fault("Xid92", ISOLATE, ("quarantine",))


def broken_link() -> Fault:
    return level("RdmaFabricDown", RESET, "person", subject="node")


TEST, FREE = "gpu-healthcheck quarantine n", "kubectl uncordon n"
ONE, BOTH = "gpu-healthcheck reset n", "gpu-healthcheck reset n --reboot"
DRAIN = "kubectl drain n --ignore-daemonsets --delete-emptydir-data"
DELETE = "kubectl delete node n"
BY_HAND = "aws ec2 reboot-instances --instance-ids i-0123456789abcdef0"


def explain(word: str) -> str:
    return f"gpu-healthcheck explain {word}"


@pytest.mark.parametrize(
    ("walk", "end", "commands"),
    [
        (Walk(), HEALTHY, []),
        (Walk([xid62()]), HEALTHY, [ONE, TEST, FREE]),
        (Walk([xid62()], reset="fails"), HEALTHY, [ONE, BOTH, TEST, FREE]),
        (Walk([xid62()], reset="fails", reboot="fails"), PERSON, [ONE, BOTH]),
        (Walk([xid62()], reset="fails", reboot="refused"), PERSON, [ONE, BOTH, DRAIN]),
        (Walk([xid62()], reset="refused"), HEALTHY, [ONE, ONE, TEST, FREE]),
        (Walk([xid62()], reset="refused", fixable=False), PERSON, [ONE]),
        (Walk([xid62()], **EC2), HEALTHY, [BOTH, TEST, FREE]),
        (Walk([xid62()], reboot="fails", **EC2), HEALTHY, [BOTH, BY_HAND]),
        (Walk([xid62()], reboot="refused", **EC2), PERSON, [BOTH, DRAIN, BY_HAND]),
        (Walk([level("EccUncorrected", RESET)]), REPLACED, [ONE, TEST, BOTH, TEST, explain("EccUncorrected"), DELETE]),
        (Walk([xid79()]), HEALTHY, [BOTH, TEST, FREE]),
        (Walk([xid79()], reboot="refused"), PERSON, [BOTH, DRAIN]),
        (Walk([level("GpuLost", REBOOT)]), REPLACED, [BOTH, TEST, explain("GpuLost"), DELETE]),
        (Walk([level("RowRemapFailed", ISOLATE)]), REPLACED, [TEST, DELETE]),
        (Walk([xid92()]), HEALTHY, [TEST, FREE]),
        (Walk([xid79()], withheld=True), PERSON, ["kubectl cordon n", BOTH, TEST]),
        (Walk([broken_link()]), HEALTHY, [explain("RdmaFabricDown")]),
        (Walk([broken_link()], fixable=False), PERSON, [explain("RdmaFabricDown")]),
    ],
)
def test_next_steps_try_each_repair_once(walk: Walk, end: str, commands: list[str]) -> None:
    assert (walk.end(), walk.commands) == (end, commands)


PODS = "kubectl get pods -n gpu-healthcheck"
LOGS = "kubectl logs -n gpu-healthcheck --tail=20"
ON_IT = "--field-selector spec.nodeName=n"
AGENT = [f"{PODS} -o wide {ON_IT}", f"{PODS} -l app.kubernetes.io/component=agent -o name {ON_IT} | xargs -r {LOGS}"]
LINK = level("PcieReplayRate", MONITOR)


@pytest.mark.parametrize(
    ("walk", "end", "commands"),
    [
        (Walk(silent=True), HEALTHY, AGENT),
        (Walk(silent=True, fixable=False), PERSON, AGENT),
        (Walk([xid62()], silent=True), HEALTHY, [*AGENT, ONE, TEST, FREE]),
        (Walk([xid62()], silent=True, withheld=True), PERSON, ["kubectl cordon n", *AGENT, ONE, TEST]),
        (Walk([xid79()], unready=True), HEALTHY, ["kubectl describe node n", BOTH, TEST, FREE]),
        (Walk(has_verdict=False), HEALTHY, AGENT),
        (Walk(unobserved="DriverNotLoaded"), HEALTHY, [explain("DriverNotLoaded")]),
        (Walk(unoffered=True), HEALTHY, ["gpu-healthcheck diagnose node n"]),
    ],
)
def test_next_step_first_restores_agent_result_and_device_plugin(walk: Walk, end: str, commands: list[str]) -> None:
    assert (walk.end(), walk.commands) == (end, commands)


@pytest.mark.parametrize(
    ("walk", "end", "commands"),
    [
        (Walk(cordon="person"), PERSON, []),
        (Walk(cordon="person", recommendation="return-to-service"), PERSON, []),
        (Walk(cordon="ours", recommendation="return-to-service"), HEALTHY, [FREE]),
        (Walk(cordon="ours", recommendation="reset"), HEALTHY, [TEST, FREE]),
        (Walk(cordon="ours", recommendation="replace"), HEALTHY, [TEST, FREE]),
        (Walk(cordon="ours"), HEALTHY, [TEST, FREE]),
        (Walk([LINK], cordon="ours", recommendation="return-to-service"), PERSON, [FREE, explain("PcieReplayRate")]),
        (Walk([xid62()], cordon="ours", recommendation="reset"), HEALTHY, [ONE, TEST, FREE]),
        (Walk([xid62()], cordon="ours", recommendation="rerun"), HEALTHY, [ONE, TEST, FREE]),
    ],
)
def test_next_step_lifts_our_cordon_only_after_a_passed_test(walk: Walk, end: str, commands: list[str]) -> None:
    assert (walk.end(), walk.commands) == (end, commands)


CAUSE = "DcgmNotInstalled"
WHY = [explain(CAUSE), TEST]
HEARD = Fault("GpuSlowerThanSiblings", MONITOR, ("quarantine",))


@pytest.mark.parametrize(
    ("walk", "end", "commands"),
    [
        (Walk([xid92()], untestable=CAUSE), REPLACED, [TEST, DELETE]),
        (Walk([HEARD], untestable=CAUSE), HEALTHY, [explain(HEARD.reason), TEST, *WHY, FREE]),
        (Walk([HEARD], untestable=CAUSE, fixable=False), PERSON, [explain(HEARD.reason), TEST]),
        (Walk(cordon="ours", untestable=CAUSE, recommendation="rerun"), HEALTHY, [*WHY, FREE]),
        (Walk(cordon="person", untestable=CAUSE, recommendation="rerun"), PERSON, WHY),
    ],
)
def test_next_step_after_an_unproven_quarantine_names_its_cause(walk: Walk, end: str, commands: list[str]) -> None:
    assert (walk.end(), walk.commands) == (end, commands)


@pytest.mark.parametrize(
    ("walk", "end", "commands"),
    [
        (Walk([HEARD]), HEALTHY, [explain(HEARD.reason), TEST, FREE]),
        (Walk([slow(0)]), HEALTHY, []),
        (
            Walk([HEARD, slow(0)]),
            REPLACED,
            [explain(HEARD.reason), TEST, explain("GpuComputeSlow"), TEST, explain("GpuComputeSlow"), DELETE],
        ),
        (Walk([slow()]), REPLACED, [explain("GpuComputeSlow"), TEST, explain("GpuComputeSlow"), DELETE]),
        (Walk([LINK]), PERSON, [explain(LINK.reason), TEST, FREE, explain(LINK.reason)]),
        (Walk([level("NvidiaRuntimeMissing", MONITOR, "person")]), HEALTHY, [explain("NvidiaRuntimeMissing")]),
        (Walk([Fault("Xid13", MONITOR)]), PERSON, [explain("Xid13")]),
    ],
)
def test_next_step_of_a_warning_explains_it(walk: Walk, end: str, commands: list[str]) -> None:
    assert (walk.end(), walk.commands) == (end, commands)


KARPENTER: dict[str, Any] = {"labels": {"karpenter.sh/nodepool": "gpus"}}
PLATFORMS: tuple[dict[str, Any], ...] = ({}, EC2, HYPERPOD, GKE, KARPENTER)
FAULTS: tuple[tuple[Callable[[], Fault], ...], ...] = (
    (),
    (xid62,),
    (xid79,),
    (xid62, xid79),
    (xid92,),
    (broken_link, xid62),
    (lambda: level("EccUncorrected", RESET),),
    (lambda: level("GpuCountLow", REBOOT, subject="node"),),
    (lambda: level("FabricManagerNotRunning", RESET, "person", subject="node"),),
    (lambda: Fault("GpuLoadFailed", RESET, BY_RESET, is_deep=True), xid62),
    (slow, xid79),
)


@pytest.mark.parametrize("reboot", ["works", "fails", "refused"])
@pytest.mark.parametrize("reset", ["works", "fails", "refused"])
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("faults", FAULTS)
def test_next_steps_are_not_repeated_in_an_unchanged_state(
    faults: tuple[Callable[[], Fault], ...], platform: dict[str, Any], reset: str, reboot: str
) -> None:
    others = product(("", "ours", "person"), ("", CAUSE), (False, True), (False, True))
    for cordon, untestable, silent, fixable in others:
        about = {**platform, "labels": dict(platform.get("labels", {}))}
        made = [make() for make in faults]
        walk = Walk(made, reset, reboot, cordon, silent, untestable=untestable, fixable=fixable, **about)
        assert walk.end() in (HEALTHY, REPLACED, PERSON)


def test_next_step_of_a_cordon_without_an_owner_is_the_nodes_status() -> None:
    listed = replace(Walk(cordon="ours").node(), cordon_managers=(), mark_managers=())

    assert node_step(listed, StandingRecord(), silent=False, now=BEGIN).commands == ("gpu-healthcheck status n",)
