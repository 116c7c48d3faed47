"""Rejections by HAMi's filter are explained card by card."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.hami import filtering
from gpu_healthcheck.diagnosis.model import Certainty
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
POD, SMALL = "pod/team/x", asking(1, 1000)
CORDON = {"hami.io/device-cordon": "GPU-a-0"}
PROFILES = [{"name": "1g.10gb", "memoryMB": 9856}]
DCU, SGPU = (
    {"name": "main", "resources": {"limits": {name: "1"}}} for name in ("hygon.com/dcunum", "metax-tech.com/sgpu")
)
Row = tuple[list[Object], tuple[str, str]]


def held_each(memory: int, cores: int) -> list[Object]:
    return [holds(f"h{number}", f"GPU-a-{number}", memory, cores) for number in (0, 1)]


def refused(cause: str, subject: str, *pods: Object, cards: tuple[Object, ...] = (), **node: Any) -> Row:
    """The cause for a pod on node a with such cards, two of 24 GiB by default."""
    version = node.pop("version", "v2.9.0")
    return [*hami(hami_node("a", *cards, **node), version=version), *pods], (cause, subject)


ROWS: dict[str, Row] = {
    "more than any card has": refused("HamiCardMemoryShort", POD, waits(asking(1, 40000))),
    "memory in use": refused("HamiCardMemoryShort", MEMORY, *FULL, waits(asking(1, 8000))),
    "cores in use": refused("HamiCardCoresShort", CORES, *FULL, waits(asking(1, 1000, 80))),
    "all cores given": refused("HamiCardCoresShort", CORES, *held_each(1000, 100), waits(SMALL)),
    "slots in use": refused("HamiCardSlotsTaken", PLACES, FULL[0], waits(SMALL), cards=(card("GPU-a-0", count=1),)),
    "an unshared card with memory": refused("HamiCardCoresShort", CORES, *FULL, waits(asking(1, 1000, 100))),
    "an unshared card beside pods without cores": refused(
        "HamiExclusiveConflict", PLACES, *held_each(1000, 0), waits(asking(1, 1000, 100))
    ),
    "an unshared card, as the webhook writes it": refused(
        "HamiExclusiveConflict",
        PLACES,
        *FULL,
        *filtered("1 nodes ExclusiveDeviceAllocateConflict(a)", waiting=waits(asking(1, 0, 100))),
    ),
    "more cards than a node has": refused("HamiTooFewCards", POD, waits(asking(3, 1000))),
    "no card of the type": refused(
        "HamiConstraintMatchesNoCard", POD, waits(SMALL, annotations={"nvidia.com/use-gputype": "H100"})
    ),
    "no card of the UUID": refused(
        "HamiConstraintMatchesNoCard", POD, waits(SMALL, annotations={"nvidia.com/use-gpuuuid": "GPU-gone"})
    ),
    "the only card of the type is full": refused(
        "HamiCardMemoryShort",
        MEMORY,
        holds("h", "GPU-a-1", 20000),
        waits(asking(1, 8000), annotations={"nvidia.com/use-gputype": "H100"}),
        cards=(card("GPU-a-0"), card("GPU-a-1", type="NVIDIA H100", index=1)),
    ),
    "unhealthy": refused("HamiCardUnhealthy", "node/a", waits(SMALL), cards=(card("GPU-a-0", health=False),)),
    "one unhealthy, the other in use": refused(
        "HamiCardUnhealthy",
        "node/a",
        FULL[0],
        waits(asking(1, 8000)),
        cards=(card("GPU-a-0"), card("GPU-a-1", index=1, health=False)),
    ),
    "cordoned": refused(
        "HamiCardCordoned", "node/a", waits(SMALL), cards=(card("GPU-a-0"),), annotations=CORDON, version="v2.10.0"
    ),
    "full, and cordoned under a version that ignores it": refused(
        "HamiCardMemoryShort", MEMORY, FULL[0], waits(asking(1, 8000)), cards=(card("GPU-a-0"),), annotations=CORDON
    ),
    "cards of two NUMA nodes": refused(
        "HamiNumaNotFit",
        POD,
        waits(asking(2, 1000), annotations={"nvidia.com/numa-bind": "true"}),
        cards=(card("GPU-a-0"), card("GPU-a-1", numa=1)),
    ),
    "no MIG profile is large enough": refused(
        "HamiMigNotFit",
        POD,
        waits(asking(1, 20000)),
        cards=(card("GPU-a-0", GIB_80, mode="mig", migProfiles=PROFILES),),
        version="v2.10.0",
    ),
    "a placement of MIG that is not judged": refused(
        "HamiMigNotFit", POD, waits(asking(1, 20000)), cards=(card("GPU-a-0", GIB_80, mode="mig"),)
    ),
    "over the quota": refused("HamiQuotaExceeded", "resourcequota/team/q", FULL[0], QUOTA, waits(asking(1, 2000))),
    "a message, and room by now": refused("HamiCardMemoryShort", POD, waits(SMALL, text=BY_MEMORY)),
    "another vendor's card": refused("HamiNodeUnfit", POD, waits(DCU)),
    "another vendor's message": refused(
        "HamiConstraintMatchesNoCard", POD, waits(SGPU, text=REFUSED.replace("NodeUnfitPod", "ModeNotFit"))
    ),
    "nodes with cards are tainted": refused(
        "TaintNotTolerated",
        POD,
        node("cpu", None),
        waits(
            SMALL,
            text="0/2 nodes are available: 1 node unregistered, 1 node(s) had untolerated taint {mine: }.",
        ),
        taints=[{"key": "mine", "effect": "NoSchedule"}],
    ),
}


@pytest.mark.parametrize(("state", "cause"), ROWS.values(), ids=ROWS)
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
    waiting = filtered("1 nodes CardTimeSlicingExhausted(a)", waiting=waits(asking(1, 8000)))
    [problem] = judged(*hami(A), *FULL, *waiting).problems
    assert (problem.found.cause.name, problem.found.certainty) == ("HamiCardSlotsTaken", Certainty.LIKELY)
    assert any(
        "CardTimeSlicingExhausted, but these objects show CardInsufficientMemory" in text
        for text in problem.found.evidence
    )


def test_request_above_the_total_of_each_card_outranks_hamis_reason() -> None:
    waiting = filtered("1 nodes CardTimeSlicingExhausted(a)", waiting=waits(asking(1, 40000)))
    [problem] = judged(*hami(A), *waiting).problems
    assert (problem.found.cause.name, problem.found.certainty) == ("HamiCardMemoryShort", Certainty.PROVEN)


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


HEALTHY = {
    "no cards on one node, and room on the other by now": [
        *hami(A),
        node("cpu", None),
        waits(SMALL, text="0/2 nodes are available: 1 NodeUnfitPod, 1 node unregistered."),
    ],
    "the plugin came back a moment ago": [*hami(A), waits(SMALL, text=UNKNOWN, age=5)],
    "a card became free a moment ago": [*hami(A), waits(SMALL, text=BY_MEMORY, age=5)],
    "a MIG card became free a moment ago": [*hami(hami_node("a", card("GPU-a-0", mode="mig"))), waits(SMALL, age=5)],
    "unfit some time ago, and there is room": [*hami(A), waits(SMALL)],
    "refused, and bound since": [
        *hami(A),
        *filtered("1 nodes CardInsufficientMemory(a)", waiting=vgpu_pod("y", on="a")),
    ],
}


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
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
