"""Rejections by HAMi's filter are explained card by card."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diagnosis.causes.hami import filtering
from diagnosis.model import Certainty
from tests.diagnosis.hami.clusters import device_config
from tests.diagnosis.hami.hami_states import GIB_80, asking, card, hami, hami_node, plugin_pod, unplaced, vgpu_pod
from tests.diagnosis.states import GPU, Object, consequences, event, judged, node, obj, results, waiting

A = hami_node("a")
REFUSED = "0/2 nodes are available: 1 NodeUnfitPod, 1 node(s) had untolerated taint {control-plane: }."
MEMORY, CORES, PLACES = "resource/nvidia.com/gpumem", "resource/nvidia.com/gpucores", "resource/nvidia.com/gpu"
UNKNOWN = "0/2 nodes are available: 2 node unregistered."
BY_MEMORY = "0/2 nodes are available: 2 1/2 CardInsufficientMemory."


def waits(*containers: Object, text: str = REFUSED, name: str = "x", **changes: Any) -> Object:
    return unplaced(name, text, *containers, **changes)


def holds(name: str, uuid: str, memory: int, cores: int = 30) -> Object:
    return vgpu_pod(name, on="a", given=f"{uuid},NVIDIA,{memory},{cores}:;")


def filtered(*words: str, waiting: Object) -> list[Object]:
    """With HAMi's own events, one for each code."""
    return [waiting, *(event(waiting, "FilteringFailed", word, by="hami-scheduler") for word in words)]


