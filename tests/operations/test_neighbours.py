"""The objects of docs/integrations.md for repair controllers name our conditions, in their format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck.node.state import CONDITION, REBOOT_REQUIRED, REPAIR_CONDITIONS, REPLACEMENT_REQUIRED
from gpu_healthcheck.sim.control_plane import MANIFESTS

TEXT = (Path(__file__).parents[2] / "docs/integrations.md").read_text()
OBJECTS = {
    one["kind"]: one["spec"]
    for one in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
    if "kind" in one
}
Json = dict[str, Any]


def test_a_repairer_is_given_one_tier_and_a_limit() -> None:
    node_check, machine_check = OBJECTS["NodeHealthCheck"], OBJECTS["MachineHealthCheck"]
    entries = {(entry["type"], entry["status"]) for entry in node_check["unhealthyConditions"]}
    assert entries == {(REBOOT_REQUIRED, "True"), ("Ready", "False"), ("Ready", "Unknown")}
    assert all(re.fullmatch(r"\d+s", entry["duration"]) for entry in node_check["unhealthyConditions"])
    assert node_check["minHealthy"] == "90%"
    (machine,) = machine_check["checks"]["unhealthyNodeConditions"]
    assert machine == {"type": REPLACEMENT_REQUIRED, "status": "True", "timeoutSeconds": 300}
    assert machine_check["remediation"]["triggerIf"] == {"unhealthyLessThanOrEqualTo": "10%"}


def test_the_readiness_rule_is_for_new_nodes_and_has_a_taint_of_its_own() -> None:
    rule = OBJECTS["NodeReadinessRule"]

    assert rule["conditions"] == [{"type": CONDITION, "requiredStatus": "True"}]
    assert (rule["enforcementMode"], rule["taint"]["effect"]) == ("bootstrap-only", "NoSchedule")
    assert rule["taint"]["key"].startswith("readiness.k8s.io/")


@pytest.mark.parametrize("kind", REPAIR_CONDITIONS)
def test_every_condition_for_repairers_has_a_row(kind: str) -> None:
    assert f"\n| `{kind}` |" in TEXT


def test_kured_waits_for_the_pods_of_our_deep_tests() -> None:
    name, among = re.findall(r"--blocking-pod-selector=(\S+?),\S+/component in \((\S+)\)", TEXT)[0]
    documents = [entry for path in sorted(MANIFESTS.rglob("*.yaml")) for entry in yaml.safe_load_all(path.read_text())]
    pods = [
        labels
        for document in documents
        if document
        for labels in _pod_labels(document)
        if "batch" in document["apiVersion"]
    ]
    tests = {labels["app.kubernetes.io/component"] for labels in pods} - {"sweeper"}

    assert set(among.split(",")) == tests
    assert all("=".join(("app.kubernetes.io/name", labels["app.kubernetes.io/name"])) == name for labels in pods)


def _pod_labels(document: Json) -> list[dict[str, str]]:
    spec = document.get("spec", {})
    job = spec.get("jobTemplate", {}).get("spec", spec)
    return [job["template"]["metadata"]["labels"]] if "template" in job else []
