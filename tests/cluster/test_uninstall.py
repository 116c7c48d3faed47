"""`gpu-healthcheck uninstall` and `release` on the real API server: managedFields, /status, kubectl, the manifests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.cli.verify import crowd_answers
from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.dra import DeviceTaints
from gpu_healthcheck.healthcheck.deep.claim import Claim, RunKind, acquire
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Outcome
from gpu_healthcheck.healthcheck.node.device_rules import RuleTaint
from gpu_healthcheck.healthcheck.node.state import (
    HARDWARE_READY,
    MOST_FIELD_MANAGERS,
    OUR_WORD,
    REBOOT_REQUIRED,
    REPLACEMENT_REQUIRED,
)
from gpu_healthcheck.healthcheck.operations.uninstall import DELETE_REST, STOP, STOP_GATE
from gpu_healthcheck.healthcheck.verdict.device_taints import MissingRule
from gpu_healthcheck.healthcheck.verdict.node_patch import plan
from gpu_healthcheck.healthcheck.verdict.record import Identity
from gpu_healthcheck.healthcheck.verdict.taint_decision import AgentView, Rules, decide_taint
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from tests.cli.cluster import SPOT, Json, P, client, run
from tests.overlays import OVERLAYS

pytestmark = pytest.mark.cluster

NODES = "/api/v1/nodes"
UNHEALTHY = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
STRATEGIC = "application/strategic-merge-patch+json"
NAMES = ("uninstall-failed", "uninstall-scripts", "uninstall-persons")
FAILED, SCRIPTS, PERSONS = NAMES
_DELETES = re.compile(r"^  (kubectl delete .*)$", re.MULTILINE)
_COLUMNS = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
_NAMESPACES = ("gpu-healthcheck", "gpu-healthcheck-budget")


@pytest.fixture(scope="module")
def empty(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a separate control plane.

    The shared one may have the manifests installed, and their DaemonSet would prevent these tests.
    """
    with ControlPlane() as own:
        yield own


@pytest.fixture
def plane(empty: ControlPlane) -> Iterator[ControlPlane]:
    """Nodes with marks of other clients, without a running program of ours."""
    for name in NAMES:
        empty.create_node(name, taints=[SPOT], labels={"example.com/team": "vision"})
        change(empty, name, {"metadata": {"annotations": {"example.com/note": "kept"}}})
    yield empty
    for name in NAMES:
        empty.request("DELETE", f"{NODES}/{name}")


def change(plane: ControlPlane, name: str, patch: Json, manager: str = "kubectl") -> None:
    answer = plane.request("PATCH", f"{NODES}/{name}?fieldManager={manager}", patch)
    assert answer.status == 200, answer.message


def as_our_programs_do(plane: ControlPlane, name: str, *, cordon: bool) -> None:
    marks: Json = {"labels": {f"{P}/status": "fail", f"{P}/severity": "ISOLATE"}, "annotations": {f"{P}/results": "{}"}}
    spec: Json = {"taints": [SPOT, UNHEALTHY]}
    if cordon:
        marks["annotations"][f"{P}/cordoned-by"] = f"gpu-quarantine-{name}"
        spec["unschedulable"] = True
    change(plane, name, {"metadata": marks, "spec": spec}, "gpu-healthcheck")
    condition = {"type": "GpuHealthy", "status": "False", "reason": "Xid79", "message": "x"}
    ours = [condition | {"type": kind, "message": f"{OUR_WORD}x"} for kind in (REBOOT_REQUIRED, REPLACEMENT_REQUIRED)]
    theirs = condition | {"type": HARDWARE_READY}
    body = {"status": {"conditions": [condition, *ours, theirs]}}
    assert plane.request("PATCH", f"{NODES}/{name}/status", body, content_type=STRATEGIC).status == 200


def as_the_scripts_did(plane: ControlPlane, name: str) -> None:
    """Mark the Node with kubectl as the scripts did. A taint and a mode remained when they were killed."""
    plane.kubectl("label", "node", name, f"{P}/status=fail", f"{P}/severity=SKIP", f"{P}/mode=quarantine")
    plane.kubectl("taint", "node", name, f"{P}/unhealthy=true:NoSchedule", f"{P}/maintenance=sweep:NoSchedule")
    plane.kubectl("annotate", "node", name, f"{P}/results=[]", f"{P}/quarantine-result=nonsense")


