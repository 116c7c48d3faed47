"""The timeline of a workload: what was created, started, ended, refused and evicted, in the order of time."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.target import parse_target
from gpu_healthcheck.diagnosis.report import terminal
from gpu_healthcheck.diagnosis.report.content import Report, report_of
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.report.pages import html_page, markdown_page
from gpu_healthcheck.healthcheck.text.printable import printable
from tests.diagnosis.states import (
    NOW,
    Object,
    ago,
    condition,
    event,
    node,
    obj,
    pod,
    recorded,
    snapshot,
    terminated,
)
from tests.diagnosis.test_reports import rendered
from tests.evicting import annotation, eviction
from tests.hostile import HOSTILE
from tests.markup import HOSTILE as MARKUP
from tests.markup import LIVE, parsed

XID = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "detail": "fell off the bus"}
JOB = ("Job", "train")


def job(*conditions: Object, name: str = "train", age: float = 90, **metadata: Any) -> Object:
    return obj("Job", name, "team", age=age, metadata=metadata, spec={}, status={"conditions": [*conditions]})


def faulty(name: str = "a", minutes: float = 12, **changes: Any) -> Object:
    return node(
        name, annotations=recorded(XID | {"first_seen": ago(minutes)}, status="fail", severity="REBOOT"), **changes
    )


def created(name: str, minutes: float) -> Object:
    return event(job(), "SuccessfulCreate", f"Created pod: {name}", minutes=minutes, warning=False, by="job-controller")


def bound(about: Object, name: str, minutes: float) -> Object:
    message = f"Successfully assigned team/{about['metadata']['name']} to {name}"
    return event(about, "Scheduled", message, minutes=minutes, warning=False, by="default-scheduler")


def asked(words: str, *objects: Object) -> Report:
    return report_of(snapshot(*objects), parse_target(words.split(), ""), "", None, overview=False)


def rows(words: str, *objects: Object) -> list[str]:
    """Rows as `minutes ago: what (source)`."""
    return [
        f"{(NOW - row.at) / timedelta(minutes=1):g}: {row.what} ({row.source})"
        for row in asked(words, *objects).timeline
    ]


def printed(report: Report, width: int = 80) -> list[str]:
    lines = [line.plain for line in terminal.page(report, width)]
    return lines[lines.index("Timeline") + 1 :] if "Timeline" in lines else []


def running(name: str, on: str, age: float, **changes: Any) -> Object:
    return pod(name, 8, on=on, age=age, owner=JOB, **changes)


GATE_MESSAGE = "a: Xid79 (REBOOT) on GPU 5; the pod ends, so that its job starts it elsewhere"
LOST = running("train-x4k2z", "a", 89)
MOVED = (
    job(condition("Suspended", "False", "JobResumed", "Job resumed", minutes=89.5)),
    faulty(
        conditions=[condition("GpuHealthy", "False", "Xid79", "GPU 3 fell off the bus", minutes=12)],
        labels={"a": "b"},
    ),
    node("b"),
    created("train-x4k2z", 89),
    bound(LOST, "a", 89),
    event(LOST, "Pulled", "Container image already present", minutes=88.9, warning=False),
    event(LOST, "Started", "Started container main", minutes=88.9, warning=False),
    event(node("a"), "Xid79", "The driver can't reach the GPU", minutes=12, by="gpu-healthcheck"),
    event(node("a"), "EvictionAnnounced", "team/train-x4k2z evicted at 11:49", minutes=11.9, by="gpu-healthcheck"),
    event(LOST, "EvictionAnnounced", "the pod is evicted at 11:49", minutes=11.9, by="gpu-healthcheck"),
    event(node("a"), "EvictionRequested", "team/train-x4k2z evicted now", minutes=10.9, by="gpu-healthcheck"),
    event(LOST, "Killing", "Stopping container main", minutes=10.8, warning=False),
    created("train-b7v5t", 10),
    running("train-b7v5t", "b", 10),
)


def test_a_job_that_ran_was_evicted_and_moved() -> None:
    assert rows("job team/train", *MOVED) == [
        "90: Job train created (Job)",
        "89.5: Job train: Suspended=False: JobResumed: Job resumed (condition)",
        "89: pod train-x4k2z created (Event of job-controller)",
        "89: pod train-x4k2z bound: node a (Event of default-scheduler)",
        "88.9: pod train-x4k2z started (Event of kubelet)",
        "12: node a: Xid79 REBOOT: gpu/0000:18:00.0: fell off the bus (agent's record)",
        "12: node a: GpuHealthy=False: Xid79: GPU 3 fell off the bus (condition)",
        "11.9: pod train-x4k2z: EvictionAnnounced: the pod is evicted at 11:49 (Event of gpu-healthcheck)",
        "10.9: node a: EvictionRequested: team/train-x4k2z evicted now (Event of gpu-healthcheck)",
        "10.8: pod train-x4k2z: Killing: Stopping container main (Event of kubelet)",
        "10: pod train-b7v5t created (Pod)",
        "10: pod train-b7v5t bound: node b (Pod)",
        "10: pod train-b7v5t started (Pod)",
    ]


def test_a_job_on_healthy_nodes_has_only_its_own_rows() -> None:
    """Faults of another node, and pods of jobs with a longer name, are another story."""
    state = (
        job(),
        job(name="train-2"),
        faulty("elsewhere"),
        node("b", annotations=recorded()),
        running("train-b7v5t", "b", 80),
        event(pod("train-2-b7v5t"), "Killing", "Stopping container main", minutes=5),
        event(pod("trainer-0"), "Killing", "Stopping container main", minutes=5),
    )
    assert rows("job team/train", *state) == [
        "90: Job train created (Job)",
        "80: pod train-b7v5t created (Pod)",
        "80: pod train-b7v5t bound: node b (Pod)",
        "80: pod train-b7v5t started (Pod)",
    ]


LIMIT, FOR_OTHERS = "Job has reached the specified backoff limit", "Preempted to accommodate a workload"


def test_a_job_whose_pods_are_gone_is_known_from_events() -> None:
    """What happens on the node long after the end is not about the job."""
    end = condition("Failed", "True", "BackoffLimitExceeded", LIMIT, minutes=30)
    state = (
        job(end),
        faulty("a", 31),
        created("train-x4k2z", 80),
        bound(LOST, "a", 80),
        event(job(), "BackoffLimitExceeded", LIMIT, minutes=30, by="job-controller"),
        event(node("a"), "GateRefused", "the gate refused 1 pod (Xid79): x", minutes=2, by="gpu-healthcheck"),
    )
    assert rows("job team/train", *state) == [
        "90: Job train created (Job)",
        "80: pod train-x4k2z created (Event of job-controller)",
        "80: pod train-x4k2z bound: node a (Event of default-scheduler)",
        "31: node a: Xid79 REBOOT: gpu/0000:18:00.0: fell off the bus (agent's record)",
        f"30: Job train: Failed: BackoffLimitExceeded: {LIMIT} (condition)",
        f"30: Job train: BackoffLimitExceeded: {LIMIT} (Event of job-controller)",
    ]


@pytest.mark.parametrize(("minutes", "is_shown"), [(96, False), (94, True), (27, True), (24, False)])
def test_a_fault_is_shown_in_the_time_of_the_job_and_five_minutes_around_it(minutes: float, is_shown: bool) -> None:
    end = condition("Failed", "True", "BackoffLimitExceeded", LIMIT, minutes=30)
    lost = running("train-x4k2z", "a", 80, phase="Failed")
    found = rows("job team/train", job(end), faulty("a", minutes), lost)

    assert [row for row in found if "Xid79" in row] == (
        [f"{minutes}: node a: Xid79 REBOOT: gpu/0000:18:00.0: fell off the bus (agent's record)"] if is_shown else []
    )


def ended(code: int, reason: str = "Error", message: str = "", *, start: float, minutes: float) -> Object:
    return terminated(code, reason, message, minutes=minutes) | {"startedAt": ago(start)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"states": [{"name": "main", "state": {"terminated": ended(0, "Completed", start=50, minutes=20)}}]},
            ["50: pod x started (Pod)", "20: pod x ended with exit code 0: container main: Completed (Pod)"],
        ),
        (
            {
                "states": [
                    {
                        "name": "main",
                        "restartCount": 1,
                        "state": {"running": {"startedAt": ago(19)}},
                        "lastState": {"terminated": ended(137, "OOMKilled", start=50, minutes=20)},
                    }
                ]
            },
            [
                "50: pod x started (Pod)",
                "20: pod x ended with exit code 137: container main: OOMKilled (Pod)",
                "19: pod x restarted (Pod)",
            ],
        ),
        (
            {
                "states": [],
                "status": {
                    "initContainerStatuses": [
                        {"name": "fine", "state": {"terminated": ended(0, start=51, minutes=51)}},
                        {
                            "name": "gpu-gate",
                            "state": {"terminated": ended(75, "", GATE_MESSAGE, start=51, minutes=50)},
                        },
                    ]
                },
            },
            [f"50: pod x refused by the gate: {GATE_MESSAGE} (Pod)"],
        ),
        (
            {"conditions": [condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "evicting", minutes=9)]},
            [
                "60: pod x started (Pod)",
                "9: pod x: DisruptionTarget: EvictionByEvictionAPI: evicting (condition)",
            ],
        ),
        ({"states": [], "conditions": [condition("PodScheduled", "False", "Unschedulable", "0/1", minutes=9)]}, []),
    ],
    ids=["ended", "restarted", "refused by the gate", "evicted", "pending"],
)
def test_each_state_of_a_pod_with_a_time_has_a_row(changes: dict[str, Any], expected: list[str]) -> None:
    found = rows("pod team/x", job(), pod("x", 8, on="a", owner=JOB, **changes))
    assert [row for row in found if "created" not in row and "bound" not in row] == expected


WORK = {"state": "waiting", "since": ago(20), "pod": "00000001"}


def test_gpus_that_wait_are_one_row_per_minute() -> None:
    def waits(name: str, first: int, number: int, **changes: Any) -> Object:
        work = {f"GPU-{place}": {**WORK, **changes} for place in range(first, first + number)}
        return node(name, annotations=recorded(work=work))

    pods = [
        running(f"train-{number}", on, 80, metadata={"uid": f"0000000{number}-aaaa"})
        for number, on in ((1, "a"), (2, "b"))
    ]
    idle = waits("b", 8, 1, state="idle", since=ago(21), pod="00000002")
    own = rows("job team/train", job(), *pods, waits("a", 0, 8), idle)

    assert own[-2:] == [
        "21: GPU b/GPU-8 idle (agent's record)",
        "20: 8 GPUs waiting: a/GPU-0 … a/GPU-7 (agent's record)",
    ]
    assert not [row for row in rows("job team/train", job(), *pods, waits("a", 0, 8, pod="other")) if "GPU" in row]


def test_kueue_and_the_owner_of_the_job_have_rows() -> None:
    owned = {"ownerReferences": [{"kind": "Job", "name": "train", "uid": "job-team-train", "controller": True}]}
    above = [{"kind": "JobSet", "name": "set", "uid": "jobset-team-set", "controller": True}]
    evicted = condition("Evicted", "True", "Preempted", FOR_OTHERS, minutes=40)
    queued = obj(
        "Workload", "job-train-1a2b", "team", age=89, metadata=owned, spec={}, status={"conditions": [evicted]}
    )
    jobs = obj("JobSet", "set", "team", age=91, status={"conditions": []})
    preempted = event(queued, "Preempted", FOR_OTHERS, minutes=40, by="kueue-admission")
    state = (jobs, job(ownerReferences=above), queued, preempted, running("train-b7v5t", "b", 80))
    expected = [
        "91: JobSet set created (JobSet)",
        "90: Job train created (Job)",
        "89: Workload job-train-1a2b created (Workload)",
        f"40: Workload job-train-1a2b: Evicted: Preempted: {FOR_OTHERS} (condition)",
        f"40: Workload job-train-1a2b: Preempted: {FOR_OTHERS} (Event of kueue-admission)",
    ]
    for words in ("jobset team/set", "job team/train", "pod team/train-b7v5t"):
        assert [row for row in rows(words, *state) if "pod" not in row] == expected, words


@pytest.mark.parametrize(
    ("state", "why", "row"),
    [
        ("announced", None, "2: pod train-b7v5t: eviction announced: announced (Node)"),
        (
            "refused",
            "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget guard needs 1",
            "2: pod train-b7v5t: eviction announced: refused: PodDisruptionBudget team/guard (Node)",
        ),
    ],
)
def test_an_eviction_whose_event_is_gone_is_known_from_the_node(state: str, why: str | None, row: str) -> None:
    one = running("train-b7v5t", "a", 80)
    at = NOW - timedelta(minutes=2)
    marks = annotation(eviction("train-b7v5t", state, at=at, uid=one["metadata"]["uid"], why=why), now=NOW)
    target = node("a", annotations=marks)
    announced = event(one, "EvictionAnnounced", "the pod is evicted", minutes=2, by="gpu-healthcheck")

    assert rows("job team/train", job(), one, target)[-1] == row
    with_event = rows("job team/train", job(), one, target, announced)
    assert [each for each in with_event if "viction" in each] == [
        "2: pod train-b7v5t: EvictionAnnounced: the pod is evicted (Event of gpu-healthcheck)"
    ]


def test_a_node_that_is_lost_and_returns_has_rows() -> None:
    lost = node("b", ready="Unknown", conditions=[])
    lost["status"]["conditions"] = [condition("Ready", "Unknown", "NodeStatusUnknown", "stopped posting", minutes=30)]
    silent = event(node("b"), "NodeNotReady", "Node b status is now: NodeNotReady", minutes=30, warning=False)
    returned = event(node("b"), "NodeReady", "Node b status is now: NodeReady", minutes=20, warning=False)
    routine = event(node("b"), "NodeHasSufficientMemory", "x", minutes=20, warning=False)

    assert rows("job team/train", job(), running("x", "b", 80), lost, silent)[-1] == (
        "30: node b: Ready=Unknown: NodeStatusUnknown: stopped posting (condition)"
    )
    found = rows("job team/train", job(), running("x", "b", 80), node("b"), silent, returned, routine)
    assert [row.partition(" (")[0] for row in found[-2:]] == [
        "30: node b: NodeNotReady: Node b status is now: NodeNotReady",
        "20: node b: NodeReady: Node b status is now: NodeReady",
    ]


def test_a_repeated_event_has_its_first_time_and_its_count() -> None:
    one = running("train-b7v5t", "b", 80)
    repeated = event(one, "BackOff", "Back-off restarting", minutes=6, count=12)
    repeated["firstTimestamp"] = ago(40)
    newer = {"reportingController": "kubelet", "series": {"count": 3, "lastObservedTime": ago(2)}, "eventTime": ago(30)}
    of_newer_api = event(one, "Unhealthy", "probe failed") | newer
    for key in ("count", "firstTimestamp", "lastTimestamp", "source"):
        del of_newer_api[key]

    assert rows("pod team/train-b7v5t", one, repeated, of_newer_api)[-2:] == [
        "40: pod train-b7v5t: BackOff: 12 times until 11:54:00Z: Back-off restarting (Event of kubelet)",
        "30: pod train-b7v5t: Unhealthy: 3 times until 11:58:00Z: probe failed (Event of kubelet)",
    ]


def test_alike_changes_of_a_minute_are_one_row() -> None:
    pods = [running(f"train-{number}", "a", 80 + number / 120) for number in range(12)]
    found = rows("job team/train", job(), *pods)

    eleven = "11 pods {}: train-1 … train-11{} (Pod)".format
    assert [row.split(": ", 1)[1] for row in found] == [
        "Job train created (Job)",
        *(eleven("created", ""), eleven("bound", " (node a)"), eleven("started", "")),
        *("pod train-0 created (Pod)", "pod train-0 bound: node a (Pod)", "pod train-0 started (Pod)"),
    ]


def test_5000_rows_are_cut_in_the_middle() -> None:
    pods = [running(f"train-{number}", "a", 5000 - number) for number in range(1700)]
    report = asked("job team/train", job(age=6000), *pods)
    whole, lines = report.timeline, printed(report)

    assert (len(whole), len(lines), len(document(report)["timeline"])) == (60, 60, 60)
    assert (whole[0].what, whole[-1].what) == ("Job train created", "pod train-1699 started")
    assert [(place, row.what) for place, row in enumerate(whole) if row.source == "left out"] == [(30, "… 5,042 more")]
    assert all(one.at <= other.at for one, other in pairwise(whole))
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("seed", range(5))
def test_equal_times_keep_their_order_whatever_the_order_of_objects(seed: int) -> None:
    objects, expected = [*MOVED], rows("job team/train", *MOVED)
    random.Random(seed).shuffle(objects)

    found = rows("job team/train", *objects)
    assert sorted(found) == sorted(expected)
    assert found[-3:] == expected[-3:]  # created, bound and started within one second


def test_times_of_other_zones_are_in_utc_and_the_date_is_shown_where_it_changes() -> None:
    early = job()
    early["metadata"]["creationTimestamp"] = "2026-11-22T04:29:59+05:30"
    late = running("train-b7v5t", "b", 60)
    late["metadata"]["creationTimestamp"] = "2026-11-21T20:00:00-05:00"
    undated = running("train-x4k2z", "b", 60, conditions=[], states=[])
    undated["metadata"]["creationTimestamp"] = "yesterday"

    assert printed(asked("job team/train", early, late, undated)) == [
        "  2026-11-21 22:59:59Z  Job train created  (Job)",
        "  2026-11-22 01:00:00Z  pod train-b7v5t created  (Pod)",
        "             11:00:00Z  pod train-b7v5t bound: node b  (Pod)",
        "             11:00:00Z  pod train-b7v5t started  (Pod)",
    ]


@pytest.mark.parametrize("words", ["", "node a", "hami", "job team/alone", "deployment team/none"])
def test_what_is_no_workload_or_has_one_row_has_no_timeline(words: str) -> None:
    state = (*MOVED, job(name="alone"), obj("Deployment", "none", "team"))
    report = asked(words, *state)

    assert (report.timeline, printed(report), document(report).get("timeline")) == ((), [], None)
    assert "imeline" not in html_page(report) + markdown_page(report)


def test_a_pasted_text_has_no_timeline() -> None:
    """Its ages are relative to an unknown time."""
    state = snapshot(*MOVED)
    for recognised, number in (({}, 13), ({"pods": 1}, 0)):
        report = report_of(
            replace(state, recognised=recognised), parse_target(["job", "team/train"], ""), "", None, overview=False
        )
        assert len(report.timeline) == number


@pytest.mark.parametrize("words", [*HOSTILE, *MARKUP])
def test_hostile_texts_stay_texts(words: str) -> None:
    failed = condition("Failed", "True", words, words, minutes=30)
    one = running("train-b7v5t", "a", 80)
    found = XID | {"detail": words * 100, "first_seen": ago(12)}
    target = node("a", annotations=recorded(found))
    odd = event(one, words, words * 200, minutes=5, by=words)
    report = asked("job team/train", job(failed), one, target, odd)
    tags = parsed(html_page(report))

    assert len(report.timeline) == 7
    assert [row for row in report.timeline if printable(row.what + row.source) != row.what + row.source] == []
    assert max(len(row.what) for row in report.timeline) < 1000
    assert not set(LIVE).intersection((*tags.tags, *rendered(markdown_page(report)).tags))
    assert json.dumps(document(report)["timeline"]).isprintable()


def test_each_form_shows_the_same_rows() -> None:
    report = asked("job team/train", *MOVED)
    moments = document(report)["timeline"]
    words = " ".join(" ".join(printed(report)).split())

    assert moments[0] == {"at": ago(90), "what": "Job train created", "source": "Job"}
    assert len(moments) == len(report.timeline) == 13
    for row in moments:
        assert f"{row['at'][11:]} {row['what']} ({row['source']})" in words
        assert f"<td>{row['at']}</td>" in html_page(report)
        assert f"| {row['at']} | " in markdown_page(report)
