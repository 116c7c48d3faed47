"""A team that may list Nodes and its own namespace: what only the pods of others show is unknown, and never proven."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.diagnosis.answers.node_inventory import inventory
from gpu_healthcheck.diagnosis.answers.ranks import ask_ranks
from gpu_healthcheck.diagnosis.answers.target import parse_target
from gpu_healthcheck.diagnosis.causes.diagnose import Problem, diagnose
from gpu_healthcheck.diagnosis.model import Certainty
from gpu_healthcheck.diagnosis.report.content import report_of
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.snapshot import KINDS, Builder, Snapshot
from gpu_healthcheck.diagnosis.sources.bundle import Bundle
from gpu_healthcheck.diagnosis.sources.kinds import KINDS as LISTED
from gpu_healthcheck.diagnosis.sources.saved import read_saved
from gpu_healthcheck.sim.nccl_ras import as_json
from tests.diagnosis import test_compute_domains, test_ranks, test_upkeep
from tests.diagnosis.hami.test_two_installations import cluster, lab_pod
from tests.diagnosis.states import GPU, NOW, Object, ago, condition, node, obj, pod, recorded, snapshot
from tests.diagnosis.test_unscheduled import waits

DENIED = frozenset(kind.kind for kind in LISTED if not kind.namespaced and kind.kind != "Node")
HIDDEN = DENIED | {"DaemonSet", "Deployment"}
USER = "system:serviceaccount:team:member"


def as_team(*objects: Object, denied: frozenset[str] = HIDDEN) -> Snapshot:
    """State that a member of the namespace `team` sees. DaemonSets are those of the team alone."""
    builder = Builder()
    for kind in KINDS:
        if kind in denied:
            builder.lacks(kind, "the right to list it is missing")
        else:
            builder.listed(kind)
    for one in objects:
        if one["kind"] not in denied and (one["kind"] == "Node" or one["metadata"].get("namespace") == "team"):
            builder.add(one["kind"], one)
    return replace(builder.build(NOW), only_in="team", denied=denied, user=USER)


def proven(problems: tuple[Problem, ...]) -> set[str]:
    own = {problem.found.cause.name for problem in problems if problem.found.certainty is Certainty.PROVEN}
    return own.union(*(proven(problem.consequences) for problem in problems))


def others(gpus: int, on: str) -> Object:
    return pod(f"other-{on}", gpus, on=on, namespace="other")


LARGE = "MoreGpusThanAnyNodeHas"
SHORT = "2 Insufficient nvidia.com/gpu"
FULL = [
    *(one for name in ("a", "b") for one in (node(name), others(6, name), pod(f"own-{name}", 2, on=name))),
    waits(SHORT, 8),
]
LEAVING = {"deletionTimestamp": ago(1), "deletionGracePeriodSeconds": 30}
SOON = [node("a"), others(6, "a"), pod("own", 2, on="a", metadata=LEAVING), waits("1 Insufficient nvidia.com/gpu", 4)]


@pytest.mark.parametrize(
    ("objects", "whole", "team"),
    [
        (FULL, {"GpusAllInUse"}, set()),
        (
            [node("a"), pod("own", 2, on="a"), waits("1 Insufficient nvidia.com/gpu", 9)],
            {LARGE},
            {LARGE},
        ),
        (test_compute_domains.state(), set(), set()),
        ([*cluster(), lab_pod("y", on="b")], set(), set()),
        ([test_upkeep.CORDONED, test_upkeep.serves(), test_upkeep.budget(0), test_upkeep.OTHER], set(), set()),
    ],
    ids=["GPUs of others", "a pod larger than any node", "IMEX daemons", "HAMi's plugin", "a drain beside others"],
)
def test_what_the_pods_of_others_would_show_is_not_proven(
    objects: list[Object], whole: set[str], team: set[str]
) -> None:
    assert proven(diagnose(snapshot(*objects)).problems) == whole
    assert proven(diagnose(as_team(*objects)).problems) == team


@pytest.mark.parametrize("objects", [FULL, SOON], ids=["GPUs of others", "a pod that ends"])
def test_a_waiting_pod_has_the_schedulers_text(objects: list[Object]) -> None:
    """It is never kept back because the GPUs of others look free."""
    (problem,) = diagnose(as_team(*objects)).problems

    assert (problem.found.cause.name, problem.found.certainty) == ("InsufficientResource", Certainty.LIKELY)
    assert any(f"Insufficient {GPU}" in line for line in problem.found.evidence)


@pytest.mark.parametrize("only_in", ["team", ""])
def test_nccl_on_the_network_of_a_host_may_be_that_of_another_team(only_in: str) -> None:
    state = replace(snapshot(*test_ranks.job(*map(test_ranks.on_host, range(4)))), only_in=only_in)
    answer = as_json("2.30.1", [test_ranks.lagging()]).encode()
    target = parse_target(["job", "team/train"], "")
    assert target is not None
    report = ask_ranks(state, target, lambda *_: answer, lambda _: None)

    assert ("a pod of another namespace may have answered" in report.could_not) is bool(only_in)
    assert len(report.suspects) == (0 if only_in else 1)


@pytest.mark.parametrize(("holder", "team"), [("00000001", ["JobStalled"]), (None, [])])
def test_gpus_that_wait_are_those_of_the_team_only_if_their_pod_is_known(holder: str | None, team: list[str]) -> None:
    row = {"state": "waiting", "since": ago(20)} | ({"pod": holder} if holder else {})
    waiting = node("a", annotations=recorded(status="pass", work={f"GPU-{number}": row for number in range(4)}))
    own = pod("train-0", 4, on="a", owner=("Job", "train"), metadata={"uid": "00000001-aaaa"})

    for state, expected in ((snapshot(waiting, JOB, own), ["JobStalled"]), (as_team(waiting, JOB, own), team)):
        assert [problem.found.cause.name for problem in diagnose(state).problems] == expected


@pytest.mark.parametrize("only_in", ["team", ""])
def test_a_saved_state_keeps_the_limit_to_a_namespace(only_in: str, tmp_path: Path) -> None:
    bundle, path = Bundle(), tmp_path / "state.tar.gz"
    for one in FULL:
        if one["kind"] == "Node" or one["metadata"]["namespace"] == "team":
            bundle.keep(one["kind"], one)
    bundle.write(path, NOW, {}, (), only_in)
    saved = read_saved([path])

    assert (saved.only_in, saved.sees_all_pods) == (only_in, not only_in)
    assert proven(diagnose(saved).problems) == (set() if only_in else {"GpusFragmented"})


def test_amounts_in_use_are_unknown() -> None:
    target, whole, team = parse_target(["node", "a"], ""), snapshot(*FULL), as_team(*FULL)
    for state, held, shown in ((whole, 8, "8"), (team, None, "unknown")):
        report = report_of(state, target, "", None, overview=True)
        rows = [row.value for row in inventory(state, state.by_node["a"]) if row.what == GPU]
        amounts = document(report)["cluster"]["nodes"][0]["resources"][0]

        assert rows == [f"capacity 8, allocatable 8, in use {shown}"]
        assert amounts["held"] == held
        assert allocation(state).pods_seen is (state is whole)


def binding(role: str) -> str:
    return f"`kubectl create clusterrolebinding {role}-{USER} --clusterrole={role} --user={USER}`"


XID = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "detail": "fell off the bus"}
FAULTY = node("a", annotations=recorded(XID | {"first_seen": ago(12)}, status="fail", severity="REBOOT"))
JOB = obj("Job", "train", "team", spec={}, status={"conditions": [condition("Suspended", "False")]})
RANK = pod("train-0", 8, on="a", owner=("Job", "train"), age=60)


@pytest.mark.parametrize(
    ("state", "causes", "sentence"),
    [
        (
            as_team(FAULTY, JOB, RANK),
            ["PodOnFaultyGpu"],
            "An administrator of the cluster can check it: `gpu-healthcheck diagnose -n team`",
        ),
        (as_team(node("a"), JOB, RANK), [], "can check it: `gpu-healthcheck diagnose -n team`"),
        (
            as_team(FAULTY, JOB, RANK, denied=HIDDEN | {"Node"}),
            [],
            f"An administrator of the cluster permits Nodes: {binding('gpu-healthcheck-team-viewer')}",
        ),
        (
            replace(as_team(FAULTY, JOB, RANK, denied=HIDDEN | {"Node"}), only_in=""),
            [],
            f"An administrator of the cluster permits it: {binding('gpu-healthcheck-viewer')}",
        ),
    ],
    ids=["faulty", "healthy", "without Nodes", "pods of all namespaces"],
)
def test_a_job_is_judged_by_its_nodes_and_the_sentence_fits_the_user(
    state: Snapshot, causes: list[str], sentence: str
) -> None:
    report = report_of(state, parse_target(["job", "team/train"], ""), "", None, overview=False)

    assert [problem.found.cause.name for problem in report.diagnosis.problems] == causes
    assert report.unseen[0].endswith(sentence)
    assert any("Xid79" in row.what for row in report.timeline) is bool(causes)
