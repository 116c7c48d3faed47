"""HAMi's annotations on a Node: registered cards, our entries among the cordons, and the version of its schedulers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.node.hami import (
    CARDS,
    CORDON,
    card_ids,
    cordon_change,
    cordoned,
    our_cordons,
    scheduler_places,
    why_ignored,
)
from gpu_healthcheck.healthcheck.node.state import DEVICE_CORDON, NodeState

A, B, C = (f"GPU-00000000-51e0-4000-8000-00000000000{end}" for end in "abc")


def node(listed: str | None = None, ours: str | None = None, **more: str) -> NodeState:
    annotations = {CORDON: listed, DEVICE_CORDON: ours, **more}
    return NodeState("n", annotations={key: text for key, text in annotations.items() if text is not None})


def after(state: NodeState, wanted: set[str]) -> tuple[str | None, str | None]:
    """Return HAMi's list and our entries after the write."""
    changed = {**state.annotations, **cordon_change(state, wanted)}
    return changed.get(CORDON), changed.get(DEVICE_CORDON)


@pytest.mark.parametrize(
    ("state", "wanted", "listed", "ours"),
    [
        (node(), set(), None, None),
        (node(), {A}, A, A),
        (node(), {B, A}, f"{A},{B}", f"{A},{B}"),
        (node(A, A), {A}, A, A),
        (node(A, A), {A, B}, f"{A},{B}", f"{A},{B}"),
        (node(f"{A},{B}", f"{A},{B}"), {B}, B, B),
        (node(A, A), set(), None, None),
        # A person's entries stay, also for the same GPU.
        (node(B), {A}, f"{B},{A}", A),
        (node(f"{B},{A}", A), set(), B, None),
        (node(A), {A}, A, None),
        (node(A), set(), A, None),
        (node(f"{A},{A}", A), set(), A, None),
        (node(f" {B} ,, {C}"), set(), f" {B} ,, {C}", None),
        (node(f" {B} , {A}", A), set(), f" {B} ", None),
        # A person removed ours: it is restored while the finding is active, and forgotten afterwards.
        (node(None, A), {A}, A, A),
        (node(B, A), {A}, f"{B},{A}", A),
        (node(B, A), set(), B, None),
        # A person removed theirs.
        (node("", None), {A}, A, A),
        # Another GPU answers: the old entry goes, the new one comes.
        (node(f"{C},{A}", A), {B}, f"{C},{B}", B),
        # Text that is no UUID is never ours.
        (node("all", "all"), set(), "all", "all"),
    ],
)
def test_cordon_change_keeps_entries_of_others(
    state: NodeState, wanted: set[str], listed: str | None, ours: str | None
) -> None:
    assert after(state, wanted) == (listed, ours)


def test_unlisted_entry_is_no_cordon() -> None:
    assert our_cordons(node(f"{A}, {B}", f"{A},{C}")) == {A}
    assert our_cordons(node(f"{A},{B}")) == our_cordons(node(None, A)) == frozenset()


@given(
    st.lists(st.sampled_from((A, B, C, "", " ", "x"))),
    st.sets(st.sampled_from((A, B, C))),
    st.lists(st.sets(st.sampled_from((A, B, C)))),
)
def test_cordons_of_others_remain_after_any_findings(
    listed: list[str], claimed: set[str], steps: list[set[str]]
) -> None:
    state = node(",".join(listed))
    for wanted in (*steps, set()):
        text, ours = after(state, wanted)
        state = node(text, ours)
        assert wanted <= set(cordoned(state))
    assert cordoned(state) == tuple(entry.strip() for entry in listed if entry.strip())
    assert DEVICE_CORDON not in state.annotations
    # Whatever another client wrote into our own list, each requested card is cordoned.
    assert claimed <= set(cordoned(node(*after(node(",".join(listed), ",".join(claimed)), claimed))))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (f'[{{"id":"{A}","count":10,"health":true}},{{"id":"{B}"}}]', {A, B}),
        ("[]", set()),
        (f"{A},10,32768,100,NVIDIA-A100,0,true:", None),
        ("", None),
        ("null", None),
        ("[1]", None),
        ('[{"count":10}]', None),
        (f'[{{"id":"{A}","id":"{B}"}}]', None),
        ("[" * 100_000, None),
    ],
)
def test_card_ids_are_read_from_json(text: str, ids: set[str] | None) -> None:
    state = node(**{CARDS: text})
    if ids is None:
        with pytest.raises(ValueError, match=r"."):
            card_ids(state)
    else:
        assert card_ids(state) == ids