FULL = [holds(f"h{number}", f"GPU-a-{number}", 20000) for number in (0, 1)]
QUOTA = obj("ResourceQuota", "q", "team", status={"hard": {"limits.nvidia.com/gpumem": "21000"}})
SICK: list[tuple[str, list[Object], tuple[str, str]]] = [
    ("more than any card has", [*hami(A), waits(asking(1, 40000))], ("HamiCardMemoryShort", "pod/team/x")),
    ("memory in use", [*hami(A), *FULL, waits(asking(1, 8000))], ("HamiCardMemoryShort", MEMORY)),
    ("cores in use", [*hami(A), *FULL, waits(asking(1, 1000, 80))], ("HamiCardCoresShort", CORES)),
    (
        "all cores given",
        [*hami(A), *[holds(f"h{one}", f"GPU-a-{one}", 1000, 100) for one in (0, 1)], waits(asking(1, 1000))],
        ("HamiCardCoresShort", CORES),
    ),
    (
        "places in use",
        [*hami(hami_node("a", card("GPU-a-0", count=1))), FULL[0], waits(asking(1, 1000))],
        ("HamiCardSlotsTaken", PLACES),
    ),
    (
        "a card alone, and memory said",
        [*hami(A), *FULL, waits(asking(1, 1000, 100))],
        ("HamiCardCoresShort", CORES),
    ),
    (
        "a card alone beside pods without cores",
        [*hami(A), *[holds(f"h{one}", f"GPU-a-{one}", 1000, 0) for one in (0, 1)], waits(asking(1, 1000, 100))],
        ("HamiExclusiveConflict", PLACES),
    ),
    (
        "a card alone, as the webhook wrote it",
        [
            *hami(A),
            *FULL,
            *filtered("1 nodes ExclusiveDeviceAllocateConflict(a)", waiting=waits(asking(1, 0, 100))),
        ],
        ("HamiExclusiveConflict", PLACES),
    ),
    ("more cards than a node has", [*hami(A), waits(asking(3, 1000))], ("HamiTooFewCards", "pod/team/x")),
    (
        "no card of the type",
        [*hami(A), waits(asking(1, 1000), annotations={"nvidia.com/use-gputype": "H100"})],
        ("HamiConstraintMatchesNoCard", "pod/team/x"),
    ),
    (
        "no card of the UUID",
        [*hami(A), waits(asking(1, 1000), annotations={"nvidia.com/use-gpuuuid": "GPU-gone"})],
        ("HamiConstraintMatchesNoCard", "pod/team/x"),
    ),
    (
        "its own type is full, another is not wanted",
        [
            *hami(hami_node("a", card("GPU-a-0"), card("GPU-a-1", type="NVIDIA H100", index=1))),
            holds("h", "GPU-a-1", 20000),
            waits(asking(1, 8000), annotations={"nvidia.com/use-gputype": "H100"}),
        ],
        ("HamiCardMemoryShort", MEMORY),
    ),
    (
        "unhealthy",
        [*hami(hami_node("a", card("GPU-a-0", health=False))), waits(asking(1, 1000))],
        ("HamiCardUnhealthy", "node/a"),
    ),
    (
        "one unhealthy, the other in use",
        [
            *hami(hami_node("a", card("GPU-a-0"), card("GPU-a-1", index=1, health=False))),
            FULL[0],
            waits(asking(1, 8000)),
        ],
        ("HamiCardUnhealthy", "node/a"),
    ),
    (
        "cordoned",
        [
            *hami(hami_node("a", card("GPU-a-0"), annotations={"hami.io/device-cordon": "GPU-a-0"}), version="v2.10.0"),
            waits(asking(1, 1000)),
        ],
        ("HamiCardCordoned", "node/a"),
    ),
    (
        "cards of two NUMA nodes",
        [
            *hami(hami_node("a", card("GPU-a-0"), card("GPU-a-1", numa=1))),
            waits(asking(2, 1000), annotations={"nvidia.com/numa-bind": "true"}),
        ],
        ("HamiNumaNotFit", "pod/team/x"),
    ),
    (
        "no place for an instance of MIG",
        [
            *hami(
                hami_node(
                    "a", card("GPU-a-0", GIB_80, mode="mig", migProfiles=[{"name": "1g.10gb", "memoryMB": 9856}])
                ),
                version="v2.10.0",
            ),
            waits(asking(1, 20000)),
        ],
        ("HamiMigNotFit", "pod/team/x"),
    ),
    (
        "a placement of MIG that is not judged",
        [*hami(hami_node("a", card("GPU-a-0", GIB_80, mode="mig"))), waits(asking(1, 20000))],
        ("HamiMigNotFit", "pod/team/x"),
    ),
    (
        "full, and cordoned under a version that ignores it",
        [
            *hami(hami_node("a", card("GPU-a-0"), annotations={"hami.io/device-cordon": "GPU-a-0"})),
            holds("h", "GPU-a-0", 20000),
            waits(asking(1, 8000)),
        ],
        ("HamiCardMemoryShort", MEMORY),
    ),
    (
        "over the quota",
        [*hami(A), FULL[0], QUOTA, waits(asking(1, 2000))],
        ("HamiQuotaExceeded", "resourcequota/team/q"),
    ),
    (
        "HAMi's word alone, though there is room by now",
        [*hami(A), waits(asking(1, 1000), text=BY_MEMORY)],
        ("HamiCardMemoryShort", "pod/team/x"),
    ),
    (
        "another vendor's card",
        [*hami(A), waits({"name": "main", "resources": {"limits": {"hygon.com/dcunum": "1"}}}, text=REFUSED)],
        ("HamiNodeUnfit", "pod/team/x"),
    ),
    (
        "another vendor's word",
        [
            *hami(A),
            waits(
                {"name": "m", "resources": {"limits": {"metax-tech.com/sgpu": "1"}}},
                text=REFUSED.replace("NodeUnfitPod", "ModeNotFit"),
            ),
        ],
        ("HamiConstraintMatchesNoCard", "pod/team/x"),
    ),
    (
        "nodes with cards are closed to it",
        [
            *hami(hami_node("a", taints=[{"key": "mine", "effect": "NoSchedule"}])),
            node("cpu", None),
            waits(
                asking(1, 1000),
                text="0/2 nodes are available: 1 node unregistered, 1 node(s) had untolerated taint {mine: }.",
            ),
        ],
        ("TaintNotTolerated", "pod/team/x"),
    ),
]


