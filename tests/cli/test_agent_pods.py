"""Reasons why nodes have no running agent, from pods and Events in the forms that kubelet and controllers write."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.cli.agent_pods import SilentNodes, StartFailure, outdated, start_failures

Json = dict[str, Any]
PLACED = {"nodeName": "gpu-1"}
BY_AFFINITY = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]},
                ]
            }
        }
    }
}
"""Affinity of a pod that the DaemonSet controller created for gpu-1, before it is scheduled."""


def daemon_set(desired: int = 1, current: int = 1, updated: int = 1) -> Json:
    status = {
        "desiredNumberScheduled": desired,
        "currentNumberScheduled": current,
        "updatedNumberScheduled": updated,
    }
    return {"metadata": {"uid": "u"}, "status": status}


def failures(daemon_set: Json, warnings: list[str], pods: list[Json], *silent: str, **more: Any) -> list[StartFailure]:
    return start_failures(daemon_set, warnings, pods, SilentNodes(silent, **more))


def pod(status: Json, spec: Json = PLACED) -> Json:
    return {"metadata": {"name": "gpu-healthcheck-agent-x"}, "spec": spec, "status": status}


def waiting(reason: str, message: str = "", last: Json | None = None) -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "agent", "state": state, "lastState": last or {}}]}


PULL = 'failed to resolve reference "example.com/gpu-healthcheck:0.3.0": not found'
EXIT = {"terminated": {"exitCode": 2, "reason": "Error", "message": "agent: CONFIG_DIR: not a directory\n"}}
NO_CPU = "0/1 nodes: Insufficient cpu"
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_CPU}


@pytest.mark.parametrize(
    ("stuck", "reason", "message", "fix"),
    [
        (pod(waiting("ErrImagePull", PULL)), "ErrImagePull", PULL, "image.repository"),
        (pod(waiting("ImagePullBackOff", "Back-off")), "ImagePullBackOff", "Back-off", "imagePullSecrets"),
        (pod(waiting("InvalidImageName", "x")), "InvalidImageName", "x", "image.repository"),
        (
            pod(waiting("CrashLoopBackOff", "back-off 5m0s", EXIT)),
            "CrashLoopBackOff",
            "exit code 2 (Error): agent: CONFIG_DIR: not a directory",
            "--previous",
        ),
        (pod(waiting("CreateContainerError", "no such device")), "CreateContainerError", "no such device", "describe"),
        (
            pod({"phase": "Pending", "conditions": [UNPLACED]}, BY_AFFINITY),
            "Unschedulable",
            NO_CPU,
            "agent.resources",
        ),
        (pod({"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu"}), "OutOfcpu", "no cpu", "Make room"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_start_failures_name_the_node_of_a_pod_that_does_not_start(
    stuck: Json, reason: str, message: str, fix: str
) -> None:
    (found,) = failures(daemon_set(), [], [stuck])

    assert (found.reason, found.message, found.nodes) == (reason, message, ("gpu-1",))
    assert fix in found.fix


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {}}}]},
        waiting("ContainerCreating"),
        {"phase": "Pending"},
        {},
    ],
)
def test_start_failures_omit_pods_that_run_or_are_about_to_start(status: Json) -> None:
    assert failures(daemon_set(), ["FailedCreate: of an hour ago"], [pod(status)]) == []


QUOTA = 'Error creating: pods "gpu-healthcheck-agent-4x" is forbidden: exceeded quota: team, requested: pods=1'
SECURITY = 'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": host namespaces'
SCOPES = "Error creating: insufficient quota to match these scopes: [{PriorityClass In [system-node-critical]}]"
WEBHOOK = 'Error creating: admission webhook "validate.kyverno.svc" denied the request: privileged'


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (QUOTA, "ResourceQuota"),
        (SCOPES, "system-node-critical"),
        (SECURITY, "pod-security.kubernetes.io/enforce"),
        (WEBHOOK, "Exempt"),
    ],
)
def test_start_failures_read_the_daemon_sets_events_for_pods_never_created(message: str, fix: str) -> None:
    warnings = ["FailedCreate: earlier", f"FailedCreate: {message}", "Other: x"]

    (found,) = failures(daemon_set(desired=8, current=0), warnings, [])

    assert (found.reason, found.message, found.nodes) == ("FailedCreate", message, ())
    assert fix in found.fix


def test_start_failures_group_nodes_by_reason_largest_first() -> None:
    pods = [pod(waiting("ErrImagePull", PULL), {"nodeName": name}) for name in ("b", "a")]
    pods.append(pod(waiting("CrashLoopBackOff", "x"), {"nodeName": "c"}))

    assert [(one.reason, one.nodes) for one in failures(daemon_set(), [], pods)] == [
        ("ErrImagePull", ("b", "a")),
        ("CrashLoopBackOff", ("c",)),
    ]


def test_start_failure_message_is_printable_and_bounded() -> None:
    (found,) = failures(daemon_set(), [], [pod(waiting("ErrImagePull", "\x1b[2J" + "x" * 100_000))])

    assert "\x1b" not in found.message
    assert len(found.message) < 500


RUNNING = {"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}
RESTARTED = {"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {}}, "lastState": EXIT}]}
ENDED = {"phase": "Running", "containerStatuses": [{"name": "agent", "state": EXIT}]}
PULLS = {"gpu-healthcheck-agent-x": "Pulling: Pulling image x"}


@pytest.mark.parametrize(
    ("pods", "events", "unready", "reason", "message"),
    [
        ([pod(RUNNING)], {}, (), "NoHeartbeat", "the agent runs and sends no heartbeat"),
        ([pod(RESTARTED)], {}, (), "NoHeartbeat", "; its previous run: exit code 2 (Error)"),
        ([pod(ENDED)], {}, (), "Error", "exit code 2 (Error): agent: CONFIG_DIR"),
        ([pod(waiting("ContainerCreating"))], PULLS, (), "Pulling", "Pulling image x"),
        ([pod({"phase": "Pending"}, BY_AFFINITY)], {}, (), "Pending", "the pod has not started yet"),
        ([pod(RUNNING)], {}, ("gpu-1",), "NodeNotReady", "the kubelet has stopped reporting"),
        ([], {}, (), "NoPod", "the DaemonSet has no pod there"),
        ([pod(RUNNING, {"nodeName": "gpu-2"})], {}, (), "NoPod", "the DaemonSet has no pod there"),
    ],
)
def test_start_failures_have_a_reason_for_each_silent_node(
    pods: list[Json], events: dict[str, str], unready: tuple[str, ...], reason: str, message: str
) -> None:
    (found,) = failures(daemon_set(), [], pods, "gpu-1", events=events, unready=unready)

    assert (found.reason, found.nodes) == (reason, ("gpu-1",))
    assert message in found.message
    assert found.fix


def test_outdated_counts_all_agents_before_the_controller_observed_a_template() -> None:
    new = daemon_set(8, 8, 8)
    new["metadata"]["generation"], new["status"]["observedGeneration"] = 3, 2
    assert outdated(new) == (8, 8)

    new["status"]["observedGeneration"] = 3
    assert outdated(new) == (0, 8)


@pytest.mark.parametrize(("current", "updated", "expected"), [(8, 8, (0, 8)), (8, 5, (3, 8)), (0, 0, (0, 0))])
def test_outdated_counts_agents_of_an_earlier_template(current: int, updated: int, expected: tuple[int, int]) -> None:
    assert outdated(daemon_set(8, current, updated)) == expected