def deployment(image: str = "docker.io/projecthami/hami:v2.10.0", **status: Any) -> dict[str, Any]:
    containers = [{"name": "kube-scheduler", "image": "k:v1.37.2"}, {"name": "vgpu-scheduler-extender", "image": image}]
    return {
        "metadata": {"namespace": "kube-system", "name": "hami-scheduler", "generation": 3},
        "spec": {"template": {"spec": {"containers": containers}}},
        "status": {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, **status},
    }


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("projecthami/hami:v2.10.0", ""),
        ("registry:5000/projecthami/hami:2.10.1-amd64", ""),
        (f"projecthami/hami:v2.11.3@sha256:{'0' * 64}", ""),
        ("projecthami/hami:v3.0.0", ""),
        ("projecthami/hami:v2.9.0", "is older than 2.10"),
        ("projecthami/hami:v1.20.0", "is older than 2.10"),
        ("projecthami/hami:v2.10.0-rc1", "has no release number"),
        ("projecthami/hami:v2.10", "has no release number"),
        ("projecthami/hami:latest", "has no release number"),
        ("projecthami/hami", "has no release number"),
        ("registry:5000/v2.10.0/hami", "has no release number"),
        (f"projecthami/hami@sha256:{'0' * 64}", "has no release number"),
        ("", "has no release number"),
    ],
)
def test_scheduler_before_2_10_ignores_cordons(image: str, why: str) -> None:
    assert why in why_ignored(deployment(image)) if why else why_ignored(deployment(image)) == ""


@pytest.mark.parametrize(
    "status",
    [
        {"observedGeneration": 2},
        {"updatedReplicas": 1},
        {"replicas": 3},
        {"replicas": 0, "updatedReplicas": 0},
        {"replicas": None, "updatedReplicas": None},
    ],
)
def test_scheduler_in_a_rollout_may_ignore_cordons(status: dict[str, Any]) -> None:
    assert "does not run, or is being updated" in why_ignored(deployment(**status))


def test_deployment_without_extender_may_ignore_cordons() -> None:
    other = deployment()
    del other["spec"]["template"]["spec"]["containers"][1]
    assert "has no container vgpu-scheduler-extender" in why_ignored(other)


def test_webhook_names_the_scheduler() -> None:
    service = {"namespace": "kube-system", "name": "hami-scheduler", "path": "/webhook"}
    webhooks = [
        {"name": "vgpu.hami.io", "clientConfig": {"service": service}},
        {"name": "vgpu.hami.io", "clientConfig": {"url": "https://example.com"}},
        {"name": "other.example.com", "clientConfig": {"service": {"namespace": "a", "name": "b"}}},
    ]
    assert list(scheduler_places({"webhooks": webhooks})) == [("kube-system", "hami-scheduler")]
    assert not list(scheduler_places({}))


ANY = st.one_of(st.text(max_size=60), st.lists(st.sampled_from((A, B, "", " ", ",", "x", "\n"))).map(",".join))


@given(ANY, ANY, ANY, st.sets(st.sampled_from((A, B))))
def test_any_text_of_other_clients_is_kept(cards: str, listed: str, ours: str, wanted: set[str]) -> None:
    state = node(listed, ours, **{CARDS: cards})
    with suppress(ValueError):
        card_ids(state)
    text, names = after(state, wanted)
    left = set(cordoned(node(text)))
    claimed = {entry.strip() for entry in ours.split(",")} & {A, B, C}
    assert wanted <= left
    assert set(cordoned(state)) - claimed <= left
    assert our_cordons(node(text, names)) <= wanted
