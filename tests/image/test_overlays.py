"""The overlays on a real API server: each changes its own part, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from tests.overlays import OVERLAYS, folder_of

ROOT = Path(__file__).parents[2]
OURS = f"gpu-healthcheck:{__version__}"
DAEMON_SET = "DaemonSet/gpu-healthcheck/gpu-healthcheck-agent"
CONTAINER = f"{DAEMON_SET}/spec/template/spec/containers/0"
POLICIES = [
    f"ValidatingAdmissionPolicy/gpu-healthcheck-{name}/spec/variables/0/expression"
    for name in ("sweeper-jobs", "reset-automation-jobs")
]
CRON_JOBS = [
    f"CronJob/gpu-healthcheck/gpu-healthcheck-{name}"
    for name in ("sweeper", "sweep-node", "quarantine-node", "reset-node")
]
QUARANTINE = CRON_JOBS[2]

# Every path at which the overlay differs from the manifests, with its value. None: absent.
CHANGES: dict[str, dict[str, Any]] = {
    "example": {
        f"{CONTAINER}/image": f"registry.example.com/{OURS}",
        **dict.fromkeys(
            (f"{job}/spec/jobTemplate/spec/template/spec/containers/0/image" for job in CRON_JOBS),
            f"registry.example.com/{OURS}",
        ),
        **dict.fromkeys(POLICIES, f'"registry.example.com/{OURS}"'),
    },
    "slim-agent": {
        f"{CONTAINER}/image": f"{OURS}-slim",
        f"{CONTAINER}/resources/limits/memory": "192Mi",
    },
    "only-gpu-nodes": {
        f"{CRON_JOBS[0]}/spec/jobTemplate/spec/template/spec/affinity/nodeAffinity/"
        f"requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/{path}": None
        for path in (f"{index}/{leaf}" for index in range(4) for leaf in ("key", "operator", "values/0"))
    },
    "runtime-class": {
        f"{QUARANTINE}/spec/jobTemplate/spec/template/spec/runtimeClassName": "nvidia",
        f"{DAEMON_SET}/spec/template/spec/runtimeClassName": "nvidia",
        f"{CONTAINER}/env/NVIDIA_VISIBLE_DEVICES/name": True,
        f"{CONTAINER}/env/NVIDIA_VISIBLE_DEVICES/value": "all",
        f"{CONTAINER}/env/NVIDIA_DRIVER_CAPABILITIES/name": True,
        f"{CONTAINER}/env/NVIDIA_DRIVER_CAPABILITIES/value": "utility",
    },
}


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every scalar by its path. A variable of a container goes by its name, as its place tells nothing.

    Kustomize writes a folded text with more line breaks, which CEL passes over: white space counts once.
    """
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from leaves(entry, f"{path}/{key}")
    elif path.endswith("/env"):
        for entry in value:
            yield from leaves(entry | {"name": True}, f"{path}/{entry['name']}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from leaves(entry, f"{path}/{index}")
    else:
        yield path, " ".join(value.split()) if path.endswith("xpression") else value


def flat(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in objects:
        metadata = entry["metadata"]
        name = "/".join(
            [entry["kind"], *([metadata["namespace"]] if "namespace" in metadata else []), metadata["name"]]
        )
        content = {key: value for key, value in entry.items() if key not in ("metadata", "status")}
        labels = {"metadata/labels": metadata.get("labels")}
        found |= leaves(content | labels, name)
    return found


def dry_run(plane: ControlPlane, *words: str) -> list[dict[str, Any]]:
    """Return the objects after validation, admission and defaults of the API server."""
    printed = plane.kubectl("apply", *words, "--dry-run=server", "--validate=strict", "-o", "json")
    items: list[dict[str, Any]] = json.loads(printed)["items"]
    return items


@pytest.mark.cluster
@pytest.mark.parametrize("overlay", CHANGES)
def test_overlay_changes_only_its_own_paths(installed: ControlPlane, overlay: str, tmp_path: Path) -> None:
    plain = flat(dry_run(installed, "-f", str(MANIFESTS)))
    changed = flat(dry_run(installed, "-k", folder_of(overlay, tmp_path)))

    differing = {path for path in plain | changed if plain.get(path) != changed.get(path)}
    assert {path: changed.get(path) for path in differing} == CHANGES[overlay]


@pytest.mark.cluster
def test_example_overlay_takes_all_components(installed: ControlPlane, tmp_path: Path) -> None:
    """With the comment marks of the components removed; tests/chart has the example with the gate."""
    shutil.copytree(OVERLAYS.parent, tmp_path / "kubernetes")
    example = tmp_path / "kubernetes" / "overlays" / "example"
    file = example / "kustomization.yaml"
    file.write_text(
        file.read_text()
        .replace("components: []", "components:")
        .replace("\n#  - ../", "\n  - ../")
        .replace("  - ../gate", "#")
        .replace("  - ../reset-automation", "#")
        .replace("  - ../evict", "#")
    )
    plain = flat(dry_run(installed, "-f", str(MANIFESTS)))
    changed = flat(dry_run(installed, "-k", str(example)))

    differing = {path for path in plain | changed if plain.get(path) != changed.get(path)}
    together = {path: value for changes in CHANGES.values() for path, value in changes.items()}
    together[f"{CONTAINER}/image"] = f"registry.example.com/{OURS}-slim"
    assert {path: changed.get(path) for path in differing} == together


@pytest.mark.cluster
def test_manifests_apply_as_a_folder_and_as_a_base(installed: ControlPlane) -> None:
    assert flat(dry_run(installed, "-k", str(MANIFESTS))) == flat(dry_run(installed, "-f", str(MANIFESTS)))


@pytest.mark.cluster
def test_example_overlay_installs_and_manifests_undo_it() -> None:
    path = "/apis/apps/v1/namespaces/gpu-healthcheck/daemonsets/gpu-healthcheck-agent"
    with ControlPlane() as bare:
        printed = bare.kubectl("apply", "-k", str(OVERLAYS / "example")).splitlines()
        assert [line for line in printed if not line.endswith(" created")] == []
        first = bare.request("GET", path).body["spec"]["template"]["spec"]["containers"][0]

        bare.kubectl("apply", "-f", str(MANIFESTS))
        second = bare.request("GET", path).body["spec"]["template"]["spec"]["containers"][0]

    assert (first["image"], second["image"]) == (f"registry.example.com/{OURS}", OURS)


ELSEWHERE = "registry.example.com:5000/a/gpu-healthcheck@sha256:0"


@pytest.mark.cluster
def test_manifests_take_another_image_by_sed(installed: ControlPlane) -> None:
    """As docs/install.md has it, and as kustomize does it in the example."""
    files = map(str, sorted(MANIFESTS.glob("*.yaml")))
    sed = subprocess.run(["sed", f"s|{OURS}|{ELSEWHERE}|", *files], check=True, capture_output=True, text=True)
    plain = flat(dry_run(installed, "-f", str(MANIFESTS)))
    changed = flat(
        json.loads(
            installed.kubectl(
                "apply", "-f", "-", "--dry-run=server", "--validate=strict", "-o", "json", input=sed.stdout
            )
        )["items"]
    )

    images = {path: value for path, value in plain.items() if OURS in str(value)}
    expected = {path: value.replace(OURS, ELSEWHERE) for path, value in images.items()}
    assert changed == plain | expected
    assert set(images) == set(CHANGES["example"])


def test_kustomization_names_every_manifest() -> None:
    named = yaml.safe_load((MANIFESTS / "Kustomization").read_text())["resources"]

    assert named == sorted(file.name for file in MANIFESTS.glob("*.yaml"))


def test_manifests_folder_has_no_kustomization_for_kubectl() -> None:
    assert [file.name for file in MANIFESTS.rglob("*ustomization*.y*ml")] == []


def test_overlays_are_tested_or_only_add_objects() -> None:
    adding = {"device-taints", "dra", "evict", "gate", "monitoring", "reset-automation"}

    assert sorted(folder.name for folder in OVERLAYS.iterdir()) == sorted([*CHANGES, *adding])
    for name in adding:
        assert set(yaml.safe_load((OVERLAYS / name / "kustomization.yaml").read_text())) <= {
            "apiVersion",
            "kind",
            "resources",
            "configMapGenerator",
            "generatorOptions",
            *(["patches"] if name == "gate" else []),  # of its own policy
        }
        # kubectl and Helm create RBAC before policies: a policy that limits a permission must exist first.
        texts = [file.read_text() for file in (OVERLAYS / name).glob("*.yaml")]
        assert not any("kind: ValidatingAdmissionPolicy" in text for text in texts)


@pytest.mark.cluster
def test_monitoring_overlay_is_valid_for_the_prometheus_operator(installed: ControlPlane) -> None:
    """By the operator's own definitions, taken strictly: a field that it does not know would be dropped."""
    installed.kubectl("apply", "--server-side", "-f", str(Path(__file__).parent / "prometheus-operator-crds.yaml"))
    installed.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=180s")

    made = dry_run(installed, "-k", str(OVERLAYS / "monitoring"))
    assert {entry["kind"] for entry in made} >= {"PodMonitor", "PrometheusRule"}
