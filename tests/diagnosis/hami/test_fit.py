"""HAMi's fit recomputed: the card for a pod, and the code for each unsuitable card."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnosis.hami.card_checks import PodConditions
from diagnosis.hami.card_requests import CardRequest
from diagnosis.hami.card_usage import CardUsage, Share
from diagnosis.hami.fit import ContainerRequest, NodeVerdict, fit
from diagnosis.hami.quota import Limit, QuotaAmounts
from diagnosis.hami.reasons import Code
from diagnosis.hami.versions import NEWEST, Version
from diagnosis.snapshot.hami_node import Card, MigProfile
from diagnosis.snapshot.hami_pod import CardOptions
from tests.diagnosis.hami.clusters import MEMORY, asking, card, device_config, given, judged, quota, scheduler, shared
from tests.diagnosis.states import GPU, Object, container, pod, snapshot

OLD: Version = (2, 9)


def held(number: int = 0, /, used: Share | None = None, **changes: Any) -> CardUsage:
    """A card of 32 GiB for ten pods. `cordoned` is of its state; all other changes are of the card."""
    aside = changes.pop("cordoned", False)
    plain: dict[str, Any] = {"slots": 10, "memory": 32768, "cores": 100, "kind": "NVIDIA-Tesla V100", "healthy": True}
    return CardUsage(Card(f"GPU-{number}", number, **plain | changes), used or Share(), cordoned=aside)


def fitted(*cards: CardUsage, asked: CardRequest, **terms: Any) -> NodeVerdict:
    return fit(cards, [ContainerRequest("main", asked)], PodConditions(**terms))


def asks(cards: int = 1, memory: int = 1000, cores: int = 10, percentage: int | None = None) -> CardRequest:
    return CardRequest(cards, memory, percentage, cores)


LIMITED = QuotaAmounts(memory=Limit("resourcequota/team/q", 100, 0))
FULL = Share(10, 32768, 100)
ONE_CARD: list[tuple[CardUsage, CardRequest, dict[str, Any], Code | None]] = [
    (held(), asks(), {}, None),
    (held(healthy=False), asks(), {}, Code.UNHEALTHY),
    (held(healthy=False, used=FULL), asks(), {}, Code.UNHEALTHY),
    (held(cordoned=True), asks(), {}, Code.CORDONED),
    (held(cordoned=True), asks(), {"version": OLD}, None),
    (held(), asks(), {"card_options": CardOptions(use_types=("v100", "A100"))}, None),
    (held(), asks(), {"card_options": CardOptions(use_types=("A100",))}, Code.TYPE),
    (held(), asks(), {"card_options": CardOptions(avoid_types=("tesla",))}, Code.TYPE),
    (held(), asks(), {"card_options": CardOptions(use_types=("",))}, None),
    (held(), asks(), {"card_options": CardOptions(avoid_types=("",))}, None),
    (held(), asks(), {"card_options": CardOptions(avoid_types=("",)), "version": OLD}, Code.TYPE),
    (held(), asks(), {"card_options": CardOptions(use_types=(" V100 ",))}, None),
    (held(), asks(), {"card_options": CardOptions(use_types=(" V100 ",)), "version": OLD}, Code.TYPE),
    (held(), asks(), {"card_options": CardOptions(mode="mig")}, Code.TYPE),
    (held(), asks(), {"card_options": CardOptions(mode="hami-core")}, None),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("GPU-9", " GPU-0"))}, None),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("GPU-9", " GPU-0")), "version": OLD}, Code.UUID),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("GPU-0",), avoid_uuids=("GPU-0",))}, Code.UUID),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("GPU-0",), avoid_uuids=("GPU-0",)), "version": OLD}, None),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("",)), "version": OLD}, Code.UUID),
    (held(), asks(), {"card_options": CardOptions(avoid_uuids=("GPU-9", "GPU-0")), "version": OLD}, Code.UUID),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("GPU-9",))}, Code.UUID),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("",))}, None),
    (held(), asks(), {"card_options": CardOptions(use_uuids=("", ""))}, Code.UUID),
    (held(), asks(), {"card_options": CardOptions(avoid_uuids=("GPU-0",))}, Code.UUID),
    (held(used=Share(10, 0, 0)), asks(), {"card_options": CardOptions(use_uuids=("GPU-9",))}, Code.UUID),
    (held(used=Share(9, 0, 0)), asks(), {}, None),
    (held(used=Share(10, 32768, 0)), asks(), {}, Code.SLOTS),
    (held(used=Share(15, 0, 0)), asks(), {}, Code.SLOTS),
    (held(used=Share(1, 0, 0)), asks(), {"card_options": CardOptions(gpu_policy="mutex")}, Code.EXCLUSIVE),
    (held(used=Share(1, 0, 0)), asks(), {"card_options": CardOptions(gpu_policy="mutex"), "version": OLD}, None),
    (held(), asks(), {"card_options": CardOptions(gpu_policy="binpack, mutex")}, None),
    (held(), asks(memory=500), {"room": LIMITED}, Code.QUOTA),
    (held(used=Share(1, 32768, 0)), asks(memory=500), {"room": LIMITED}, Code.QUOTA),
    (held(), asks(memory=100), {"room": LIMITED}, None),
    (held(used=Share(1, 32256, 0)), asks(memory=512), {}, None),
    (held(used=Share(1, 32256, 0)), asks(memory=513), {}, Code.MEMORY),
    (held(used=Share(1, 32256, 95)), asks(memory=513, cores=50), {}, Code.MEMORY),
    (held(used=Share(1, 32768, 0)), asks(memory=0), {}, None),
    (held(used=Share(1, 16385, 0)), asks(memory=0, percentage=50), {}, Code.MEMORY),
    (held(used=Share(1, 16384, 0)), asks(memory=0, percentage=50), {}, None),
    (held(memory=65536, used=Share(1, 40000, 0)), asks(memory=20000), {}, None),
    (held(used=Share(1, 0, 50)), asks(cores=50), {}, None),
    (held(used=Share(1, 0, 50)), asks(cores=51), {}, Code.CORES),
    (held(cores=0), asks(cores=50), {}, Code.CORES),
    (held(cores=0), asks(cores=0), {}, None),
    (held(used=Share(5, 0, 95)), asks(cores=100), {}, Code.CORES),
    (held(used=Share(1, 0, 0)), asks(cores=100), {}, Code.EXCLUSIVE),
    (held(), asks(cores=100), {}, None),
    (held(cores=200, used=Share(1, 0, 50)), asks(cores=100), {}, None),
    (held(used=Share(1, 0, 100)), asks(cores=0), {}, Code.COMPUTE),
    (held(used=Share(1, 0, 99)), asks(cores=0), {}, None),
]


@pytest.mark.parametrize(("state", "asked", "terms", "code"), ONE_CARD)
def test_one_card_takes_a_container_or_says_why(
    state: CardUsage, asked: CardRequest, terms: dict[str, Any], code: Code | None
) -> None:
    verdict = fitted(state, asked=asked, **terms)
    assert verdict.fits is (code is None)
    assert verdict.reason == ("" if code is None else f"1/1 {code.value}")
    assert [card.code for card in verdict.cards] == [code]


def test_a_node_with_too_few_cards_is_reported_in_each_versions_format() -> None:
    assert fitted(held(), asked=asks(2), version=OLD).reason == "NodeInsufficientDevice"
    assert fitted(held(), asked=asks(2)).reason == "1/1 NodeInsufficientDevice"


def test_cards_that_fit_are_counted_where_they_are_too_few() -> None:
    cards = held(0), held(1), held(2, used=Share(1, 32768, 0))
    assert fitted(*cards, asked=asks(3)).reason == "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest"
    old = fitted(*cards, asked=asks(3), version=OLD)
    assert old.reason == "1/3 CardInsufficientMemory, 1/3 AllocatedCardsInsufficientRequest"


def test_a_pod_bound_to_one_numa_node_needs_all_its_cards_there() -> None:
    cards = held(0, numa=0), held(1, numa=1), held(2, numa=1)
    both = fitted(*cards, asked=asks(2), card_options=CardOptions(numa_bind=True))
    assert set(both.chosen[0]) == {"GPU-1", "GPU-2"}
    apart = fitted(held(0, numa=0), held(1, numa=1), asked=asks(2), card_options=CardOptions(numa_bind=True))
    assert apart.counts == {Code.NUMA: 1, Code.TOO_FEW: 1}
    assert fitted(held(0, numa=0), held(1, numa=1), asked=asks(2)).fits


@pytest.mark.parametrize(("policy", "chosen"), [("binpack", "GPU-1"), ("spread", "GPU-0"), (None, "GPU-0")])
def test_the_policy_chooses_among_cards_that_fit(policy: str | None, chosen: str) -> None:
    cards = held(0), held(1, used=Share(1, 4096, 10))
    assert fitted(*cards, asked=asks(), card_options=CardOptions(gpu_policy=policy)).chosen == ((chosen,),)


def test_a_percentage_below_100_counts_for_nothing_where_cards_are_ranked() -> None:
    cards = held(0, memory=20480), held(1, memory=81920, used=Share(1, 0, 0))
    assert fitted(*cards, asked=asks(memory=10000, percentage=50)).chosen == (("GPU-0",),)
    assert fitted(*cards, asked=asks(memory=10000)).chosen == (("GPU-1",),)


def test_before_2_10_the_numa_node_came_before_the_policy() -> None:
    cards = held(0, numa=0, used=Share(1, 4096, 10)), held(1, numa=1, used=Share(2, 8192, 20))
    assert fitted(*cards, asked=asks(), version=OLD).chosen == (("GPU-1",),)
    assert fitted(*cards, asked=asks()).chosen == (("GPU-0",),)


def test_mutex_finds_the_card_that_nobody_is_on() -> None:
    cards = held(0, used=Share(1, 0, 0)), held(1)
    assert fitted(*cards, asked=asks(), card_options=CardOptions(gpu_policy="mutex")).chosen == (("GPU-1",),)
    assert not fitted(*cards, asked=asks(2), card_options=CardOptions(gpu_policy="mutex")).fits


def test_cards_beyond_those_that_are_taken_are_judged_too() -> None:
    verdict = fitted(held(0), held(1, healthy=False), held(2, used=FULL), asked=asks())
    assert [card.code for card in verdict.cards] == [None, Code.UNHEALTHY, Code.SLOTS]


def test_what_one_container_takes_the_next_one_lacks() -> None:
    wanted = [
        ContainerRequest("a", asks(memory=20000)),
        ContainerRequest("sidecar", None),
        ContainerRequest("b", asks(memory=20000)),
    ]
    verdict = fit([held()], wanted, PodConditions())
    assert (verdict.container, verdict.reason) == ("b", "1/1 CardInsufficientMemory")
    assert fit([held(0), held(1)], wanted, PodConditions()).chosen == (("GPU-0",), (), ("GPU-1",))


def test_init_containers_are_over_when_the_others_begin() -> None:
    wanted = [ContainerRequest("prepare", asks(memory=30000), init=True), ContainerRequest("main", asks(memory=30000))]
    assert fit([held()], wanted, PodConditions()).fits
    assert fit([held()], wanted, PodConditions(room=QuotaAmounts(Limit("", 30000, 0)))).fits
    too_large = [ContainerRequest("prepare", asks(memory=40000), init=True), ContainerRequest("main", asks())]
    assert fit([held()], too_large, PodConditions()).container == "prepare"
    assert fit([held()], too_large, PodConditions(version=OLD)).fits


def test_a_quota_counts_all_cards_of_a_pod() -> None:
    room = QuotaAmounts(memory=Limit("", 2500, 500))
    assert fitted(held(0), held(1), asked=asks(2), room=room).fits
    verdict = fitted(held(0), held(1), held(2), asked=asks(3), room=room)
    assert verdict.reason == "1/3 ResourceQuotaNotFit, 2/3 AllocatedCardsInsufficientRequest"


ONE_G = MigProfile("1g.10gb", 9728, 14, 1, tuple((start, 1) for start in range(7)))
THREE_G = MigProfile("3g.40gb", 40192, 42, 3, ((0, 4), (4, 4)))


def sliced(*placements: tuple[int, int]) -> CardUsage:
    usage = held(0, mode="mig", memory=81920, profiles=(ONE_G, THREE_G))
    return CardUsage(usage.card, placements=placements)


@pytest.mark.parametrize(
    ("state", "asked", "fits"),
    [
        (sliced(), asks(memory=8000), True),
        (sliced(), asks(memory=40000), True),
        (sliced(), asks(memory=50000), False),
        (sliced((0, 4)), asks(memory=20000), True),
        (sliced((3, 1), (6, 1)), asks(memory=20000), False),
        (sliced((3, 1), (6, 1)), asks(memory=9000), True),
        (sliced(), asks(2, memory=40000), True),
        (sliced(), asks(3, memory=40000), False),
        (sliced(), asks(7, memory=9000), True),
        (sliced(), asks(8, memory=9000), False),
    ],
)
def test_an_instance_of_mig_needs_a_profile_with_a_free_place(state: CardUsage, asked: CardRequest, fits: bool) -> None:
    verdict = fitted(state, asked=asked)
    assert verdict.fits is fits
    assert verdict.counts.get(Code.MIG, 0) == (0 if fits else 1)


GEOMETRIES = """
nvidia:
  knownMigGeometries:
    - models: ["V100"]
      allowedGeometries:
        - - {name: 1g.5gb, memory: 5120, core: 14, count: 2}
        - - {name: 2g.10gb, memory: 10240, core: 28, count: 1}
          - {name: 1g.5gb, memory: 5120, core: 14, count: 1}
