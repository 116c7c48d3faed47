"""An agent that can't start, minutes after the installation: reported at once, with the reason and its fix."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.states import Object, condition, event, judged, node, obj, pod, results, terminated, waiting

SPACE, NAME = "gpu-healthcheck", "gpu-healthcheck-agent"
AGENT, CAUSE = f"daemonset/{SPACE}/{NAME}", "HealthAgentNotReady"
LABELS = {"app.kubernetes.io/name": SPACE, "app.kubernetes.io/component": "agent"}
CONTAINER = {"name": "agent", "image": "example.com/gpu-healthcheck:0.3.0"}
NODES = [node("a", age=3), node("b", age=3)]
QUOTA = f'Error creating: pods "{NAME}-" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0'
POLICY = f'Error creating: pods "{NAME}-x" is forbidden: ValidatingAdmissionPolicy "no-privileged" denied request'
LEVEL = f'Error creating: pods "{NAME}-x" is forbidden: violates PodSecurity "baseline:latest": privileged'
PULL = 'failed to resolve reference "example.com/gpu-healthcheck:0.3.0": not found'
NO_CPU = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."
UNPLACED = [condition("PodScheduled", "False", "Unschedulable", NO_CPU, minutes=1)]


def daemon_set(made: int = 2) -> Object:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [CONTAINER]}}
    status = {"desiredNumberScheduled": 2, "currentNumberScheduled": made, "numberReady": 0}
    spec = {"selector": {"matchLabels": LABELS}, "template": template}
    return obj("DaemonSet", NAME, SPACE, age=1, metadata={"labels": LABELS}, spec=spec, status=status)


def refused(message: str, made: int = 0) -> list[Object]:
    own = daemon_set(made)
    return [own, event(own, "FailedCreate", message, by="daemonset-controller")]


def agents(*states: Object, on: bool = True, **changes: Any) -> list[Object]:
    """The agents of both nodes, a minute old."""
    common: Object = {"namespace": SPACE, "phase": "Pending", "labels": LABELS, "owner": ("DaemonSet", NAME), "age": 1}
    common |= {"containers": [CONTAINER], "states": list(states)} | changes
    return [daemon_set(), *(pod(f"{NAME}-{name}", 0, on=name if on else "", **common) for name in "ab")]


@pytest.mark.parametrize(
    ("state", "reason", "step"),
    [
        (refused(QUOTA), "exceeded quota: small", "Raise or remove the ResourceQuota"),
        (refused(QUOTA, made=1), "needs 2 pods, and 1 of them exist", "Raise or remove the ResourceQuota"),
        (refused(POLICY), '"no-privileged" denied request', "Exempt the namespace gpu-healthcheck"),
        (agents(waiting("ErrImagePull", PULL, "agent")), PULL, "image.repository"),
        (
            agents(
                waiting(
                    "CrashLoopBackOff", "", "agent", lastState={"terminated": terminated(2, message="no CONFIG_DIR")}
                )
            ),
            "no CONFIG_DIR",
            f"`kubectl -n {SPACE} logs {NAME}-a -c agent --tail=50 --previous`",
        ),
        (agents(on=False, conditions=UNPLACED), "Insufficient cpu", "agent.resources"),
    ],
    ids=["quota", "quota for one", "policy", "image", "crash", "no room"],
)
def test_the_reason_is_reported_at_once(state: list[Object], reason: str, step: str) -> None:
    diagnosis = judged(*NODES, *state)
    (problem,) = diagnosis.problems
    steps = " ".join(problem.found.remedy)

    assert results(diagnosis) == [(CAUSE, AGENT)]
    assert any(reason in line for line in problem.found.evidence)
    assert step in steps
    assert steps.count("kubectl") == 1


def test_pod_security_that_refuses_the_agent_is_its_cause() -> None:
    (problem,) = judged(*NODES, *refused(LEVEL)).problems

    assert problem.found.cause.name == "PodSecurityDenied"
    assert [child.found.subject for child in problem.consequences] == [AGENT]


@pytest.mark.parametrize(
    "state",
    [
        agents(waiting("ContainerCreating", "", "agent")),
        refused(QUOTA, made=2),
        agents({"name": "agent", "ready": True, "state": {"running": {}}}, phase="Running"),
        [daemon_set(0)],
    ],
    ids=["it is created", "created since", "it runs", "not created yet"],
)
def test_an_agent_that_starts_is_waited_for(state: list[Object]) -> None:
    assert results(judged(*NODES, *state)) == []