def node(plane: ControlPlane, name: str) -> Any:
    return plane.request("GET", f"{NODES}/{name}").body


def is_clean(entry: Json) -> bool:
    """Whether the Node contains nothing of ours, apart from the names of earlier field managers."""
    entry["metadata"].pop("managedFields")
    return not any(word in json.dumps(entry) for word in (P, "GpuHealthy", REBOOT_REQUIRED, REPLACEMENT_REQUIRED))


def uninstall(plane: ControlPlane, *words: str) -> Any:
    return run(plane.kubeconfig, "uninstall", *words)


def test_our_marks_are_removed_and_foreign_ones_stay(plane: ControlPlane) -> None:
    as_our_programs_do(plane, FAILED, cordon=True)
    as_the_scripts_did(plane, SCRIPTS)
    as_our_programs_do(plane, PERSONS, cordon=False)
    plane.kubectl("cordon", PERSONS)

    done = uninstall(plane, "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    nodes = {name: node(plane, name) for name in NAMES}
    assert {name: entry["spec"].get("unschedulable", False) for name, entry in nodes.items()} == {
        FAILED: False,
        SCRIPTS: False,
        PERSONS: True,
    }
    for entry in nodes.values():
        assert SPOT in entry["spec"]["taints"]
        assert entry["metadata"]["labels"]["example.com/team"] == "vision"
        assert entry["metadata"]["annotations"]["example.com/note"] == "kept"
        assert {condition["type"] for condition in entry["status"]["conditions"]} <= {"Ready", HARDWARE_READY}
        assert is_clean(entry)
    assert f"{FAILED}: " in done.stdout
    assert "conditions GpuHealthy, GpuRebootRequired, GpuReplacementRequired\n" in done.stdout
    kept = {entry["type"] for entry in nodes[FAILED]["status"]["conditions"]}
    assert kept == {"Ready", HARDWARE_READY}  # in another's words
    assert f"  is uncordoned: gpu-quarantine-{FAILED} had cordoned it\n" in done.stdout


def test_a_crowd_of_field_managers_is_cleared_and_the_usual_ones_stay(plane: ControlPlane) -> None:
    """A stolen token of an older version can leave such field managers by server-side apply.

    They own fields of ours, and shared fields.
    """
    for name, count in ((FAILED, 80), (SCRIPTS, 20)):
        marks = {"labels": {"example.com/team": "vision"}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **marks}}
        for number in range(count):
            path = f"{NODES}/{name}?fieldManager=evil-{number}&force=true"
            assert plane.request("PATCH", path, body, content_type="application/apply-patch+yaml").status == 200
    before = {name: len(node(plane, name)["metadata"]["managedFields"]) for name in (FAILED, SCRIPTS)}
    assert before[FAILED] > MOST_FIELD_MANAGERS > before[SCRIPTS] > 20
    crowded = Cluster(lambda: client(plane.kubeconfig)).nodes.select()
    (verification,) = crowd_answers(crowded)
    assert (verification.holds, FAILED in verification.message, SCRIPTS in verification.message) == (False, True, False)

    done = uninstall(plane, "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"clears {before[FAILED]} field managers" in done.stdout
    assert "managedFields" not in node(plane, FAILED)["metadata"]
    assert len(node(plane, SCRIPTS)["metadata"]["managedFields"]) == before[SCRIPTS]
    assert node(plane, FAILED)["metadata"]["labels"]["example.com/team"] == "vision"
    assert not list(crowd_answers(Cluster(lambda: client(plane.kubeconfig)).nodes.select()))


def test_our_device_taints_are_removed_and_edited_ones_stay(plane: ControlPlane) -> None:
    if not plane.has_device_taints:
        pytest.skip("NOT TESTED: Kubernetes up to 1.36 does not serve DeviceTaintRules of resource.k8s.io/v1")
    cluster = Cluster(lambda: client(plane.kubeconfig))
    taints = DeviceTaints(cluster.connection)
    taints.list_all_rules()
    ours, his = (f"gpu-healthcheck.{FAILED}.{device}" for device in ("gpu-0", "gpu-1"))
    for name, device in ((ours, "gpu-0"), (his, "gpu-1")):
        taints.create_rule(
            MissingRule(name, device, RuleTaint("REBOOT", evicts=device == "gpu-0")), cluster.nodes.read(FAILED)
        )
    plane.kubectl("patch", "devicetaintrule", his, "--type=merge", "-p", '{"spec":{"taint":{"effect":"None"}}}')

    done = uninstall(plane, "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"DeviceTaintRule {ours}: a GPU accepts work again, although its verdict is REBOOT\n" in done.stdout
    assert plane.kubectl("get", "devicetaintrules", "-o", "name").split() == [f"devicetaintrule.resource.k8s.io/{his}"]
    plane.kubectl("delete", "devicetaintrule", his)


def test_a_cordon_that_a_person_set_after_ours_is_his(plane: ControlPlane) -> None:
    as_our_programs_do(plane, FAILED, cordon=True)
    plane.kubectl("uncordon", FAILED)
    plane.kubectl("cordon", FAILED)

    released = run(plane.kubeconfig, "release", FAILED, "--reason", "x", "--no-wait")
    assert "stays cordoned: it was not cordoned by a quarantine run" in released.stdout
    assert uninstall(plane, "--yes").returncode == 0

    after = node(plane, FAILED)
    assert (after["spec"]["unschedulable"], is_clean(after)) == (True, True)


@pytest.mark.parametrize("again", [False, True], ids=["ours", "a person's after it"])
def test_cordon_without_a_recorded_owner_stays(plane: ControlPlane, again: bool) -> None:
    as_our_programs_do(plane, FAILED, cordon=True)
    # Any client that may patch the Node can do this; later writes have no field manager until an apply.
    change(plane, FAILED, {"metadata": {"managedFields": [{}]}}, "anybody")
    if again:
        plane.kubectl("uncordon", FAILED)
        plane.kubectl("cordon", FAILED)

    released = run(plane.kubeconfig, "release", FAILED, "--reason", "x", "--no-wait")
    assert "stays cordoned: the Node does not show who cordoned it" in released.stdout
    assert uninstall(plane, "--yes").returncode == 0

    after = node(plane, FAILED)
    assert after["spec"]["unschedulable"] is True
    assert P not in json.dumps(after["metadata"].get("annotations", {}))


def owners(fields: Json, *path: str) -> list[str]:
    """Return the field managers recorded for this field."""
    return [entry["manager"] for entry in fields["metadata"].get("managedFields", []) if _has(entry["fieldsV1"], path)]


def _has(fields: Any, path: tuple[str, ...]) -> bool:
    return not path or (path[0] in fields and _has(fields[path[0]], path[1:]))


def test_our_writes_keep_the_owners_of_unchanged_fields(plane: ControlPlane) -> None:
    """The label and the cordon are a person's, with the same values as our own patches."""
    cluster = Cluster(lambda: client(plane.kubeconfig))
    plane.kubectl("cordon", FAILED)
    plane.kubectl("label", "node", FAILED, f"{P}/status=pass", f"{P}/severity=PASS")
    now = datetime.now(UTC)
    test = Claim(RunKind.QUARANTINE, "gpu-quarantine-x", now + timedelta(hours=1))

    taken = acquire(cluster.nodes.read(FAILED), test, now)
    assert taken is not None
    cluster.nodes.patch(FAILED, taken)
    verdict, memory = decide(Memory(), [Outcome("xid", "0-nvidia-smi")]), Memory()
    view, seen = AgentView(verdict, memory, Identity(FAILED), Rules(), now), cluster.nodes.read(FAILED)
    change_of_ours = plan(view, decide_taint(view, seen), seen)
    assert change_of_ours.patch is not None
    cluster.nodes.patch(FAILED, change_of_ours.patch)
    after = node(plane, FAILED)

    assert owners(after, "f:metadata", "f:annotations", f"f:{P}/results") == ["gpu-healthcheck"]
    assert owners(after, "f:metadata", "f:labels", f"f:{P}/status") == ["kubectl-label"]
    assert owners(after, "f:spec", "f:unschedulable") == ["kubectl"]


def test_a_release_lifts_our_cordon(plane: ControlPlane) -> None:
    as_our_programs_do(plane, FAILED, cordon=True)
    done = run(plane.kubeconfig, "release", FAILED, "--reason", "x", "--no-wait")

    after = node(plane, FAILED)
    assert (done.returncode, "unschedulable" in after["spec"]) == (0, False)
    assert f"{P}/cordoned-by" not in after["metadata"]["annotations"]
    assert UNHEALTHY in after["spec"]["taints"]


def test_nothing_is_done_while_the_manifests_programs_are_there(installed: ControlPlane) -> None:
    installed.create_node(FAILED)
    as_our_programs_do(installed, FAILED, cordon=False)
    done = uninstall(installed, "--yes")
    after = node(installed, FAILED)
    installed.request("DELETE", f"{NODES}/{FAILED}")

    assert (done.returncode, is_clean(after)) == (1, False)
    assert "daemonsets gpu-healthcheck/gpu-healthcheck-agent" in done.stderr
    assert "cronjobs gpu-healthcheck/gpu-healthcheck-sweeper" in done.stderr


def test_the_printed_commands_remove_every_overlay_and_the_gate_before_the_agents(control_plane: ControlPlane) -> None:
    with ControlPlane() as own:
        own.kubectl("apply", "-f", str(MANIFESTS))
        for overlay in ("device-taints", "evict", "reset-automation", *(("dra",) if own.has_dra else ())):
            own.kubectl("apply", "-k", str(OVERLAYS / overlay))
        if own.mutating_policies:
            text = (OVERLAYS / "gate" / "policy.yaml").read_text()
            version = f"admissionregistration.k8s.io/{own.mutating_policies}\n"
            ours = text.replace("admissionregistration.k8s.io/v1\n", version)
            theirs = ours.replace("gpu-healthcheck", "team")
            own.kubectl("apply", "-f", "-", input=f"{ours}---\n{theirs}")
        own.create_node(FAILED)
        as_our_programs_do(own, FAILED, cordon=False)

        first = uninstall(own, "--yes")
        commands = _DELETES.findall(first.stderr)
        assert (first.returncode, commands) == (1, [STOP_GATE, STOP] if own.mutating_policies else [STOP])
        assert not is_clean(node(own, FAILED))
        for command in commands:
            own.kubectl(*command.split()[1:])
        done = uninstall(own, "--yes")
        (rest,) = _DELETES.findall(done.stdout)
        own.kubectl(*rest.split()[1:], "--wait=false")  # no controller ends the namespaces here

        assert (done.returncode, done.stderr, is_clean(node(own, FAILED))) == (0, "", True)
        kinds = set(own.kubectl("api-resources", "--verbs=list", "-o", "name").split())
        kinds -= {"events", "events.events.k8s.io", "componentstatuses"}
        listed = own.kubectl("get", ",".join(sorted(kinds)), "-A", "--no-headers", f"-o={_COLUMNS}").splitlines()
        left = [row for row in map(str.split, listed) if "gpu-healthcheck" in row[2] and row[1] not in _NAMESPACES]
        assert sorted({row[0] for row in left}) == ["Namespace"], left
        if own.mutating_policies:
            assert own.kubectl("get", "mutatingadmissionpolicies", "-o", "name").endswith("/team-gate\n")


def test_the_two_lines_delete_all_that_the_manifests_make(installed: ControlPlane) -> None:
    def deleted(line: str) -> set[tuple[str, str]]:
        printed = installed.kubectl(*line.split()[1:], "--dry-run=server", "-o", "name")
        return {(kind.partition(".")[0], name) for kind, _, name in (word.partition("/") for word in printed.split())}

    gone = deleted(STOP) | deleted(DELETE_REST)
    documents = [
        entry
        for file in sorted(Path(MANIFESTS).glob("*.yaml"))
        for entry in yaml.safe_load_all(file.read_text())
        if entry
    ]
    left = [
        (document["kind"].lower(), document["metadata"]["name"])
        for document in documents
        if ("namespace", document["metadata"].get("namespace", "")) not in gone
        and (document["kind"].lower(), document["metadata"]["name"]) not in gone
    ]
    assert (len(documents) > 20, left) == (True, [])
    assert ("role", "gpu-healthcheck-agent") in gone
