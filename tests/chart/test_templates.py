"""The chart without Helm: it is generated completely from the manifests, and allows the product's values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpu_healthcheck.sim.control_plane import MANIFESTS
from tools import chart
from tools.chart import keys, settings, templates

SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text())
JUDGE = jsonschema.Draft7Validator(SCHEMA)
BY_HAND = {"NOTES.txt", "_helpers.tpl", "monitoring-dashboard.yaml", "preconditions.yaml"}


def with_value(name: str, value: object) -> dict[str, Any]:
    """The defaults with one other value, by its dotted name."""
    values: dict[str, Any] = json.loads(json.dumps(VALUES))
    *parents, last = name.split(".")
    room = values
    for parent in parents:
        room = room[parent]
    room[last] = value
    return values


def test_chart_schema_allows_the_defaults() -> None:
    assert list(JUDGE.iter_errors(VALUES)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("imagee", {}),
        ("image.repository", 'x"; true'),
        ("image.repository", "https://registry.example.com/gpu-healthcheck"),
        ("image.repository", "gpu-healthcheck:1.2.3"),
        ("image.tag", "a b"),
        ("image.digest", "sha256:0"),
        ("imagePullSecrets", [{"name": "A secret"}]),
        ("slim.memory", "much"),
        ("runtimeClassName", "A class"),
        ("agent.affinity", {"requiredDuringSchedulingIgnoredDuringExecution": {}}),
        ("agent.tolerations", [{"key": "a", "operator": "Is"}]),
        ("agent.maxUnavailable", "10"),
        ("agent.maxUnavailable", "0%"),
        ("agent.resources", {"limits": {"memory": "much"}}),
        ("sweeper.schedule", "never"),
        ("sweep.tolerations", [{"operator": "Exists"}]),
        ("sweep.tolerations", [{"key": "", "operator": "Exists"}]),
        ("sweep.tolerations", [{"key": "gpu-healthcheck.aws-samples.io/unhealthy", "operator": "Exists"}]),
        ("instanceProfiles", "p5.48xlarge 8 32"),
        ("podMonitor.interval", "30"),
        ("prometheusRule.severities", {"GpuNodeFlaw": "critical"}),
        ("prometheusRule.severities", {"GpuNodeFault": "Very bad"}),
        ("prometheusRule.for", {"GpuFleetFaults": "5m"}),
        ("prometheusRule.for", {"GpuNodeFault": "soon"}),
        ("prometheusRule.runbookUrl", "javascript:alert(1)"),
        ("prometheusRule.job", 'a", b="c'),
        ("settings.CHECK_INTERVALL", 300),
    ],
)
def test_chart_schema_refuses_an_invalid_value(name: str, value: object) -> None:
    assert not JUDGE.is_valid(with_value(name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image.repository", "localhost:5000/a/gpu-healthcheck"),
        ("image.repository", "123456789012.dkr.ecr.us-west-2.amazonaws.com/gpu_health__check"),
        ("agent.resources", {"requests": {"cpu": 1, "memory": "1.5Gi"}, "limits": {"memory": "2e9"}}),
        ("sweeper.schedule", "@hourly"),
        ("sweep.tolerations", [{"key": "dedicated", "value": "gpu"}]),
        ("instanceProfiles", "# ours\n\nx9.big | 8 | 0 | true | - # a comment\ny9.big|1|0|false|efa\n"),
    ],
)
def test_chart_schema_allows_other_forms_of_a_value(name: str, value: object) -> None:
    assert list(JUDGE.iter_errors(with_value(name, value))) == []


@pytest.mark.parametrize("key", keys.KEYS, ids=lambda key: key.name)
def test_chart_schema_allows_null_only_for_optional_values(key: keys.Key) -> None:
    """Helm leaves the key out then."""
    values = with_value(key.name, None)
    *parents, last = key.name.split(".")
    del reduce(lambda room, parent: room[parent], parents, values)[last]

    assert JUDGE.is_valid(values) == key.is_optional


WORDS: dict[str, tuple[str, ...]] = {
    "CHECKS_LIGHTWEIGHT": (
        "0",
        "0 2 xid",
        " efa-count  8 ",
        "0-nvidia-smi",
        "",
        " ",
        "1",
        "0 4",
        "nonsense",
        "0,2",
        "0\n2 1",
    ),
    "BUDGET_LABEL": ("", "pool", "topology.kubernetes.io/zone", "a b", "A.example/b", "x/y/z", "-a", "a" * 64),
    "DCGM_HOST": ("", "localhost", "dcgm.example.com:5555", "[::1]:5555", "a b", "-host", "a:b", "a;b", "a/b"),
    "REPAIR_CONDITIONS": (
        *("", "GpuRebootRequired", "GpuRebootRequired, AcceleratedHardwareReady", "Nonsense"),
        "GpuRebootRequired GpuReplacementRequired",
    ),
    "severity-overrides": (
        *("", "xid 13 = RESET", "# why\n\nGpuCountLow=REBOOT # aside\n  SXid  11004 = MONITOR\n", "dcgm 5 = PASS"),
        *("xid 43 = RESET after 3 in 10m\nXid43 = PASS # aside", "SXID 20034=ISOLATE  after  16  in  90s # aside"),
        *("xid 43 = RESET after 1 in 10m", "xid 43 = RESET after 17 in 10m", "xid 43 = PASS after 3 in 10m"),
        *("xid 43 = RESET after 3 in 10", "xid 43 = RESET after 3", "dcgm 5 = RESET after 3 in 10m"),
        *("GpuCountLow = RESET after 3 in 10m", "xid 43 = RESET within 10m"),
        *("garbage", "xid 13 = BAD", "xid = RESET", "xid 13 = RESET\ngarbage", "xid13 = RESET", "a b = RESET"),
    ),
    "node-overrides": (
        *("", "# why\n\nteam=research: TAINT_SEVERITY=REBOOT # aside\n  !spot , pool in (a, b):EVICT_SEVERITY=  "),
        *(
            "a: EVICT_DELAY=0 DCGM_L2_INTERVAL=86400",
            "x.io/a-b != c_d: ENABLE_TAINT=false",
            "a notin (,): GATE_SEVERITY=ISOLATE",
        ),
        *("a==b,c: CHECKS_LIGHTWEIGHT=0,2,xid", "a: EVICT_SEVERITY=REBOOT\nb: EVICT_SEVERITY= TAINT_SEVERITY=RESET"),
        *(
            "a",
            "a:",
            ": TAINT_SEVERITY=RESET",
            "a b: TAINT_SEVERITY=RESET",
            "a: CHECK_INTERVAL=60",
            "a: TAINT_SEVERITY",
        ),
        *(
            "a: TAINT_SEVERITY=PASS",
            "a: EVICT_SEVERITY=RESET",
            "a: ENABLE_TAINT=perhaps",
            "a: EVICT_DELAY=-1",
            "a: EVICT_DELAY=",
        ),
        *(
            "a: CHECKS_LIGHTWEIGHT=1",
            "a: CHECKS_LIGHTWEIGHT=0 2",
            "a,: ENABLE_TAINT=true",
            "a in b: ENABLE_TAINT=true",
            "-a: ENABLE_TAINT=true",
        ),
        *(
            f"{'a' * 64}: ENABLE_TAINT=true",
            f"a={'b' * 64}: ENABLE_TAINT=true",
            "a=b/c: ENABLE_TAINT=true",
            "a > 1: ENABLE_TAINT=true",
        ),
    ),
    "SWEEP_NAMESPACE": ("sweeps", "a" * 63, "", "Bad Name", "a" * 64, "-a", "a\nb"),
}
"""Of settings that are text, some that the product takes and some that it refuses."""


def tried(name: str) -> Iterator[object]:
    """Values around every edge that a setting may have."""
    entry = SCHEMA["properties"]["settings"]["properties"][name]
    if entry.get("type") == "integer":
        edges = (entry["minimum"], entry["maximum"], 1, 500)
        yield from {edge + step for edge in edges for step in (-1, 0, 1)}
    elif entry.get("type") == "boolean":
        yield from (True, False, "perhaps")
    elif "enum" in entry:
        yield from ("PASS", "MONITOR", "RESET", "REBOOT", "ISOLATE", "reset", "")
    else:
        yield from ([], {}, *WORDS[name])


@pytest.mark.parametrize("name", VALUES["settings"])
def test_chart_schema_allows_the_settings_that_the_agent_accepts(name: str) -> None:
    for value in tried(name):
        assert JUDGE.is_valid(with_value(f"settings.{name}", value)) == settings.allowed(name, value), value


def test_chart_has_no_stale_files() -> None:
    made = {path.name for path in chart.rendered() if path.parent.name == "templates"}
    there = {path.name for path in (chart.CHART / "templates").iterdir() if path.is_file()}

    assert there - made <= BY_HAND


def test_chart_images_follow_the_values() -> None:
    overlays = [
        templates.OVERLAYS / name
        for name in ("gate/policy.yaml", "reset-automation/cronjob.yaml", "evict/deployment.yaml")
    ]
    files = (*MANIFESTS.glob("*.yaml"), *overlays)
    plain = "".join(file.read_text() for file in files).count(templates.IMAGE)
    made = "".join(templates.templates().values())

    assert templates.IMAGE not in made
    assert made.count('include "gpu-healthcheck.image"') + made.count('include "gpu-healthcheck.agentImage"') == plain


def test_chart_lists_every_workload_as_pods() -> None:
    """A program that is added to the manifests gets its own."""
    programs = {source for source in templates.sources() if source[0] in ("DaemonSet", "CronJob", "Job", "Deployment")}

    assert programs == set(keys.PODS)


def test_chart_policies_are_in_the_ordered_list() -> None:
    outside = [text for name, text in templates.templates().items() if name != "policies-and-programs.yaml"]

    assert "\nkind: ValidatingAdmissionPolicy" not in "".join(outside)


def test_chart_policies_precede_the_pods() -> None:
    text = templates.templates()["policies-and-programs.yaml"]
    kinds = [line.split()[-1] for line in text.splitlines() if line.startswith("    kind: ")]

    pods = [kind in ("DaemonSet", "Deployment", "CronJob") for kind in kinds]
    assert pods == sorted(pods)
    assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") > 0


def test_policies_have_an_early_sync_wave() -> None:
    policies = [
        document.content["metadata"] for key, document in templates.sources().items() if key[0].startswith("Validating")
    ]

    assert {policy["annotations"]["argocd.argoproj.io/sync-wave"] for policy in policies} == {"-1"}


def test_chart_has_the_product_version() -> None:
    written = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())

    assert f"gpu-healthcheck:{written['appVersion']}" == templates.IMAGE
    assert written["version"] == written["appVersion"]
    assert Path(chart.CHART / "templates" / "NOTES.txt").is_file()