@pytest.mark.parametrize(("state", "cause"), [pair[1:] for pair in SICK], ids=[pair[0] for pair in SICK])
def test_refused_pod_has_a_cause(state: list[Object], cause: tuple[str, str]) -> None:
    assert results(judged(*state)) == [cause]


def test_evidence_has_the_amounts_of_each_card() -> None:
    cards = [card(f"GPU-{number}", GIB_80, index=number) for number in range(4)]
    held = [vgpu_pod(f"h{number}", on="a", given=f"GPU-{number},NVIDIA,57344,0:;") for number in range(4)]
    waiting = filtered("1 nodes CardInsufficientMemory(a)", waiting=waits(asking(2, 40000)))
    [problem] = judged(*hami(hami_node("a", *cards)), *held, *waiting).problems
    first, second, third, *rest = problem.found.evidence
    assert first == "4 cards have 98304 MiB free in total, at most 24576 on one card"
    assert second == "a container requests 2 cards with 40000 MiB each"
    assert third.startswith(
        "node/a: card GPU-0 CardInsufficientMemory: 40000 MiB requested, 24576 free "
        "(used by pod/team/h0 57344 MiB); card"
    )
    assert rest == [
        "judged by the rules of HAMi 2.10; the installed version is 2.9",
        "HAMi reports: NodeUnfitPod",
        "HAMi reports: 1 nodes CardInsufficientMemory(a)",
    ]


def test_reason_of_hami_outranks_that_of_the_cards() -> None:
    waiting = filtered("1 nodes CardTimeSlicingExhausted(a)", waiting=waits(asking(1, 40000)))
    [problem] = judged(*hami(A), *waiting).problems
    assert (problem.found.cause.name, problem.found.certainty) == ("HamiCardSlotsTaken", Certainty.LIKELY)
    assert any(
        "CardTimeSlicingExhausted, but these objects show CardInsufficientMemory" in text
        for text in problem.found.evidence
    )


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (hami(hami_node("a", annotations={"hami.io/node-nvidia-register": None})), ("HamiNodeNotRegistered", "node/a")),
        (
            hami(A, version="v2.7.1", plugin_version="v2.8.0"),
            ("HamiVersionSkew", "deployment/kube-system/hami-scheduler"),
        ),
        (hami(hami_node("a", allocatable={GPU: "0"})), ("HamiRegistrationStale", "node/a")),
    ],
)
def test_unknown_node_explains_the_waiting_pod(state: list[Object], cause: tuple[str, str]) -> None:
    [problem] = judged(*state, waits(asking(1, 1000), text=UNKNOWN)).problems
    assert (problem.found.cause.name, problem.found.subject) == cause
    assert consequences(problem) == [("HamiKnowsNoNode", "pod/team/x")]


def test_crashing_plugin_explains_an_unknown_node() -> None:
    crash = waiting("CrashLoopBackOff", "back-off", "device-plugin", restartCount=9)
    sick = [plugin_pod("a", states=[crash]) if _is_plugin(entry) else entry for entry in hami(A)]
    [problem] = judged(*sick, node("cpu", None), waits(asking(1, 1000), text=UNKNOWN)).problems
    assert (problem.found.cause.name, problem.found.subject) == ("HamiDevicePluginNotReady", "node/a")
    assert consequences(problem) == [("HamiKnowsNoNode", "pod/team/x")]


def _is_plugin(entry: Object) -> bool:
    return (entry["kind"], entry["metadata"]["name"]) == ("Pod", "hami-device-plugin-a")


def test_unready_scheduler_explains_its_waiting_pods() -> None:
    [problem] = judged(*hami(A, ready=False, webhook=None), vgpu_pod("x", asking(1, 1000))).problems
    assert problem.found.cause.name == "HamiSchedulerNotReady"
    assert ("SchedulerNotThere", "pod/team/x") in consequences(problem)


