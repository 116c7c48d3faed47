"""HAMi under any name: its parts, the nodes that it can't use, and reasons why its webhook is not called."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.answers.node_inventory import inventory
from gpu_healthcheck.diagnosis.facts.components import Health, component_table
from gpu_healthcheck.diagnosis.hami.installation import installations
from tests.diagnosis.hami.hami_states import (
    NAMESPACE,
    card,
    configuration,
    hami,
    hami_node,
    plugin_pod,
    text_card,
    vgpu_pod,
)
from tests.diagnosis.states import GPU, Object, ago, condition, consequences, judged, node, obj, pod, results, snapshot

A = hami_node("a")
UNLABELLED = node("b", None, labels={"nvidia.com/gpu.present": "true"})
REPORTED = "Reported 2026-11-22 11:59:40.434037031 +0000 UTC m=+1104711.77"
SCHEDULER, HOOK = "deployment/kube-system/hami-scheduler", "mutatingwebhookconfiguration/hami-webhook"


def old_node(handshake: str, **changes: Any) -> Object:
    fields = {"hami.io/node-handshake": handshake}
    return hami_node("a", register=text_card("GPU-1"), offers=10, annotations=fields, **changes)


def locked(text: str) -> Object:
    return hami_node("a", annotations={"hami.io/mutex.lock": text})


def job(name: str, *conditions: Object) -> Object:
    return obj("Job", name, NAMESPACE, spec={"parallelism": 1}, status={"conditions": list(conditions)})


FAILED = job("hami-admission-patch", condition("Failed", "True", "BackoffLimitExceeded", "too many retries"))
CRASH = {
    "name": "device-plugin",
    "ready": False,
    "restartCount": 7,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": ago(1)}},
}


def with_plugin(node: Object, **changes: Any) -> list[Object]:
    """HAMi on the node, with another pod of its device plugin there."""
    others = [entry for entry in hami(node) if entry["metadata"]["name"] != "hami-device-plugin-a"]
    return [*others, plugin_pod("a", **changes)]


def old_hami(handshake: str, version: str = "v2.6.1") -> list[Object]:
    return hami(old_node(handshake), version=version)


UNREGISTERED = hami_node("a", annotations={"hami.io/node-nvidia-register": None})
NO_LEADER = ("HamiSchedulerWithoutEndpoints", "service/kube-system/hami-scheduler")
CARDS = card("GPU-a-0"), card("GPU-a-1", index=1, health=False)
STALE, LOCK = ("HamiRegistrationStale", "node/a"), ("HamiNodeLockStale", "node/a")
RUNNING = vgpu_pod("x", on="a")
FAULTS: dict[str, tuple[list[Object], tuple[str, str]]] = {
    "the scheduler crashes": (hami(A, ready=False), ("HamiSchedulerNotReady", SCHEDULER)),
    "the plugin crashes": (with_plugin(A, states=[CRASH]), ("HamiDevicePluginNotReady", "node/a")),
    "no CA": (hami(A, webhook={"ca": ""}), ("HamiWebhookWithoutCa", HOOK)),
    "an unhealthy card": (hami(hami_node("a", *CARDS)), ("HamiCardUnhealthy", "node/a")),
    "a failed Job": ([*hami(A), FAILED], ("HamiCertificateJobFailed", "job/kube-system/hami-admission-patch")),
    "no leader": (hami(A, addresses=0, leads=False), NO_LEADER),
    "no label": ([*hami(A), UNLABELLED], ("HamiPluginNotOnNode", "node/b")),
    "registered, without capacity": (hami(hami_node("a", offers=0)), STALE),
    "registered, none allocatable": (hami(hami_node("a", allocatable={GPU: "0"})), STALE),
    "not registered": (hami(UNREGISTERED), ("HamiNodeNotRegistered", "node/a")),
    "registered without a card": (hami(hami_node("a", register="[]")), ("HamiNodeNotRegistered", "node/a")),
    "an old registration": (hami(hami_node("a", register=text_card("GPU-1"))), ("HamiVersionSkew", SCHEDULER)),
    "an old scheduler": (hami(A, version="v2.7.1", plugin_version="v2.8.0"), ("HamiVersionSkew", SCHEDULER)),
    "an expired lock": (hami(locked(f"{ago(20)},team,x")), LOCK),
    "an expired lock without an owner": (hami(locked(ago(6))), LOCK),
    "an unreadable lock": (hami(locked("yesterday,team,x")), LOCK),
    "a lock whose owner runs": ([*hami(locked(f"{ago(3)},team,x")), RUNNING], LOCK),
    "a lock whose owner is gone": ([*hami(locked(f"{ago(3)},team,gone")), RUNNING], LOCK),
    "silent for days": (old_hami("Requesting_2026-11-19 10:08:42"), ("HamiPluginSilent", "node/a")),
    "given up by 2.4": (old_hami("Deleted_2026.11.22 11:41:00", "v2.4.1"), ("HamiPluginSilent", "node/a")),
    "a clock in the future": (old_hami("Requesting_2026-11-22 19:59:50"), ("HamiHandshakeClockApart", "node/a")),
    "a time zone apart": (old_hami("Deleted_2026-11-22 06:29:30"), ("HamiHandshakeClockApart", "node/a")),
}


@pytest.mark.parametrize(("state", "cause"), FAULTS.values(), ids=FAULTS)
def test_fault_of_hami_has_a_cause(state: list[Object], cause: tuple[str, str]) -> None:
    diagnosis = judged(*state)
    assert results(diagnosis) == [cause]
    assert all(problem.found.evidence for problem in diagnosis.problems)


def test_deleted_handshake_is_removed_by_a_command() -> None:
    [problem] = judged(*old_hami("Deleted_2026.11.22 11:41:00", "v2.4.1")).problems
    assert any("kubectl annotate node a hami.io/node-handshake-" in line for line in problem.found.remedy)


PRESENT = {"nvidia.com/gpu.present": "true"}
HEALTHY: dict[str, list[Object]] = {
    "in working order": [*hami(A), RUNNING],
    "a text that cuts the registration": hami(
        UNREGISTERED | {"metadata": UNREGISTERED["metadata"] | {"cut": ["hami.io/node-nvidia-register"]}}
    ),
    "2.8: a request of weeks ago": hami(A, version="v2.8.3"),
    "of a digest": hami(A, version="latest"),
    "under another name": hami(A, release="gpu-hami", namespace="gpu-share"),
    "up to 2.7": old_hami(REPORTED),
    "up to 2.7, just asked": old_hami("Requesting_2026-11-22 11:59:50"),
    "a complete Job": [*hami(A), job("hami-admission-patch", condition("Complete", "True"))],
    "another's Job": [*hami(A), job("clean-admission-patch", condition("Failed", "True"))],
    "a lock in its time": [*hami(locked(f"{ago(0.5)},team,x")), vgpu_pod("x", on="a", phase="Pending", age=1)],
    "a lock in its time, whose owner waits in another namespace": [
        *hami(locked(f"{ago(3)},other,y")),
        vgpu_pod("y", namespace="other"),
        vgpu_pod("x", on="a", phase="Pending", age=2),
    ],
    "cards that Volcano's plugin serves": hami(
        hami_node("a", offers=0, allocatable={"volcano.sh/vgpu-number": "20"}), webhook=None
    ),
    "a node with another plugin": [*hami(A), node("b", 8, labels=PRESENT)],
    "a new node": [*hami(A), node("b", None, labels=PRESENT, age=3)],
    "a young plugin": with_plugin(hami_node("a", offers=0), age=2),
    "a young webhook": [*hami(A, webhook=None), configuration(ca="", age=1)],
    "no webhook": hami(A, webhook=None),
    "a webhook that answers, of which a saved state lacks the CA": [*hami(A, webhook={"ca": ""}), RUNNING],
}


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
def test_healthy_hami_has_no_cause(state: list[Object]) -> None:
    assert results(judged(*state)) == []


def test_failed_job_explains_a_webhook_without_ca() -> None:
    diagnosis = judged(*hami(A, webhook={"ca": ""}), FAILED)
    assert [consequences(problem) for problem in diagnosis.problems] == [[("HamiWebhookWithoutCa", HOOK)]]


def test_cluster_without_hami_hides_no_cause_of_it() -> None:
    hidden = judged(node("a"), pod("x", on="a"), missing=["MutatingWebhookConfiguration", "Job", "EndpointSlice"])
    assert "Hami" not in "".join(unchecked.hides for unchecked in hidden.unseen)


def test_installations_are_distinguished() -> None:
    two = [*hami(A, version="v2.7.0"), *hami(hami_node("b"), release="gpu-hami", namespace="other", version="v2.9.2")]
    found = installations(snapshot(*two))
    assert [
        (installation.namespace, installation.name, installation.version, installation.service)
        for installation in found
    ] == [
        ("kube-system", "hami", (2, 7), "kube-system/hami-scheduler"),
        ("other", "gpu-hami", (2, 9), "other/gpu-hami-scheduler"),
    ]
    assert all(installation.scheduler and installation.plugins and installation.webhooks for installation in found)


def test_scheduler_name_is_read_from_its_configuration() -> None:
    text = "profiles:\n- schedulerName: my-hami\n  plugins: {}\n"
    config = obj("ConfigMap", "hami-scheduler", NAMESPACE, data={"config.yaml": text})
    assert installations(snapshot(*hami(A), config))[0].scheduler_name == "my-hami"


def test_components_have_the_version_of_hami() -> None:
    rows = [row.component for row in component_table(snapshot(*hami(A, version="v2.8.1", ready=False)))]
    assert [(component.role.value, component.version, component.health) for component in rows] == [
        ("HAMi scheduler", "v2.8.1", Health.DOWN),
        ("HAMi device plugin", "v2.8.1", Health.WORKING),
    ]


@pytest.mark.parametrize(
    ("name", "causes"),
    [("ended", [("HamiWebhookCaExpired", HOOK)]), ("lasting", []), ("none", [])],
)
def test_expired_ca_is_a_cause(name: str, causes: list[tuple[str, str]]) -> None:
    """Valid until 2026 and until 2120; for other files the end is unknown."""
    text = (Path(__file__).parent / f"ca-{name}.pem").read_text() if name != "none" else "-----BEGIN CERTIFICATE-----"
    assert results(judged(*hami(A, webhook={"ca": base64.b64encode(text.encode()).decode()}))) == causes


def test_inventory_shows_annotations_of_hami() -> None:
    seen = snapshot(*hami(locked(f"{ago(1)},team,x")))
    rows = {row.what: row.value for row in inventory(seen, seen.nodes[0]) if "HAMi's" in row.what}
    assert rows == {
        "HAMi's registration, nvidia": "2 cards; JSON, as HAMi 2.8 and later read it",
        "HAMi's handshake": "Requesting_2026-11-01 10:08:42 (meaningless since 2.8)",
        "HAMi's lock": f"{ago(1)},team,x",
    }
    plain = snapshot(node("b"))
    assert [row.what for row in inventory(plain, plain.nodes[0]) if "HAMi" in row.what] == []
