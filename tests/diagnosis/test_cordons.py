"""Cordons of nodes on which pods could run: their owner, and how they end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.states import Object, condition, judged, node, pod, results

WAITS = pod(
    "x",
    conditions=[condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available: 1 were unschedulable.")],
)
UNCORDON = "`kubectl uncordon a`"
LABELS: list[tuple[dict[str, str], str]] = [
    ({"k8saas.nvidia.com/cordon-by": "NVSentinel", "k8saas.nvidia.com/cordon-reason": "gpu-fatal"}, "NVSentinel"),
    ({"dgxc.nvidia.com/nvsentinel-state": "draining"}, "NVSentinel"),
    ({"nvidia.com/ofed-driver-upgrade-state": "drain-required"}, "NVIDIA's network operator"),
    ({"kubernetes.azure.com/upgrade-status": "Quarantined"}, "the upgrade of AKS"),
]
ANNOTATIONS: list[tuple[dict[str, str], str]] = [
    ({"quarantineHealthEventIsCordoned": "True"}, "NVSentinel"),
    ({"weave.works/kured-reboot-in-progress": "2026-11-22T03:00:00Z"}, "kured"),
    ({"machineconfiguration.openshift.io/state": "Working"}, "OpenShift's machine config operator"),
    ({"sriovnetwork.openshift.io/state": "Draining"}, "the SR-IOV network operator"),
]
IN_SERVICE: list[dict[str, str]] = [
    {"machineconfiguration.openshift.io/desiredDrain": "uncordon-rendered-worker-1"},
    {"machineconfiguration.openshift.io/state": "Done", "sriovnetwork.openshift.io/state": "Idle"},
    {"k8saas.nvidia.com/uncordon-by": "NVSentinel", "hami.io/device-cordon": "GPU-1"},
    {"nvidia.com/gpu.deploy.driver": "pre-installed", "nvidia.com/ofed-driver-upgrade-state": "upgrade-done"},
    {"weave.works/kured-most-recent-reboot-needed": "2026-11-20T03:00:00Z"},
]


def steps(**changes: Any) -> tuple[str, ...]:
    diagnosis = judged(node("a", cordoned=True, **changes), WAITS)
    assert results(diagnosis) == [("NodeCordoned", "node/a")]
    return diagnosis.problems[0].found.steps


@pytest.mark.parametrize(("marks", "owner"), [*LABELS, *ANNOTATIONS], ids=lambda value: str(value)[:40])
def test_owner_of_a_cordon_is_quoted_and_lifts_it_itself(marks: dict[str, str], owner: str) -> None:
    finish, uncordon = steps(**{"labels" if (marks, owner) in LABELS else "annotations": marks})

    assert finish.startswith(f"{owner} cordoned it (")
    assert all(f"{key}={value}" in finish for key, value in marks.items())
    assert uncordon.startswith("Only if its reason has ended")
    assert uncordon.endswith(UNCORDON)


def test_mark_of_an_unknown_owner_is_quoted() -> None:
    (ask, *_) = steps(annotations={"example.org/cordoned-for": "ticket-7"})
    assert "annotation example.org/cordoned-for=ticket-7" in ask
    assert ask.endswith(UNCORDON)


@pytest.mark.parametrize("marks", IN_SERVICE, ids=str)
def test_marks_of_a_node_in_service_name_no_owner(marks: dict[str, str]) -> None:
    assert steps(annotations=marks)[0].startswith("No label or annotation names who cordoned it")


def test_uncordoned_node_has_no_cordon_to_lift() -> None:
    fits: Object = pod("x", on="a")
    assert not results(judged(node("a", labels=LABELS[0][0]), fits))
