"""Two HAMis in one cluster: each pod by the one that it asks, each node by the one that serves it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.diagnosis.answers.hami_chain import hami_chains
from gpu_healthcheck.diagnosis.answers.node_inventory import inventory
from gpu_healthcheck.diagnosis.answers.pod_fit import by_rules, would_fit
from gpu_healthcheck.diagnosis.hami.installation import (
    CommandLine,
    installation_of,
    installations,
    serving,
    unregistered,
)
from gpu_healthcheck.diagnosis.report.would_fit import page
from gpu_healthcheck.diagnosis.sources.redaction import redacted
from tests.diagnosis.hami.clusters import device_config, verdicts_by_node
from tests.diagnosis.hami.hami_states import asking, card, hami, hami_node, text_card, vgpu_pod
from tests.diagnosis.hami.test_filtering import filtered
from tests.diagnosis.states import GPU, Object, ago, condition, container, judged, obj, results, snapshot

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


def test_two_working_installations_have_no_causes() -> None:
    assert results(judged(*cluster(), vgpu_pod("x", on="a"), lab_pod("y", on="b"))) == []


def test_installations_have_their_own_names_version_and_nodes() -> None:
    assert [
        (each.scheduler_name, each.settings.count_name, each.version, each.nodes)
        for each in installations(snapshot(*cluster()))
    ] == [
        ("hami-scheduler", GPU, (2, 7), frozenset("a")),
        ("lab-scheduler", LAB, (2, 9), frozenset("b")),
    ]


def test_installation_without_settings_has_the_defaults() -> None:
    seen = snapshot(*[entry for entry in cluster() if entry["metadata"]["name"] != "hami-scheduler-device"])
    assert [installation.settings.default_memory for installation in installations(seen)] == [0, 2000]


def test_pod_belongs_to_the_installation_of_its_scheduler_or_resources() -> None:
    plain = vgpu_pod("p", container("main", resources={LAB: "1"}), spec={"schedulerName": "default-scheduler"})
    seen = snapshot(*cluster(), vgpu_pod("x"), lab_pod("y"), plain)
    pods = [pod for pod in seen.pods if pod.meta.namespace == "team"]
    by = {pod.meta.name: own.name for pod in pods if (own := installation_of(seen, pod))}
    assert by == {"x": "hami", "y": "lab-hami", "p": "lab-hami"}


def test_scheduler_knows_only_the_cards_of_its_own_plugin() -> None:
    state = snapshot(*cluster(), vgpu_pod("x", asking(1, 1000)), lab_pod("y"))
    fits = {pod: [verdict.fits for verdict in verdicts_by_node(state, pod).values()] for pod in ("x", "y")}
    assert fits == {"x": [True, False], "y": [False, True]}
    first, second = installations(state)
    assert "lab-hami-scheduler, and it has no nvidia.com/gpu" in unregistered(state, first, state.by_node["b"])
    assert f"hami-scheduler, and it has no {LAB}" in unregistered(state, second, state.by_node["a"])


def test_refused_pod_is_judged_by_its_own_scheduler() -> None:
    refused = [condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available: 2 NodeUnfitPod.")]
    waits = filtered("1 nodes CardInsufficientMemory(b)", waiting=lab_pod("y", 30000, conditions=refused))
    diagnosis = judged(*cluster(), *waits)
    assert results(diagnosis) == [("HamiCardMemoryShort", "pod/team/y")]
    (problem,) = diagnosis.problems
    assert "Request at most 24576 lab.example/mem: no card has more." in problem.found.remedy
    assert any(
        "card GPU-b-0 CardInsufficientMemory: 30000 MiB requested, 24576 free" in text
        for text in problem.found.evidence
    )


def test_uncreated_pod_belongs_to_the_installation_of_its_resources() -> None:
    seen = snapshot(*cluster(), lab_pod("y"))
    written = next(pod for pod in seen.pods if pod.meta.name == "y")
    admission = by_rules(seen, written, "")
    answer = would_fit(seen, written, admission)
    assert admission.pod.spec.scheduler == "lab-scheduler"
    assert [node.node for node in answer.nodes if node.fits] == ["b"]
    shown = "\n".join(line.plain for line in page([answer]))
    assert "GPU-b-0" in shown
    assert "GPU-a-0" not in shown


def test_node_offers_slots_by_the_resource_of_its_installation() -> None:
    fields_of = {node.node: node for node in allocation(snapshot(*cluster(), lab_pod("y", on="b"))).nodes}
    assert [(pool.resource, pool.total) for pool in fields_of["a"].pools] == [(GPU, 20)]
    assert [(pool.resource, pool.total) for pool in fields_of["b"].pools] == [(LAB, 8)]


def test_handshake_is_read_by_the_release_that_serves_the_node() -> None:
    seen = snapshot(*cluster())
    by = {node.name: {row.what: row.value for row in inventory(seen, node)} for node in seen.nodes}
    assert "since 2.8" not in by["a"]["HAMi's handshake"]
    assert "since 2.8" in by["b"]["HAMi's handshake"]


def test_answering_webhook_does_not_prove_the_other() -> None:
    state = cluster()
    hook = next(entry for entry in state if entry["metadata"]["name"] == "lab-hami-webhook")["webhooks"][0]
    hook["clientConfig"]["caBundle"] = ""
    without = ("HamiWebhookWithoutCa", "mutatingwebhookconfiguration/lab-hami-webhook")
    assert results(judged(*state, vgpu_pod("x", on="a"))) == [without]


def test_pod_chain_names_its_own_scheduler() -> None:
    seen = snapshot(*cluster(), lab_pod("y", on="b"))
    (chain,) = hami_chains(seen, [pod for pod in seen.pods if pod.meta.name == "y"], ())
    assert chain.steps[1].seen == "deployment/lab/lab-hami-scheduler v2.9.2 is working"


def test_node_without_a_visible_plugin_belongs_to_none_of_two() -> None:
    seen = snapshot(*cluster(), hami_node("c"))
    assert serving(seen, seen.by_node["c"]) is None


def test_command_line_of_the_extender_is_parsed() -> None:
    every = installations(snapshot(*cluster(*FLAGS, HAMI_NODELOCK_EXPIRE="10m")))
    assert every[0].command_line == CommandLine()
    line = every[1].command_line
    assert (line.gpu_policy, line.node_policy, line.lock_expires) == ("binpack", "spread", timedelta(minutes=10))


@pytest.mark.parametrize(("policy", "fits"), [("spread", False), ("binpack", True)])
def test_pod_without_a_policy_has_the_extenders(policy: str, fits: bool) -> None:
    held = lab_pod("h", on="b", annotations={"hami.io/vgpu-devices-allocated": "GPU-b-0,NVIDIA,1000,0:;"})
    wants = [container(f"c{memory}", resources={LAB: "1", "lab.example/mem": str(memory)}) for memory in (1000, 24576)]
    waits = vgpu_pod("y", *wants, spec={"schedulerName": "lab-scheduler"})
    assert verdicts_by_node(snapshot(*cluster(f"--gpu-scheduler-policy={policy}"), held, waits), "y")["b"].fits is fits


def test_scheduler_with_a_label_selector_knows_no_other_node() -> None:
    seen = snapshot(*cluster("--node-label-selector=pool=lab"), lab_pod("y"))
    assert not verdicts_by_node(seen, "y")["b"].fits
    why = unregistered(seen, installations(seen)[1], seen.by_node["b"])
    assert why == "the scheduler uses only nodes with pool=lab"


@pytest.mark.parametrize(("minutes", "causes"), [(8, []), (12, [("HamiNodeLockStale", "node/b")])])
def test_lock_expires_after_the_configured_time(minutes: float, causes: list[tuple[str, str]]) -> None:
    state = cluster(HAMI_NODELOCK_EXPIRE="10m")
    node = next(entry for entry in state if entry["kind"] == "Node" and entry["metadata"]["name"] == "b")
    node["metadata"]["annotations"]["hami.io/mutex.lock"] = f"{ago(minutes)},team,x"
    waits = lab_pod("x", conditions=[], age=minutes)
    assert results(judged(*state, waits)) == causes


def test_saved_command_line_has_only_the_five_flags() -> None:
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
