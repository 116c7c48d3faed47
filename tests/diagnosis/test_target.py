"""Whom a diagnosis is about, and the chain of a workload."""

from __future__ import annotations

import pytest

from diagnosis.answers.chain import LinkState, chain, chains_of
from diagnosis.answers.target import Target, TargetError, concerned, parse_target, pods_of
from diagnosis.causes.diagnose import arranged
from diagnosis.model import Cause, CauseSeverity, FoundCause, Link
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.pods import read_pod
from tests.diagnosis.states import condition, event, node, obj, pod, snapshot, terminated, waiting

UNSCHEDULED = Cause("Unscheduled", CauseSeverity.HIGH, Link.SCHEDULED, "no node", "find one")


@pytest.mark.parametrize(
    ("words", "namespace", "target"),
    [
        ([], "", None),
        (["pod", "team/x"], "", Target("Pod", "team", "x")),
        (["pod", "x"], "team", Target("Pod", "team", "x")),
        (["pod/x"], "", Target("Pod", "default", "x")),
        (["pods", "team/x"], "", Target("Pod", "team", "x")),
        (["deploy/x"], "team", Target("Deployment", "team", "x")),
        (["jobset", "team/x"], "", Target("JobSet", "team", "x")),
        (["node", "a"], "team", Target("Node", "", "a")),
        (["no/a"], "", Target("Node", "", "a")),
    ],
)
def test_an_object_is_named_as_kubectl_names_it(words: list[str], namespace: str, target: Target | None) -> None:
    assert parse_target(words, namespace) == target


@pytest.mark.parametrize("words", [["pod"], ["x"], ["service", "x"], ["pod", "a", "b"], ["pod", ""]])
def test_other_words_are_refused(words: list[str]) -> None:
    with pytest.raises(TargetError, match="expected pod"):
        parse_target(words, "")


def test_a_workload_has_the_pods_of_all_that_it_makes() -> None:
    deployment = obj("Deployment", "web", "team")
    owner = {"ownerReferences": [{"kind": "Deployment", "name": "web", "uid": "d", "controller": True}]}
    replicas = obj("ReplicaSet", "web-1", "team", metadata=owner)
    state = snapshot(deployment, replicas, pod("web-1-a", owner=("ReplicaSet", "web-1")), pod("other"))
    target = Target("Deployment", "team", "web")
    assert [one.meta.name for one in pods_of(state, target)] == ["web-1-a"]
    assert concerned(state, target) == {"deployment/team/web", "replicaset/team/web-1", "pod/team/web-1-a"}


def test_owners_that_own_each_other_end() -> None:
    def one(name: str, owner: str) -> dict[str, object]:
        return obj("Job", name, "team", metadata={"ownerReferences": [{"kind": "Job", "name": owner, "uid": owner}]})

    state = snapshot(one("a", "b"), one("b", "a"), pod("x", owner=("Job", "a")))
    assert pods_of(state, Target("Job", "team", "b"))[0].meta.name == "x"


@pytest.mark.parametrize(
    ("raw", "fine", "then"),
    [
        (pod("x", spec={"schedulingGates": [{"name": "g"}]}), 1, LinkState.WAITING),
        (pod("x"), 2, LinkState.WAITING),
        (pod("x", on="a", phase="Pending", states=[]), 3, LinkState.WAITING),
        (pod("x", on="a", phase="Pending", states=[waiting("ContainerCreating")]), 4, LinkState.WAITING),
        (
            pod(
                "x",
                on="a",
                phase="Pending",
                states=[waiting("ImagePullBackOff")],
                conditions=[condition("PodReadyToStartContainers", "True")],
            ),
            5,
            LinkState.WAITING,
        ),
        (
            pod("x", on="a", states=[waiting("CrashLoopBackOff", lastState={"terminated": terminated(1)})]),
            7,
            LinkState.WAITING,
        ),
        (
            pod(
                "x",
                on="a",
                states=[waiting("RunContainerError", lastState={"terminated": terminated(128, "StartError")})],
            ),
            6,
            LinkState.WAITING,
        ),
        (pod("x", on="a"), 8, None),
        (
            pod("x", on="a", phase="Succeeded", states=[{"name": "main", "state": {"terminated": terminated(0)}}]),
            8,
            None,
        ),
    ],
)
def test_a_pod_shows_how_far_it_has_come(raw: dict[str, object], fine: int, then: LinkState | None) -> None:
    steps = chain(read_pod(Fields(raw)), ())
    states = [step.state for step in steps]
    assert states[:fine] == [LinkState.FINE] * fine
    assert (states[fine] if fine < len(states) else None) is then
    assert set(states[fine + 1 :]) <= {LinkState.NOT_REACHED}


def test_a_waiting_pod_without_a_known_cause_shows_its_messages() -> None:
    waits = pod("x", on="a", age=1, phase="Pending", states=[waiting("ContainerCreating")])
    state = snapshot(node("a"), waits, event(waits, "FailedCreatePodSandBox", "something that nobody knows", count=3))
    (chain,) = chains_of(state, state.pods, ())
    (step,) = (one for one in chain.steps if one.state is LinkState.WAITING)
    assert step.seen == "ContainerCreating; event (3 times): FailedCreatePodSandBox: something that nobody knows"


def test_a_problem_breaks_its_link_and_all_beyond_is_not_reached() -> None:
    found = FoundCause(UNSCHEDULED, "resource/nvidia.com/gpu", ("all in use",), affected=("pod/team/x",))
    steps = chain(read_pod(Fields(pod("x"))), arranged([found]))
    states = {step.link: step.state for step in steps}
    assert states[Link.QUEUED] is LinkState.FINE
    assert states[Link.SCHEDULED] is LinkState.BROKEN
    assert states[Link.RUNNING] is LinkState.NOT_REACHED


def test_another_pods_problem_breaks_nothing_here() -> None:
    found = FoundCause(UNSCHEDULED, "resource/nvidia.com/gpu", ("all in use",), affected=("pod/team/y",))
    assert all(step.state is not LinkState.BROKEN for step in chain(read_pod(Fields(pod("x"))), arranged([found])))


def test_a_node_is_there_only_where_it_was_seen() -> None:
    state = snapshot(node("a"), pod("x", on="a"))
    assert [one.meta.name for one in pods_of(state, Target("Node", "", "a"))] == ["x"]
    assert concerned(state, Target("Node", "", "a")) >= {"node/a", "pod/team/x"}