"""
LAYOUTS: list[tuple[list[Object], int, str]] = [
    ([], 4000, ""),
    ([], 8000, ""),
    ([], 20000, "1/1 CardNotFoundCustomFilterRule"),
    ([given("x", "a", "GPU-0[0-0],NVIDIA,5120,14:;")], 4000, ""),
    ([given("x", "a", "GPU-0[0-0],NVIDIA,5120,14:;")], 8000, "1/1 CardNotFoundCustomFilterRule"),
    (
        [given("x", "a", "GPU-0[0-0],NVIDIA,5120,14:;"), given("y", "a", "GPU-0[0-1],NVIDIA,5120,14:;")],
        4000,
        "1/1 CardNotFoundCustomFilterRule",
    ),
    ([given("x", "a", "GPU-0[1-1],NVIDIA,5120,14:;")], 8000, ""),
]


@pytest.mark.parametrize(("there", "memory", "reason"), LAYOUTS)
def test_up_to_2_9_a_card_has_one_mig_layout_while_any_of_it_is_used(
    there: list[Object], memory: int, reason: str
) -> None:
    text = "GPU-0,7,32768,100,NVIDIA-Tesla V100,0,true,0,mig:"
    state = [shared("a", text=text), scheduler("v2.7.0"), device_config(GEOMETRIES), *there]
    fields = judged(snapshot(*state, asking("new", memory=memory, cores=10)), "new")
    assert fields["a"].reason == reason


def test_a_mig_task_on_a_card_that_is_in_no_mig_mode_makes_it_unhealthy() -> None:
    state = [shared("a", card(0)), given("x", "a", "GPU-0[0-0],NVIDIA,5120,14:;"), asking("new", memory=1)]
    assert judged(snapshot(*state), "new")["a"].reason == "1/1 CardNotHealth"


TWO = (card(0), card(1, numa=1))
STATES: list[tuple[str, list[Object], dict[str, str]]] = [
    ("room", [shared("a", *TWO), asking("new", memory=32768)], {"a": ""}),
    ("too much", [shared("a", *TWO), asking("new", 2, memory=40000)], {"a": "2/2 CardInsufficientMemory"}),
    (
        "each node its own",
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
        "a pod that ended holds nothing",
        [shared("a", card(0)), given("x", "a", "GPU-0,NVIDIA,32768,0:;", phase="Succeeded"), asking("new", memory=1)],
        {"a": ""},
    ),
    (
        "what was given counts before it is bound",
        [
            shared("a", card(0)),
            given("x", "", "GPU-0,NVIDIA,32768,0:;", annotations={"hami.io/vgpu-node": "a"}),
            asking("new", memory=1),
        ],
        {"a": "1/1 CardInsufficientMemory"},
    ),
    (
        "an exclusive pod",
        [shared("a", card(0)), given("x", "a", "GPU-0,NVIDIA,1,0:;"), asking("new", cores=100)],
        {"a": "1/1 CardInsufficientMemory"},
    ),
    ("a cordoned card", [shared("a", *TWO, annotations={"hami.io/device-cordon": "GPU-0,GPU-1"}), asking("new")], {
        "a": "2/2 CardCordoned"
    }),
    ("a node without HAMi", [shared("a", card(0)), asking("new"), shared("b", text="")], {
        "a": "",
        "b": "node unregistered",
    }),
    ("a form of another version", [shared("a", card(0)), scheduler("v2.7.1"), asking("new")], {
        "a": "node unregistered"
    }),
    ("scores that nobody can read", [
        shared("a", card(0), annotations={"hami.io/node-nvidia-score": "not-json"}),
        asking("new"),
    ], {"a": "node unregistered"}),
    ("scores of links", [
        shared("a", card(0), annotations={"hami.io/node-nvidia-score": '[{"uuid": "GPU-0"}]'}),
        asking("new"),
    ], {"a": ""}),
    ("a plugin that is gone", [shared("a", card(0), allocatable={"nvidia.com/gpu": "0"}), asking("new")], {
        "a": "node unregistered"
    }),
    ("a namespace's quota", [shared("a", card(0)), quota(gpumem="4096"), asking("new", memory=8192)], {
        "a": "1/1 ResourceQuotaNotFit"
    }),
    ("what is used up of it", [
        shared("a", card(0)),
        quota(gpumem="8192"),
        given("x", "a", "GPU-0,NVIDIA,4096,0:;"),
        asking("new", memory=4097),
    ], {"a": "1/1 ResourceQuotaNotFit"}),
    ("a quota of 0 blocks", [shared("a", card(0)), quota(gpucores="0"), asking("new", cores=1)], {
        "a": "1/1 ResourceQuotaNotFit"
    }),
    ("a quota of 0 once was none", [
        shared("a", card(0), text="GPU-0,10,32768,100,NVIDIA-V100,0,true:"),
        scheduler("v2.7.1"),
        quota(gpucores="0"),
        asking("new", cores=1),
    ], {"a": ""}),
    ("units of memory", [
        shared("a", card(0)),
        device_config("nvidia:\n  memoryFactor: 1024\n"),
        asking("new", memory=32),
    ], {"a": ""}),
    ("too many of them", [
        shared("a", card(0)),
        device_config("nvidia:\n  memoryFactor: 1024\n"),
        asking("new", memory=33),
    ], {"a": "1/1 CardInsufficientMemory"}),
]  # fmt: skip


@pytest.mark.parametrize(("state", "reasons"), [pair[1:] for pair in STATES], ids=[pair[0] for pair in STATES])
def test_a_cluster_answers_node_by_node(state: list[Object], reasons: dict[str, str]) -> None:
    assert {name: verdict.reason for name, verdict in judged(snapshot(*state), "new").items()} == reasons


def test_a_card_says_how_much_is_asked_and_how_much_is_free() -> None:
    state = [shared("a", card(0)), given("x", "a", "GPU-0,NVIDIA,8192,0:;"), asking("new", memory=40000)]
    (verdict,) = judged(snapshot(*state), "new")["a"].cards
    assert (verdict.code, verdict.asked, verdict.free) == (Code.MEMORY, 40000, 24576)


def test_an_init_container_that_ended_holds_nothing_more() -> None:
    shares = "GPU-0,NVIDIA,30000,0:;GPU-0,NVIDIA,1000,0:;"
    init = container("prepare", 1)

    def left(status: str) -> bool:
        condition = {"type": "Initialized", "status": status}
        spec = {"initContainers": [init], "containers": [container("main", 1)]}
        running = given("x", "a", shares, spec=spec, conditions=[condition])
        return judged(snapshot(shared("a", card(0)), running, asking("new", memory=20000)), "new")["a"].fits

    assert left("True")
    assert not left("False")


def test_a_sidecar_is_judged_alone() -> None:
    half = {GPU: "1", MEMORY: "20000"}
    sidecar = container("proxy", resources=half) | {"restartPolicy": "Always"}
    spec = {"initContainers": [sidecar], "containers": [container("main", resources=half)]}
    assert judged(snapshot(shared("a", card(0)), pod("new", spec=spec)), "new")["a"].fits
    running = given("x", "a", "GPU-0,NVIDIA,20000,0:;GPU-0,NVIDIA,10000,0:;", spec=spec)
    state = snapshot(shared("a", card(0)), running, asking("new", memory=3000))
    assert judged(state, "new")["a"].reason == "1/1 CardInsufficientMemory"


CARDS = st.builds(
    lambda number, used, healthy, numa: held(number, used=used, healthy=healthy, numa=numa),
    st.just(0),
    st.builds(Share, st.integers(0, 11), st.integers(0, 33000), st.integers(0, 100)),
    st.booleans() | st.just(True),
    st.integers(0, 1),
)
ASKED = st.builds(asks, st.integers(1, 4), st.integers(0, 33000), st.sampled_from([0, 10, 50, 100]))
TERMS = st.builds(
    PodConditions,
    st.builds(
        CardOptions,
        numa_bind=st.booleans(),
        gpu_policy=st.sampled_from([None, "binpack", "spread", "mutex", "topology-aware"]),
    ),
    version=st.sampled_from([(2, 6), OLD, NEWEST]),
)


@for_all(st.lists(CARDS, max_size=8), ASKED, TERMS)
def test_an_answer_is_whole(states: list[CardUsage], asked: CardRequest, terms: PodConditions) -> None:
    cards = [CardUsage(replace(usage.card, uuid=f"GPU-{n}"), usage.part) for n, usage in enumerate(states)]
    verdict = fit(cards, [ContainerRequest("main", asked)], terms)
    assert len(verdict.cards) == len(cards)
    codes = Counter(card.code for card in verdict.cards)
    if verdict.fits:
        assert len(set(verdict.chosen[0])) == asked.cards
        assert codes[None] >= asked.cards
        if terms.card_options.numa_bind:
            numa = {card.card.uuid: card.card.numa for card in cards}
            assert terms.by_topology or len({numa[text] for text in verdict.chosen[0]}) == 1
    elif Code.NO_SUCH_NUMBER not in verdict.counts:
        refused = {code: number for code, number in verdict.counts.items() if code not in (Code.TOO_FEW, Code.NUMA)}
        assert refused == {code: codes[code] for code in codes if code not in (None, Code.NUMA)}
        assert codes[None] < asked.cards or terms.card_options.numa_bind


@for_all(st.lists(CARDS, min_size=1, max_size=4), ASKED, st.integers(0, 3), st.integers(1, 5000))
def test_a_card_that_holds_more_takes_no_more(
    states: list[CardUsage], asked: CardRequest, place: int, more: int
) -> None:
    cards = [CardUsage(replace(usage.card, uuid=f"GPU-{n}"), usage.part) for n, usage in enumerate(states)]
    fuller = list(cards)
    place %= len(cards)
    fuller[place] = CardUsage(cards[place].card, cards[place].part.plus(Share(1, more, 0)))
    before, after = (fit(each, [ContainerRequest("main", asked)], PodConditions()) for each in (cards, fuller))
    assert before.fits or not after.fits
