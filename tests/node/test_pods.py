"""A pod of a Job, from its API object: reasons to wait, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.healthcheck.node.pods import pod_state

UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
PLACED = {"type": "PodScheduled", "status": "True"}
BACK_OFF = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}


def pod(container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    states = [{"name": "sidecar", "state": {"running": {}}}]
    if container is not None:
        states.append({"name": "quarantine", "state": container})
    node = {} if status.get("conditions", [PLACED])[0]["status"] == "False" else {"nodeName": "a"}
    return {
        "metadata": {"namespace": "n", "name": "p", "uid": "u", "creationTimestamp": "2026-11-21T12:00:00Z"},
        "spec": {"containers": [{"name": "quarantine"}, {"name": "sidecar"}], **node},
        "status": {"containerStatuses": states, **status},
    }


@pytest.mark.parametrize(
    ("entry", "waiting"),
    [
        (pod(conditions=[UNPLACED]), "waits to be scheduled: Unschedulable: 0/3 nodes are available"),
        (pod({"waiting": BACK_OFF}, conditions=[PLACED]), 'waits: ImagePullBackOff: Back-off pulling image "x"'),
        (pod({"waiting": {"reason": "ContainerCreating"}}), "waits: ContainerCreating"),
        (pod(conditions=[PLACED]), "waits: its node's kubelet has not started it"),
        (pod({"running": {"startedAt": "t"}}, conditions=[PLACED]), ""),
        (pod({"terminated": {"exitCode": 0}}), ""),
        (
            pod(conditions=[{**UNPLACED, "message": "x" * 10_000}]),
            f"waits to be scheduled: Unschedulable: {'x' * 484}…",
        ),
    ],
)
def test_a_waiting_pod_shows_whether_it_is_scheduled_and_why_it_waits(entry: dict[str, Any], waiting: str) -> None:
    assert pod_state(entry).waiting == waiting


@pytest.mark.parametrize(
    ("entry", "how"),
    [
        (pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "OOMKilled, exit code 137"),
        (pod({"terminated": {"exitCode": 1}}), "Error, exit code 1"),
        (pod({"terminated": {"exitCode": 0, "reason": "Completed"}}), ""),
        (pod({"running": {}}), ""),
        (pod({"terminated": {"exitCode": 137}}, reason="Evicted", message="The node was low on x"),
         "Evicted: The node was low on x"),
        (pod(reason="DeadlineExceeded"), "DeadlineExceeded"),
    ],
)  # fmt: skip
def test_how_it_ended(entry: dict[str, Any], how: str) -> None:
    assert pod_state(entry).ended == how


def test_pod_without_a_status_is_no_crash() -> None:
    bare = pod_state({"metadata": {"namespace": "n", "name": "p", "uid": "u"}})

    assert (bare.container, bare.ended, bare.waits_for) == ("", "", "no scheduler has tried it yet")
