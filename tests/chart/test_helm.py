"""The chart by the real Helm: the same objects as kubectl's."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.sim.control_plane import MANIFESTS, binaries
from tests.chart.conftest import Helm, objects_of, rendered
from tests.image.test_overlays import flat
from tests.overlays import OVERLAYS, folder_of
from tools.chart import CHART
from tools.chart.keys import ADDED, LABELLED
from tools.chart.templates import HELMS_OWN, IMAGE
from tools.release.files import package_chart
from tools.rules import plain_rules as overlay_rules

ROOT = Path(__file__).parents[2]
DIGEST = f"sha256:{'0' * 64}"

SAME_AS: Mapping[str, tuple[str, ...]] = {
    "example": ("image.repository=registry.example.com/gpu-healthcheck",),
    "slim-agent": ("slim.enabled=true",),
    "only-gpu-nodes": ("onlyGpuNodes=true",),
    "runtime-class": ("runtimeClassName=nvidia",),
}
"""Of each overlay: the values that say the same."""


def without_helms_own(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the objects by path, as kubectl would apply them, without the object that Helm creates."""
    return flat([entry for entry in objects if (entry["kind"], entry["metadata"]["name"]) != HELMS_OWN])


def kustomized(folder: str) -> list[dict[str, Any]]:
    """Return the objects rendered by the kustomize in kubectl, which contacts no server."""
    command = [str(binaries() / "kubectl"), "kustomize", folder]
    return list(objects_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def manifests() -> list[dict[str, Any]]:
    return [entry for file in sorted(MANIFESTS.glob("*.yaml")) for entry in objects_of(file.read_text())]


def test_chart_with_defaults_equals_the_manifests(helm: Helm) -> None:
    """The objects are equal, except for the release's namespace, which Helm itself creates."""
    made = rendered(helm)

    assert flat(made) == without_helms_own(manifests())
    assert len(made) == len(manifests()) - 1


@pytest.mark.parametrize("overlay", SAME_AS)
def test_chart_with_values_equals_a_changing_overlay(helm: Helm, overlay: str, tmp_path: Path) -> None:
    made = flat(rendered(helm, *(f"--set={text}" for text in SAME_AS[overlay])))

    assert made == without_helms_own(kustomized(folder_of(overlay, tmp_path)))


@pytest.mark.parametrize("overlay", ADDED)
def test_chart_with_values_equals_an_adding_overlay(helm: Helm, overlay: str) -> None:
    """Kustomize changes none of them, but how their texts are broken into lines."""
    names = yaml.safe_load((OVERLAYS / overlay / "kustomization.yaml").read_text())["resources"]
    paths = [OVERLAYS / overlay / name for name in names]
    added = [entry for path in paths if path.is_file() for entry in objects_of(path.read_text())]
    added += [entry for path in paths if path.is_dir() for entry in kustomized(str(path))]
    keys = (*LABELLED.values(), "dashboards") if overlay == "monitoring" else (ADDED[overlay],)
    made = rendered(helm, *(f"--set={key}.enabled=true" for key in keys))

    assert flat(made) == without_helms_own([*manifests(), *added])


def test_chart_rules_follow_the_values(helm: Helm, tmp_path: Path) -> None:
    assert plain_rules(helm) == yaml.safe_load(overlay_rules())

    file = tmp_path / "values.yaml"
    chosen = {
        "severities": {"GpuNodeResetNeeded": "page", "GpuUnderutilized": "none"},
        "for": {"GpuNodeFault": "5m"},
        "runbookUrl": "https://wiki.example.com/gpu",
        "namespace": "gpu",
        "job": "agents",
        "fleetFaults": 12,
        "budgetUsed": 0.5,
        "throttledAboveType": 0.3,
        "typeSlow": 0.4,
        "temperatureMargin": 7,
        "memoryUsed": 0.99,
        "utilization": 3,
        "sweeperSeconds": 86400,
    }
    file.write_text(
        json.dumps({"prometheusRule": chosen, "settings": {"CHECK_INTERVAL": 900, "MAX_UNHEALTHY_PERCENT": 7}})
    )
    groups = plain_rules(helm, f"--values={file}")["groups"]
    rules = {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}
    texts = " ".join(rule["expr"] for rule in rules.values())

    assert "GpuUnderutilized" not in rules
    assert rules["GpuNodeResetNeeded"]["labels"]["severity"] == "page"
    assert rules["GpuNodeFault"]["for"] == "5m"
    assert rules["GpuNodeFault"]["annotations"]["runbook_url"] == "https://wiki.example.com/gpu#gpunodefault"
    assert rules["GpuFleetFaults"]["expr"].endswith(">= 12")
    for default, value in (("900", "2700"), ('"gpu-healthcheck"', '"gpu"'), ("> 7200", "> 86400")):
        assert default not in texts.replace("86400", "").replace("time() - 900", "")
        assert value in texts
    for value in ('namespace="gpu-budget"', 'job=~"agents"', "- 7)", "> 0.99", "* 7 / 100", ">= 0.5"):
        assert value in texts


def plain_rules(helm: Helm, *words: str) -> dict[str, Any]:
    """Return the chart's rules as docs/alerts.md makes them from the PrometheusRule."""
    template = ("template", "gpu-healthcheck", str(CHART), "-s", "templates/monitoring-prometheus-rule.yaml")
    done = helm(*template, "--set=prometheusRule.enabled=true", *words)
    assert done.returncode == 0, done.stderr
    command = ["sed", "-n", r"/^  groups:/,$ s/^  //p"]
    text = subprocess.run(command, input=done.stdout, capture_output=True, text=True, check=True).stdout
    rules: dict[str, Any] = yaml.safe_load(text)
    return rules


def test_chart_tests_cover_every_overlay() -> None:
    assert sorted([*SAME_AS, *ADDED]) == sorted(folder.name for folder in OVERLAYS.iterdir())


def test_chart_puts_values_into_their_places(helm: Helm, tmp_path: Path) -> None:
    values = {
        "image": {"repository": "r.example.com:5000/a/gpu-healthcheck", "digest": DIGEST},
        "imagePullSecrets": [{"name": "registry"}],
        "instanceProfiles": "x9.large|8|0|true|efa\n",
        "agent": {
            "metricsPort": 9000,
            "logLevel": "debug",
            "nodeSelector": {"a": "b"},
            "tolerations": [],
            "resources": {"limits": {"memory": None}},
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "settings": {"MONITOR_TTL": 31536000, "severity-overrides": "xid 13 = RESET\n# <&>", "STRICT_PSHC": True},
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    made = {(entry["kind"], entry["metadata"]["name"]): entry for entry in rendered(helm, f"--values={file}")}

    image = f"r.example.com:5000/a/gpu-healthcheck@{DIGEST}"
    data = made["ConfigMap", "gpu-healthcheck-config"]["data"]
    pod = made["DaemonSet", "gpu-healthcheck-agent"]["spec"]["template"]["spec"]
    jobs = [
        entry["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for (kind, _), entry in made.items()
        if kind == "CronJob"
    ]
    named = made["ValidatingAdmissionPolicy", "gpu-healthcheck-sweeper-jobs"]["spec"]["variables"][0]
    assert json.loads(named["expression"]) == image
    assert {job["containers"][0]["image"] for job in (pod, *jobs)} == {image}
    assert [job["imagePullSecrets"] for job in (pod, *jobs)] == [[{"name": "registry"}]] * 5
    assert (pod["nodeSelector"], pod.get("tolerations")) == ({"a": "b"}, None)
    assert pod["containers"][0]["resources"] == {"limits": {}, "requests": {"cpu": "50m", "memory": "96Mi"}}
    fields = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert (fields["METRICS_PORT"], fields["LOG_LEVEL"], len(fields)) == ("9000", "debug", 4)
    assert pod["containers"][0]["ports"][0]["containerPort"] == 9000
    assert (data["MONITOR_TTL"], data["STRICT_PSHC"], len(data)) == ("31536000", "true", 4)
    assert (data["severity-overrides"], data["instance-profiles.conf"]) == (
        "xid 13 = RESET\n# <&>",
        "x9.large|8|0|true|efa\n",
    )
    assert made["PodMonitor", "gpu-healthcheck"]["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.cluster
@pytest.mark.parametrize("only_gpu_nodes", [False, True])
def test_example_overlay_names_the_registry_everywhere(tmp_path: Path, only_gpu_nodes: bool) -> None:
    shutil.copytree(OVERLAYS.parent, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes" / "overlays" / "example" / "kustomization.yaml"
    text = file.read_text()
    for overlay in ("evict", "gate", "reset-automation"):
        text = text.replace(f"\n#  - ../{overlay}", f"\n  - ../{overlay}")
    if only_gpu_nodes:
        text = text.replace("components: []", "components:").replace("\n#  - ../only", "\n  - ../only")
    file.write_text(text)
    made = {(entry["kind"], entry["metadata"]["name"]): entry.get("spec", {}) for entry in kustomized(str(file.parent))}

    pod = made["CronJob", "gpu-healthcheck-reset-automation"]["jobTemplate"]["spec"]["template"]["spec"]
    policy = made["MutatingAdmissionPolicy", "gpu-healthcheck-gate"]["variables"][0]["expression"]
    sweeper = made["CronJob", "gpu-healthcheck-sweeper"]["jobTemplate"]["spec"]["template"]["spec"]
    evict = made["Deployment", "gpu-healthcheck-evict"]["template"]["spec"]
    assert ["affinity" in spec for spec in (pod, sweeper, evict)] == [not only_gpu_nodes] * 3
    images = [spec["containers"][0]["image"] for spec in (pod, evict)]
    assert [*images, json.loads(policy)] == [f"registry.example.com/{IMAGE}"] * 3


GATED = ("--set=gate.enabled=true", "--show-only=templates/gate-policy.yaml", "--kube-version=1.36.0")
BETA, STABLE = (
    f"--api-versions=admissionregistration.k8s.io/{version}/MutatingAdmissionPolicy" for version in ("v1beta1", "v1")
)
SERVER = "--api-versions=apps/v1/DaemonSet"
"""A kind that the API versions have only if an API server was asked."""


def test_chart_gate_has_the_image_and_port_of_the_agents(helm: Helm) -> None:
    values = ("slim.enabled=true", "image.repository=r.example.com/a/b", "image.pullPolicy=Always")
    policy, _ = rendered(helm, *GATED, *(f"--set={text}" for text in values), "--set=agent.metricsPort=9000")
    texts = {one["name"]: one["expression"] for one in policy["spec"]["variables"]}

    image, port, pull_policy = (json.loads(texts[name]) for name in ("image", "port", "pullPolicy"))
    assert image.startswith("r.example.com/a/b:")
    assert image.endswith("-slim")
    assert (port, pull_policy) == ("9000", "Always")


@pytest.mark.parametrize(
    ("served", "version"), [((), "v1"), ((SERVER, BETA), "v1beta1"), ((SERVER, BETA, STABLE), "v1")]
)
def test_chart_gate_policy_has_a_served_version(helm: Helm, served: tuple[str, ...], version: str) -> None:
    versions = {entry["apiVersion"] for entry in rendered(helm, *GATED, *served)}

    assert versions == {f"admissionregistration.k8s.io/{version}"}


@pytest.mark.parametrize(
    ("words", "namespace", "message"),
    [
        ((), "default", "the namespace of the release must be gpu-healthcheck, not default"),
        (("--set=slim.enabled=true", f"--set=image.digest={DIGEST}"), "gpu-healthcheck", "needs slim.digest"),
        (("--set=gate.enabled=true", SERVER), "gpu-healthcheck", "does not serve: use Kubernetes 1.36"),
        (("--set=settings.CHECK_INTERVAL=5",), "gpu-healthcheck", "CHECK_INTERVAL"),
        (("--set=settings.CHECK_INTERVAL=null",), "gpu-healthcheck", "CHECK_INTERVAL"),
        (("--set=image.repository=null", "--set=agent=null"), "gpu-healthcheck", "missing property 'repository'"),
        (("--set=settings.severity-overrides=xid 13",), "gpu-healthcheck", "severity-overrides"),
        (("--set=settings.node-overrides=a: NONSENSE=1",), "gpu-healthcheck", "node-overrides"),
        (("--set=setings.CHECK_INTERVAL=5",), "gpu-healthcheck", "setings"),
    ],
)
def test_chart_refuses_invalid_values_with_a_message(
    helm: Helm, words: tuple[str, ...], namespace: str, message: str
) -> None:
    done = helm("template", "gpu-healthcheck", str(CHART), *words, namespace=namespace)

    assert done.returncode != 0
    assert message in done.stderr


def test_chart_passes_helm_lint(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))

    assert done.returncode == 0, done.stdout


def test_pod_of_helms_test_can_write_the_settings_that_it_judges(helm: Helm) -> None:
    """`verify` writes the ConfigMap's keys as files, to the folder for temporary ones."""
    shown = helm("template", "gpu-healthcheck", str(CHART), "--show-only=templates/tests/verify.yaml").stdout
    (pod,) = (entry["spec"] for entry in yaml.safe_load_all(shown) if entry["kind"] == "Pod")

    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == ["/tmp"]
    assert [volume.keys() for volume in pod["volumes"]] == [{"name", "emptyDir"}]


def test_packed_charts_of_equal_files_are_identical_and_installable(helm: Helm, tmp_path: Path) -> None:
    digest = f"sha256:{'a1' * 32}"
    for name in ("one", "other"):
        package_chart(ROOT, tmp_path / name, "registry.example.com/ours", digest, digest, 1_700_000_000)
    one, other = (next((tmp_path / name).glob("*.tgz")) for name in ("one", "other"))

    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        assert {member.mtime for member in archive} == {1_700_000_000}
    made = helm("template", "gpu-healthcheck", str(one))
    assert (made.returncode, f"image: registry.example.com/ours@{digest}" in made.stdout.replace('"', "")) == (0, True)