HEALTHY: list[tuple[str, list[Object]]] = [
    (
        "it knows no node without cards, and the other has room by now",
        [
            *hami(A),
            node("cpu", None),
            waits(asking(1, 1000), text="0/2 nodes are available: 1 NodeUnfitPod, 1 node unregistered."),
        ],
    ),
    ("the plugin came back a moment ago", [*hami(A), waits(asking(1, 1000), text=UNKNOWN, age=5)]),
    ("room was made a moment ago", [*hami(A), waits(asking(1, 1000), text=BY_MEMORY, age=5)]),
    ("unfit some time ago, and there is room", [*hami(A), waits(asking(1, 1000))]),
    (
        "filtered, and placed since",
        [*hami(A), *filtered("1 nodes CardInsufficientMemory(a)", waiting=vgpu_pod("y", on="a"))],
    ),
]


@pytest.mark.parametrize("state", [pair[1] for pair in HEALTHY], ids=[pair[0] for pair in HEALTHY])
def test_pod_that_fits_now_has_no_cause(state: list[Object]) -> None:
    assert results(judged(*state)) == []


def test_requests_above_the_limit_have_the_cause_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "_MOST_WALKED", 0)
    many = [waits(asking(1, 40000 + number), name=f"x{number}", text=BY_MEMORY) for number in range(6)]
    found = judged(*hami(A), *many)
    assert {name for name, _ in results(found)} == {"HamiCardMemoryShort"}
    assert sorted(problem.found.certainty.name for problem in found.problems) == ["LIKELY"] * 2 + ["PROVEN"] * 4


def test_request_for_too_many_cards_names_the_largest_node() -> None:
    [problem] = judged(*hami(A), waits(asking(3, 1000))).problems
    assert problem.found.evidence[0] == "no eligible node has more than 2 cards"


def test_remedy_uses_the_configured_unit() -> None:
    [problem] = judged(*hami(A), device_config("nvidia: {memoryFactor: 1024}"), waits(asking(1, 40))).problems
    assert problem.found.remedy[0] == "Request at most 24 nvidia.com/gpumem: no card has more."


CARD = "GPU-00000000-51e0-4000-8000-00000000000a"
OTHER_CARD = "GPU-00000000-51e0-4000-8000-00000000000b"
FINDING = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "about": {"uuid": CARD}}


@pytest.mark.parametrize(
    ("cordoned", "ours", "evidence", "remedies"),
    [
        (CARD, CARD, [f"node/a: card {CARD} is cordoned by the node's agent for Xid79"], ["explain", "release"]),
        (CARD, "", [], ["get", "annotate"]),
        (
            f"{CARD},{OTHER_CARD}",
            CARD,
            [f"node/a: card {CARD} is cordoned by the node's agent for Xid79"],
            ["explain", "release", "get", "annotate"],
        ),
    ],
)
def test_cordon_of_the_agent_has_its_reason_and_release(
    cordoned: str, ours: str, evidence: list[str], remedies: list[str]
) -> None:
    annotations = {
        "hami.io/device-cordon": cordoned,
        "gpu-healthcheck.aws-samples.io/device-cordon": ours,
        "gpu-healthcheck.aws-samples.io/results": json.dumps({"schema": 1, "taint": "devices", "findings": [FINDING]}),
    }
    cards = [card(uuid) for uuid in cordoned.split(",")]
    state = [*hami(hami_node("a", *cards, annotations=annotations), version="v2.10.0"), waits(asking(1, 1000))]
    found = next(problem.found for problem in judged(*state).problems if problem.found.cause.name == "HamiCardCordoned")
    assert [line for line in found.evidence if "by the node's agent" in line] == evidence
    assert [
        next(word for word in ("explain", "release", "get", "annotate") if word in line) for line in found.remedy
    ] == remedies
