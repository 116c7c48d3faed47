"""Jobs whose GPUs wait for a rank: the rank to look at first, and the healthy twin of each state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.target import parse_target
from gpu_healthcheck.diagnosis.causes.diagnose import Problem
from gpu_healthcheck.diagnosis.causes.stalled_jobs import find_stalled
from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.diagnosis.report import terminal
from gpu_healthcheck.diagnosis.report.content import report_of
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.report.pages import markdown_page
from gpu_healthcheck.healthcheck.node.state import RESULTS
from tests.diagnosis.states import (
    Object,
    ago,
    container,
    judged,
    node,
    obj,
    pod,
    recorded,
    snapshot,
    terminated,
    waiting,
)

ROOT = Path(__file__).parents[2]
WAITING = "gpu-healthcheck.aws-samples.io/waiting"
ASK_NCCL = "If it hangs, ask NCCL which rank is behind (before 2.29.2, it may crash):"
INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET, KUBEFLOW, LWS = "jobset.sigs.k8s.io", "training.kubeflow.org", "leaderworkerset.sigs.k8s.io"
XID = {"reason": "Xid74", "severity": "RESET", "subject": "gpu/0000:18:00.0", "detail": "NVLink error"}
DOWN = {"reason": "RdmaPortDown", "severity": "MONITOR", "subject": "rdma/mlx5_0/1", "first_seen": ago(900)}
ERRORS = {"reason": "EfaErrorRate", "severity": "MONITOR", "subject": "efa/rdmap16s0", "first_seen": ago(62)}
SLOW = {"reason": "GpuSlowerThanSiblings", "severity": "MONITOR", "subject": "gpu/0000:18:00.0"}
NO_RANK = "no rank differs: none is gone or new, idles, works, or has a finding from that time"


def uid(number: int) -> str:
    return f"{number:08x}-1111-4222-8333-444444444444"


def rows(state: str, number: int, gpus: int = 1, minutes: float = 60) -> Object:
    """Return the rows of so many GPUs under the pod of this number."""
    held = {"state": state, "since": ago(minutes), "pod": uid(number)[:8]}
    return {f"GPU-{number}-{gpu}": held for gpu in range(gpus)}


def host(number: int, work: Any = "waiting", *findings: Object, gpus: int = 1, **changes: Any) -> Object:
    """Return the node `n0` and so on. `work`: its rows, or the state of the GPUs of its pod."""
    work = rows(work, number, gpus) if isinstance(work, str) else work
    return node(f"n{number}", 8, annotations=recorded(*findings, work=work), **changes)


def rank(number: int, gpus: int = 1, /, **changes: Any) -> Object:
    """Return the pod `train-0` and so on of an indexed Job, each on the node of its number."""
    metadata = {"uid": uid(number)} | changes.pop("metadata", {})
    given: Object = {"on": f"n{number}", "owner": ("Job", "train"), "labels": {INDEX: str(number)}, "age": 120}
    return pod(f"train-{number}", gpus, metadata=metadata, **given | changes)


def made(kind: str, name: str, owner: tuple[str, str] | None = None, **spec: Any) -> Object:
    """Return a workload, below an owner."""
    metadata = {"ownerReferences": [{"kind": owner[0], "name": owner[1]}]} if owner is not None else {}
    return obj(kind, name, "team", metadata=metadata, spec=spec, status={})


def train(changed: Mapping[int, Iterable[Object]] | None = None, pods: int = 4) -> list[Object]:
    """Return a job of which all GPUs wait. `changed`: objects instead of the node and pod of a number."""
    each = ((changed or {}).get(number, (host(number), rank(number))) for number in range(pods))
    return [made("Job", "train", parallelism=pods), *(one for some in each for one in some)]


def found_in(problems: Iterable[Problem]) -> Iterator[FoundCause]:
    for problem in problems:
        yield problem.found
        yield from found_in(problem.consequences)


def stalled(*objects: Object) -> list[FoundCause]:
    return [found for found in found_in(judged(*objects).problems) if found.cause.name == "JobStalled"]


def restarted(minutes: float) -> list[Object]:
    """Return the state of a container that restarted so long ago."""
    ended = {"terminated": terminated(1, minutes=minutes)}
    running = {"running": {"startedAt": ago(minutes)}}
    return [{"name": "main", "ready": True, "restartCount": 1, "state": running, "lastState": ended}]


SIGNS: dict[str, tuple[Iterable[Object], str, str]] = {
    "idle": ((host(2, "idle"), rank(2)), "medium", ", pod/team/train-2 on node/n2: 1 of 1 GPU idle since 11:00Z"),
    "works": (
        (host(2, {}), rank(2)),
        "medium",
        ", pod/team/train-2 on node/n2: 1 of 1 GPU at work: slow, or at another step",
    ),
    "a fault": (
        (host(2, "waiting", XID), rank(2)),
        "high",
        ", pod/team/train-2 on node/n2: Xid74 RESET on gpu/0000:18:00.0: NVLink error",
    ),
    "a node that is not ready": (
        (host(2, ready="Unknown"), rank(2)),
        "high",
        ", pod/team/train-2 on node/n2: its node is not ready",
    ),
    "a port that is down": (
        (host(2, "waiting", DOWN), rank(2)),
        "high",
        f", pod/team/train-2 on node/n2: RdmaPortDown MONITOR on rdma/mlx5_0/1 since {ago(900)}",
    ),
    "a finding from that time": (
        (host(2, "waiting", XID | {"severity": "MONITOR", "first_seen": ago(65)}), rank(2)),
        "medium",
        f", pod/team/train-2 on node/n2: Xid74 MONITOR on gpu/0000:18:00.0 since {ago(65)}: NVLink error",
    ),
    "a finding about the network from that time": (
        (host(2, "waiting", ERRORS), rank(2)),
        "high",
        f", pod/team/train-2 on node/n2: EfaErrorRate MONITOR on efa/rdmap16s0 since {ago(62)}",
    ),
    "slower than its siblings": (
        (host(2, "waiting", SLOW), rank(2)),
        "medium",
        ", pod/team/train-2 on node/n2: GpuSlowerThanSiblings MONITOR on gpu/0000:18:00.0",
    ),
    "restarted in place": (
        (host(2), rank(2, states=restarted(65))),
        "high",
        ", pod/team/train-2 on node/n2: it restarted at 10:55Z, later than the others",
    ),
    "a new pod": (
        (host(2), rank(2, age=64)),
        "high",
        ", pod/team/train-2 on node/n2: it was created at 10:56Z, later than the others",
    ),
    "a pod that waits for a node": ((rank(2, on=""),), "high", ", pod/team/train-2: it waits for a node"),
    "a pod that crashes": (
        (host(2), rank(2, states=[waiting("CrashLoopBackOff")])),
        "high",
        ", pod/team/train-2 on node/n2: it does not run",
    ),
    "a pod that is being deleted": (
        (host(2), rank(2, metadata={"deletionTimestamp": ago(62)})),
        "high",
        ", pod/team/train-2 on node/n2: it is being deleted since 10:58Z",
    ),
    "a pod that has ended": ((host(2, {}), rank(2, phase="Failed")), "high", ": job/team/train runs 3 of its 4 pods"),
    "no pod": ((host(2, {}),), "high", ": job/team/train runs 3 of its 4 pods"),
    "a node that is gone": ((rank(2),), "high", ", pod/team/train-2 on node/n2: its node is gone"),
}


@pytest.mark.parametrize(("changed", "severity", "sign"), SIGNS.values(), ids=SIGNS)
def test_each_sign_names_its_rank(changed: Iterable[Object], severity: str, sign: str) -> None:
    (found,) = stalled(*train({2: changed}))

    assert (found.subject, found.cause.severity.name.lower()) == ("job/team/train", severity)
    assert [line for line in found.evidence if "start with" in line or line.startswith("then")] == [
        f"start with rank 2{sign}"
    ]


def test_no_rank_differs() -> None:
    (found,) = stalled(*train())

    assert found.evidence == ("4 of 4 GPUs wait since 11:00Z", NO_RANK)
    assert found.remedy == (
        "Compare the network counters of these nodes since 11:00Z: node/n0, node/n1, node/n2, node/n3.",
        f"If its GPUs wait by design, annotate its pods or their namespace with `{WAITING}: expected`.",
        f"{ASK_NCCL} `gpu-healthcheck diagnose job team/train --ranks`",
    )


NO_SIGNS: dict[str, list[Object]] = {
    "a restart of hours ago": train({2: (host(2), rank(2, states=restarted(100)))}),
    "all restarted together": train(
        {number: (host(number), rank(number, states=restarted(65))) for number in range(4)}
    ),
    "a young job whose pods started within a minute": train(
        {
            number: (host(number, rows("waiting", number, minutes=11)), rank(number, age=20 - number / 4))
            for number in range(4)
        }
    ),
    "a finding of hours ago": train(
        {2: (host(2, "waiting", XID | {"severity": "MONITOR", "first_seen": ago(90)}), rank(2))}
    ),
    "errors of hours ago": train({2: (host(2, "waiting", ERRORS | {"first_seen": ago(90)}), rank(2))}),
    "a new finding about something else": train(
        {
            2: (
                host(2, "waiting", {"reason": "LinkFlap", "subject": "runtime/containerd", "first_seen": ago(60)}),
                rank(2),
            )
        }
    ),
    "a sidecar that restarts": train(
        {
            2: (
                host(2),
                rank(
                    2,
                    containers=[container("main", 1), container("logs")],
                    states=[*restarted(300), waiting("Error", "", "logs")],
                ),
            )
        }
    ),
}


@pytest.mark.parametrize("objects", NO_SIGNS.values(), ids=NO_SIGNS)
def test_what_is_no_sign(objects: list[Object]) -> None:
    (found,) = stalled(*objects)

    assert found.evidence[1:] == (NO_RANK,)


def test_a_rank_is_looked_into_without_a_change() -> None:
    changed = {number: (host(number, gpus=2), rank(number, 2)) for number in range(3)}
    side = [container("logs"), container("main", 2)]
    changed[3] = (host(3, rows("idle", 3, 2, 61)), rank(3, 2, containers=side))

    (found,) = stalled(*train(changed))

    assert found.evidence == (
        "6 of 8 GPUs wait since 11:00Z",
        "start with ranks 6, 7, pod/team/train-3 on node/n3: 2 of 2 GPUs idle since 10:59Z",
    )
    inside = "kubectl -n team exec train-3 -c main --"
    processes = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv"
    assert found.remedy == (
        f"See where it is, if its image has py-spy: `{inside} py-spy dump --pid 1`",
        f"See the processes on its GPUs: `{inside} nvidia-smi {processes}`",
        "Read its last lines with their times: `kubectl -n team logs train-3 -c main --timestamps --tail=20`",
        f"{ASK_NCCL} `gpu-healthcheck diagnose job team/train --ranks`",
    )


def test_suspects_are_in_the_order_of_their_signs() -> None:
    changed = {
        1: (host(1, "idle"), rank(1)),
        2: (host(2, {}, SLOW), rank(2)),
        3: (host(3, "idle", DOWN), rank(3)),
        4: (host(4, "waiting", DOWN), rank(4)),
        5: (host(5, "waiting", XID), rank(5)),
        6: (host(6), rank(6, states=restarted(62))),
    }

    (found,) = stalled(*train(changed, 12))

    assert [line.partition(",")[0] for line in found.evidence] == [
        "9 of 12 GPUs wait since 11:00Z",
        "start with rank 6",
        "then rank 5",
        "then rank 3",
        "then rank 4",
        "and 2 more",
    ]
    assert found.evidence[3].endswith("; 1 of 1 GPU idle since 11:00Z")
    assert not found.because_of


def test_the_fault_of_the_first_suspect_is_the_origin() -> None:
    (problem,) = judged(*train({2: (host(2, "waiting", XID), rank(2))})).problems

    assert (problem.found.cause.name, problem.found.subject) == ("PodOnFaultyGpu", "node/n2")
    assert [(one.found.cause.name, one.found.subject) for one in problem.consequences] == [
        ("JobStalled", "job/team/train")
    ]
    assert problem.consequences[0].found.remedy[0] == "See the action for Xid74: `gpu-healthcheck explain Xid74`"


def test_single_gpu_ranks_on_a_faulty_node_are_one_suspect() -> None:
    held = {**rows("waiting", 0), **rows("waiting", 1)}
    objects = [host(0, held, XID), rank(0), rank(1, on="n0"), *(part for at in (2, 3) for part in (host(at), rank(at)))]

    (found,) = stalled(made("Job", "train", parallelism=4), *objects)

    assert found.evidence[1].startswith("start with ranks 0, 1, pod/team/train-0, pod/team/train-1 on node/n0: Xid74")


def test_the_time_is_the_one_since_which_all_wait() -> None:
    changed = {
        number: (host(number, rows("waiting", number, minutes=60 + 700 * number)), rank(number)) for number in (1, 2)
    }
    yesterday = {number: (host(number, rows("waiting", number, minutes=800)), rank(number)) for number in range(4)}

    assert stalled(*train(changed))[0].evidence[0] == "4 of 4 GPUs wait since 11:00Z"
    assert stalled(*train(yesterday))[0].evidence[0] == "4 of 4 GPUs wait since 2026-11-21T22:40:00Z"


def lease(number: int, minutes: float) -> Object:
    """Return a heartbeat that was renewed so long ago, and is valid for 15 minutes."""
    return obj("Lease", f"n{number}", "gpu-healthcheck", spec={"renewTime": ago(minutes), "leaseDurationSeconds": 900})


UNCHECKED: dict[str, tuple[list[Object], str]] = {
    "a silent agent": ([*train(), lease(2, 20), lease(1, 10)], "could not check node/n2: its agent is silent"),
    "no agent": (
        train({2: (node("n2", 8), rank(2))}),
        "could not check node/n2: no agent has written a record there",
    ),
    "a pod that is not known": (
        train(
            {
                2: (
                    host(2, rows("waiting", 2) | {"GPU-x": {"state": "waiting", "since": ago(60)}}),
                    rank(2),
                    rank(9, on="n2", owner=("ReplicaSet", "x")),
                )
            }
        ),
        "1 GPU of node/n2 wait or idle, and it is unknown under which pod",
    ),
}


@pytest.mark.parametrize(("objects", "line"), UNCHECKED.values(), ids=UNCHECKED)
def test_what_is_not_known_is_reported(objects: list[Object], line: str) -> None:
    (found,) = stalled(*objects)

    assert found.evidence[-1] == line


def test_a_row_without_a_pod_is_of_the_only_pod() -> None:
    (found,) = stalled(*train({2: (host(2, {"GPU-x": {"state": "waiting", "since": ago(60)}}), rank(2))}))

    assert found.evidence == ("4 of 4 GPUs wait since 11:00Z", NO_RANK)


def served(number: int, gpus: int = 1) -> Object:
    """Return a pod of a Deployment on a node of its own."""
    return rank(number, gpus, owner=("ReplicaSet", "llm-5d"), labels={"pod-template-hash": "5d"})


def test_a_pod_of_several_gpus_is_a_job_by_itself() -> None:
    (found,) = stalled(
        host(0, rows("waiting", 0, 7) | {"GPU-i": rows("idle", 0)["GPU-0-0"]}), served(0, 8), host(1, {}), served(1, 8)
    )

    assert found.subject == "pod/team/train-0"
    assert found.evidence == (
        "7 of 8 GPUs wait since 11:00Z",
        "start with pod/team/train-0 on node/n0: 1 of 8 GPUs idle since 11:00Z: GPU-i",
    )
    assert found.remedy[-1].endswith("`gpu-healthcheck diagnose pod team/train-0 --ranks`")


def test_jobs_on_one_node_are_judged_apart() -> None:
    """By the pods in the rows of the node's record."""
    mixed = rows("waiting", 0, 2) | rows("idle", 1, 2)
    first = [rank(0, 4, on="n0", owner=("Job", "a")), rank(2, 4, on="n2", owner=("Job", "a"))]
    other = [rank(1, 4, on="n0", owner=("Job", "b")), rank(3, 4, on="n3", owner=("Job", "b"))]

    (found,) = stalled(host(0, mixed), host(2, gpus=4), host(3, {}), *first, *other)

    assert found.subject == "job/team/a"
    assert found.evidence[:2] == (
        "6 of 8 GPUs wait since 11:00Z",
        "start with ranks 0-3, pod/team/train-0 on node/n0: 2 of 4 GPUs at work: slow, or at another step",
    )


