"""Whom a diagnosis is about, and the chain of a workload."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.chain import LinkState, chain, chains_of
from gpu_healthcheck.diagnosis.answers.target import Target, TargetError, concerned, parse_target, pods_of
from gpu_healthcheck.diagnosis.causes.diagnose import arranged
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, FoundCause, Link
from gpu_healthcheck.diagnosis.report import terminal
from gpu_healthcheck.diagnosis.report.content import Report, report_of
from gpu_healthcheck.diagnosis.snapshot.pods import read_pod
from gpu_healthcheck.healthcheck.host.console import Screen
from tests.diagnosis.states import GPU, ago, condition, event, node, obj, pod, snapshot, terminated, waiting

UNSCHEDULED = Cause("Unscheduled", CauseSeverity.HIGH, Link.SCHEDULED, "no node", "find one")


@pytest.mark.parametrize(
    ("words", "namespace", "target"),
    [
        ([], "", None),
        (["pod", "team/x"], "", Target("Pod", "team", "x")),
        (["pod", "x"], "team", Target("Pod", "team", "x")),
        (["job/x"], "default", Target("Job", "default", "x")),
        (["pods", "team/x"], "", Target("Pod", "team", "x")),
        (["deploy/x"], "team", Target("Deployment", "team", "x")),
        (["jobset", "team/x"], "", Target("JobSet", "team", "x")),
        (["node", "a"], "team", Target("Node", "", "a")),
        (["no/a"], "", Target("Node", "", "a")),
        (["hami"], "", Target("HAMi", "", "")),
        (["HAMi"], "team", Target("HAMi", "", "")),
    ],
)
def test_parse_target_accepts_kubectls_forms(words: list[str], namespace: str, target: Target | None) -> None:
    assert parse_target(words, namespace) == target


@pytest.mark.parametrize("words", [["pod"], ["x"], ["service", "x"], ["pod", "a", "b"], ["pod", ""], ["hami", "a"]])
def test_other_words_are_refused(words: list[str]) -> None:
    with pytest.raises(TargetError, match="expected pod"):
        parse_target(words, "")


def test_pods_of_follows_owners() -> None:
    deployment = obj("Deployment", "web", "team")
    owner = {"ownerReferences": [{"kind": "Deployment", "name": "web", "uid": "d", "controller": True}]}
    replicas = obj("ReplicaSet", "web-1", "team", metadata=owner)
    state = snapshot(deployment, replicas, pod("web-1-a", owner=("ReplicaSet", "web-1")), pod("other"))
    target = Target("Deployment", "team", "web")
    assert [one.meta.name for one in pods_of(state, target)] == ["web-1-a"]
    assert concerned(state, target) == {"deployment/team/web", "replicaset/team/web-1", "pod/team/web-1-a"}


NO_DRIVER = "nvidia-container-cli: initialization error: nvml error: driver not loaded"


def test_report_of_a_pod_shows_its_own_evidence() -> None:
    stuck = [waiting("RunContainerError", NO_DRIVER)]
    pods = [pod(f"p{number}", on="a", phase="Pending", states=stuck) for number in range(12)]
    report = report_of(snapshot(node("a"), *pods), Target("Pod", "team", "p7"), "", None, overview=False)
    text = _printed(report)

    assert re.findall(r"pod/team/p\d+: .*", text) == [
        "pod/team/p7: waiting of main: RunContainerError: nvidia-container-cli:"
    ]
    assert "   also affects: pod/team/p0, pod/team/p1, pod/team/p2, pod/team/p3 and 7 more\n" in text
    assert "`kubectl -n team describe pod p7`" in text
    assert "affects: pod/team/p0, pod/team/p1, pod/team/p2, pod/team/p3, pod/team/p4 and" in _printed(
        report_of(snapshot(node("a"), *pods), None, "", None, overview=False)
    )


def test_report_of_a_pod_counts_consequences_for_others() -> None:
    gone = {"deletionTimestamp": ago(40), "deletionGracePeriodSeconds": 30}
    short = [
        condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    ]
    state = snapshot(pod("old", 8, on="a", metadata=gone), pod("next", 8, conditions=short), missing=["Node"])
    (of_old,) = report_of(state, Target("Pod", "team", "old"), "", None, overview=False).diagnosis.problems
    (of_next,) = report_of(state, Target("Pod", "team", "next"), "", None, overview=False).diagnosis.problems

    assert (of_old.consequences, of_old.found.affected) == ((), (f"resource/{GPU}", "pod/team/next"))
    assert [child.found.cause.name for child in of_next.consequences] == ["InsufficientResource"]


@pytest.mark.parametrize(
    ("state", "missing", "sentence"),
    [
        ("Pending", ["Event", "Node"], "It is unknown what keeps pod/team/x from running: Events and Nodes are not"),
        ("Pending", ["Node"], "It is unknown what keeps pod/team/x from running: Nodes are not visible."),
        ("Pending", [], "No cause was found."),
        ("Failed", ["Event"], "It is unknown what keeps pod/team/x from running: Events are not visible."),
        ("Running", ["Event", "Node"], "Nothing found in the visible part of the cluster."),
    ],
)
def test_report_of_an_unexplained_pod_is_unknown(state: str, missing: list[str], sentence: str) -> None:
    seen = snapshot(pod("x", on="a", phase=state), missing=missing)
    report = report_of(seen, Target("Pod", "team", "x"), "", None, overview=False)

    assert sentence in report.nothing


@pytest.mark.parametrize(
    "words",
    [
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected: Allocate failed due to no healthy devices",
        },
        {"reason": "NodeShutdown", "message": "Pod was terminated in response to imminent node shutdown."},
        {"containerStatuses": [{"name": "main", "state": {"terminated": terminated(1, minutes=100)}}]},
    ],
)
def test_failed_pod_with_its_own_reason_is_not_unknown_without_events(words: dict[str, Any]) -> None:
    owner = ("ReplicaSet", "llm")
    old = pod("x", on="a", phase="Failed", owner=owner, status=words, age=120)
    seen = snapshot(node("a"), old, pod("y", on="a", owner=owner), missing=["Event"])

    assert (
        report_of(seen, None, "", None, overview=False).nothing == "Nothing found in the visible part of the cluster."
    )


@pytest.mark.parametrize(
    ("work", "missing", "last"),
    [
        (pod("x", on="a"), [], LinkState.FINE),
        (pod("x", on="a"), ["Event", "ReplicaSet"], LinkState.FINE),
        (pod("x", on="a"), ["Node"], LinkState.UNKNOWN),
        (pod("x", on="a", phase="Succeeded"), ["Node"], LinkState.FINE),
    ],
)
def test_chain_is_unknown_without_the_kinds_that_break_cuda(
    work: dict[str, Any], missing: list[str], last: LinkState
) -> None:
    state = snapshot(work, *([] if "Node" in missing else [node("a")]), missing=missing)
    report = report_of(state, Target("Pod", "team", "x"), "", None, overview=False)
    (chain,) = report.chains

    assert {step.state for step in chain.steps[:-1]} == {LinkState.FINE}
    assert chain.steps[-1].state is last
    shown = "  ? CUDA works in its containers: its containers run, but Nodes are not visible\n"
    assert (shown in _printed(report)) is (last is LinkState.UNKNOWN)


def test_report_names_missing_permissions_in_one_sentence() -> None:
    state = snapshot(pod("x", on="a"), missing=["DaemonSet", "Event", "Node"])
    denied = replace(state, denied=frozenset({"Node", "DaemonSet"}), user="https://idp#ann/team")
    report = report_of(denied, Target("Pod", "team", "x"), "", None, overview=False)
    first, *others = report.unseen

    assert first.startswith("You may not list Node, DaemonSet in the whole cluster; this hides ")
    assert first.endswith(
        " possible causes. An administrator of the cluster permits it: `kubectl create clusterrolebinding "
        "'gpu-healthcheck-viewer-https:--idp#ann-team' --clusterrole=gpu-healthcheck-viewer "
        "'--user=https://idp#ann/team'`"
    )
    assert others
    assert not [sentence for sentence in others if "Event" not in sentence or len(sentence) > 200]


def _printed(report: Report) -> str:
    text = StringIO()
    screen = Screen(file=text, width=80)
    for part in terminal.page(report, 80):
        screen.print(part)
    return text.getvalue()


def test_pods_of_ends_for_owners_in_a_circle() -> None:
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
def test_chain_shows_the_links_that_a_pod_passed(raw: dict[str, object], fine: int, then: LinkState | None) -> None:
    steps = chain(read_pod(raw), ())
    states = [step.state for step in steps]
    assert states[:fine] == [LinkState.FINE] * fine
    assert (states[fine] if fine < len(states) else None) is then
    assert set(states[fine + 1 :]) <= {LinkState.NOT_REACHED}


def test_chain_of_an_unexplained_pod_shows_its_messages() -> None:
    waits = pod("x", on="a", age=1, phase="Pending", states=[waiting("ContainerCreating")])
    state = snapshot(node("a"), waits, event(waits, "FailedCreatePodSandBox", "something that nobody knows", count=3))
    (chain,) = chains_of(state, state.pods, ())
    (step,) = (one for one in chain.steps if one.state is LinkState.WAITING)
    assert step.seen == "ContainerCreating; event (3 times): FailedCreatePodSandBox: something that nobody knows"


def test_chain_breaks_at_the_link_of_a_problem() -> None:
    found = FoundCause(UNSCHEDULED, "resource/nvidia.com/gpu", ("all in use",), affected=("pod/team/x",))
    steps = chain(read_pod(pod("x")), arranged([found]))
    states = {step.link: step.state for step in steps}
    assert states[Link.QUEUED] is LinkState.FINE
    assert states[Link.SCHEDULED] is LinkState.BROKEN
    assert states[Link.RUNNING] is LinkState.NOT_REACHED


def test_chain_ignores_problems_of_other_pods() -> None:
    found = FoundCause(UNSCHEDULED, "resource/nvidia.com/gpu", ("all in use",), affected=("pod/team/y",))
    assert all(step.state is not LinkState.BROKEN for step in chain(read_pod(pod("x")), arranged([found])))


def test_pods_of_a_node_are_those_on_it() -> None:
    state = snapshot(node("a"), pod("x", on="a"))
    assert [one.meta.name for one in pods_of(state, Target("Node", "", "a"))] == ["x"]
    assert concerned(state, Target("Node", "", "a")) >= {"node/a", "pod/team/x"}
