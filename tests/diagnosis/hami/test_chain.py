"""A pod on its way through HAMi: intact links, and the broken one."""

from __future__ import annotations

import pytest

from diagnosis.chain import Chain, LinkState
from diagnosis.diagnose import diagnose
from diagnosis.hami_chain import HamiLink, hami_chains
from tests.diagnosis.hami.clusters import device_config
from tests.diagnosis.hami.hami_states import asking, hami, hami_node, unplaced, vgpu_pod
from tests.diagnosis.hami.test_allocating import bound
from tests.diagnosis.hami.test_two_installations import with_flags
from tests.diagnosis.hami.test_ways import NOT_PLACED, plain, rejected
from tests.diagnosis.states import Object, event, node, pod, snapshot

A = hami_node("a")
REFUSED = "0/1 nodes are available: 1 NodeUnfitPod."


def test_links_keep_their_names_in_json() -> None:
    assert [link.value for link in HamiLink] == [
        "HAMi's webhook gives it HAMi's scheduler",
        "HAMi's scheduler looks at it",
        "cards of a node take it",
        "it is bound there, with its cards noted on it",
        "the node's device plugin hands the cards out",
        "its containers run on them",
    ]


def chains(*state: Object) -> tuple[Chain, ...]:
    seen = snapshot(*state)
    own = [pod for pod in seen.pods if pod.meta.namespace == "team"]
    return hami_chains(seen, own, diagnose(seen).problems)


BROKEN: list[tuple[str, list[Object], HamiLink]] = [
    ("the webhook was not asked", [*hami(A), plain()], HamiLink.WEBHOOK),
    ("the webhook did not answer, and the kubelet refused", [*hami(A), rejected(NOT_PLACED)], HamiLink.WEBHOOK),
    (
        "the extender does not answer",
        [*hami(A), unplaced("x", 'Post "https://127.0.0.1:443/filter": EOF', reason="SchedulerError")],
        HamiLink.SCHEDULER,
    ),
    ("no card has room", [*hami(A), unplaced("x", REFUSED, asking(1, 40000))], HamiLink.FILTER),
    (
        "what was decided can't be written",
        [*hami(A), unplaced("x", "binding rejected: etcdserver: request timed out", reason="SchedulerError")],
        HamiLink.BIND,
    ),
    ("the plugin does not answer", [*hami(A), bound("allocating", 20)], HamiLink.PLUGIN),
]


@pytest.mark.parametrize(("state", "link"), [pair[1:] for pair in BROKEN], ids=[pair[0] for pair in BROKEN])
def test_the_link_that_broke_is_named(state: list[Object], link: HamiLink) -> None:
    [chain] = chains(*state)
    assert next(step.link for step in chain.steps if step.state is LinkState.BROKEN) is link
    assert all(step.problems for step in chain.steps if step.state is LinkState.BROKEN)


def test_a_pod_that_runs_shows_its_card_and_by_what_it_was_chosen() -> None:
    [chain] = chains(*hami(A), vgpu_pod("x", on="a", annotations={"hami.io/gpu-scheduler-policy": "binpack"}))
    assert chain.is_whole
    seen = {step.link: step.seen for step in chain.steps}
    assert seen[HamiLink.SCHEDULER] == "deployment/kube-system/hami-scheduler v2.9.0 is working"
    assert seen[HamiLink.FILTER] == "node a: 1024 MiB, 10 % of GPU-a-0; chosen by hami.io/gpu-scheduler-policy binpack"


def test_a_limit_of_cores_that_always_holds_is_shown_and_no_fault() -> None:
    forced = device_config("nvidia: {gpuCorePolicy: force}")
    [chain] = chains(*hami(A), forced, vgpu_pod("x", on="a"))
    assert chain.is_whole
    assert chain.steps[-1].seen == "they run; cores are held to 10 % also on a card that is idle: core policy force"
    own = asking(1, 1024, env=[{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "default"}])
    [chain] = chains(*hami(A), forced, vgpu_pod("x", own, on="a"))
    assert chain.steps[-1].seen == "they run"


def test_the_schedulers_own_policy_is_shown_where_the_pod_names_none() -> None:
    state = [
        with_flags(entry, "--gpu-scheduler-policy=binpack") if entry["kind"] == "Deployment" else entry
        for entry in hami(A)
    ]
    [chain] = chains(*state, vgpu_pod("x", on="a", annotations={"hami.io/node-scheduler-policy": "spread"}))
    seen = {step.link: step.seen for step in chain.steps}[HamiLink.FILTER]
    assert seen.endswith("chosen by hami.io/node-scheduler-policy spread, the scheduler's own cards binpack")


def test_a_pod_that_waits_for_its_turn_shows_hamis_last_word() -> None:
    waits = vgpu_pod("x", conditions=[], age=1)
    [chain] = chains(*hami(A), waits, event(waits, "FilteringSucceed", "find fit node(a)", warning=False, minutes=0.2))
    [waiting] = [step for step in chain.steps if step.state is LinkState.WAITING]
    assert (waiting.link, waiting.seen) == (HamiLink.FILTER, "FilteringSucceed: find fit node(a)")


@pytest.mark.parametrize("state", [[node("b"), pod("x", 8, on="b")], [*hami(A), node("b"), pod("x", 8, on="b")]])
def test_of_a_pod_that_is_not_hamis_nothing_is_shown(state: list[Object]) -> None:
    assert chains(*state) == ()
