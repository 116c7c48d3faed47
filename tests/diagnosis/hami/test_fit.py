"""A pod's request against the cards of a node, by the rules of HAMi 2.10."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.hami.cards import CardUsage, Share
from gpu_healthcheck.diagnosis.hami.fit import (
    CardRequest,
    Code,
    NodeVerdict,
    PodConditions,
    admitted,
    fit,
    request_of,
)
from gpu_healthcheck.diagnosis.hami.quota import QuotaAmounts
from gpu_healthcheck.diagnosis.hami.settings import HamiSettings
from gpu_healthcheck.diagnosis.snapshot.hami_node import Card
from gpu_healthcheck.diagnosis.snapshot.hami_pod import CardOptions
from gpu_healthcheck.diagnosis.snapshot.pods import Container
from tests.diagnosis.hami.clusters import (
    CORES,
    MEMORY,
    PERCENTAGE,
    asking,
    card,
    device_config,
    given,
    quota,
    shared,
    verdicts_by_node,
)
from tests.diagnosis.states import GPU, Object, container, pod, snapshot

DEFAULT = HamiSettings()
ONE = {GPU: "1"}
WHOLE = CardRequest(1, 0, 100, 0)
REQUESTS: list[tuple[dict[str, str], HamiSettings, CardRequest | None]] = [
    ({}, DEFAULT, None),
    ({"cpu": "4"}, DEFAULT, None),
    ({GPU: "0"}, DEFAULT, None),
    ({GPU: "500m"}, DEFAULT, None),
    ({GPU: "-1"}, DEFAULT, None),
    ({GPU: "3G"}, DEFAULT, None),
    (ONE, DEFAULT, WHOLE),
    (ONE, HamiSettings(default_memory=4000), CardRequest(1, 4000, None, 0)),
    (ONE, HamiSettings(default_cores=30), CardRequest(1, 0, 100, 30)),
    ({GPU: "2", MEMORY: "4000"}, DEFAULT, CardRequest(2, 4000, None, 0)),
    ({GPU: "2", MEMORY: "4k"}, DEFAULT, CardRequest(2, 4000, None, 0)),
    (ONE | {MEMORY: "4"}, HamiSettings(memory_factor=1024), CardRequest(1, 4096, None, 0)),
    (ONE | {MEMORY: "0"}, DEFAULT, WHOLE),
    (ONE | {PERCENTAGE: "50"}, DEFAULT, CardRequest(1, 0, 50, 0)),
    (ONE | {PERCENTAGE: "50", MEMORY: "1000"}, DEFAULT, CardRequest(1, 1000, 50, 0)),
    (ONE | {PERCENTAGE: "0"}, DEFAULT, WHOLE),
    (ONE | {PERCENTAGE: "150"}, DEFAULT, WHOLE),
    (ONE | {CORES: "30"}, HamiSettings(default_cores=50), CardRequest(1, 0, 100, 30)),
    (ONE | {CORES: "250"}, DEFAULT, CardRequest(1, 0, 100, 100)),
    # 4Gi is a number of MiB like any other: more than 32 bits hold.
    (ONE | {MEMORY: "4Gi"}, DEFAULT, None),
    ({"example.com/gpu": "3"}, HamiSettings(count_name="example.com/gpu"), CardRequest(3, 0, 100, 0)),
]


@pytest.mark.parametrize(("limits", "settings", "request_"), REQUESTS)
def test_request_is_read_from_limits_or_requests(
    limits: dict[str, str], settings: HamiSettings, request_: CardRequest | None
) -> None:
    assert request_of(Container("main", limits=limits), settings) == request_
    assert request_of(Container("main", requests=limits), settings) == request_


@pytest.mark.parametrize(
    ("limits", "settings", "added"),
    [
        ({"cpu": "4"}, DEFAULT, {}),
        (ONE, DEFAULT, {CORES: "100"}),
        (ONE | {MEMORY: "4000"}, DEFAULT, {}),
        (ONE | {PERCENTAGE: "50"}, DEFAULT, {}),
        (ONE | {PERCENTAGE: "100"}, DEFAULT, {CORES: "100"}),
        (ONE | {CORES: "10"}, DEFAULT, {}),
        ({MEMORY: "4000"}, DEFAULT, ONE),
        ({MEMORY: "4000"}, HamiSettings(default_cards=2), {GPU: "2"}),
        ({MEMORY: "4000"}, HamiSettings(default_cards=0), {}),
        ({PERCENTAGE: "100"}, DEFAULT, ONE | {CORES: "100"}),
    ],
)
def test_webhook_adds_a_number_of_cards_and_makes_a_whole_card_exclusive(
    limits: dict[str, str], settings: HamiSettings, added: dict[str, str]
) -> None:
    assert admitted(Container("main", limits=limits), settings).limits == limits | added


def usage(number: int = 0, /, used: Share | None = None, **changes: Any) -> CardUsage:
    """A card of 32 GiB for ten pods. `cordoned` is of its state; all other changes are of the card."""
    cordoned = changes.pop("cordoned", False)
    plain: dict[str, Any] = {"slots": 10, "memory": 32768, "cores": 100, "model": "NVIDIA-Tesla V100", "healthy": True}
    return CardUsage(Card(f"GPU-{number}", number, **plain | changes), used or Share(), cordoned=cordoned)


def requests(cards: int = 1, memory: int = 1000, cores: int = 10, percentage: int | None = None) -> CardRequest:
    return CardRequest(cards, memory, percentage, cores)


def verdict_on(
    *cards: CardUsage, request: CardRequest, quota: QuotaAmounts | None = None, **options: Any
) -> NodeVerdict:
    conditions = PodConditions(CardOptions(**options), quota or QuotaAmounts())
    return fit(cards, [(Container("main"), request)], conditions)


ONE_CARD: list[tuple[CardUsage, CardRequest, dict[str, Any], Code | None]] = [
    (usage(), requests(), {}, None),
    (usage(healthy=False), requests(), {}, Code.UNHEALTHY),
    (usage(healthy=False, used=Share(10, 32768, 100)), requests(), {}, Code.UNHEALTHY),
    (usage(cordoned=True), requests(), {}, Code.CORDONED),
    (usage(), requests(), {"use_types": ("v100", "A100")}, None),
    (usage(), requests(), {"use_types": ("A100",)}, Code.TYPE),
    (usage(), requests(), {"avoid_types": ("tesla",)}, Code.TYPE),
    (usage(), requests(), {"mode": "mig"}, Code.TYPE),
    (usage(), requests(), {"mode": "hami-core"}, None),
    (usage(), requests(), {"use_uuids": ("GPU-9", "GPU-0")}, None),
    (usage(), requests(), {"use_uuids": ("GPU-9",)}, Code.UUID),
    (usage(), requests(), {"use_uuids": ("GPU-0",), "avoid_uuids": ("GPU-0",)}, Code.UUID),
    (usage(used=Share(9, 0, 0)), requests(), {}, None),
    (usage(used=Share(15, 32768, 0)), requests(), {}, Code.SLOTS),
    (usage(used=Share(1, 0, 0)), requests(), {"gpu_policy": "binpack, mutex"}, Code.EXCLUSIVE),
    (usage(), requests(), {"gpu_policy": "mutex"}, None),
    (usage(), requests(memory=101), {"quota": QuotaAmounts(memory=100)}, Code.QUOTA),
    (usage(), requests(memory=100), {"quota": QuotaAmounts(memory=100)}, None),
    (usage(), requests(cores=1), {"quota": QuotaAmounts(cores=0)}, Code.QUOTA),
    (usage(used=Share(1, 32256, 0)), requests(memory=512), {}, None),
    (usage(used=Share(1, 32256, 95)), requests(memory=513, cores=50), {}, Code.MEMORY),
    (usage(used=Share(1, 16385, 0)), requests(memory=0, percentage=50), {}, Code.MEMORY),
    (usage(used=Share(1, 16384, 0)), requests(memory=0, percentage=50), {}, None),
    (usage(used=Share(1, 0, 50)), requests(cores=50), {}, None),
    (usage(used=Share(1, 0, 50)), requests(cores=51), {}, Code.CORES),
    (usage(cores=0), requests(cores=0), {}, None),
    (usage(used=Share(1, 0, 0)), requests(cores=100), {}, Code.EXCLUSIVE),
    (usage(), requests(cores=100), {}, None),
    (usage(cores=200, used=Share(1, 0, 50)), requests(cores=100), {}, None),
    (usage(used=Share(1, 0, 100)), requests(cores=0), {}, Code.COMPUTE),
    (usage(used=Share(1, 0, 99)), requests(cores=0), {}, None),
    (usage(mode="mig", largest_profile=9728), requests(memory=9728), {}, None),
    (usage(mode="mig", largest_profile=9728), requests(memory=9729), {}, Code.MIG),
]


@pytest.mark.parametrize(("state", "request_", "conditions", "code"), ONE_CARD)
def test_card_has_the_first_code_that_applies(
    state: CardUsage, request_: CardRequest, conditions: dict[str, Any], code: Code | None
) -> None:
    verdict = verdict_on(state, request=request_, **conditions)
    assert verdict.fits is (code is None)
    assert verdict.reason == ("" if code is None else f"1/1 {code.value}")
    assert [card.code for card in verdict.cards] == [code]


FULL = Share(1, 32768, 0)
NODES: list[tuple[list[CardUsage], CardRequest, dict[str, Any], str]] = [
    ([usage()], requests(2), {}, "1/1 NodeInsufficientDevice"),
    (
        [usage(0), usage(1), usage(2, used=FULL)],
        requests(3),
        {},
        "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest",
    ),
    ([usage(0, numa=0), usage(1, numa=1)], requests(2), {}, ""),
    ([usage(0, numa=0), usage(1, numa=1), usage(2, numa=1)], requests(2), {"numa_bind": True}, ""),
    ([usage(0, numa=0), usage(1, numa=1)], requests(2), {"numa_bind": True}, "2/2 NumaNotFit"),
    ([usage(0), usage(1)], requests(2), {"quota": QuotaAmounts(memory=2000)}, ""),
    ([usage(0), usage(1)], requests(2), {"quota": QuotaAmounts(memory=1999)}, "2/2 ResourceQuotaNotFit"),
    # Several instances of one card in MIG mode count as several cards.
    ([usage(mode="mig", largest_profile=9728)], requests(2), {}, ""),
]


@pytest.mark.parametrize(("cards", "request_", "conditions", "reason"), NODES)
def test_node_needs_enough_cards_for_a_container(
    cards: list[CardUsage], request_: CardRequest, conditions: dict[str, Any], reason: str
) -> None:
    assert verdict_on(*cards, request=request_, **conditions).reason == reason


LARGE, SMALL = (Container("large"), requests(memory=30000)), (Container("small"), requests(memory=10000))
INIT, PROXY = (Container("init", init=True), requests(memory=30000)), (Container("proxy"), None)
CONTAINERS: list[tuple[list[CardUsage], list[tuple[Container, CardRequest | None]], PodConditions, str]] = [
    ([usage()], [LARGE, PROXY, SMALL], PodConditions(), "small"),
    ([usage(0), usage(1)], [LARGE, SMALL], PodConditions(), ""),
    ([usage()], [INIT, LARGE], PodConditions(quota=QuotaAmounts(memory=30000)), ""),
    ([usage(0), usage(1)], [LARGE, SMALL], PodConditions(quota=QuotaAmounts(memory=30000)), "small"),
    ([usage(used=Share(1, 10000, 0))], [INIT, SMALL], PodConditions(), "init"),
    # The extender's policy: spread takes the emptiest card, binpack the fullest.
    ([usage(0), usage(1, used=Share(1, 20000, 0))], [SMALL, LARGE], PodConditions(), "large"),
    (
        [usage(0), usage(1, used=Share(1, 20000, 0))],
        [SMALL, LARGE],
        PodConditions(CardOptions(gpu_policy="binpack")),
        "",
    ),
]


@pytest.mark.parametrize(("cards", "containers", "conditions", "refused"), CONTAINERS)
def test_container_gets_the_cards_as_left_by_the_previous_ones(
    cards: list[CardUsage],
    containers: list[tuple[Container, CardRequest | None]],
    conditions: PodConditions,
    refused: str,
) -> None:
    verdict = fit(cards, containers, conditions)
    assert (verdict.fits, verdict.container if not verdict.fits else "") == (not refused, refused)


TWO = (card(0), card(1, numa=1))
STATES: list[tuple[str, list[Object], dict[str, str]]] = [
    (
        "each node by its own cards",
        [
            shared("a", *TWO),
            shared("b", card(0, health=False)),
            given("x", "a", "GPU-0,NVIDIA,30000,0:;"),
            given("y", "a", "GPU-1,NVIDIA,1000,100:;"),
            asking("new", memory=20000, cores=10),
        ],
        {"a": "1/2 CardInsufficientMemory, 1/2 CardInsufficientCore", "b": "1/1 CardNotHealth"},
    ),
    (
        "a pod that ended",
        [shared("a", card(0)), given("x", "a", "GPU-0,NVIDIA,32768,0:;", phase="Succeeded"), asking("new", memory=1)],
        {"a": ""},
    ),
    (
        "a grant before the binding",
        [
            shared("a", card(0)),
            given("x", "", "GPU-0,NVIDIA,32768,0:;", annotations={"hami.io/vgpu-node": "a"}),
            asking("new", memory=1),
        ],
        {"a": "1/1 CardInsufficientMemory"},
    ),
    (
        "a used quota",
        [
            shared("a", card(0)),
            quota(gpumem="8192"),
            given("x", "a", "GPU-0,NVIDIA,4096,0:;"),
            asking("new", memory=4097),
        ],
        {"a": "1/1 ResourceQuotaNotFit"},
    ),
    (
        "a quota of 0",
        [shared("a", card(0)), quota(gpucores="0"), asking("new", cores=1)],
        {"a": "1/1 ResourceQuotaNotFit"},
    ),
    (
        "units of memory",
        [shared("a", card(0)), device_config("nvidia: {memoryFactor: 1024}"), asking("new", memory=33)],
        {"a": "1/1 CardInsufficientMemory"},
    ),
]


@pytest.mark.parametrize(("state", "reasons"), [pair[1:] for pair in STATES], ids=[pair[0] for pair in STATES])
def test_cluster_has_a_verdict_for_each_node(state: list[Object], reasons: dict[str, str]) -> None:
    assert {name: verdict.reason for name, verdict in verdicts_by_node(snapshot(*state), "new").items()} == reasons


@pytest.mark.parametrize(("initialized", "fits"), [("True", True), ("False", False)])
def test_ended_init_container_holds_nothing(initialized: str, fits: bool) -> None:
    spec = {"initContainers": [container("prepare", 1)], "containers": [container("main", 1)]}
    conditions = [{"type": "Initialized", "status": initialized}]
    running = given("x", "a", "GPU-0,NVIDIA,30000,0:;GPU-0,NVIDIA,1000,0:;", spec=spec, conditions=conditions)
    state = snapshot(shared("a", card(0)), running, asking("new", memory=20000))
    assert verdicts_by_node(state, "new")["a"].fits is fits


def test_running_sidecar_holds_its_share() -> None:
    half = {GPU: "1", MEMORY: "20000"}
    sidecar = container("proxy", resources=half) | {"restartPolicy": "Always"}
    spec = {"initContainers": [sidecar], "containers": [container("main", resources=half)]}
    assert verdicts_by_node(snapshot(shared("a", card(0)), pod("new", spec=spec)), "new")["a"].fits
    running = given("x", "a", "GPU-0,NVIDIA,20000,0:;GPU-0,NVIDIA,10000,0:;", spec=spec)
    state = snapshot(shared("a", card(0)), running, asking("new", memory=3000))
    assert verdicts_by_node(state, "new")["a"].reason == "1/1 CardInsufficientMemory"


CARDS = st.builds(
    lambda used, healthy, numa: usage(used=used, healthy=healthy, numa=numa),
    st.builds(Share, st.integers(0, 11), st.integers(0, 33000), st.integers(0, 100)),
    st.booleans() | st.just(True),
    st.integers(0, 1),
)


@for_all(
    st.lists(CARDS, min_size=1, max_size=4),
    st.builds(requests, st.integers(1, 4), st.integers(0, 33000), st.sampled_from([0, 10, 50, 100])),
    st.booleans(),
    st.integers(1, 5000),
)
def test_fuller_cards_fit_no_more(states: list[CardUsage], request_: CardRequest, numa_bind: bool, more: int) -> None:
    cards = [replace(state, card=replace(state.card, uuid=f"GPU-{number}")) for number, state in enumerate(states)]
    fuller = [replace(cards[0], part=cards[0].part.plus(Share(1, more, 0))), *cards[1:]]
    before, after = (verdict_on(*each, request=request_, numa_bind=numa_bind) for each in (cards, fuller))
    assert len(before.cards) == len(cards)
    assert before.fits or not after.fits
    if before.fits:
        assert sum(verdict.code is None for verdict in before.cards) >= request_.cards