HEALTHY: dict[str, list[Object]] = {
    "no GPU waits": train({number: (host(number, {}), rank(number)) for number in range(4)}),
    "all GPUs idle, as in notebooks": train({number: (host(number, "idle"), rank(number)) for number in range(4)}),
    "more GPUs work than wait": train({number: (host(number, {}), rank(number)) for number in range(1, 4)}),
    "a job of one GPU": train(pods=1),
    "a pod of one GPU": [host(0), rank(0, metadata={"ownerReferences": []})],
    "servers of one GPU each": [host(0), served(0), host(1), served(1)],
    "servers of one GPU each, one idle": [host(0), served(0), host(1, "idle"), served(1)],
    "pods that wait by design": train(
        {number: (host(number), rank(number, annotations={WAITING: "expected"})) for number in range(4)}
    ),
    "a namespace that waits by design": [
        *train(),
        obj("Namespace", "team", metadata={"annotations": {WAITING: "expected"}}),
    ],
    "agents that are silent": [*train(), *(lease(number, 20) for number in range(4))],
    "nodes that are not ready": train({number: (host(number, ready="Unknown"), rank(number)) for number in range(4)}),
    "rows of pods that are gone": train(
        {number: (host(number, rows("waiting", number + 90)), rank(number)) for number in range(4)}
    ),
    "pods that have ended": train({number: (host(number), rank(number, phase="Succeeded")) for number in range(4)}),
    "GPUs of an unknown pod among two": [
        host(0, {"GPU-0": {"state": "waiting", "since": ago(60)}}),
        *(rank(number, 4, on="n0") for number in range(2)),
    ],
    "two Jobs of a CronJob": [
        *(made("Job", f"nightly-{number}", ("CronJob", "nightly"), parallelism=1) for number in range(2)),
        *(host(number, state) for number, state in enumerate(("waiting", "idle"))),
        *(rank(number, owner=("Job", f"nightly-{number}")) for number in range(2)),
    ],
    "Slurm nodes, of which one runs a job of one GPU": [
        *(host(number, state) for number, state in enumerate(("waiting", "idle", "idle"))),
        *(rank(number, owner=("NodeSet", "gpu"), labels={"app.kubernetes.io/name": "slurmd"}) for number in range(3)),
    ],
    "our own tests": train(
        {
            number: (host(number), rank(number, labels={"app.kubernetes.io/name": "gpu-healthcheck"}))
            for number in range(4)
        }
    ),
    "damaged records": train(
        {
            0: (host(0, [1, 2]), rank(0)),
            1: (
                host(1, {"GPU-1": {"state": "waits", "since": ago(60)}, "GPU-2": {"state": "waiting"}, "GPU-3": 7}),
                rank(1),
            ),
            2: (host(2, 7), rank(2)),
            3: (node("n3", annotations={RESULTS: "{"}), rank(3)),
        }
    ),
}


