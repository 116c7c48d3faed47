"""The chart's page and metadata on Artifact Hub: its examples render, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck import __version__
from tests.chart.conftest import Helm, rendered
from tools.chart import CHART

ROOT = Path(__file__).parents[2]
README = (CHART / "README.md").read_text()
META = yaml.safe_load((CHART / "Chart.yaml").read_text())
EXAMPLES = dict(re.findall(r"^\*\*(.+?)(?:\.\*\*|\*\*,).*?^```yaml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE))
_OURS = re.compile(
    r"https://(?:github\.com|raw\.githubusercontent\.com)/aws-samples/gpu-healthcheck/"
    r"(?:(?:tree|blob)/)?(main|v[0-9][^/]*)/([\w./-]+)"
)
ADDED = {
    "Observe first": set(),
    "Alerts and a dashboard": {"PodMonitor", "PrometheusRule"},
    "Act without a person": {"Deployment", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"},
}
"""Kinds that an example adds to those of the defaults."""
SET = {
    "Observe first": {"ENABLE_TAINT": "false"},
    "Alerts and a dashboard": {},
    "Act without a person": {"EVICT_SEVERITY": "REBOOT", "MAX_UNHEALTHY_PERCENT": "10"},
}
"""Keys of the ConfigMap that an example sets."""
PROGRAMS = {
    "Observe first": set(),
    "Alerts and a dashboard": set(),
    "Act without a person": {"gpu-healthcheck-evict", "gpu-healthcheck-reset-automation"},
}
"""Deployments and CronJobs that an example adds."""


def links(text: str) -> list[tuple[str, str]]:
    """Return revision and path of each link into this repository."""
    return _OURS.findall(text)


@pytest.mark.parametrize("name", ADDED)
def test_examples_render(name: str, helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(EXAMPLES[name])
    plain, made = rendered(helm), rendered(helm, f"--values={tmp_path / 'values.yaml'}")

    assert set(EXAMPLES) == set(ADDED)
    assert kinds(made) - kinds(plain) == ADDED[name]
    assert programs(made) - programs(plain) == PROGRAMS[name]
    assert config(made).items() - config(plain).items() == SET[name].items()


def kinds(objects: list[dict[str, Any]]) -> set[str]:
    return {entry["kind"] for entry in objects}


def programs(objects: list[dict[str, Any]]) -> set[str]:
    return {entry["metadata"]["name"] for entry in objects if entry["kind"] in {"Deployment", "CronJob"}}


def config(objects: list[dict[str, Any]]) -> dict[str, str]:
    (found,) = (entry for entry in objects if entry["metadata"]["name"] == "gpu-healthcheck-config")
    data: dict[str, str] = found.get("data") or {}
    return data


def test_example_with_an_unknown_value_does_not_render(helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(EXAMPLES["Observe first"].replace("ENABLE_TAINT", "ENABLE_TAINTS"))
    done = helm("template", "gpu-healthcheck", str(CHART), f"--values={tmp_path / 'values.yaml'}")

    assert done.returncode != 0
    assert "ENABLE_TAINTS" in done.stderr


@pytest.mark.parametrize("text", [README, (CHART / "Chart.yaml").read_text()], ids=["README.md", "Chart.yaml"])
def test_links_into_the_repository_lead_to_a_file(text: str) -> None:
    assert len(links(text)) >= 3
    assert [path for _, path in links(text) if not (ROOT / path).exists()] == []


def test_metadata_is_that_of_this_version_and_licence() -> None:
    annotations = META["annotations"]
    listed = [
        entry for key in ("links", "screenshots") for entry in yaml.safe_load(annotations[f"artifacthub.io/{key}"])
    ]

    assert all({*entry} <= {"name", "title", "url"} for entry in listed)
    assert {revision for revision, _ in links((CHART / "Chart.yaml").read_text())} == {f"v{__version__}"}
    assert f'license = "{annotations["artifacthub.io/license"]}"' in (ROOT / "pyproject.toml").read_text()
    assert META["maintainers"]


def test_icon_is_an_svg_without_scripts_and_references() -> None:
    (_, path), *_ = links(META["icon"])
    icon = (ROOT / path).read_text()

    assert icon.startswith("<svg ")
    assert re.findall(r"<script|href|url\(|<!|\son\w+=", icon) == []


def test_repository_file_names_only_known_keys() -> None:
    written = yaml.safe_load((ROOT / "charts/artifacthub-repo.yml").read_text())

    assert set(written) <= {"repositoryID", "owners", "ignore"}
