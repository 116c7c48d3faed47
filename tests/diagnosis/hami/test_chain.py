"""A pod on its way through HAMi: intact links, and the broken one."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.answers.chain import Chain, LinkState
from gpu_healthcheck.diagnosis.answers.hami_chain import HamiLink, hami_chains
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from tests.diagnosis.hami.clusters import device_config
from tests.diagnosis.hami.hami_states import asking, hami, hami_node, unplaced, vgpu_pod
from tests.diagnosis.hami.test_allocating import bound
from tests.diagnosis.hami.test_two_installations import with_flags
from tests.diagnosis.hami.test_ways import NOT_PLACED, plain, rejected
from tests.diagnosis.states import Object, event, node, pod, snapshot

A = hami_node("a")
REFUSED = "0/1 nodes are available: 1 NodeUnfitPod."


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
def test_chain_names_the_broken_link(state: list[Object], link: HamiLink) -> None:
    [chain] = chains(*state)
    assert next(step.link for step in chain.steps if step.state is LinkState.BROKEN) is link
    assert all(step.problems for step in chain.steps if step.state is LinkState.BROKEN)


def test_chain_of_a_running_pod_shows_its_cards_and_policy() -> None:
    [chain] = chains(*hami(A), vgpu_pod("x", on="a", annotations={"hami.io/gpu-scheduler-policy": "binpack"}))
    assert chain.is_whole
    seen = {step.link: step.seen for step in chain.steps}
    assert seen[HamiLink.SCHEDULER] == "deployment/kube-system/hami-scheduler v2.9.0 is working"
    assert seen[HamiLink.FILTER] == "node a: 1024 MiB, 10 % of GPU-a-0; chosen by hami.io/gpu-scheduler-policy binpack"


def test_chain_shows_a_forced_core_limit() -> None:
    forced = device_config("nvidia: {gpuCorePolicy: force}")
    [chain] = chains(*hami(A), forced, vgpu_pod("x", on="a"))
    assert chain.is_whole
    assert chain.steps[-1].seen == "they run; cores are limited to 10 % even on an idle card: core policy force"
    own = asking(1, 1024, env=[{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "default"}])
    [chain] = chains(*hami(A), forced, vgpu_pod("x", own, on="a"))
    assert chain.steps[-1].seen == "they run"


def test_chain_shows_the_policy_of_the_scheduler() -> None:
    state = [
        with_flags(entry, "--gpu-scheduler-policy=binpack") if entry["kind"] == "Deployment" else entry
        for entry in hami(A)
    ]
    [chain] = chains(*state, vgpu_pod("x", on="a", annotations={"hami.io/node-scheduler-policy": "spread"}))
    seen = {step.link: step.seen for step in chain.steps}[HamiLink.FILTER]
    assert seen.endswith("chosen by hami.io/node-scheduler-policy spread, the scheduler's own cards binpack")


def test_waiting_link_shows_the_last_event() -> None:
    waits = vgpu_pod("x", conditions=[], age=1)
    [chain] = chains(*hami(A), waits, event(waits, "FilteringSucceed", "find fit node(a)", warning=False, minutes=0.2))
    [waiting] = [step for step in chain.steps if step.state is LinkState.WAITING]
    assert (waiting.link, waiting.seen) == (HamiLink.FILTER, "FilteringSucceed: find fit node(a)")


@pytest.mark.parametrize("state", [[node("b"), pod("x", 8, on="b")], [*hami(A), node("b"), pod("x", 8, on="b")]])
def test_pod_of_another_scheduler_has_no_chain(state: list[Object]) -> None:
    assert chains(*state) == ()
