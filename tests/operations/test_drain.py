"""Which pods leave a node: kubectl's rules, pod by pod."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.healthcheck.operations.drain import DrainPermissions, DrainPlan, EvictedPod, plan_drain, what_holds
from gpu_healthcheck.healthcheck.operations.pod_removal import Fate, RemovalEffect

NOTHING, EVERYTHING = DrainPermissions(), DrainPermissions(force=True, empty_dir=True)
OF_A_JOB: dict[str, Any] = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
OF_A_DAEMON_SET: dict[str, Any] = {"ownerReferences": [{"kind": "DaemonSet", "name": "dcgm", "controller": True}]}
OWNED_ONLY: dict[str, Any] = {"ownerReferences": [{"kind": "Workspace", "name": "w"}]}
MIRROR: dict[str, Any] = {"annotations": {"kubernetes.io/config.mirror": "0123"}}
SCRATCH: dict[str, Any] = {"volumes": [{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "emptyDir": {}}]}
LOST = "the data of its emptyDir is lost"


def pod(metadata: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, phase: str = "Running") -> Any:
    return {
        "metadata": {"namespace": "team", "name": "p", "uid": "u", **(metadata or {})},
        "spec": spec or {},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("entry", "allowed", "warning"),
    [
        (pod(OF_A_JOB), NOTHING, ""),
        (pod(OF_A_JOB, SCRATCH), EVERYTHING, LOST),
        (pod(), EVERYTHING, "no controller recreates it"),
        (pod(OWNED_ONLY), DrainPermissions(force=True), "no controller recreates it"),
        (pod(spec=SCRATCH), EVERYTHING, f"no controller recreates it, {LOST}"),
        (pod(spec=SCRATCH, phase="Succeeded"), NOTHING, ""),
        (pod(OF_A_DAEMON_SET, phase="Failed"), NOTHING, ""),
    ],
)
def test_it_leaves(entry: Any, allowed: DrainPermissions, warning: str) -> None:
    assert plan_drain([entry], allowed, {}) == DrainPlan((EvictedPod("team", "p", "u", warning=warning),))


@pytest.mark.parametrize(
    ("entry", "allowed", "message"),
    [
        (pod(), NOTHING, "no controller recreates it (needs --force)"),
        (pod(OWNED_ONLY), DrainPermissions(empty_dir=True), "no controller recreates it (needs --force)"),
        (
            pod(OF_A_JOB, SCRATCH),
            DrainPermissions(force=True),
            f"{LOST} (needs --delete-emptydir-data)",
        ),
        (
            pod(spec=SCRATCH),
            NOTHING,
            f"no controller recreates it (needs --force), {LOST} (needs --delete-emptydir-data)",
        ),
    ],
)
def test_it_needs_a_flag(entry: Any, allowed: DrainPermissions, message: str) -> None:
    assert plan_drain([entry], allowed, {}) == DrainPlan(refused=(("team/p", message),))


@pytest.mark.parametrize(
    ("effect", "allowed", "plan"),
    [
        (RemovalEffect(Fate.FAILS, "this fails Job train: x"), NOTHING, "this fails Job train: x (needs --force)"),
        (RemovalEffect(Fate.FAILS, "this fails Job train: x"), EVERYTHING, ""),
        (RemovalEffect(Fate.MAY_FAIL, "this may fail Job train: x"), NOTHING, ""),
        (RemovalEffect(Fate.UNKNOWN, "could not check whether this fails Job train: x"), NOTHING, ""),
        (RemovalEffect(Fate.CONTINUES), NOTHING, ""),
    ],
)
def test_an_eviction_that_fails_the_workload_needs_force(
    effect: RemovalEffect, allowed: DrainPermissions, plan: str
) -> None:
    left = DrainPlan((EvictedPod("team", "p", "u", warning=effect.text),))
    assert plan_drain([pod(OF_A_JOB)], allowed, {"u": effect}) == (
        DrainPlan(refused=(("team/p", plan),)) if plan else left
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_of_a_failing_workload_needs_nothing(phase: str) -> None:
    effect = RemovalEffect(Fate.FAILS, "this fails Job train: x")
    assert plan_drain([pod(OF_A_JOB, phase=phase)], NOTHING, {"u": effect}).leaving == (EvictedPod("team", "p", "u"),)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (pod(MIRROR), "a static pod, which ends only when its file on the node is removed"),
        (pod(OF_A_DAEMON_SET, SCRATCH), "of DaemonSet dcgm"),
    ],
)
def test_it_stays_whatever_is_allowed(entry: Any, why: str) -> None:
    assert plan_drain([entry], EVERYTHING, {}) == DrainPlan(left=(("team/p", why),))


def test_what_somebody_deleted_already_is_waited_for_and_needs_no_flag() -> None:
    gone = pod({"deletionTimestamp": "2026-11-21T00:00:00Z"}, SCRATCH)

    assert plan_drain([gone], NOTHING, {}) == DrainPlan((EvictedPod("team", "p", "u", terminating=True),))


@pytest.mark.parametrize("odd", [{}, {"metadata": None, "spec": None, "status": None}, {"spec": {"volumes": [None]}}])
def test_an_object_without_its_parts_is_no_crash(odd: Any) -> None:
    assert plan_drain([odd], EVERYTHING, {}).leaving == (EvictedPod("", "", "", warning="no controller recreates it"),)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({}, "its eviction was not requested"),
        (
            pod({"deletionTimestamp": "T", "finalizers": ["a/b", "c"]}),
            "it is terminating, and waits for its finalizers: a/b, c",
        ),
        (pod({"deletionTimestamp": "T"}), "its grace period ended at T, and the kubelet has not confirmed its end"),
    ],
)
def test_what_holds_a_pod_is_said(entry: Any, why: str) -> None:
    assert what_holds(entry) == why