@pytest.mark.parametrize("objects", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_twin_is_not_stalled(objects: list[Object]) -> None:
    assert stalled(*objects) == []


def test_a_fleet_is_silenced_by_exactly_this_value() -> None:
    assert stalled(*train({number: (host(number), rank(number, annotations={WAITING: "no"})) for number in range(4)}))


def of_kind(owner: str, *labels: Mapping[str, str], gpus: int = 2, **changes: Any) -> list[Object]:
    """Return pods with these labels, each on a node of its own; the GPUs of the last one are idle."""
    last = len(labels) - 1
    found = []
    for number, own in enumerate(labels):
        found.append(host(number, "idle" if number == last else "waiting", gpus=gpus))
        found.append(rank(number, gpus, owner=(owner, "train"), labels=own, **changes))
    return found


def replica(kind: str, index: int) -> dict[str, str]:
    return {f"{KUBEFLOW}/replica-type": kind, f"{KUBEFLOW}/replica-index": str(index)}


def in_group(group: int, worker: int) -> dict[str, str]:
    return {f"{LWS}/name": "serve", f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(worker)}


def in_job_set(job: int, index: int, name: str = "workers") -> dict[str, str]:
    return {INDEX: str(index), f"{JOBSET}/job-index": str(job), f"{JOBSET}/replicatedjob-name": name}


def job_set(*labels: Mapping[str, str]) -> list[Object]:
    jobs = dict.fromkeys(f"llm-{own[f'{JOBSET}/job-index']}" for own in labels)
    pods = of_kind("Job", *labels, gpus=1)
    for one in pods[1::2]:
        one["metadata"]["ownerReferences"][0]["name"] = f"llm-{one['metadata']['labels'][f'{JOBSET}/job-index']}"
    return [*(made("Job", name, ("JobSet", "llm")) for name in jobs), *pods]


def leader_worker_set() -> list[Object]:
    """Return two replicas, of which one works. The leader pod owns the StatefulSet of its workers."""
    return [
        made("StatefulSet", "serve", ("LeaderWorkerSet", "serve"), replicas=2),
        made("StatefulSet", "serve-0", ("Pod", "train-0"), replicas=1),
        *(host(0, gpus=2), rank(0, 2, owner=("StatefulSet", "serve"), labels=in_group(0, 0))),
        *(host(1, "idle", gpus=2), rank(1, 2, owner=("StatefulSet", "serve-0"), labels=in_group(0, 1))),
        *(host(2, {}), rank(2, 2, owner=("StatefulSet", "serve"), labels=in_group(1, 0))),
    ]


GROUP = {"scheduling.x-k8s.io/pod-group": "g"}
KINDS: dict[str, tuple[list[Object], str, str]] = {
    "Job": (of_kind("Job", {INDEX: "0"}, {INDEX: "1"}), "job/team/train", "ranks 2, 3, pod/team/train-1"),
    "Job without indexes": (of_kind("Job", {}, {}), "job/team/train", "pod/team/train-1"),
    "JobSet": (
        job_set(in_job_set(0, 0), in_job_set(0, 1), in_job_set(1, 0), in_job_set(1, 1)),
        "jobset/team/llm",
        "rank 3, pod/team/train-3",
    ),
    "JobSet with several kinds of Jobs": (
        job_set(in_job_set(0, 0, "leader"), in_job_set(1, 0), in_job_set(2, 0)),
        "jobset/team/llm",
        "pod/team/train-2",
    ),
    "PyTorchJob": (
        of_kind("PyTorchJob", replica("master", 0), replica("worker", 0), replica("worker", 1)),
        "pytorchjob/team/train",
        "ranks 4, 5, pod/team/train-2",
    ),
    "MPIJob": (
        of_kind("MPIJob", replica("worker", 0), replica("worker", 1)),
        "mpijob/team/train",
        "ranks 2, 3, pod/team/train-1",
    ),
    "LeaderWorkerSet": (leader_worker_set(), "leaderworkerset/team/serve", "ranks 2, 3, pod/team/train-1"),
    "StatefulSet": (of_kind("StatefulSet", {}, {}), "statefulset/team/train", "ranks 2, 3, pod/team/train-1"),
    "RayCluster": (of_kind("RayCluster", {}, {}), "raycluster/team/train", "pod/team/train-1"),
    "Volcano's Job": (
        of_kind("Job", {"volcano.sh/task-index": "0"}, {"volcano.sh/task-index": "1"}),
        "job/team/train",
        "ranks 2, 3, pod/team/train-1",
    ),
    "two kinds of Volcano's tasks": (
        of_kind("Job", {"volcano.sh/task-index": "0"}, {"volcano.sh/task-index": "0"}),
        "job/team/train",
        "pod/team/train-1",
    ),
    "bare pods of a PodGroup": (
        of_kind("", GROUP, GROUP, metadata={"ownerReferences": []}),
        "podgroup/team/g",
        "pod/team/train-1",
    ),
}


@pytest.mark.parametrize(("objects", "job", "first"), KINDS.values(), ids=KINDS)
def test_each_kind_of_job_has_its_ranks(objects: list[Object], job: str, first: str) -> None:
    (found,) = stalled(*objects)

    assert found.subject == job
    assert found.evidence[1].startswith(f"start with {first} on node/n")
    assert "idle since 11:00Z" in found.evidence[1]


def test_ranks_of_pods_of_different_sizes_are_unknown() -> None:
    (found,) = stalled(*train({1: (host(1, gpus=2), rank(1, 2)), 2: (host(2, "idle"), rank(2))}))

    assert found.evidence[1].startswith("start with pod/team/train-2 on node/n2")


@pytest.mark.parametrize(("number", "longest", "shown"), [(500, 10, "3 of 67 GPUs"), (1000, 500, "3 of 4 GPUs")])
def test_a_hostile_record_is_bounded(number: int, longest: int, shown: str) -> None:
    """A record that is too long is none."""
    held = {"state": "idle", "since": ago(60), "pod": uid(2)[:8]}
    many = {f"GPU-{at}-\x1b[31m{'x' * longest}": held for at in range(number)}

    (found,) = stalled(*train({2: (host(2, many), rank(2))}))

    assert found.evidence[0] == f"{shown} wait since 11:00Z"
    assert max(map(len, found.evidence)) < 900
    assert "\x1b" not in "".join(found.evidence)


def test_large_numbers_of_a_tenant_cost_no_work() -> None:
    objects = [host(0), rank(0), rank(1, 1 << 60, on=""), host(2), rank(2, labels={INDEX: "9" * 40})]

    (found,) = stalled(made("Job", "train", parallelism=(1 << 31) - 1), *objects)

    assert found.evidence[1:] == (
        "start with pod/team/train-1: it waits for a node",
        f"then the pods that are missing: job/team/train runs 3 of its {(1 << 31) - 1} pods",
    )


def test_a_large_job_has_a_short_answer() -> None:
    work = {at: (host(at, "idle" if at == 37 else "waiting", gpus=8), rank(at, 8)) for at in range(64)}

    (found,) = find_stalled(snapshot(*train(work, 64)))

    assert found.evidence == (
        "504 of 512 GPUs wait since 11:00Z",
        "start with ranks 296-303, pod/team/train-37 on node/n37: 8 of 8 GPUs idle since 11:00Z",
    )


@pytest.mark.parametrize("words", ["job team/train", "pod team/train-0", "pod team/train-2"])
def test_all_forms_show_it(words: str) -> None:
    state = snapshot(*train({2: (host(2, "idle"), rank(2))}))

    report = report_of(state, parse_target(words.split(), ""), "", None, overview=True)

    line = "start with rank 2, pod/team/train-2 on node/n2: 1 of 1 GPU idle since 11:00Z"
    shown = "\n".join(text.plain for text in terminal.page(report, 80))
    assert "medium JobStalled job/team/train (likely)" in shown
    assert line in " ".join(shown.split())
    (cause,) = document(report)["causes"]
    assert (cause["cause"], cause["severity"], cause["evidence"][1]) == ("JobStalled", "medium", line)
    assert line in markdown_page(report)
    assert sorted(json.loads(json.dumps(cause))["affected"]) == [f"pod/team/train-{at}" for at in range(4)]


def test_a_high_severity_is_shown_as_such() -> None:
    report = report_of(snapshot(*train({2: ()})), parse_target(["job", "team/train"], ""), "", None, overview=True)

    assert [cause["severity"] for cause in document(report)["causes"]] == ["high"]


def test_it_is_not_searched_without_nodes() -> None:
    state = snapshot(*train(), missing=["Node"])

    report = report_of(state, parse_target(["job", "team/train"], ""), "", None, overview=False)

    assert list(found_in(report.diagnosis.problems)) == []
    assert any("JobStalled" in each.hides for each in report.diagnosis.unseen)


def test_the_guide_shows_the_output() -> None:
    work = {at: (host(at, "idle" if at == 3 else "waiting", gpus=8), rank(at, 8)) for at in range(8)}
    report = report_of(snapshot(*train(work, 8)), parse_target(["job", "team/train"], ""), "", None, overview=False)

    lines = [text.plain for text in terminal.page(report, 80)]

    begin = next(at for at, line in enumerate(lines) if line.startswith("1. "))
    shown = "\n".join(lines[begin : lines.index("Timeline")])
    assert f"diagnose job team/train\n…\n{shown}\n…\n```" in (ROOT / "docs/diagnose.md").read_text()
