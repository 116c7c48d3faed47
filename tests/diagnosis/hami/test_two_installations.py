"""Two HAMis in one cluster: each pod by the one that it asks, each node by the one that serves it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from diagnosis.answers.allocation import allocation
from diagnosis.answers.hami_chain import hami_chains
from diagnosis.answers.node_inventory import inventory
from diagnosis.answers.pod_fit import by_rules, would_fit
from diagnosis.hami.command_line import CommandLine
from diagnosis.hami.installation import installation_of, installations, serving
from diagnosis.hami.scheduler_state import books_of, unregistered
from diagnosis.report.would_fit import page
from diagnosis.sources.redaction import redacted
from tests.diagnosis.hami.clusters import device_config, judged
from tests.diagnosis.hami.hami_states import asking, card, hami, hami_node, text_card, vgpu_pod
from tests.diagnosis.hami.test_filtering import filtered
from tests.diagnosis.states import GPU, Object, ago, condition, container, obj, results, snapshot
from tests.diagnosis.states import judged as diagnosed

OTHER = {"release": "lab-hami", "namespace": "lab"}
LAB = "lab.example/vgpu"
CONFIG = f"nvidia: {{resourceCountName: {LAB}, resourceMemoryName: lab.example/mem, defaultMemory: 2000}}"
FLAGS = ("--gpu-scheduler-policy=binpack", "--node-scheduler-policy", "spread", "--http_bind=0.0.0.0:443")


def own_config(text: str, **place: str) -> Object:
    entry = device_config(text, place["namespace"])
    entry["metadata"]["name"] = f"{place['release']}-scheduler-device"
    return entry


def profile(name: str, **place: str) -> Object:
    data = {"config.yaml": f"profiles:\n- schedulerName: {name}\n"}
    return obj("ConfigMap", f"{place['release']}-scheduler", place["namespace"], data=data)


def with_flags(entry: Object, *flags: str, **env: str) -> Object:
    """The Deployment of a scheduler with these on its extender's command line."""
    for each in entry["spec"]["template"]["spec"]["containers"]:
        if each["name"] == "vgpu-scheduler-extender":
            each |= {"command": ["scheduler", *flags]}
            each["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return entry


def lab_node(name: str = "b", **changes: Any) -> Object:
    cards = card(f"GPU-{name}-0", count=4), card(f"GPU-{name}-1", index=1, count=4)
    return hami_node(name, *cards, allocatable={GPU: "0", LAB: "8"}, capacity={GPU: "0", LAB: "8"}, **changes)


def cluster(*flags: str, **env: str) -> list[Object]:
    """2.7 of the chart's own names on node a; 2.9 of other names on node b."""
    first = hami(
        hami_node(
            "a",
            register="".join(text_card(f"GPU-a-{number}") for number in range(2)),
            offers=20,
            annotations={"hami.io/node-handshake": "Reported 2026-11-22 11:59:40 +0000 UTC"},
        ),
        version="v2.7.0",
    )
    second = hami(lab_node(), version="v2.9.2", **OTHER)
    names = {entry["metadata"]["name"] for entry in first if entry["kind"] == "Namespace"}
    second = [entry for entry in second if entry["kind"] != "Namespace" or entry["metadata"]["name"] not in names]
    second = [with_flags(entry, *flags, **env) if entry["kind"] == "Deployment" else entry for entry in second]
    return [*first, *second, own_config(CONFIG, **OTHER), profile("lab-scheduler", **OTHER)]


def lab_pod(name: str, memory: int = 1000, **changes: Any) -> Object:
    wants = container("main", resources={LAB: "1", "lab.example/mem": str(memory)})
    return vgpu_pod(name, wants, spec={"schedulerName": "lab-scheduler"}, **changes)


def test_two_in_working_order_are_no_fault() -> None:
    assert results(diagnosed(*cluster(), vgpu_pod("x", on="a"), lab_pod("y", on="b"))) == []


def test_each_has_its_own_names_version_and_nodes() -> None:
    installation, other = installations(snapshot(*cluster()))
    assert (
        installation.scheduler_name,
        installation.settings.count_name,
        installation.version,
        installation.nodes,
    ) == (
        *("hami-scheduler", GPU, (2, 7)),
        frozenset("a"),
    )
    assert (other.scheduler_name, other.settings.count_name, other.version, other.nodes) == (
        *("lab-scheduler", LAB, (2, 9)),
        frozenset("b"),
    )


def test_one_without_its_own_settings_has_not_those_of_the_other() -> None:
    seen = snapshot(*[entry for entry in cluster() if entry["metadata"]["name"] != "hami-scheduler-device"])
    assert [installation.settings.default_memory for installation in installations(seen)] == [0, 2000]


def test_a_pod_belongs_to_the_installation_of_its_scheduler_or_resources() -> None:
    plain = vgpu_pod("p", container("main", resources={LAB: "1"}), spec={"schedulerName": "default-scheduler"})
    seen = snapshot(*cluster(), vgpu_pod("x"), lab_pod("y"), plain)
    pods = [pod for pod in seen.pods if pod.meta.namespace == "team"]
    by = {pod.meta.name: own.name for pod in pods if (own := installation_of(seen, pod))}
    assert by == {"x": "hami", "y": "lab-hami", "p": "lab-hami"}


def test_each_scheduler_knows_the_cards_of_its_own_plugin() -> None:
    seen = [*cluster(), vgpu_pod("x", asking(1, 1000)), lab_pod("y")]
    whole = snapshot(*seen)
    assert [(name, verdict.fits) for name, verdict in judged(whole, "x").items()] == [("a", True), ("b", False)]
    assert [(name, verdict.fits) for name, verdict in judged(whole, "y").items()] == [("a", False), ("b", True)]
    verdict, other = (books_of(whole, each) for each in installations(whole))
    assert "lab-hami-scheduler, and it has no nvidia.com/gpu" in unregistered(whole.by_node["b"], verdict)
    assert f"hami-scheduler, and it has no {LAB}" in unregistered(whole.by_node["a"], other)


def test_a_pod_that_no_card_takes_is_answered_by_its_own_scheduler() -> None:
    refused = [condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available: 2 NodeUnfitPod.")]
    waits = filtered("1 nodes CardInsufficientMemory(b)", waiting=lab_pod("y", 30000, conditions=refused))
    diagnosis = diagnosed(*cluster(), *waits)
    assert results(diagnosis) == [("HamiCardMemoryShort", "pod/team/y")]
    (problem,) = diagnosis.problems
    assert "Request at most 24576 lab.example/mem: no card has more." in problem.found.remedy
    assert any(
        "card GPU-b-0 CardInsufficientMemory: 30000 MiB requested, 24576 free" in text
        for text in problem.found.evidence
    )


def test_an_uncreated_pod_belongs_to_the_installation_of_its_resources() -> None:
    seen = snapshot(*cluster(), lab_pod("y"))
    written = next(pod for pod in seen.pods if pod.meta.name == "y")
    admission = by_rules(seen, written, "")
    answer = would_fit(seen, written, admission)
    assert admission.pod.spec.scheduler == "lab-scheduler"
    assert [node.node for node in answer.nodes if node.fits] == ["b"]
    shown = "\n".join(line.plain for line in page([answer]))
    assert "GPU-b-0" in shown
    assert "GPU-a-0" not in shown


def test_each_node_offers_places_by_the_name_of_its_own() -> None:
    fields_of = {node.node: node for node in allocation(snapshot(*cluster(), lab_pod("y", on="b"))).nodes}
    assert [(pool.resource, pool.total) for pool in fields_of["a"].pools] == [(GPU, 20)]
    assert [(pool.resource, pool.total) for pool in fields_of["b"].pools] == [(LAB, 8)]


def test_the_handshake_is_read_by_the_release_that_serves_the_node() -> None:
    seen = snapshot(*cluster())
    by = {node.name: {row.what: row.value for row in inventory(seen, node)} for node in seen.nodes}
    assert "since 2.8" not in by["a"]["HAMi's handshake"]
    assert "since 2.8" in by["b"]["HAMi's handshake"]


def test_a_webhook_that_answers_says_nothing_of_the_other() -> None:
    state = cluster()
    hook = next(entry for entry in state if entry["metadata"]["name"] == "lab-hami-webhook")["webhooks"][0]
    hook["clientConfig"]["caBundle"] = ""
    without = ("HamiWebhookWithoutCa", "mutatingwebhookconfiguration/lab-hami-webhook")
    assert results(diagnosed(*state, vgpu_pod("x", on="a"))) == [without]


def test_a_pods_way_goes_through_its_own_scheduler_alone() -> None:
    seen = snapshot(*cluster(), lab_pod("y", on="b"))
    (chain,) = hami_chains(seen, [pod for pod in seen.pods if pod.meta.name == "y"], ())
    assert chain.steps[1].seen == "deployment/lab/lab-hami-scheduler v2.9.2 is working"


def test_one_that_is_seen_nowhere_serves_no_node() -> None:
    seen = snapshot(*cluster(), hami_node("c"))
    assert serving(seen, seen.by_node["c"]) is None


def test_the_extender_says_how_it_chooses() -> None:
    every = installations(snapshot(*cluster(*FLAGS, HAMI_NODELOCK_EXPIRE="10m")))
    assert every[0].command_line == CommandLine()
    line = every[1].command_line
    assert (line.gpu_policy, line.node_policy, line.lock_expires) == ("binpack", "spread", timedelta(minutes=10))


@pytest.mark.parametrize(("policy", "chosen"), [("spread", "GPU-b-1"), ("binpack", "GPU-b-0")])
def test_a_pod_without_a_policy_has_the_extenders(policy: str, chosen: str) -> None:
    held = lab_pod("h", on="b", annotations={"hami.io/vgpu-devices-allocated": "GPU-b-0,NVIDIA,1000,0:;"})
    seen = snapshot(*cluster(f"--gpu-scheduler-policy={policy}"), held, lab_pod("y"))
    assert judged(seen, "y")["b"].chosen == ((chosen,),)


def test_a_scheduler_that_looks_at_some_nodes_only_knows_no_card_of_others() -> None:
    seen = snapshot(*cluster("--node-label-selector=pool=lab"), lab_pod("y"))
    assert not judged(seen, "y")["b"].fits
    why = unregistered(seen.by_node["b"], books_of(seen, installations(seen)[1]))
    assert why == "the scheduler uses only nodes with pool=lab"


@pytest.mark.parametrize(("minutes", "causes"), [(8, []), (12, [("HamiNodeLockStale", "node/b")])])
def test_a_lock_lasts_as_long_as_its_scheduler_configures(minutes: float, causes: list[tuple[str, str]]) -> None:
    state = cluster(HAMI_NODELOCK_EXPIRE="10m")
    node = next(entry for entry in state if entry["kind"] == "Node" and entry["metadata"]["name"] == "b")
    node["metadata"]["annotations"]["hami.io/mutex.lock"] = f"{ago(minutes)},team,x"
    waits = lab_pod("x", conditions=[], age=minutes)
    assert results(diagnosed(*state, waits)) == causes


def test_no_other_word_of_a_command_line_is_kept() -> None:
    state = cluster(*FLAGS, "--token=secret", "--scheduler-name", "$(cat /secret)")
    extender = next(
        container
        for workload in snapshot(*state).workloads
        if workload.spec is not None and workload.meta.name == "lab-hami-scheduler"
        for container in workload.spec.containers
        if container.flags
    )
    assert extender.flags == {"gpu-scheduler-policy": "binpack", "node-scheduler-policy": "spread"}
    saved = [redacted(entry) for entry in state]
    assert "secret" not in json.dumps(saved)
    workload, other = (installations(snapshot(*each))[1] for each in (state, saved))
    assert workload.command_line == other.command_line != CommandLine()
